"""Small dense linear algebra on many lanes at once, with the lanes (samples) on the last axis.

LAPACK called on a batch of 3×3 systems spends its time in the calls. Elimination written over whole rows of lanes is
a handful of fused vector instructions per pivot instead.
"""

import jax.numpy as jnp

from amp_attention._typing import Array, Float


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
    size = matrix.shape[0]
    rows, rights, pivots = [], [], []
    for _ in range(size):
        pivot, row, head = matrix[0, 0], matrix[0, 1:], right[0]
        factor = row / pivot[None]
        rows.append(factor)
        rights.append(head / pivot[None])
        pivots.append(pivot)
        right = right[1:] - factor[:, None] * head[None]
        matrix = matrix[1:, 1:] - factor[:, None] * row[None]
    solution = rights[-1][None]
    for factor, head in zip(rows[-2::-1], rights[-2::-1], strict=True):
        solution = jnp.concatenate([(head - jnp.sum(factor[:, None] * solution, axis=0))[None], solution])
    return solution, jnp.min(jnp.stack(pivots), axis=0)
