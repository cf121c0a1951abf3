"""Whether tokens are what the theory assumes them to be."""

import equinox as eqx
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar
from amp_attention.data._chunks import fold_chunks
from amp_attention.data._tokens import AbstractTokens


class Whiteness(eqx.Module):
    """Distance of the tokens from the N(0, I) that the theory assumes.

    Attributes:
        covariance: ‖C − I‖_F/√D of the D = T d joint coordinates of one sample, C = E x xᵀ.
        covariance_expected: what n white samples give, √((D + 1)/n).
        mean: ‖E x‖/√D.
        mean_expected: 1/√n.
    """

    covariance: Scalar
    covariance_expected: Scalar
    mean: Scalar
    mean_expected: Scalar

    @property
    def far_from_white(self) -> bool:
        """Whether a deviation exceeds twice its statistical size by more than 0.1."""
        covariance = self.covariance > 2 * self.covariance_expected + 0.1
        return bool(covariance | (self.mean > 2 * self.mean_expected + 0.1))


@eqx.filter_jit
def whiteness(X: Float[Array, "n T d"] | AbstractTokens) -> Whiteness:
    """How far mean and covariance of the tokens, also between positions, are from 0 and I."""
    n, tokens, d = X.shape
    size = tokens * d

    def body(carry, chunk):
        total, square = carry
        x = chunk.masked(chunk.take(X).reshape(-1, size).T)
        return (total + jnp.sum(x, axis=1), square + jnp.matmul(x, x.T, precision="highest")), None

    (total, square), _ = fold_chunks(body, (jnp.zeros(size, X.dtype), jnp.zeros((size, size), X.dtype)), n)
    deviation = square / n - jnp.eye(size, dtype=X.dtype)
    norm = lambda x: jnp.sqrt(jnp.sum(x**2) / size)  # noqa: E731
    expected = lambda x: jnp.sqrt(jnp.asarray(x, X.dtype))  # noqa: E731
    return Whiteness(norm(deviation), expected((size + 1) / n), norm(total / n), expected(1 / n))
