"""Small dense linear algebra on many lanes at once, with the lanes (samples) on the last axis.

LAPACK called on a batch of 3×3 systems spends its time in the calls. Elimination written out over whole rows of lanes
is a handful of fused vector instructions per pivot instead; beyond a few unknowns it only makes programs long.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from amp_attention._typing import Array, Float

_WRITTEN_OUT = 6  # unknowns, the scores of T = 3 tokens
_LANES = 1024
_LANE_NUMBERS = 1_000_000  # in the K×K matrices of all lanes


def lane_count(size: int) -> int:
    """Lanes of K = `size` unknowns worked on together: enough to pay for the calls, fewer where K×K is large."""
    return max(1, min(_LANES, _LANE_NUMBERS // size**2))


def solve_symmetric(
    matrix: Float[Array, "K K n"], right: Float[Array, "K m n"]
) -> tuple[Float[Array, "K m n"], Float[Array, " n"]]:
    """Solve a symmetric system in every lane by LDLᵀ elimination without pivoting.

    Args:
        matrix: symmetric matrices, one a lane; positive definite for the answer to be trusted.
        right: right-hand sides, m columns a lane.

    Returns:
        The solutions, and the smallest pivot of each lane: positive exactly where the matrix is positive definite.
    """
    return (_eliminate if matrix.shape[0] <= _WRITTEN_OUT else _cholesky)(matrix, right)


def _eliminate(matrix, right):
    size = matrix.shape[0]
    A = [[matrix[k, j] for j in range(size)] for k in range(size)]
    x = [right[k] for k in range(size)]
    factors = [[None] * size for _ in range(size)]
    for k in range(size):
        # A pivot of exactly 0 is one that rounding has lost beside far larger entries: nothing is known along it.
        lost = A[k][k] == 0
        inverse = jnp.where(lost, jnp.zeros_like(A[k][k]), 1 / jnp.where(lost, jnp.ones_like(A[k][k]), A[k][k]))
        for i in range(k + 1, size):
            factors[k][i] = A[k][i] * inverse
            for j in range(i, size):
                A[i][j] = A[i][j] - factors[k][i] * A[k][j]
            x[i] = x[i] - factors[k][i][None] * x[k]
        x[k] = x[k] * inverse[None]
    for k in reversed(range(size)):
        for i in range(k + 1, size):
            x[k] = x[k] - factors[k][i][None] * x[i]
    return jnp.stack(x), jnp.min(jnp.stack([A[k][k] for k in range(size)]), axis=0)


def _cholesky(matrix, right):
    """One lane after the other: a batched LAPACK call waits for threads that a mesh of as many devices keeps busy."""

    def one(system):
        A, b = system
        L = jnp.linalg.cholesky(A, symmetrize_input=False)
        solution = solve_triangular(L, solve_triangular(L, b, lower=True), lower=True, trans=1)
        return solution, jnp.min(jnp.diagonal(L)) ** 2

    solution, pivot = jax.lax.map(one, (jnp.moveaxis(matrix, -1, 0), jnp.moveaxis(right, -1, 0)))
    return jnp.moveaxis(solution, 0, -1), jnp.where(jnp.isnan(pivot), -jnp.ones_like(pivot), pivot)
