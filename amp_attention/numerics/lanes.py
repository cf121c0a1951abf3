"""Small dense linear algebra on many lanes at once, with the lanes (samples) on the last axis.

LAPACK called on a batch of 3×3 systems spends its time in the calls; elimination over whole rows of lanes is a handful
of vector instructions per pivot instead.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from amp_attention._typing import Array, Float

_TOGETHER = 28  # unknowns, the scores of T = 7 tokens
_LANES = 1024
_LANE_NUMBERS = 1_000_000  # in the K×K matrices of all lanes


def lane_count(size: int) -> int:
    """Lanes of K = `size` unknowns worked on together: enough to pay for the calls, fewer where K×K is large."""
    return max(1, min(_LANES, _LANE_NUMBERS // size**2))


def solve_symmetric(matrix: Float[Array, "K K n"], right: Float[Array, "K m n"]) -> Float[Array, "K m n"]:
    """Solve a symmetric positive definite system in every lane.

    Derivatives of every order and mode are those of the solution: the elimination is not differentiated.

    Args:
        matrix: one a lane.
        right: right-hand sides, m columns a lane.
    """
    return jax.lax.custom_linear_solve(
        lambda x: jnp.sum(matrix[:, :, None] * x[None], axis=1),
        right,
        lambda _, right: eliminate(matrix, right)[0],
        symmetric=True,
    )


def eliminate(
    matrix: Float[Array, "K K n"], right: Float[Array, "K m n"]
) -> tuple[Float[Array, "K m n"], Float[Array, " n"]]:
    """`solve_symmetric` by elimination without pivoting, for any symmetric matrix.

    Returns:
        The solutions, and the smallest pivot of each lane: positive exactly where the matrix is positive definite.
    """
    return (_gauss_jordan if matrix.shape[0] <= _TOGETHER else _cholesky)(matrix, right)


def _reciprocal(pivot):
    """A pivot of exactly 0 is one that rounding has lost beside far larger entries: nothing is known along it."""
    lost = pivot == 0
    return jnp.where(lost, jnp.zeros_like(pivot), 1 / jnp.where(lost, jnp.ones_like(pivot), pivot))


def _gauss_jordan(matrix, right):
    """Every pivot clears its column, above and below."""
    size = matrix.shape[0]
    rows = jnp.arange(size)[:, None]

    def clear(k, carry):
        A, x = carry
        pivot_row, pivot_right = A[k], x[k]
        factor = jnp.where(rows == k, jnp.zeros_like(A[:, k]), A[:, k] * _reciprocal(pivot_row[k])[None])
        return A - factor[:, None] * pivot_row[None], x - factor[:, None] * pivot_right[None]

    A, x = jax.lax.fori_loop(0, size, clear, (matrix, right))
    pivots = jnp.diagonal(A).T
    return x * _reciprocal(pivots)[:, None], jnp.min(pivots, axis=0)


def _cholesky(matrix, right):
    """One lane after the other: a batched LAPACK call waits for threads that a mesh of as many devices keeps busy."""

    def one(system):
        A, b = system
        L = jnp.linalg.cholesky(A, symmetrize_input=False)
        solution = solve_triangular(L, solve_triangular(L, b, lower=True), lower=True, trans=1)
        return solution, jnp.min(jnp.diagonal(L)) ** 2

    solution, pivot = jax.lax.map(one, (jnp.moveaxis(matrix, -1, 0), jnp.moveaxis(right, -1, 0)))
    return jnp.moveaxis(solution, 0, -1), jnp.where(jnp.isnan(pivot), -jnp.ones_like(pivot), pivot)
