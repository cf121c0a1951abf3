"""Losses of one sample: ℓ(z; y), what training minimises over the scores z given the label y."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, Scalar
from amp_attention.heads import AbstractHead, LinearHead


class AbstractLoss(eqx.Module):
    """A loss of one sample. A new loss is a subclass with a `head` and a `__call__`.

    ```python
    class CrossEntropy(AbstractLoss):
        head: SoftmaxHead

        def __call__(self, z, y):
            return -jnp.sum(y * jnp.log(self.head(z)))
    ```

    `__call__` sees one sample: z of shape (K,) and a label of the head's output shape; it must be twice differentiable
    in z. The batched methods work on samples along the last axis; they are derived from `__call__` and need no code.
    """

    head: eqx.AbstractVar[AbstractHead]

    @abc.abstractmethod
    def __call__(self, z: Float[Array, " K"], y: Float[Array, "..."]) -> Scalar:
        """ℓ(z; y) of one sample."""

    @property
    def directions(self) -> np.ndarray:
        """(K, C) orthonormal directions of z that ℓ depends on; all of them unless a loss knows better."""
        return np.eye(self.head.scores)

    @property
    def quadratic(self) -> bool:
        """Whether ℓ is quadratic in the scores of student and target together; Gaussian averages are then exact."""
        return False

    def values(self, z: Float[Array, "K n"], y: Float[Array, "... n"]) -> Float[Array, " n"]:
        """ℓ of each sample."""
        return jax.vmap(self, in_axes=(-1, -1))(z, y)

    def gradient(self, z: Float[Array, "K n"], y: Float[Array, "... n"]) -> Float[Array, "K n"]:
        """∇_z ℓ of each sample."""
        return jax.grad(lambda z: jnp.sum(self.values(z, y)))(z)

    def hessian(self, z: Float[Array, "K n"], y: Float[Array, "... n"]) -> Float[Array, "K K n"]:
        """∇²_z ℓ of each sample."""
        directions = jnp.eye(z.shape[0], dtype=z.dtype)

        def along(direction):
            tangent = jnp.broadcast_to(direction[:, None], z.shape)
            return jax.jvp(lambda z: self.gradient(z, y), (z,), (tangent,))[1]

        return jax.vmap(along)(directions)


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
