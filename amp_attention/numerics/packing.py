"""Packing of symmetric T×T score matrices into vectors of length K = T(T+1)/2.

A symmetric matrix h of scores is stored as z_ab = h_ab/√(1+δ_ab) for a ≤ b, row by row. With this normalisation every
component of z has the same variance Q = Tr(S²)/d (theory: h_ab = √(1+δ_ab) z_ab).
"""

import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float


def packed_size(tokens: int) -> int:
    """K = T(T+1)/2, the number of independent scores of one sample."""
    return tokens * (tokens + 1) // 2


def tokens_of(size: int) -> int:
    """T such that K = T(T+1)/2."""
    return round((np.sqrt(8 * size + 1) - 1) / 2)


def upper_triangle(tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows a and columns b of the K pairs a ≤ b, in packing order."""
    return np.triu_indices(tokens)


def diagonal_weights(tokens: int) -> np.ndarray:
    """√(1+δ_ab) in packing order, shape (K,)."""
    rows, columns = upper_triangle(tokens)
    return np.sqrt(1.0 + (rows == columns))


def _lanes(weights: np.ndarray, like: Array) -> Array:
    return jnp.asarray(weights, like.dtype).reshape((-1,) + (1,) * (like.ndim - 1))


def unpack(z: Float[Array, "K *n"]) -> Float[Array, "T T *n"]:
    """The symmetric score matrix h of packed normalised scores z; trailing axes are samples."""
    tokens = tokens_of(z.shape[0])
    rows, columns = upper_triangle(tokens)
    position = np.zeros((tokens, tokens), int)
    position[rows, columns] = position[columns, rows] = np.arange(z.shape[0])
    return (z * _lanes(diagonal_weights(tokens), z))[position]


def pack(h: Float[Array, "T T *n"]) -> Float[Array, "K *n"]:
    """Packed normalised scores of a symmetric matrix h: the inverse of `unpack`. Reads the upper triangle only."""
    rows, columns = upper_triangle(h.shape[0])
    z = h[rows, columns]
    return z / _lanes(diagonal_weights(h.shape[0]), z)
