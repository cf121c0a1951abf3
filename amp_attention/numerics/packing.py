"""Packing of symmetric T×T score matrices into vectors of length K = T(T+1)/2.

A symmetric matrix h of scores is stored as z_ab = h_ab/√(1+δ_ab) for a ≤ b, row by row. With this normalisation every
component of z has the same variance Q = Tr(S²)/d (theory: h_ab = √(1+δ_ab) z_ab).
"""

import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float

_WRITTEN_OUT = 4  # tokens up to which T×T arrays are taken apart entry by entry, which compiles to vector instructions


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


def positions(tokens: int) -> np.ndarray:
    """(T, T) positions of the entries of a symmetric matrix in packing order."""
    rows, columns = upper_triangle(tokens)
    position = np.zeros((tokens, tokens), int)
    position[rows, columns] = position[columns, rows] = np.arange(rows.size)
    return position


def _lanes(weights: np.ndarray, like: Array) -> Array:
    return jnp.asarray(weights, like.dtype).reshape((-1,) + (1,) * (like.ndim - 1))


def unpack(z: Float[Array, "K *n"]) -> Float[Array, "T T *n"]:
    """The symmetric score matrix h of packed normalised scores z; trailing axes are samples."""
    tokens = tokens_of(z.shape[0])
    position = positions(tokens)
    h = z * _lanes(diagonal_weights(tokens), z)
    if tokens > _WRITTEN_OUT:
        return h[position]
    return jnp.stack([jnp.stack([h[position[a, b]] for b in range(tokens)]) for a in range(tokens)])


def pack(h: Float[Array, "T T *n"]) -> Float[Array, "K *n"]:
    """Packed normalised scores of a symmetric matrix h: the inverse of `unpack`. Reads the upper triangle only."""
    rows, columns = upper_triangle(h.shape[0])
    if h.shape[0] > _WRITTEN_OUT:
        z = h[rows, columns]
    else:
        z = jnp.stack([h[a, b] for a, b in zip(rows, columns, strict=True)])
    return z / _lanes(diagonal_weights(h.shape[0]), z)


def symmetric_gradient(rows: Float[Array, "T T *n"]) -> Float[Array, "K *n"]:
    """Derivative in the packed z of a function of h = `unpack(z)`, from that in each entry h_ab taken by itself."""
    tokens = rows.shape[0]
    upper = upper_triangle(tokens)
    if tokens > _WRITTEN_OUT:
        a, b = upper
        z = rows[a, b] + rows[b, a] * _lanes(a != b, rows[0])
    else:
        z = jnp.stack([rows[a, b] if a == b else rows[a, b] + rows[b, a] for a, b in zip(*upper, strict=True)])
    return z * _lanes(diagonal_weights(tokens), z)


def symmetric_hessian(rows: Float[Array, "T T T n"]) -> Float[Array, "K K n"]:
    """Second derivative in the packed z of Σ_a f_a(h_a1, ..., h_aT) of h = `unpack(z)`, from those of the rows.

    Args:
        rows: ∂²f_a/∂h_ab ∂h_ac, at [a, b, c].
    """
    tokens, n = rows.shape[0], rows.shape[-1]
    weights, position = diagonal_weights(tokens), positions(tokens)
    scale = jnp.asarray(weights[:, None] * weights[None, :], rows.dtype)[..., None]
    left = np.repeat(position, tokens, axis=1).ravel()
    right = np.tile(position, tokens).ravel()
    entries = rows.reshape(-1, n)
    if tokens > _WRITTEN_OUT:
        # Two rows at most meet at (k, l), both where k = l = (a, b); the others are sent to a row of zeros.
        sources = np.full((2, weights.size, weights.size), tokens**3)
        for index, pair in enumerate(zip(left, right, strict=True)):
            sources[int(sources[(0, *pair)] < tokens**3), *pair] = index
        entries = jnp.concatenate([entries, jnp.zeros((1, n), rows.dtype)])
        return (entries[sources[0]] + entries[sources[1]]) * scale
    zero = jnp.zeros((n,), rows.dtype)
    sums = {}
    for index, pair in enumerate(zip(left, right, strict=True)):
        sums[pair] = sums[pair] + entries[index] if pair in sums else entries[index]
    K = range(weights.size)
    return jnp.stack([jnp.stack([sums.get((k, l), zero) for l in K]) for k in K]) * scale
