"""What the theory predicts for figures: the spectrum of the learned matrix, AMP's trajectory, dense curves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from amp_attention.experiments._records import SUCCESSFUL
from amp_attention.experiments._theory import TheoryPoint, TheorySweep
from amp_attention.problem import AttentionProblem
from amp_attention.spectral_laws import FreeConvolution
from amp_attention.state_evolution import trajectory


@dataclass(frozen=True)
class PredictedSpectrum:
    """Law of the eigenvalues of S at d → ∞.

    Attributes:
        s: eigenvalues > 0, ascending; NaN separates bands.
        density: η⁻¹ μ_δ(ε + s/η) at s; its mass is 1 − atom.
        atom: F, the mass at zero.
    """

    s: np.ndarray
    density: np.ndarray
    atom: float


def predicted_spectrum(point: TheoryPoint, per_band: int = 200) -> PredictedSpectrum:
    """η ReLU(S0 + δZ − ε): density η⁻¹ μ_δ(ε + s/η) for s > 0 and the atom F at 0.

    Args:
        point: a solved fixed point.
        per_band: points per interval of the support, denser at its ends, where the density has square roots.

    Source: theory of the tied head, section 6; arXiv:2509.24914.
    """
    value = point.value
    law = FreeConvolution(point.problem.target.law, value.delta)
    angles = np.linspace(-np.pi / 2, np.pi / 2, per_band)
    epsilon, eta = float(value.epsilon), float(value.eta)
    pieces = []
    for low, high in _bands(np.asarray(law.edges(), float), epsilon):
        pieces += [(low + high) / 2 + (high - low) / 2 * np.sin(angles), [np.nan]]
    x = np.concatenate(pieces) if pieces else np.zeros(0)
    inside = jnp.asarray(np.where(np.isnan(x), 0.0, x), value.delta.dtype)
    density = np.where(np.isnan(x), np.nan, np.asarray(law.density(inside), float)) if x.size else x
    return PredictedSpectrum(eta * (x - epsilon), density / eta, float(value.zero_fraction))


def _bands(edges: np.ndarray, epsilon: float) -> list[tuple[float, float]]:
    """Intervals above ε, merged where they touch."""
    bands: list[tuple[float, float]] = []
    for low, high in edges:
        low = max(low, epsilon)
        if high <= low:
            continue
        if bands and low <= bands[-1][1] * (1 + 1e-12):
            bands[-1] = (bands[-1][0], high)
        else:
            bands.append((low, high))
    return bands


def predicted_trajectory(point: TheoryPoint, nodes, steps: int) -> dict[str, np.ndarray]:
    """Sigma, m, q of state evolution in time, from AMP's default start S = 0; arrays over iterations 0..steps."""
    path = trajectory(point.problem, nodes, steps)
    return {name: np.asarray(getattr(path, name), float) for name in ("Sigma", "m", "q")}


def theory_curve(problems: Iterable[AttentionProblem], sweep: TheorySweep) -> list[TheoryPoint]:
    """Fixed points between those of a grid, so that lines in figures are smooth; failures are left out."""
    points = [sweep.solve(problem) for problem in problems]
    return [point for point in points if point.record["result"] == SUCCESSFUL]


def refine(values: Sequence[float], count: int = 40) -> list[float]:
    """About `count` values over the range of `values`, logarithmic where they are, with the values themselves."""
    unique = sorted(set(values))
    if len(unique) < 2 or len(unique) >= count:
        return unique
    low, high = unique[0], unique[-1]
    dense = np.geomspace(low, high, count) if is_logarithmic(unique) else np.linspace(low, high, count)
    gap = (dense[1:] - dense[:-1]).min() / 4
    kept = [x for x in dense.tolist() if min(abs(x - u) for u in unique) > gap]
    return sorted({*unique, *kept})


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether a list of values spans more than a factor of 20: then an axis should be logarithmic."""
    return min(values) > 0 and max(values) / min(values) > 20
