"""Packing of symmetric score matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from amp_attention.numerics.packing import diagonal_weights, pack, packed_size, tokens_of, unpack


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 16])
def test_size_and_its_inverse(tokens):
    assert packed_size(tokens) == tokens * (tokens + 1) // 2
    assert tokens_of(packed_size(tokens)) == tokens


@settings(max_examples=20, deadline=None)
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
