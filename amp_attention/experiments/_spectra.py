"""The spectrum of the learned matrix on a grid, beside eigenvalues found at finite d."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from amp_attention.experiments._finite import FiniteSettings, run_instances
from amp_attention.experiments._sensitivity import jointly
from amp_attention.experiments._store import NOT_STORED, Steps
from amp_attention.experiments._theory import TheoryPoint, TheorySettings, TheorySweep
from amp_attention.problem import AttentionProblem
from amp_attention.spectrum import LearnedSpectrum, distances, learned_spectrum


@dataclass(frozen=True)
class SpectrumPoint:
    """The law of S at one problem, with its `record` for files.

    Attributes:
        record: numbers and lists by name.
        theory: the fixed point.
        spectrum: its law; None where the fixed point failed, or is without a law (S0 recovered exactly).
        eigenvalues: of S at finite d, pooled over repeats and engines; empty if none was asked for.
    """

    record: dict[str, Any]
    theory: TheoryPoint
    spectrum: LearnedSpectrum | None
    eigenvalues: np.ndarray


def spectrum_sweep(
    problems: Iterable[AttentionProblem],
    settings: TheorySettings = TheorySettings(),
    *,
    finite: FiniteSettings | None = None,
    engine: str = "amp",
    store: Steps = NOT_STORED,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[SpectrumPoint]:
    """Density, atom, edges, outliers and phase of the learned spectrum.

    Args:
        problems: neighbours in parameters.
        settings: how state evolution is solved.
        finite: also draw instances and compare the eigenvalues of S with the law.
        engine: "amp" or "train", what finds S at finite d.
        store: keeps what is found, for instance a `SweepStore`.
        progress: told what is about to run.

    Yields:
        A `SpectrumPoint` each. Its record is that of the fixed point with `x`, `density`, `atom`, `edges`, `outliers`
        and `phase`; `eigenvalues`, `distance` and `finite_d` are null without `finite`. It is successful where both the
        theory and what was solved at finite d are.
    """
    sweep = TheorySweep(settings, store)
    for problem in problems:
        theory = sweep.solve(problem)
        spectrum = learned_spectrum(problem, theory.value) if theory.successful else None
        record = theory.record | store.step("spectrum", partial(_described, spectrum))
        record |= {"eigenvalues": None, "distance": None, "finite_d": None}
        eigenvalues = np.zeros(0)
        if finite is not None:
            measured = run_instances(problem, [engine], finite, store=store, progress=progress)[engine]
            eigenvalues = _pooled(measured.runs)
            record |= {"eigenvalues": eigenvalues.tolist(), "finite_d": measured.record}
        if spectrum is not None and eigenvalues.size:
            record["distance"] = distances(eigenvalues, spectrum)
        yield SpectrumPoint(jointly(record, record["finite_d"]), theory, spectrum, eigenvalues)


def _pooled(runs: Sequence[Any]) -> np.ndarray:
    found = [run.eigenvalues for run in runs if run.eigenvalues is not None and run.record["result"] == "successful"]
    return np.sort(np.concatenate(found)) if found else np.zeros(0)


def _described(spectrum: LearnedSpectrum | None) -> dict[str, Any]:
    if spectrum is None:
        return {"x": None, "density": None, "atom": None, "edges": None, "outliers": None, "phase": None}
    s, density = spectrum.grid()
    inside = ~np.isnan(s)
    found = spectrum.outliers()
    entries = zip(found.value, found.overlap, found.target_eigenvalue, strict=True)
    return {
        "x": s[inside].tolist(),
        "density": density[inside].tolist(),
        "atom": float(spectrum.atom),
        "edges": spectrum.bands().tolist(),
        "outliers": [dict(zip(("value", "overlap", "target_eigenvalue"), map(float, e), strict=True)) for e in entries],
        "phase": spectrum.phase(),
    }
