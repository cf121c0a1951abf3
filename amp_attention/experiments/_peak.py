"""The interpolation peak of the test error over α, as λ̃ → 0⁺."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from amp_attention._solution import RESULTS, Solution, result_message, result_name
from amp_attention.channels import ERMChannel
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._records import SUCCESSFUL, number
from amp_attention.experiments._sensitivity import replica_errors
from amp_attention.experiments._theory import TheoryPoint, TheorySettings, TheorySweep
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution import FixedPoint, solve_state_evolution
from amp_attention.thresholds import interpolation_threshold
from amp_attention.tuning import Optimum, optimise

SPACING = 0.03  # in log α, of the points of a parabola
SCANNED = (0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 2.0)  # α/α_interp, where the first peak is looked for


@dataclass(frozen=True)
class PeakPoint:
    """The peak at one λ̃, as a `record` for files."""

    record: dict[str, Any]


def peak_sweep(
    problem: AttentionProblem,
    lams: Iterable[float],
    settings: TheorySettings = TheorySettings(),
    *,
    of: str = "test_error",
    tolerance: float = 1e-3,
) -> Iterator[PeakPoint]:
    """Height and place of the largest value of an observable over α, followed down a list of λ̃.

    Args:
        problem: with noise; near interpolation its channel should have a `smoothing`.
        lams: from the largest to the smallest, for continuation.
        settings: how state evolution is solved.
        of: a field of `FixedPoint`.
        tolerance: on the derivative in α; 1e-3 leaves less than the standard errors.

    Yields:
        A `PeakPoint` each. `alpha` and `value` are place and height, `standard_error` those of both from the replicas
        of the nodes (of the height at fixed α, since it is stationary there), `curvature` d²E/dα². Diagnostics:
        `replicon`, and with a smoothing `two_minima` and `switching` of `MinimaStatistics`. `method` is "newton", or
        "parabola" where finitely many nodes have no fixed point near the maximum, hence no derivative.
    """
    sweep = TheorySweep(settings)
    nodes = sweep.nodes_for(problem)
    threshold = number(
        interpolation_threshold(problem.target.law, problem.target.noise, problem.target.head.constraints)
    )
    bounds, most = (0.8 * threshold, 4 * threshold), settings.max_iterations or 60
    last: _Peak | None = None
    for lam in lams:
        here = problem_at(problem, lam=lam)
        guess = _scan(here, threshold, sweep, of) if last is None else last.alpha
        here, start = problem_at(here, alpha=guess), None if last is None else last.solution.value
        found, result = None, RESULTS.left_domain
        if last is None or last.method == "newton":
            options = {"of": of, "tolerance": tolerance, "longest": 0.05, "max_steps": most}
            newton = optimise(here, nodes, along="alpha", maximise=True, bounds=bounds, start=start, **options)
            found, result = _of_optimum(newton), newton.result
        if found is None and start is not None:
            found = _by_parabola(here, nodes, start, of, most)
        last = found or last
        yield PeakPoint(_failed(lam, result) if found is None else _record(lam, found, nodes, of))


@dataclass(frozen=True)
class _Peak:
    """A maximum over α: its place, height and curvature d²E/dα², and a fixed point there or next to it."""

    alpha: float
    value: float
    curvature: float
    problem: AttentionProblem
    solution: Solution[FixedPoint]
    method: str
    solves: int


def _of_optimum(found: Optimum) -> _Peak | None:
    if not found.successful or found.bound is not None or found.solution is None:
        return None
    return _Peak(found.x, found.value, found.curvature, found.problem, found.solution, "newton", found.solves)


def _by_parabola(problem: AttentionProblem, nodes, start: FixedPoint, of: str, most: int) -> _Peak | None:
    """The vertex of a parabola in log α through fixed points that are known to within their standard errors.

    What finitely many nodes leave without a fixed point still has a value, off by much less than its standard error,
    but no derivative. None if no maximum is found among five values of α, moved at most five times.
    """
    centre, solves = number(problem.alpha), 0
    tolerance = max(0.01 * _relative_error(start), 1e-10)  # closer than that there may be nothing
    for _ in range(6):
        solutions = []
        for step in SPACING * np.arange(-2, 3):
            moved = problem_at(problem, alpha=centre * math.exp(step))
            solution = solve_state_evolution(moved, nodes, start=start, tolerance=tolerance, max_steps=most)
            solves += 1
            if _within_errors(solution):
                start = solution.value
                solutions.append((step, number(getattr(solution.value, of)), moved, solution))
        if len(solutions) < 4:
            return None
        steps, values = np.asarray([s[0] for s in solutions]), np.asarray([s[1] for s in solutions])
        curvature, tilt, level = np.polyfit(steps, values, 2)
        vertex = -tilt / (2 * curvature)
        if curvature < 0 and abs(vertex) <= SPACING:
            alpha, height = centre * math.exp(vertex), float(level - tilt**2 / (4 * curvature))
            nearest = solutions[int(np.argmin(np.abs(steps - vertex)))]
            return _Peak(alpha, height, float(2 * curvature / alpha**2), nearest[2], nearest[3], "parabola", solves)
        best = int(np.argmax(values))
        centre, start = centre * math.exp(steps[best]), solutions[best][3].value
    return None


def _within_errors(solution: Solution[FixedPoint]) -> bool:
    """Whether the fixed point is known better than the integration error allows."""
    return bool(solution.successful) or number(solution.stats["residual"]) < 0.3 * _relative_error(solution.value)


def _relative_error(point: FixedPoint) -> float:
    """Standard error of the overlaps in the units of the solver's residual."""
    return number(jnp.max(jnp.abs(point.errors.overlaps) / (1 + jnp.abs(point.overlaps))))


