"""The posterior mean under a rotation-invariant prior: a shrinkage of the eigenvalues."""

import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar
from amp_attention.denoisers._denoiser import AbstractDenoiser, DenoiserStep
from amp_attention.numerics.validation import instance_of
from amp_attention.spectral_laws import AbstractSpectralLaw, FreeConvolution


class PosteriorMean(AbstractDenoiser):
    """E[S0 | S0 + √D Z], Z from the GOE, for S0 of known spectral law and uniformly random eigenvectors.

    AMP: R = B/Γ is S0 plus noise of variance D = 1/(2Γ), so that S = O diag(ξ(y)) Oᵀ for R = O diag(y) Oᵀ, and
    V = mmse(D) is what state evolution says of it. Eigenvalues that leave the support of μ0 ⊞ semicircle(D), as those
    of finite matrices do, count as those at its ends: passed on as they are, one can make the iteration diverge.

    Args:
        law: μ0, the spectral law of S0.

    Source: arXiv:2506.01582; Bun et al., IEEE Trans. Inf. Theory 62 (2016) 7475.
    """

    law: AbstractSpectralLaw

    def __init__(self, law: AbstractSpectralLaw):
        instance_of("law", law, AbstractSpectralLaw, "a spectral law")
        self.law = law

    def start(self, d: int) -> tuple[Float[Array, "d d"], Scalar]:
        """The mean of the prior, and its variance."""
        mean = self.law.moment(1)
        return mean * jnp.eye(d, dtype=mean.dtype), self.law.moment(2) - mean**2

    def mmse(self, noise: Scalar) -> Scalar:
        """mmse(D) = E‖S − S0‖²_F/d at d → ∞."""
        return FreeConvolution(self.law, jnp.sqrt(noise)).mmse()

    def apply(self, B: Float[Array, "d d"], Gamma: Scalar) -> DenoiserStep:
        """Shrink the eigenvalues of B/Γ."""
        convolution = FreeConvolution(self.law, jnp.sqrt(1 / (2 * Gamma)))
        y, O = jnp.linalg.eigh(B / Gamma)
        eigenvalues = convolution.posterior_mean(y).astype(B.dtype)
        S = jnp.matmul(O * eigenvalues[None, :], O.T, precision="highest")
        _, variance = self.start(1)
        smallest = jnp.finfo(B.dtype).eps ** 2 * variance  # where S0 is found exactly, g ∝ 1/V stays finite
        return DenoiserStep(S, jnp.maximum(convolution.mmse(), smallest).astype(B.dtype), eigenvalues)
