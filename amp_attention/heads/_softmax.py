"""The row-wise softmax of symmetric scores."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, ScalarLike
from amp_attention.heads._head import AbstractHead
from amp_attention.numerics.packing import diagonal_weights, pack, unpack
from amp_attention.numerics.validation import positive, whole_number


class SoftmaxHead(AbstractHead):
    """Attention matrix σ̃_β(z) = softmax_β({√(1+δ_ab) z_ab}), row by row.

    Args:
        tokens: T ≥ 2.
        beta: inverse temperature β > 0.

    Source: arXiv:2509.24914.
    """

    beta: Float[Array, ""]
    tokens: int = eqx.field(static=True)

    def __init__(self, tokens: int = 2, beta: ScalarLike = 1.0):
        self.tokens = whole_number("tokens", tokens, 2)
        self.beta = positive("beta", beta)

    @property
    def directions(self) -> np.ndarray:
        """The complement of v_ab = 1/√(1+δ_ab): a common shift of all scores is the only invariance, so C_T = K − 1."""
        shift = 1 / diagonal_weights(self.tokens)
        return np.linalg.svd(shift[:, None])[0][:, 1:]

    def __call__(self, z: Float[Array, "K *n"]) -> Float[Array, "T T *n"]:
        """Row-stochastic attention matrices."""
        h = unpack(z)
        below = h - jax.lax.stop_gradient(jnp.max(h, axis=1, keepdims=True))
        # A fused multiply-add may leave the largest score a rounding above 0, and β times that may overflow in exp.
        below = below - jax.lax.stop_gradient(jnp.maximum(below, 0))
        weights = jnp.exp(self.beta * below)
        return weights / jnp.sum(weights, axis=1, keepdims=True)

    def preimage(self, y: Float[Array, "T T *n"]) -> Float[Array, "K *n"]:
        """One z with σ̃_β(z) = y, from h_ab = (log y_ab + log y_1a − log y_a1)/β.

        Labels are floored at the square root of the smallest normal number before the logarithm, so that saturated
        labels (large β) give large finite scores.
        """
        log_y = jnp.log(jnp.maximum(y, np.sqrt(np.finfo(y.dtype).tiny)))
        return pack((log_y + (log_y[0] - log_y[:, 0])[:, None]) / self.beta)

    def project(self, omega: Float[Array, "K *n"], y: Float[Array, "T T *n"]) -> Float[Array, "K *n"]:
        """z_pre + c v with v_ab = 1/√(1+δ_ab) and c = v·(ω − z_pre)/‖v‖²."""
        shift = jnp.asarray(1 / diagonal_weights(self.tokens), omega.dtype).reshape((-1,) + (1,) * (omega.ndim - 1))
        preimage = self.preimage(y)
        c = jnp.sum(shift * (omega - preimage), axis=0) / jnp.sum(shift**2)
        return preimage + shift * c[None]