def _scan(problem: AttentionProblem, threshold: float, sweep: TheorySweep, of: str) -> float:
    """The best of a few values of α."""
    solved = [sweep.solve(problem_at(problem, alpha=factor * threshold)) for factor in SCANNED]
    good = [point.record for point in solved if point.successful]
    inner = _interior_maximum([record[of] for record in good])
    return threshold if inner is None else good[inner]["alpha"]


def _interior_maximum(values: Sequence[float]) -> int | None:
    """Index of the largest value that has lower ones on both sides."""
    inner = [i for i in range(1, len(values) - 1) if values[i - 1] < values[i] > values[i + 1]]
    return max(inner, key=lambda i: values[i]) if inner else None


def _failed(lam: float, result: RESULTS) -> dict[str, Any]:
    result = RESULTS.where(result == RESULTS.successful, RESULTS.left_domain, result)
    names = ("alpha", "value", "curvature", "replicon", "squared_error", "eta", "Sigma")
    failure: dict[str, Any] = {"result": result_name(result), "message": result_message(result)}
    return {"lam": lam} | failure | dict.fromkeys(names, math.nan) | {"method": None, "standard_error": None}


def _record(lam: float, found: _Peak, nodes, of: str) -> dict[str, Any]:
    record: dict[str, Any] = {"lam": lam, "alpha": found.alpha, "value": found.value, "curvature": found.curvature}
    record |= {"result": SUCCESSFUL, "method": found.method, "solves": found.solves}
    point = found.solution.value
    record |= {name: number(getattr(point, name)) for name in ("replicon", "squared_error", "eta", "Sigma")}
    record["standard_error"] = {"value": number(getattr(point.errors, of)), "alpha": _place_error(found, nodes, of)}
    return record | _two_minima(found.problem, point, nodes)


def _place_error(found: _Peak, nodes, of: str) -> float:
    """δα = −δ(dE/dα)/(d²E/dα²)."""
    errors = replica_errors(TheoryPoint({}, found.problem, found.solution), nodes, of)
    return math.nan if errors is None else abs((errors["alpha"] or math.nan) / found.curvature)


def _two_minima(problem: AttentionProblem, point, nodes) -> dict[str, float]:
    channel = problem.channel
    if not isinstance(channel, ERMChannel) or channel.smoothing is None:
        return {}
    found = channel.minima(problem.target, point.Sigma, point.m, point.q, nodes)
    return {"two_minima": number(jnp.mean(found.fraction)), "switching": number(jnp.mean(found.switching))}
