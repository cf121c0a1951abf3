"""Which figures a command makes of its points."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from amp_attention.bayes import posterior_channel
from amp_attention.channels import SampledHardmaxPosterior
from amp_attention.experiments import (
    BayesSweep,
    ComparisonPoint,
    FinitePoint,
    SensitivityPoint,
    SpectrumPoint,
    TheorySettings,
    TheorySweep,
    bound_curve,
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
    bayes_curves,
    eigenvalue_histograms,
    format_number,
    grid_axes,
    learning_curves,
    phase_diagram,
    sensitivity_curves,
    shrinkage_curves,
    spectra_by_phase,
    spectrum_panel,
    threshold_lines,
    tuning_curves,
)
from amp_attention.plotting.learning_curves import PANELS, family_values
from amp_attention.spectral_laws import AbstractSpectralLaw, FreeConvolution
from amp_attention.spectrum import learned_spectrum
from amp_attention.targets import Target

CURVE_POINTS = 24
SHRINKAGE_POINTS = 400
TRAJECTORY_STEPS = 40
MOST_PANELS = 3


def theory_figures(points: Sequence[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of `state-evolution`."""
    return {"learning_curves": learning_curves(_as(points, "state_evolution"), parameters)}


def finite_figures(
    command: str, points: Sequence[FinitePoint], parameters: Mapping[str, Any], posterior: Target | None = None
) -> dict[str, Any]:
    """Of `amp` and `train`; beside the posterior mean of a target, what its state evolution says."""
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
        bound = [] if posterior is None else bound_curve(posterior, _along(posterior, records), BayesSweep())
        figures["learning_curves"] = learning_curves(_as(points, command), parameters, bound=bound, panels=panels)
    if spectra:
        figures["eigenvalues"] = eigenvalue_histograms(spectra, parameters, source=MARKS[command][0])
    return figures


def _along(target: Target, records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Effective α of the records, and between them where a point of the bound is no long sum."""
    places = [record["n"] / record["d"] ** 2 for record in records]
    return (
        sorted(set(places))
        if isinstance(posterior_channel(target), SampledHardmaxPosterior)
        else refine(places, CURVE_POINTS)
    )


def comparison_figures(
    points: Sequence[ComparisonPoint],
    parameters: Mapping[str, Any],
    settings: TheorySettings,
    best: BayesSweep | None = None,
) -> dict[str, Any]:
    """Of `compare`: learning curves, eigenvalues under the predicted law, AMP over state evolution in time."""
    records = [point.record for point in points]
    sweep = TheorySweep(settings)
    between = _between(points, records)
    curve, bound = [p.record for p in theory_curve(between, sweep)], []
    if best is not None and grid_axes(records)[0] == "alpha":
        bound = bound_curve(points[0].theory.problem.target, sorted({float(p.alpha) for p in between}), best)
    figures = {"learning_curves": learning_curves(records, parameters, curve=curve, bound=bound)}
    solved = [p for p in points if p.theory.value is not None and p.theory.record["result"] == "successful"]
    shown = [p for p in _spread(solved) if "amp" in p.finite and _eigenvalues(p.finite["amp"]).size]
    if shown:
        figures["eigenvalues"] = eigenvalue_histograms([_spectrum(p) for p in shown], parameters)
        nodes = sweep.nodes_for(shown[0].theory.problem)
        figures["trajectory"] = amp_trajectories([_trajectory(p, nodes) for p in shown], parameters)
    return figures


def sensitivity_figures(points: Sequence[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of `sensitivity`."""
    return _unless_empty("sensitivity", sensitivity_curves([_of_theory(point) for point in points], parameters))


def tuning_figures(points: Sequence[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of `tune`."""
    return _unless_empty("tuning", tuning_curves(_records(points), parameters))


def threshold_figures(points: Sequence[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of `thresholds`."""
    return _unless_empty("thresholds", threshold_lines(_records(points), parameters))


def bayes_figures(points: Sequence[Any], parameters: Mapping[str, Any], law: AbstractSpectralLaw) -> dict[str, Any]:
    """Of `bayes`: the errors, and the shrinkage at first, middle and last point."""
    figures = _unless_empty("bayes", bayes_curves(_records(points), parameters))
    curves = [
        (rf"$\alpha={format_number(point.record['alpha'])}$", *_shrinkage(law, point.record["effective_noise"]))
        for point in _spread([p for p in points if p.record["effective_noise"] > 0])
    ]
    return figures | ({"shrinkage": shrinkage_curves(curves, parameters)} if curves else {})


def _shrinkage(law: AbstractSpectralLaw, D: float) -> tuple[np.ndarray, np.ndarray]:
    convolution = FreeConvolution(law, D**0.5)
    ends = np.asarray(convolution.edges())
    y = np.linspace(ends[0, 0], ends[-1, 1], SHRINKAGE_POINTS)
    return y, np.asarray(convolution.posterior_mean(jnp.asarray(y, law.dtype)))


def spectrum_figures(points: Sequence[SpectrumPoint], parameters: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """Of `spectrum`: each phase once where all points differ in it, else first, middle and last point."""
    solved = [point for point in points if point.spectrum is not None]
    phases = [point.record["phase"] for point in solved]
    apart = len(set(phases)) == len(phases)
    panels = [
        spectrum_panel(_title(point.record), point.spectrum, point.eigenvalues)
        for point in (solved if apart else _spread(solved))
        if point.spectrum is not None
    ]
    draw = spectra_by_phase if apart else eigenvalue_histograms
    return {"spectra": draw(panels, parameters, source=MARKS[engine][0])} if panels else {}


def phase_figures(
    points: Sequence[Any], parameters: Mapping[str, Any], boundaries: Mapping[str, Sequence[Sequence[float]]]
) -> dict[str, Any]:
    """Of `phase-diagram`."""
    return {"phase_diagram": phase_diagram(_records(points), parameters, boundaries)}


def _records(points: Sequence[Any]) -> list[dict[str, Any]]:
    return [point.record for point in points]


def _of_theory(point: SensitivityPoint) -> dict[str, Any]:
    """Its record with the result of theory, which is drawn whatever became of AMP beside it."""
    return point.record | {"result": point.theory.record["result"]}


def _unless_empty(name: str, figure: Any) -> dict[str, Any]:
    return {} if figure is None else {name: figure}


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
    lam = rf", $\tilde\lambda={format_number(record['lam'])}$" if _known(record, "lam") else ""
    return rf"$\alpha={format_number(record['alpha'])}$" + lam


def _spectrum(point: ComparisonPoint) -> SpectrumPanel:
    value = point.theory.value
    s, density = learned_spectrum(point.theory.problem, value).grid()
    eigenvalues = _eigenvalues(point.finite["amp"])
    return SpectrumPanel(_title(point.record), eigenvalues, s, density, float(value.zero_fraction))


def _trajectory(point: ComparisonPoint, nodes: Any) -> TrajectoryPanel:
    histories = [run.history for run in point.finite["amp"].runs if run.history]
    return TrajectoryPanel(_title(point.record), histories, predicted_trajectory(point.theory, nodes, TRAJECTORY_STEPS))
