"""The linear head of a single token: quadratic networks."""

import equinox as eqx
import numpy as np

from amp_attention._typing import Array, Float
from amp_attention.heads._head import AbstractHead


class LinearHead(AbstractHead):
    """h = √2 z for T = 1, where a softmax would be constant.

    Source: Erba et al. 2025 (quadratic networks as matrix sensing); arXiv:2509.24914.
    """

    tokens: int = eqx.field(static=True, default=1)

    @property
    def directions(self) -> np.ndarray:
        """The one score itself."""
        return np.eye(1)

    def __call__(self, z: Float[Array, "1 *n"]) -> Float[Array, "*n"]:
        """The score h itself."""
        return float(np.sqrt(2)) * z[0]

    def project(self, omega: Float[Array, "1 *n"], y: Float[Array, "*n"]) -> Float[Array, "1 *n"]:
        """z = y/√2, whatever omega."""
        del omega
        return y[None] / float(np.sqrt(2))
