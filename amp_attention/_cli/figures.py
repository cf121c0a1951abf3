"""Which figures a command makes of its points."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp_attention.experiments import (
    ComparisonPoint,
    FinitePoint,
    TheorySettings,
    TheorySweep,
    predicted_spectrum,
    predicted_trajectory,
    problem_at,
    refine,
    theory_curve,
)
from amp_attention.plotting import (
    MARKS,
    SpectrumPanel,
    TrajectoryPanel,
    amp_trajectories,
    eigenvalue_histograms,
    format_number,
    grid_axes,
    learning_curves,
)
from amp_attention.plotting.learning_curves import PANELS, family_values

CURVE_POINTS = 24
TRAJECTORY_STEPS = 40
MOST_PANELS = 3


def theory_figures(points: Sequence[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of `state-evolution`."""
    return {"learning_curves": learning_curves(_as(points, "state_evolution"), parameters)}


def finite_figures(command: str, points: Sequence[FinitePoint], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of `amp` and `train`."""
    records = [point.record for point in points]
    panels = [n for n in PANELS if any(_known(r, "zero_fraction" if n == "rank_fraction" else n) for r in records)]
    empty = np.zeros(0)
    spectra = [
        SpectrumPanel(_title(point.record), pooled, empty, empty, np.nan)
        for point in _spread(points)
        if (pooled := _eigenvalues(point)).size
    ]
    figures = {}
    if panels:
        figures["learning_curves"] = learning_curves(_as(points, command), parameters, panels=panels)
    if spectra:
        figures["eigenvalues"] = eigenvalue_histograms(spectra, parameters, source=MARKS[command][0])
    return figures


def comparison_figures(
    points: Sequence[ComparisonPoint], parameters: Mapping[str, Any], settings: TheorySettings
) -> dict[str, Any]:
    """Of `compare`: learning curves, eigenvalues under the predicted law, AMP over state evolution in time."""
    records = [point.record for point in points]
    sweep = TheorySweep(settings)
    curve = [p.record for p in theory_curve(_between(points, records), sweep)]
    figures = {"learning_curves": learning_curves(records, parameters, curve=curve)}
    solved = [p for p in points if p.theory.value is not None and p.theory.record["result"] == "successful"]
    shown = [p for p in _spread(solved) if "amp" in p.finite and _eigenvalues(p.finite["amp"]).size]
    if shown:
        figures["eigenvalues"] = eigenvalue_histograms([_spectrum(p) for p in shown], parameters)
        nodes = sweep.nodes_for(shown[0].theory.problem)
        figures["trajectory"] = amp_trajectories([_trajectory(p, nodes) for p in shown], parameters)
    return figures


def _between(points: Sequence[ComparisonPoint], records: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Problems between those of the grid, for smooth lines."""
    axis, family = grid_axes(records)
    problem = points[0].theory.problem
    values = [record[axis] for record in records]
    dense = [x for x in refine(values, CURVE_POINTS) if x not in set(values)]
    return [problem_at(problem, **{family: f, axis: x}) for f in family_values(records, family) for x in dense]


def _as(points: Sequence[Any], engine: str) -> list[dict[str, Any]]:
    return [{"alpha": p.record["alpha"], "lam": p.record["lam"], engine: p.record} for p in points]


def _spread(points: Sequence[Any]) -> list[Any]:
    """First, middle and last."""
    index = np.unique(np.linspace(0, len(points) - 1, MOST_PANELS).round().astype(int)) if points else []
    return [points[i] for i in index]


def _known(record: Mapping[str, Any], name: str) -> bool:
    value = record.get(name)
    return value is not None and np.isfinite(value)


def _eigenvalues(point: FinitePoint) -> np.ndarray:
    found = [run.eigenvalues for run in point.runs if run.eigenvalues is not None]
    return np.concatenate(found) if found else np.zeros(0)


def _title(record: Mapping[str, Any]) -> str:
    return rf"$\alpha={format_number(record['alpha'])}$, $\tilde\lambda={format_number(record['lam'])}$"


def _spectrum(point: ComparisonPoint) -> SpectrumPanel:
    law = predicted_spectrum(point.theory)
    return SpectrumPanel(_title(point.record), _eigenvalues(point.finite["amp"]), law.s, law.density, law.atom)


def _trajectory(point: ComparisonPoint, nodes: Any) -> TrajectoryPanel:
    histories = [run.history for run in point.finite["amp"].runs if run.history]
    return TrajectoryPanel(_title(point.record), histories, predicted_trajectory(point.theory, nodes, TRAJECTORY_STEPS))
