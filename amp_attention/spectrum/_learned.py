"""The law of the learned matrix, S ~ η ReLU(S0 + δZ - ε)."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, Scalar, ScalarLike
from amp_attention.numerics.quadrature import gauss_legendre
from amp_attention.numerics.validation import instance_of, non_negative, positive, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.spectral_laws import AbstractSpectralLaw, FreeConvolution
from amp_attention.spectrum._outliers import Outliers, outliers
from amp_attention.spectrum._phases import phase_name
from amp_attention.state_evolution import FixedPoint

# Complex numbers held at once: points times what one of them needs.
_HELD = 2**20
_CONTOUR = 400  # of the order of the nodes of one contour
_PANEL = 32  # Gauss-Legendre nodes
_PANELS = 64  # over all bands together


def _in_chunks(function: Callable, x: Float[Array, " n"], law: AbstractSpectralLaw, per_point: int):
    """`function`, which takes a vector, on so many entries of x at a time that memory does not grow with x."""
    size = max(1, min(_HELD // (per_point * law.components()[0].shape[0]), x.size))
    padded = jnp.pad(x, (0, -x.size % size))
    return jax.lax.map(function, padded.reshape(padded.size // size, size)).ravel()[: x.size]


@eqx.filter_jit
def _density(law: AbstractSpectralLaw, delta: Scalar, x: Float[Array, " n"]) -> Float[Array, " n"]:
    return _in_chunks(FreeConvolution(law, delta).density, x, law, 1)


@eqx.filter_jit
def _mass_below(law: AbstractSpectralLaw, delta: Scalar, x: Float[Array, " n"]) -> Float[Array, " n"]:
    below = jax.vmap(lambda x: FreeConvolution(law, delta).above(x).zero_fraction)
    return _in_chunks(below, x, law, _CONTOUR)


def rounded_up(function: Callable, x: np.ndarray, dtype) -> np.ndarray:
    """`function` on the host, at a multiple of 256 points: few shapes, few compilations."""
    padded = np.pad(np.asarray(x, float), (0, -x.size % 256))
    return np.asarray(function(jnp.asarray(padded, dtype)), float)[: x.size]


class LearnedSpectrum(eqx.Module):
    """Law at d → ∞ of the eigenvalues of S ~ η ReLU(S0 + δZ - ε), Z from the GOE.

    Args:
        law: spectral law of S0.
        delta: δ > 0.
        epsilon: ε ≥ 0.
        eta: η > 0.

    Source: theory of the tied head, section 6; arXiv:2509.24914.
    """

    law: AbstractSpectralLaw
    delta: Scalar
    epsilon: Scalar
    eta: Scalar

    def __init__(self, law: AbstractSpectralLaw, delta: ScalarLike, epsilon: ScalarLike, eta: ScalarLike):
        instance_of("law", law, AbstractSpectralLaw, "a spectral law")
        self.law = law
        self.delta = positive("delta", delta).astype(law.dtype)
        self.epsilon = non_negative("epsilon", epsilon).astype(law.dtype)
        self.eta = positive("eta", eta).astype(law.dtype)

    @property
    def _convolution(self) -> FreeConvolution:
        return FreeConvolution(self.law, self.delta)

    def _at(self, function: Callable, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """`function` of μ_δ at ε + s/η; compiled for the number of points, whatever their shape."""
        return function(self.law, self.delta, (self.epsilon + s / self.eta).ravel()).reshape(s.shape)

    def density(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """η⁻¹ μ_δ(ε + s/η) at s > 0, of mass 1 - atom; zero at s ≤ 0."""
        s = jnp.asarray(s, self.law.dtype)
        density = jnp.where(s > 0, self._at(_density, s) / self.eta, jnp.zeros_like(s))
        return jnp.where(jnp.isnan(s), s, density)

    @property
    def atom(self) -> Scalar:
        """F, the mass at zero; exactly 1 at rank collapse."""
        return self._convolution.above(self.epsilon).zero_fraction

    def distribution(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """Mass of (-∞, s]: zero for s < 0, the atom at s = 0. A contour integral for each s, accurate to about 1e-10.

        Differentiable in s, δ, ε, η and the law, except at band edges.
        """
        s = jnp.asarray(s, self.law.dtype)
        mass = jnp.where(s >= 0, self._at(_mass_below, s), jnp.zeros_like(s))
        return jnp.where(jnp.isnan(s), s, mass)

    def bands(self) -> np.ndarray:
        """Intervals of positive eigenvalues, ascending, merged where they touch; shape (M, 2), on the host.

        For N atoms this takes memory of order N².
        """
        edges = np.asarray(self._convolution.edges(), float)
        merged: list[list[float]] = []
        for low, high in np.maximum(edges, float(self.epsilon)):
            if high <= low:
                continue
            if merged and low <= merged[-1][1] * (1 + 1e-12):
                merged[-1][1] = high
            else:
                merged.append([low, high])
        return float(self.eta) * (np.reshape(merged, (-1, 2)) - float(self.epsilon))

    def grid(self, per_band: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """The density as a line to draw; on the host.

        Args:
            per_band: points in each band, denser at its ends, where the density has square roots.

        Returns:
            s ascending and the density at s, with a NaN in both after each band.
        """
        angles = np.linspace(-np.pi / 2, np.pi / 2, whole_number("per_band", per_band, 2))
        points = [np.append((low + high) / 2 + (high - low) / 2 * np.sin(angles), np.nan) for low, high in self.bands()]
        s = np.concatenate(points) if points else np.zeros(0)
        gap = np.isnan(s)
        # The limit from the right where a band begins at zero.
        inside = np.maximum(np.where(gap, 1.0, s), np.finfo(float).tiny)
        return s, np.where(gap, np.nan, rounded_up(self.density, inside, self.law.dtype))

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Points s > 0, ascending, and weights of sum 1 - atom: ∫f over the positive eigenvalues ≈ Σ weight f(s).

        About 2000 points on the host, at least 32 in each band: Gauss-Legendre panels in the angle whose sine runs over
        the band.
        """
        bands = self.bands()
        t, share = (np.asarray(value, float) for value in gauss_legendre(_PANEL, float))
        panels = max(1, _PANELS // max(len(bands), 1))
        angle = (np.pi * ((np.arange(panels)[:, None] + t) / panels - 0.5)).ravel()
        radius = (bands[:, 1:] - bands[:, :1]) / 2
        # 1 + sin = 2 sin²: no cancellation at the lower end.
        s = (bands[:, :1] + 2 * radius * np.sin((angle + np.pi / 2) / 2) ** 2).ravel()
        step = (radius * np.cos(angle) * np.pi / panels * np.tile(share, panels)).ravel()
        return s, step * rounded_up(self.density, s, self.law.dtype)

    def outliers(self) -> Outliers:
        """Isolated eigenvalues above the bulk that are positive in S; none for a law that is not a `FiniteLaw`.

        Eigenvalues of S0 are counted from the largest, an atom of any weight as one, and the spikes are those of
        `detachment`. A spike s comes to lie at y = s + δ²∫bulk(dx)/(s-x) and is seen in S iff y > ε; its squared
        overlap is 1 - δ²∫bulk(dx)/(s-x)². For a target of low rank: y = s + δ²/s and 1 - δ²/s². The overlap is NaN
        where other spikes are so close that the eigenvector mixes with them: δ² Σ_j weight_j/(s-s_j)² ≥ 1.

        Source: theory of the tied head, section 6; arXiv:2509.24914.
        """
        return outliers(self.law, self.delta, self.epsilon, self.eta)

    def phase(self) -> str:
        """One of `PHASES`, see `phase_index`."""
        return phase_name(self.law, self.delta, self.epsilon)


def learned_spectrum(problem: AttentionProblem, point: FixedPoint) -> LearnedSpectrum:
    """The law of the matrix that is learned at a fixed point of state evolution.

    Args:
        problem: whose target gives the law of S0.
        point: δ, ε and η are read.
    """
    return LearnedSpectrum(problem.target.law, point.delta, point.epsilon, point.eta)
