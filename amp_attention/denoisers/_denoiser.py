"""What is known of S beforehand: the interface of penalties and priors."""

import abc

import equinox as eqx

from amp_attention._typing import Array, Float, Scalar
from amp_attention.spectral_laws import AbstractSpectralLaw


class DenoiserStep(eqx.Module):
    """The denoiser on one d×d matrix (AMP's face).

    Attributes:
        S: the new estimate.
        V: its divergence (1/d²) Σ_{i≤j} of the divided differences, the finite-d counterpart of Σ.
        eigenvalues: of S, ascending.
    """

    S: Float[Array, "d d"]
    V: Scalar
    eigenvalues: Float[Array, " d"]


class DenoiserAverage(eqx.Module):
    """The denoiser at d → ∞ (state evolution's face).

    Attributes:
        Sigma, m, q: what the prior equations return for given (Σ̂, m̂, q̂).
        delta, epsilon, eta: noise, threshold and slope of the effective spectral problem.
        trace: Tr S/d.
        penalty: the penalty's part of the objective d⁻²L.
        potential: the prior's part of the free entropy Φ.
        zero_fraction: F, the fraction of zero eigenvalues of S.
        squared_error: ‖S − S0‖²/d, free of cancellation.
        tangent_overlap: R2, the mean square of the derivative of the spectral map in a random direction, in units
            of its slope; for the replicon.
    """

    Sigma: Scalar
    m: Scalar
    q: Scalar
    delta: Scalar
    epsilon: Scalar
    eta: Scalar
    trace: Scalar
    penalty: Scalar
    potential: Scalar
    zero_fraction: Scalar
    squared_error: Scalar
    tangent_overlap: Scalar


class AbstractDenoiser(eqx.Module):
    """What is known of S beforehand, with one face for AMP and, where something is minimised, one for state evolution.

    Only penalties have the second face: what it returns raises TypeError for priors, whose state evolution is that of
    `bayes`.
    """

    @abc.abstractmethod
    def start(self, d: int) -> tuple[Float[Array, "d d"], Scalar]:
        """(S, V) before any data."""

    @abc.abstractmethod
    def apply(self, B: Float[Array, "d d"], Gamma: Scalar) -> DenoiserStep:
        """argmin_S Γ‖S − B/Γ‖²/2 + penalty, or the posterior mean, with its divergence."""

    def _no_penalty(self) -> TypeError:
        return TypeError(f"denoiser must be a penalty, such as NuclearNorm, got {type(self).__name__}; see `bayes`")

    def objective(self, S: Float[Array, "d d"]) -> Scalar:
        """The penalty's part of d⁻²L."""
        raise self._no_penalty()

    def potential(self, law: AbstractSpectralLaw, Sigma_hat: Scalar, m_hat: Scalar, q_hat: Scalar) -> Scalar:
        """The prior's part of the free entropy Φ."""
        raise self._no_penalty()

    def moments(
        self, law: AbstractSpectralLaw, Sigma_hat: Scalar, m_hat: Scalar, q_hat: Scalar
    ) -> tuple[Scalar, Scalar, Scalar]:
        """(Σ, m, q): what the solver iterates, differentiable."""
        raise self._no_penalty()

    def average(self, law: AbstractSpectralLaw, Sigma_hat: Scalar, m_hat: Scalar, q_hat: Scalar) -> DenoiserAverage:
        """Everything state evolution reports of the denoiser."""
        raise self._no_penalty()
