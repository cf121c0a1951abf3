"""Targets: what labels the data. A spectral law of S0, a head and the noise of the scores."""

import equinox as eqx
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar, ScalarLike
from amp_attention.heads import AbstractHead
from amp_attention.numerics.validation import instance_of, non_negative
from amp_attention.spectral_laws import AbstractSpectralLaw


class Target(eqx.Module):
    """y = head(z(S0) + noise), noise N(0, Δ/2) on each of the K normalised scores.

    Args:
        law: spectral law of S0 (Q0 = ∫x²).
        head: the head at the target's inverse temperature β0.
        noise: Δ ≥ 0, a variance: N(0, Δ/(2−δ_ab)) on h_ab.

    Raises:
        ValueError: for another kind of part, or Δ out of range.

    Source: arXiv:2509.24914, the attention-indexed target.
    """

    law: AbstractSpectralLaw
    head: AbstractHead
    noise: Float[Array, ""]

    def __init__(self, law: AbstractSpectralLaw, head: AbstractHead, noise: ScalarLike = 0.0):
        instance_of("law", law, AbstractSpectralLaw, "a spectral law")
        instance_of("head", head, AbstractHead, "a head, such as SoftmaxHead")
        self.law, self.head, self.noise = law, head, non_negative("noise", noise)

    @property
    def Q0(self) -> Scalar:
        """Q0 = Tr(S0²)/d at d → ∞."""
        return self.law.moment(2)

    @property
    def score_variance(self) -> Scalar:
        """Q′ = Q0 + Δ/2, the variance of each noisy score z0."""
        return self.Q0 + self.noise / 2

    def labels(self, z: Float[Array, "K n"], noise: Float[Array, "K n"]) -> Float[Array, "... n"]:
        """Labels of noiseless normalised scores z(S0), with standard normal numbers as noise; samples last."""
        return self.head(z + jnp.sqrt(self.noise / 2) * noise)
