"""Losses of one sample: ℓ(z; y), what training minimises over the scores z given the label y."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, Scalar
from amp_attention.heads import AbstractHead


class LossDerivatives(eqx.Module):
    """A loss and its derivatives in the scores, samples last.

    Attributes:
        values: ℓ.
        gradient: ∇_z ℓ.
        hessian: ∇²_z ℓ.
    """

    values: Float[Array, " n"]
    gradient: Float[Array, "K n"]
    hessian: Float[Array, "K K n"]


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

    def derivatives(self, z: Float[Array, "K n"], y: Float[Array, "... n"]) -> LossDerivatives:
        """ℓ, ∇_z ℓ and ∇²_z ℓ of each sample; a loss with a closed form is several times faster than this."""
        gradient = jax.grad(lambda z: jnp.sum(self.values(z, y)))
        directions = jnp.eye(z.shape[0], dtype=z.dtype)

        def along(direction):
            tangent = jnp.broadcast_to(direction[:, None], z.shape)
            return jax.jvp(gradient, (z,), (tangent,))[1]

        return LossDerivatives(self.values(z, y), gradient(z), jax.vmap(along)(directions))

    def gradient(self, z: Float[Array, "K n"], y: Float[Array, "... n"]) -> Float[Array, "K n"]:
        """∇_z ℓ of each sample."""
        return self.derivatives(z, y).gradient

    def hessian(self, z: Float[Array, "K n"], y: Float[Array, "... n"]) -> Float[Array, "K K n"]:
        """∇²_z ℓ of each sample."""
        return self.derivatives(z, y).hessian
