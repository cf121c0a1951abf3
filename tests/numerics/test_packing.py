"""Packing of symmetric score matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from amp_attention.numerics.packing import (
    diagonal_weights,
    pack,
    packed_size,
    symmetric_gradient,
    symmetric_hessian,
    tokens_of,
    unpack,
)


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 16])
def test_size_and_its_inverse(tokens):
    assert packed_size(tokens) == tokens * (tokens + 1) // 2
    assert tokens_of(packed_size(tokens)) == tokens


@settings(max_examples=20)
@given(tokens=st.integers(1, 6), samples=st.integers(1, 4))
def test_unpack_gives_the_symmetric_matrix_and_pack_undoes_it(tokens, samples):
    z = jax.random.normal(jax.random.key(tokens), (packed_size(tokens), samples))
    h = unpack(z)
    assert h.shape == (tokens, tokens, samples)
    assert jnp.array_equal(h, jnp.swapaxes(h, 0, 1))
    np.testing.assert_allclose(pack(h), z, rtol=1e-15)


def test_diagonal_scores_carry_root_two():
    z = jnp.array([1.0, 10.0, 100.0])
    np.testing.assert_allclose(unpack(z), [[2**0.5, 10.0], [10.0, 100 * 2**0.5]])
    np.testing.assert_allclose(diagonal_weights(2), [2**0.5, 1.0, 2**0.5])


def test_half_the_squared_norm_of_h_is_the_squared_norm_of_z():
    # Σ_ab h_ab² = 2 Σ_{a≤b} z_ab², which makes every z of equal variance.
    z = jax.random.normal(jax.random.key(0), (6,))
    np.testing.assert_allclose(jnp.sum(unpack(z) ** 2), 2 * jnp.sum(z**2))


@pytest.mark.parametrize("tokens", [2, 5])
def test_derivatives_in_z_from_those_of_the_rows(tokens):
    """f = Σ_a f_a(h_a1, ..., h_aT), f_a = Π_b sin(h_ab + a), against automatic differentiation through `unpack`."""

    def of_row(a, row):
        return jnp.prod(jnp.sin(row + a))

    def total(z):
        h = unpack(z)
        return sum(of_row(a, h[a]) for a in range(tokens))

    z = jax.random.normal(jax.random.key(tokens), (packed_size(tokens), 3))
    h = unpack(z)
    rows = jnp.stack([jax.vmap(jax.grad(of_row, argnums=1), (None, 1), 1)(float(a), h[a]) for a in range(tokens)])
    curvatures = jnp.stack(
        [jax.vmap(jax.hessian(of_row, argnums=1), (None, 1), 2)(float(a), h[a]) for a in range(tokens)]
    )
    np.testing.assert_allclose(symmetric_gradient(rows), jax.vmap(jax.grad(total), 1, 1)(z), atol=1e-13)
    np.testing.assert_allclose(symmetric_hessian(curvatures), jax.vmap(jax.hessian(total), 1, 2)(z), atol=1e-13)
