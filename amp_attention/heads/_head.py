"""Heads: what an attention layer makes of the scores of one sample."""

import abc

import equinox as eqx
import numpy as np

from amp_attention._typing import Array, Float
from amp_attention.numerics.packing import packed_size


class AbstractHead(eqx.Module):
    """A map from the K normalised scores of a sample to its output (the label's shape).

    Everything accepts trailing axes: scores are (K, *n) with samples last, outputs (*label) with samples last too.
    """

    tokens: eqx.AbstractVar[int]

    @property
    def scores(self) -> int:
        """K = T(T+1)/2, the number of scores of one sample."""
        return packed_size(self.tokens)

    @property
    @abc.abstractmethod
    def directions(self) -> np.ndarray:
        """(K, C_T) orthonormal directions of score space that the output depends on."""

    @property
    def constraints(self) -> int:
        """C_T, the number of independent equations one noiseless label sets for the scores."""
        return self.directions.shape[1]

    @abc.abstractmethod
    def __call__(self, z: Float[Array, "K *n"]) -> Float[Array, "*label"]:
        """The output for scores z."""

    @abc.abstractmethod
    def project(self, omega: Float[Array, "K *n"], y: Float[Array, "*label"]) -> Float[Array, "K *n"]:
        """The point nearest to omega on the fibre {z : head(z) = y}."""
