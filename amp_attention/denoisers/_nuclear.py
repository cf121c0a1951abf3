"""The nuclear norm: a soft threshold of the eigenvalues."""

import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar, ScalarLike
from amp_attention.denoisers._denoiser import AbstractDenoiser, DenoiserAverage, DenoiserStep
from amp_attention.denoisers._spectral_map import soft_threshold_spectrum
from amp_attention.numerics.validation import non_negative
from amp_attention.spectral_laws import AbstractSpectralLaw, FreeConvolution


class NuclearNorm(AbstractDenoiser):
    """Penalty d λ̃ Tr S over PSD S: what λ‖W‖²_F is for S = WWᵀ/√(pd), λ̃ = √κ λ.

    AMP: S = O diag((b−λ̃)₊/Γ) Oᵀ. State evolution: −(m̂²/4Σ̂) J(√q̂/m̂, 2λ̃/m̂).

    Args:
        lam: λ̃ ≥ 0.

    Source: arXiv:2509.24914.
    """

    lam: Float[Array, ""]

    def __init__(self, lam: ScalarLike):
        self.lam = non_negative("lam", lam)

    def start(self, d: int) -> tuple[Float[Array, "d d"], Scalar]:
        """S = 0, V = 0."""
        return jnp.zeros((d, d), self.lam.dtype), jnp.zeros_like(self.lam)

    def apply(self, B: Float[Array, "d d"], Gamma: Scalar) -> DenoiserStep:
        """Soft threshold at λ̃, in units of Γ."""
        S, V, eigenvalues = soft_threshold_spectrum(B, self.lam, Gamma)
        return DenoiserStep(S, V, eigenvalues)

    def objective(self, S: Float[Array, "d d"]) -> Scalar:
        """λ̃ Tr S/d."""
        return self.lam * jnp.trace(S) / S.shape[0]

    def _effective(self, law, m_hat, q_hat):
        """The noise δ = √q̂/m̂, the threshold ε = 2λ̃/m̂ and the free convolution at δ."""
        delta = jnp.sqrt(q_hat) / m_hat
        return delta, 2 * self.lam / m_hat, FreeConvolution(law, delta)

    def potential(self, law: AbstractSpectralLaw, Sigma_hat: Scalar, m_hat: Scalar, q_hat: Scalar) -> Scalar:
        """−(m̂²/4Σ̂) J(δ, ε)."""
        _, epsilon, convolution = self._effective(law, m_hat, q_hat)
        return -(m_hat**2) / (4 * Sigma_hat) * convolution.above(epsilon).J

    def moments(
        self, law: AbstractSpectralLaw, Sigma_hat: Scalar, m_hat: Scalar, q_hat: Scalar
    ) -> tuple[Scalar, Scalar, Scalar]:
        """Σ = 2D₁/Σ̂ (that is (m̂/2Σ̂√q̂) ∂₁J), m = η∫(x−ε)₊E[S0|x]μ, q = η²J."""
        _, epsilon, convolution = self._effective(law, m_hat, q_hat)
        above, eta = convolution.above(epsilon), m_hat / Sigma_hat
        return 2 * above.D1 / Sigma_hat, eta * above.m, eta**2 * above.J

    def average(self, law: AbstractSpectralLaw, Sigma_hat: Scalar, m_hat: Scalar, q_hat: Scalar) -> DenoiserAverage:
        """Integrals of the soft threshold over μ_δ = μ0 ⊞ semicircle(δ²)."""
        delta, epsilon, convolution = self._effective(law, m_hat, q_hat)
        above, overlap = convolution.above_and_overlap(epsilon)
        eta = m_hat / Sigma_hat
        return DenoiserAverage(
            Sigma=2 * above.D1 / Sigma_hat,
            m=eta * above.m,
            q=eta**2 * above.J,
            delta=delta,
            epsilon=epsilon,
            eta=eta,
            trace=eta * above.trace,
            penalty=self.lam * eta * above.trace,
            potential=-(m_hat**2) / (4 * Sigma_hat) * above.J,
            zero_fraction=above.zero_fraction,
            squared_error=above.squared_error(eta),
            tangent_overlap=overlap,
        )
