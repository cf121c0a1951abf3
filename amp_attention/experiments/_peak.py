"""The interpolation peak of the test error over α, as λ̃ → 0⁺."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from amp_attention._solution import result_message, result_name
from amp_attention.channels import ERMChannel
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._records import number
from amp_attention.experiments._sensitivity import replica_errors
from amp_attention.experiments._theory import TheoryPoint, TheorySettings, TheorySweep
from amp_attention.problem import AttentionProblem
from amp_attention.thresholds import interpolation_threshold
from amp_attention.tuning import Optimum, optimise

SHIFTS = (1.0, 0.97, 1.03, 0.94)  # of the last peak, tried in turn while state evolution has no fixed point there
SCANNED = (0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 2.0)  # α/α_interp, where the first peak is looked for


@dataclass(frozen=True)
class PeakPoint:
    """The peak at one λ̃, with its `record` for files."""

    record: dict[str, Any]
    optimum: Optimum | None


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
        `replicon`, and with a smoothing `two_minima` and `switching` of `MinimaStatistics`.
    """
    sweep = TheorySweep(settings)
    nodes = sweep.nodes_for(problem)
    threshold = number(
        interpolation_threshold(problem.target.law, problem.target.noise, problem.target.head.constraints)
    )
    last: Optimum | None = None
    options: dict[str, Any] = {"of": of, "along": "alpha", "maximise": True, "tolerance": tolerance, "longest": 0.05}
    options |= {"bounds": (0.8 * threshold, 4 * threshold), "max_steps": settings.max_iterations or 200}
    for lam in lams:
        here = problem_at(problem, lam=lam)
        found = None
        for guess in [_scan(here, threshold, sweep, of)] if last is None else [shift * last.x for shift in SHIFTS]:
            start = None if last is None or last.solution is None else last.solution.value
            found = optimise(problem_at(here, alpha=guess), nodes, start=start, **options)
            if found.solution is not None and found.bound is None:
                break
        assert found is not None
        last = found if found.solution is not None and found.bound is None else last
        yield PeakPoint(_record(lam, found, nodes, of), found)


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


def _record(lam: float, found: Optimum, nodes, of: str) -> dict[str, Any]:
    name = result_name(found.result)
    record: dict[str, Any] = {"lam": lam, "alpha": found.x, "value": found.value, "curvature": found.curvature}
    record |= {"bound": found.bound, "solves": found.solves, "result": name}
    if not found.successful:
        record["message"] = result_message(found.result)
    if found.solution is None:
        return record
    point = found.solution.value
    record["replicon"], record["Sigma"] = number(point.replicon), number(point.Sigma)
    record["standard_error"] = {"value": number(getattr(point.errors, of)), "alpha": _place_error(found, nodes, of)}
    return record | _two_minima(found.problem, point, nodes)


def _place_error(found: Optimum, nodes, of: str) -> float:
    """δα = −δ(dE/dα)/(d²E/dα²)."""
    if not found.successful or found.curvature == 0:
        return math.nan
    errors = replica_errors(TheoryPoint({}, found.problem, found.solution), nodes, of)
    return math.nan if errors is None else abs((errors["alpha"] or math.nan) / found.curvature)


def _two_minima(problem: AttentionProblem, point, nodes) -> dict[str, float]:
    channel = problem.channel
    if not isinstance(channel, ERMChannel) or channel.smoothing is None:
        return {}
    found = channel.minima(problem.target, point.Sigma, point.m, point.q, nodes)
    return {"two_minima": number(jnp.mean(found.fraction)), "switching": number(jnp.mean(found.switching))}
