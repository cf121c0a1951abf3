"""The row-wise argmax of symmetric scores: the softmax at β → ∞."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float
from amp_attention.heads._head import AbstractHead
from amp_attention.heads._softmax import SoftmaxHead
from amp_attention.numerics.packing import unpack
from amp_attention.numerics.validation import whole_number


class HardmaxHead(AbstractHead):
    """y_ab = 1 where h_ab = √(1+δ_ab) z_ab is the largest score of its row, else 0; the first of equal ones.

    Args:
        tokens: T ≥ 2.

    Source: arXiv:2506.01582.
    """

    tokens: int = eqx.field(static=True)

    def __init__(self, tokens: int = 2):
        self.tokens = whole_number("tokens", tokens, 2)

    @property
    def directions(self) -> np.ndarray:
        """Those of the softmax: a common shift of all scores changes nothing."""
        return SoftmaxHead(self.tokens).directions

    def __call__(self, z: Float[Array, "K *n"]) -> Float[Array, "T T *n"]:
        """One 1 in each row."""
        return jax.nn.one_hot(jnp.argmax(unpack(z), axis=1), self.tokens, dtype=z.dtype, axis=1)

    def project(self, omega: Float[Array, "K *n"], y: Float[Array, "T T *n"]) -> Float[Array, "K *n"]:
        """Raises: labels leave a cone of scores, not a plane.

        Raises:
            TypeError: always.
        """
        raise TypeError("HardmaxHead has no fibres to project on: its labels are those of a cone of scores")
