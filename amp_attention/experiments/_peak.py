"""The interpolation peak of an observable over α, as λ̃ → 0⁺.

With finitely many nodes there need be no fixed point to rounding near the peak, hence no derivative to follow: the peak
is the maximum of a cubic through fixed points on a fixed grid of α, each continued from its own at the λ̃ before.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from amp_attention._solution import RESULTS, Solution, result_message, result_name
from amp_attention.channels import ERMChannel
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._records import SUCCESSFUL, number
from amp_attention.experiments._sensitivity import replica_errors
from amp_attention.experiments._theory import TheoryPoint, TheorySettings, TheorySweep
from amp_attention.numerics.validation import positive
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution import FixedPoint, Nodes, solve_lowest, solve_state_evolution
from amp_attention.thresholds import interpolation_threshold

SPACING = 0.03  # in log α, of the grid
REACH = 2  # points of the grid on either side of the middle one of a cubic
SCANNED = (-4, 0, 3, 6, 10, 14, 18, 23)  # points of the grid among which the first peak is looked for
LOWEST, HIGHEST = -10, 46  # the grid: α/α_interp from .74 to 4
FOLLOWED = 32  # most evaluations of a fixed point that is continued: six are usual
SOUGHT, NEEDED = 1e-3, 1e-2  # residual of a fixed point, sought and needed, in units of its standard error
MOST = 1e-3  # residual needed where the standard error is large


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
) -> Iterator[PeakPoint]:
    """Height and place of the largest value of an observable over α, followed down a list of λ̃.

    Args:
        problem: with noise; near interpolation its channel should have a `smoothing`.
        lams: from the largest to the smallest, no more than a factor of about three apart, for continuation.
        settings: how state evolution is solved.
        of: a field of `FixedPoint`.

    Yields:
        A `PeakPoint` each. `alpha` and `value` are place and height, `standard_error` those of both from the replicas
        of the nodes (of the height at fixed α, since it is stationary there; of the place NaN where fewer than half of
        the replicas have a fixed point of their own), `curvature` d²E/dα², `solves` the fixed points solved.
        Diagnostics: `replicon`, and with a smoothing `two_minima` and `switching` of `MinimaStatistics`. A λ̃ at which
        no maximum is found says so in `result` and leaves the others alone.

    Raises:
        ValueError: for labels without noise, which every α interpolates.
    """
    positive("noise", problem.target.noise)
    nodes = TheorySweep(settings).nodes_for(problem)
    threshold = number(
        interpolation_threshold(problem.target.law, problem.target.noise, problem.target.head.constraints)
    )
    row: _Row | None = None
    centre: int | None = None
    for lam in lams:
        row = _Row(problem_at(problem, lam=lam), threshold, nodes, of, row, settings.max_iterations)
        found = row.peak(row.scan() if centre is None else centre)
        if isinstance(found, _Peak):
            centre = found.nearest
            yield PeakPoint(_record(lam, found, row, nodes))
        else:
            yield PeakPoint(_failed(lam, found))


@dataclass(frozen=True)
class _Peak:
    """A maximum over α: its place, height and curvature d²E/dα², and the point of the grid next to it."""

    alpha: float
    value: float
    curvature: float
    nearest: int


@dataclass
class _Row:
    """Fixed points at one λ̃ on the grid α_k = α_interp e^{k SPACING}, each solved when it is first asked for."""

    problem: AttentionProblem
    threshold: float
    nodes: Nodes
    of: str
    before: "_Row | None"  # at the λ̃ before
    most: int | None
    solved: dict[int, Solution[FixedPoint]] = field(default_factory=dict)

    def at(self, k: int) -> AttentionProblem:
        """The problem at α_k."""
        return problem_at(self.problem, alpha=self.threshold * math.exp(SPACING * k))

    def value(self, k: int) -> float:
        """The observable at α_k; NaN where the fixed point is not known well enough."""
        point = self.point(k)
        return math.nan if point is None else number(getattr(point, self.of))

    def point(self, k: int) -> FixedPoint | None:
        """The fixed point at α_k, None if it is not known well enough."""
        if k not in self.solved:
            self.solved[k] = self._solve(k)
        return self.solved[k].value if _known(self.solved[k]) else None

    def _solve(self, k: int) -> Solution[FixedPoint]:
        start = (self.before and self.before.point(k)) or self._nearest(k)
        if start is None:
            return solve_lowest(self.at(k), self.nodes, max_steps=self.most or 60)
        options = {"tolerance": max(SOUGHT * _relative_error(start), 1e-10), "max_steps": self.most or FOLLOWED}
        return solve_state_evolution(self.at(k), self.nodes, start=start, **options)

    def _nearest(self, k: int) -> FixedPoint | None:
        """Of the points solved before, the one of nearest α."""
        known = {other: solution.value for other, solution in self.solved.items() if _known(solution)}
        return known[min(known, key=lambda other: abs(other - k))] if known else None

    def scan(self) -> int:
        """The best of a few points of the grid that has lower ones on both sides; α_interp if there is none."""
        inner = _interior_maximum([self.value(k) for k in SCANNED])
        return 0 if inner is None else SCANNED[inner]

    def peak(self, centre: int) -> _Peak | RESULTS:
        """The maximum near a point of the grid; why there is none otherwise."""
        steps = np.asarray(sorted(range(-REACH, REACH + 1), key=abs))  # from the middle, next to points that are known
        visited: set[int] = set()
        while LOWEST <= centre <= HIGHEST:
            values = np.asarray([self.value(centre + step) for step in steps])
            known = np.isfinite(values)
            if known.sum() < 4:
                failed = [self.solved[centre + step].result for step in steps[~known]]
                return failed[0]
            place, height, curvature = _maximum(steps[known], values[known])
            move = int(np.round(place))
            if not move or (centre + move in visited and abs(place) <= 1):
                alpha = self.threshold * math.exp(SPACING * (centre + place))
                return _Peak(alpha, height, curvature / (SPACING * alpha) ** 2, centre)
            if centre + move in visited:
                break
            visited.add(centre)
            centre += move
        return RESULTS.left_domain


def _maximum(steps: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Place, value and second derivative of the maximum of the cubic through the points, or of where it lies beyond.

    Where the cubic has none within reach, the place is the end towards which the values rise: one moves there.
    """
    cubic = np.polynomial.Polynomial.fit(steps, values, 3).convert()
    slope, bend = cubic.deriv(), cubic.deriv(2)
    inside = [x.real for x in slope.roots() if abs(x.imag) < 1e-12 and abs(x) <= REACH and bend(x.real) < 0]
    if inside:
        place = min(inside, key=abs)
        return place, float(cubic(place)), float(bend(place))
    rising = np.polynomial.Polynomial.fit(steps, values, 1).convert().coef[1] > 0
    return (REACH if rising else -REACH), math.nan, math.nan


