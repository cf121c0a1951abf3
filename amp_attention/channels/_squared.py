"""The squared loss, with the derivatives of that of a softmax in closed form."""

import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, Scalar
from amp_attention.channels._loss import AbstractLoss, LossDerivatives
from amp_attention.heads import AbstractHead, LinearHead, SoftmaxHead
from amp_attention.numerics.packing import symmetric_gradient, symmetric_hessian


class SquaredLoss(AbstractLoss):
    """ℓ(z; y) = Σ [y − head(z)]², over all entries of the output (all T² of them for a softmax).

    Source: arXiv:2509.24914, the loss of seq2lab training.
    """

    head: AbstractHead

    @property
    def directions(self) -> np.ndarray:
        """Those of the head: ℓ sees its output only."""
        return self.head.directions

    @property
    def quadratic(self) -> bool:
        """True for the linear head."""
        return isinstance(self.head, LinearHead)

    def __call__(self, z: Float[Array, " K"], y: Float[Array, "..."]) -> Scalar:
        """The squared distance between label and output."""
        return jnp.sum((y - self.head(z)) ** 2)

    def values(self, z: Float[Array, "K n"], y: Float[Array, "... n"]) -> Float[Array, " n"]:
        """ℓ of each sample; heads act on all samples at once."""
        residual = (y - self.head(z)) ** 2
        return jnp.sum(residual, axis=tuple(range(residual.ndim - 1)))

    def derivatives(self, z: Float[Array, "K n"], y: Float[Array, "... n"]) -> LossDerivatives:
        """In closed form for the softmax.

        A row p of σ̃_β with residual r = p − y has, in its row of scores, ∇ = 2β u and ∇² = 2β² (diag(w) − w pᵀ − p wᵀ +
        |p|² p pᵀ), with u = p∘(r − r·p) and w = u + p∘p.
        """
        kind = type(self)
        mine = kind.values is SquaredLoss.values and kind.__call__ is SquaredLoss.__call__  # not those of a subclass
        if not (mine and isinstance(self.head, SoftmaxHead)):
            return super().derivatives(z, y)
        beta, p = self.head.beta, self.head(z)
        r = p - y
        u = p * (r - jnp.sum(r * p, axis=1, keepdims=True))
        w = u + p**2
        outer = p[:, :, None] * p[:, None, :]
        crossed = w[:, :, None] * p[:, None, :]
        rows = jnp.sum(p**2, axis=1)[:, None, None] * outer - crossed - jnp.swapaxes(crossed, 1, 2)
        rows = rows + jnp.eye(p.shape[0], dtype=p.dtype)[None, :, :, None] * w[:, :, None]
        return LossDerivatives(
            jnp.sum(r**2, axis=(0, 1)), 2 * beta * symmetric_gradient(u), 2 * beta**2 * symmetric_hessian(rows)
        )
