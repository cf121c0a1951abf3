"""The scores of the samples as a linear map of S, and its adjoint; no sensing matrix is ever formed.

z_ab = Tr(A_ab S) with A_ab = (x_a x_bᵀ + x_b x_aᵀ − 2δ_ab I)/(2√d √(1+δ_ab)), a ≤ b. n samples have nK such d×d
matrices; both maps below cost one product of size nT×d×d instead.
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


def _scores(S, X):
    n, tokens, d = X.shape
    mapped = jnp.matmul(X.reshape(n * tokens, d), S, precision="highest").reshape(X.shape)
    if tokens > _WRITTEN_OUT:
        h = jnp.einsum("nad,nbd->abn", X, mapped, precision="highest")[upper_triangle(tokens)]
    else:
        h = jnp.stack([jnp.sum(X[:, a] * mapped[:, b], axis=-1) for a, b in zip(*upper_triangle(tokens), strict=True)])
    z = h / jnp.asarray(diagonal_weights(tokens), S.dtype)[:, None]
    centre = jnp.trace(S) / math.sqrt(2)
    return (z - _on_diagonal(tokens, z.dtype) * centre) / math.sqrt(d)


class AdjointSum(eqx.Module):
    """Σ_μ Σ_{a≤b} g_μ,ab A_μ,ab before it is made symmetric: sums of these over chunks are sums of the matrices.

    Attributes:
        outer: the sum of all x_a x_bᵀ with their weights.
        diagonal: that of the g_aa, which belong to the identity.
    """

    outer: Float[Array, "d d"]
    diagonal: Scalar

    @property
    def matrix(self) -> Float[Array, "d d"]:
        """The symmetric matrix."""
        d = self.outer.shape[0]
        centre = self.diagonal / math.sqrt(2) * jnp.eye(d, dtype=self.outer.dtype)
        return ((self.outer + self.outer.T) / 2 - centre) / math.sqrt(d)


def _adjoint(g, X) -> AdjointSum:
    n, tokens, d = X.shape
    # Ordered pairs (a, b): each unordered pair a < b is met twice, so it carries half of g_ab.
    weights = jnp.asarray(diagonal_weights(tokens) / 2, g.dtype)[:, None]
    mixed = jnp.einsum("abn,nbd->nad", (weights * g)[positions(tokens)], X, precision="highest")
    outer = jnp.matmul(X.reshape(n * tokens, d).T, mixed.reshape(n * tokens, d), precision="highest")
    return AdjointSum(outer, jnp.sum(_on_diagonal(tokens, g.dtype) * g))


def scores(S: Float[Array, "d d"], X: Float[Array, "n T d"] | AbstractTokens) -> Float[Array, "K n"]:
    """Packed normalised scores z_ab = (x_aᵀ S x_b − δ_ab Tr S)/(√d √(1+δ_ab)), a ≤ b.

    Args:
        S: symmetric matrix.
        X: tokens.

    Returns:
        z, one column a sample; variance Tr(S²)/d each for white tokens.

    Source: arXiv:2509.24914.
    """
    return fold_chunks(lambda _, chunk: (None, _scores(S, chunk.take(X))), None, X.shape[0])[1]


def adjoint_sum(g: Float[Array, "K n"], X: Float[Array, "n T d"] | AbstractTokens) -> AdjointSum:
    """What some samples contribute to the adjoint; see `adjoint`."""

    def body(total, chunk):
        part = _adjoint(chunk.masked(chunk.take(g, -1)), chunk.take(X))
        return jax.tree.map(jnp.add, total, part), None

    d = X.shape[2]
    zero = AdjointSum(jnp.zeros((d, d), g.dtype), jnp.zeros((), g.dtype))
    return fold_chunks(body, zero, X.shape[0])[0]


def adjoint(g: Float[Array, "K n"], X: Float[Array, "n T d"] | AbstractTokens) -> Float[Array, "d d"]:
    """Σ_μ Σ_{a≤b} g_μ,ab A_μ,ab: the symmetric matrix M with ⟨g, scores(S, X)⟩ = ⟨M, S⟩ for every symmetric S.

    Args:
        g: one number per score.
        X: tokens; T must fit K = T(T+1)/2.

    Source: arXiv:2509.24914.
    """
    if g.shape[0] != packed_size(X.shape[1]):
        raise ValueError(f"g must have T(T+1)/2 rows for the T = {X.shape[1]} tokens of X, got {g.shape[0]}")
    return adjoint_sum(g, X).matrix
