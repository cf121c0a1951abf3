"""Batched symmetric solves, lanes last."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.numerics.lanes import eliminate, solve_symmetric


@pytest.mark.parametrize("size", [1, 2, 3, 15, 30])
def test_agrees_with_lapack_in_every_lane(size):
    key = jax.random.key(size)
    factor = jax.random.normal(key, (7, size, size))
    matrices = factor @ jnp.swapaxes(factor, 1, 2) + 0.1 * jnp.eye(size)[None]
    right = jax.random.normal(jax.random.fold_in(key, 1), (7, size, 2))
    solution, pivot = eliminate(jnp.moveaxis(matrices, 0, -1), jnp.moveaxis(right, 0, -1))
    np.testing.assert_allclose(jnp.moveaxis(solution, -1, 0), jnp.linalg.solve(matrices, right), rtol=1e-8, atol=1e-10)
    assert jnp.all(pivot > 0)


def test_smallest_pivot_tells_which_lanes_are_positive_definite():
    matrices = jnp.stack([jnp.diag(jnp.array([1.0, 2.0])), jnp.diag(jnp.array([1.0, -2.0]))], axis=-1)
    _, pivot = eliminate(matrices, jnp.ones((2, 1, 2)))
    np.testing.assert_allclose(pivot, [1.0, -2.0])


@pytest.mark.parametrize("size", [3, 30])
def test_derivatives_are_those_of_the_solution(size):
    def solution(matrix):
        matrix = jnp.eye(size)[..., None] + matrix + jnp.swapaxes(matrix, 0, 1)
        return jnp.sum(solve_symmetric(matrix, right) ** 2)

    def expected(matrix):
        matrix = jnp.eye(size)[..., None] + matrix + jnp.swapaxes(matrix, 0, 1)
        return jnp.sum(jnp.linalg.solve(jnp.moveaxis(matrix, -1, 0), jnp.moveaxis(right, -1, 0)) ** 2)

    key = jax.random.key(size)
    factor, right = jax.random.normal(key, (size, size, 2)), jax.random.normal(key, (size, 1, 2))
    matrix = jnp.einsum("ikn,jkn->ijn", factor, factor)
    along = lambda f: lambda t: jax.grad(f)(matrix + t * matrix)  # noqa: E731
    for ours, theirs in zip(*(jax.jvp(along(f), (0.0,), (1.0,)) for f in (solution, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-12)
