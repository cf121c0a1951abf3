"""The scores of the samples as a linear map of S, and its adjoint; no sensing matrix is ever formed.

z_ab = Tr(A_ab S) with A_ab = (x_a x_bᵀ + x_b x_aᵀ − 2δ_ab I)/(2√d √(1+δ_ab)), a ≤ b. n samples have nK such d×d
matrices; both maps below cost three quarters of one product of size nT×d×d instead: with the coordinates divided into
a first half and the rest, x = (u, v), a symmetric matrix [[A, B], [Bᵀ, C]] is known by its rows [A, B] and C.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar
from amp_attention.data._chunks import fold_chunks
from amp_attention.data._tokens import AbstractTokens
from amp_attention.numerics.packing import diagonal_weights, packed_size, positions, upper_triangle

_WRITTEN_OUT = 4  # tokens up to which scores are written out as products and sums; einsum multiplies small matrices


def _on_diagonal(tokens: int, dtype) -> Array:
    """δ_ab of the K packed pairs, shape (K, 1)."""
    rows, columns = upper_triangle(tokens)
    return jnp.asarray(rows == columns, dtype)[:, None]


def _rows(X):
    return X.reshape(X.shape[0] * X.shape[1], X.shape[2])


def _mapped(X, M):
    """M applied to every token."""
    return jnp.matmul(_rows(X), M, precision="highest").reshape(*X.shape[:2], M.shape[1])


def _gram(X, Y):
    """Σ of x yᵀ over all tokens."""
    return jnp.matmul(_rows(X).T, _rows(Y), precision="highest")


def _inner(X, Y):
    """x_aᵀ y_b of all pairs of tokens of each sample, pairs first."""
    tokens = X.shape[1]
    if tokens > _WRITTEN_OUT:
        return jnp.einsum("nad,nbd->abn", X, Y, precision="highest")
    pairs = [[jnp.sum(X[:, a] * Y[:, b], axis=-1) for b in range(tokens)] for a in range(tokens)]
    return jnp.stack([jnp.stack(row) for row in pairs])


def _scores(S, X):
    tokens, d = X.shape[1:]
    half = d // 2
    U, V = X[..., :half], X[..., half:]
    # Half of x_aᵀSx_b = u_aᵀ(A/2 u_b + B v_b) + v_aᵀ(C/2 v_b) + (a ↔ b), of the symmetric part of whatever S is.
    columns = jnp.concatenate([S[:half, :half], S[half:, :half] + S[:half, half:].T]) / 2
    one_way = _inner(U, _mapped(X, columns)) + _inner(V, _mapped(V, S[half:, half:] / 2))
    h = (one_way + jnp.swapaxes(one_way, 0, 1))[upper_triangle(tokens)]
    z = h / jnp.asarray(diagonal_weights(tokens), S.dtype)[:, None]
    centre = jnp.trace(S) / math.sqrt(2)
    return (z - _on_diagonal(tokens, z.dtype) * centre) / math.sqrt(d)


class AdjointSum(eqx.Module):
    """Σ_μ Σ_{a≤b} g_μ,ab A_μ,ab before it is put together: sums of these over chunks are sums of the matrices.

    Attributes:
        rows: of the sum of all x_a x_bᵀ with their weights, the first half of the rows.
        corner: the rest of it that is not known by symmetry.
        diagonal: the sum of the g_aa, which belong to the identity.
    """

    rows: Float[Array, "half d"]
    corner: Float[Array, "rest rest"]
    diagonal: Scalar

    @property
    def matrix(self) -> Float[Array, "d d"]:
        """The symmetric matrix."""
        half, d = self.rows.shape
        outer = jnp.concatenate([self.rows, jnp.concatenate([self.rows[:, half:].T, self.corner], axis=1)])
        centre = self.diagonal / math.sqrt(2) * jnp.eye(d, dtype=outer.dtype)
        return ((outer + outer.T) / 2 - centre) / math.sqrt(d)


def _adjoint(g, X) -> AdjointSum:
    tokens, half = X.shape[1], X.shape[2] // 2
    # Ordered pairs (a, b): each unordered pair a < b is met twice, so it carries half of g_ab.
    weights = jnp.asarray(diagonal_weights(tokens) / 2, g.dtype)[:, None]
    mixed = jnp.einsum("abn,nbd->nad", (weights * g)[positions(tokens)], X, precision="highest")
    U, V = X[..., :half], X[..., half:]
    return AdjointSum(_gram(U, mixed), _gram(V, mixed[..., half:]), jnp.sum(_on_diagonal(tokens, g.dtype) * g))


def scores(S: Float[Array, "d d"], X: Float[Array, "n T d"] | AbstractTokens) -> Float[Array, "K n"]:
    """Packed normalised scores z_ab = (x_aᵀ S x_b − δ_ab Tr S)/(√d √(1+δ_ab)), a ≤ b.

    Args:
        S: symmetric matrix.
        X: tokens.

    Returns:
        z, one column a sample; variance Tr(S²)/d each for white tokens.

    Raises:
        ValueError: for another shape of S.

    Source: arXiv:2509.24914.
    """
    d = X.shape[2]
    if jnp.shape(S) != (d, d):
        raise ValueError(f"S must have shape {(d, d)} for tokens of dimension {d}, got {jnp.shape(S)}")
    return fold_chunks(lambda _, chunk: (None, _scores(S, chunk.take(X))), None, X.shape[0])[1]


def adjoint_sum(g: Float[Array, "K n"], X: Float[Array, "n T d"] | AbstractTokens) -> AdjointSum:
    """What some samples contribute to the adjoint; see `adjoint`."""

    def body(total, chunk):
        part = _adjoint(chunk.masked(chunk.take(g, -1)), chunk.take(X))
        return jax.tree.map(jnp.add, total, part), None

    d, half = X.shape[2], X.shape[2] // 2
    zero = AdjointSum(*(jnp.zeros(shape, g.dtype) for shape in ((half, d), (d - half, d - half), ())))
    return fold_chunks(body, zero, X.shape[0])[0]


def adjoint(g: Float[Array, "K n"], X: Float[Array, "n T d"] | AbstractTokens) -> Float[Array, "d d"]:
    """Σ_μ Σ_{a≤b} g_μ,ab A_μ,ab: the symmetric matrix M with ⟨g, scores(S, X)⟩ = ⟨M, S⟩ for every symmetric S.

    Args:
        g: one number per score.
        X: tokens; T must fit K = T(T+1)/2.

    Raises:
        ValueError: for another shape of g.

    Source: arXiv:2509.24914.
    """
    expected = packed_size(X.shape[1]), X.shape[0]
    if g.shape != expected:
        raise ValueError(f"g must have shape (T(T+1)/2, n) = {expected} for X of shape {X.shape}, got {g.shape}")
    return adjoint_sum(g, X).matrix
