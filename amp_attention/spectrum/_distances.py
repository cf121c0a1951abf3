"""How far eigenvalues found at finite d lie from the law at d → ∞."""

import numpy as np
from scipy.stats import wasserstein_distance

from amp_attention.spectrum._learned import LearnedSpectrum, rounded_up


def positive_part(eigenvalues: np.ndarray) -> np.ndarray:
    """Eigenvalues above rounding, 1e-6 of the largest: the soft threshold makes the others exactly zero."""
    values = np.asarray(eigenvalues, float)
    return values[values > 1e-6 * max(float(np.abs(values).max(initial=0.0)), 1e-12)]


def _kolmogorov(positive: np.ndarray, total: int, spectrum: LearnedSpectrum) -> float:
    """sup|F_emp - F|: between the jumps of F_emp both are monotone, so that it is at one side of a jump."""
    zeros = 1 - positive.size / total
    values, counts = np.unique(positive, return_counts=True)
    after = zeros + np.cumsum(counts) / total
    law = rounded_up(spectrum.distribution, np.append(0.0, values), spectrum.law.dtype)
    gaps = [abs(zeros - law[0]), *abs(after - law[1:]), *abs(after - counts / total - law[1:])]
    return float(max(gaps))


def distances(eigenvalues: np.ndarray, spectrum: LearnedSpectrum) -> dict[str, float]:
    """Distances between eigenvalues of S at finite d and their law; on the host.

    Both count the mass at zero. The spikes of a `FiniteLaw` belong to its law, as narrow bands.

    Args:
        eigenvalues: of S, shape (n,), any order, pooled over repeats or not; below 1e-6 of the largest they are zero.
        spectrum: the law.

    Returns:
        wasserstein: W1 = ∫|F_emp - F| ds, in the units of S, the law taken at about 2000 points.
        ks: Kolmogorov-Smirnov, sup|F_emp - F|, between 0 and 1.
    """
    values = np.asarray(eigenvalues, float)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"eigenvalues must be a non-empty list of finite numbers, got shape {values.shape}")
    positive = np.sort(positive_part(values))
    atoms = np.full(positive.size, 1 / values.size)
    points, weights = spectrum.quadrature()
    distance = wasserstein_distance(
        np.append(0.0, positive),
        np.append(0.0, points),
        np.append(1 - positive.size / values.size, atoms),
        np.append(float(spectrum.atom), weights),
    )
    return {"wasserstein": float(distance), "ks": _kolmogorov(positive, values.size, spectrum)}
