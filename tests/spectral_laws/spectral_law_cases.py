"""Registry of test laws with exact values, and oracles that share no code with the package."""

import cmath
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from amp_attention.spectral_laws import AbstractSpectralLaw, FiniteLaw, MarchenkoPastur, Semicircle


@dataclass(frozen=True)
class LawCase:
    slug: str
    law: AbstractSpectralLaw
    moments: tuple[float, ...]  # k = 0..4
    support: tuple[float, float]
    atom: float = 0.0
    density: Callable | None = None  # of the continuous part, inside it
    cauchy: Callable | None = None  # textbook form, for one complex number well above the axis


def _marchenko_pastur(kappa0: float) -> LawCase:
    c, s = 1 / kappa0, np.sqrt(kappa0)
    low, high = s * (1 - np.sqrt(c)) ** 2, s * (1 + np.sqrt(c)) ** 2
    moments = (1.0, s, s**2 * (1 + c), s**3 * (1 + 3 * c + c**2), s**4 * (1 + 6 * c + 6 * c**2 + c**3))

    def cauchy(z):
        w = z / s
        root = cmath.sqrt(w - (1 - c**0.5) ** 2) * cmath.sqrt(w - (1 + c**0.5) ** 2)
        return (w - 1 + c - root) / (2 * c * w * s)

    return LawCase(
        f"marchenko_pastur_{kappa0}",
        MarchenkoPastur(kappa0),
        moments,
        (0.0 if kappa0 < 1 else low, high),
        max(0.0, 1 - kappa0),
        lambda x: np.sqrt((x - low) * (high - x)) / (2 * np.pi * c * s * x),
        cauchy,
    )


def _semicircle(variance: float) -> LawCase:
    edge = 2 * np.sqrt(variance)
    return LawCase(
        f"semicircle_{variance}",
        Semicircle(variance),
        (1.0, 0.0, variance, 0.0, 2 * variance**2),
        (-edge, edge),
        density=lambda x: np.sqrt(edge**2 - x**2) / (2 * np.pi * variance),
    )


def _finite(slug: str, values, weights=None) -> LawCase:
    values = np.asarray(values, float)
    masses = np.full(values.shape, 1 / values.size) if weights is None else np.asarray(weights) / np.sum(weights)
    return LawCase(
        slug,
        FiniteLaw(values, weights),
        tuple(float(np.sum(masses * values**k)) for k in range(5)),
        (values.min(), values.max()),
        float(masses[values == 0].sum()),
        cauchy=lambda z: complex(np.sum(masses / (z - values))),
    )


CASES = [
    _marchenko_pastur(0.3),
    _marchenko_pastur(1.0),
    _marchenko_pastur(3.0),
    _semicircle(0.7),
    _finite("repeated", [3.0, 0.0, 0.0, -1.0, 1.0, 1.0]),
    _finite("weighted", [2.0, -0.5, 0.0], [0.2, 0.7, 0.1]),
]


def each(cases=CASES):
    """Parametrise a test by the registry."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.slug)


def brute_force_root(case: LawCase, delta: float, x: float) -> complex:
    """w(x) by two nested bisections along Biane's curve."""

    def curve(u):
        low, high = 1e-14 * delta, delta
        for _ in range(55):
            v = (low + high) / 2
            low, high = (v, high) if -case.cauchy(complex(u, v)).imag * delta**2 > v else (low, v)
        return v

    low, high = min(case.support[0], x) - 4 * delta - 1, max(case.support[1], x) + 4 * delta + 1
    for _ in range(60):
        u = (low + high) / 2
        low, high = (u, high) if u + delta**2 * case.cauchy(complex(u, curve(u))).real < x else (low, u)
    return complex(u, curve(u))


def semicircle_above(radius: float, cut: float, k: int) -> float:
    """∫_cut^R (x-cut)^k of the semicircle density on [-R, R], by 400 Gauss-Legendre nodes in the angle."""
    t, weight = np.polynomial.legendre.leggauss(400)
    top = np.arccos(np.clip(cut / radius, -1, 1))
    angle, weight = top * (t + 1) / 2, weight * top / 2
    x = radius * np.cos(angle)
    return float(np.sum(weight * 2 / np.pi * np.sin(angle) ** 2 * (x - cut) ** k))