def _known(solution: Solution[FixedPoint]) -> bool:
    """Whether the fixed point is known much better than the integration error."""
    needed = min(NEEDED * _relative_error(solution.value), MOST)
    return bool(solution.successful) or number(solution.stats["residual"]) < needed


def _relative_error(point: FixedPoint) -> float:
    """Standard error of the overlaps in the units of the solver's residual."""
    return number(jnp.max(jnp.abs(point.errors.overlaps) / (1 + jnp.abs(point.overlaps))))


def _interior_maximum(values: Sequence[float]) -> int | None:
    """Index of the largest value that has lower ones on both sides."""
    inner = [i for i in range(1, len(values) - 1) if values[i - 1] < values[i] > values[i + 1]]
    return max(inner, key=lambda i: values[i]) if inner else None


def _failed(lam: float, result: RESULTS) -> dict[str, Any]:
    result = RESULTS.where(result == RESULTS.successful, RESULTS.left_domain, result)
    names = ("alpha", "value", "curvature", "replicon", "squared_error", "eta", "Sigma")
    failure: dict[str, Any] = {"result": result_name(result), "message": result_message(result)}
    return {"lam": lam} | failure | dict.fromkeys(names, math.nan) | {"standard_error": None}


def _record(lam: float, found: _Peak, row: _Row, nodes: Nodes) -> dict[str, Any]:
    problem, solution = row.at(found.nearest), row.solved[found.nearest]
    point = solution.value
    record: dict[str, Any] = {"lam": lam, "alpha": found.alpha, "value": found.value, "curvature": found.curvature}
    record |= {"result": SUCCESSFUL, "solves": len(row.solved)}
    record |= {name: number(getattr(point, name)) for name in ("replicon", "squared_error", "eta", "Sigma")}
    errors = replica_errors(TheoryPoint({}, problem, solution), nodes, row.of)
    slope_error = math.nan if errors is None or errors["alpha"] is None else errors["alpha"]
    place_error = abs(slope_error / found.curvature)  # δα = −δ(dE/dα)/(d²E/dα²)
    record["standard_error"] = {"value": number(getattr(point.errors, row.of)), "alpha": place_error}
    return record | _two_minima(problem, point, nodes)


def _two_minima(problem: AttentionProblem, point, nodes) -> dict[str, float]:
    channel = problem.channel
    if not isinstance(channel, ERMChannel) or channel.smoothing is None:
        return {}
    found = channel.minima(problem.target, point.Sigma, point.m, point.q, nodes)
    return {"two_minima": number(jnp.mean(found.fraction)), "switching": number(jnp.mean(found.switching))}
