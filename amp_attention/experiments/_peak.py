"""The interpolation peak of an observable over α, as λ̃ → 0⁺.

With finitely many nodes there need be no fixed point to rounding near the peak, hence no derivative to follow: the peak
is the maximum of a cubic fitted to fixed points on a fixed grid of α, each continued from its own at the λ̃ before.
"""

import itertools
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
from amp_attention.experiments._theory import TheorySettings, TheorySweep
from amp_attention.numerics.validation import positive
from amp_attention.problem import AttentionProblem
from amp_attention.sensitivity import observable
from amp_attention.state_evolution import FixedPoint, Nodes, solve_lowest, solve_state_evolution
from amp_attention.thresholds import interpolation_threshold

SPACING = 0.03  # in log α, of the grid
REACH = 2  # points of the grid on either side of the middle one of a cubic
SPARE = 1  # more of them on either side, for those of the five that are not known
FITTED, COEFFICIENTS = 2 * REACH + 1, 4  # points and unknowns of a cubic: one degree of freedom is left
STUDENT = 1.837  # 68 % of a t-distribution of one degree of freedom: a scatter known from so little says little
CONSTANT = 1e-8  # relative variation below which an observable has no maximum
SCANNED = (-4, 0, 3, 6, 10, 14, 18, 23)  # points of the grid among which the first peak is looked for
LOWEST, HIGHEST = -10, 46  # the grid: α/α_interp from .74 to 4
FOLLOWED, COLD = 32, 60  # most evaluations of a fixed point, continued (six are usual) and from scratch
SOUGHT, NEEDED = 1e-3, 1e-2  # residual of a fixed point, sought and needed, in units of its standard error
MOST = 1e-3  # residual needed where the standard error is large
ROUGHLY = 0.1  # that of a replica on its own, in units of its standard error: only an error is read from it
UNRESOLVED = (RESULTS.max_steps_reached, RESULTS.integration_error)  # of equations that jump
BLANK = ("alpha", "value", "curvature", "alpha_nearest", "replicon", "squared_error", "eta", "Sigma", "scatter")


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
        lams: λ̃ > 0 from the largest to the smallest, no more than a factor of about three apart, for continuation.
            Another order is refused, an empty list has no peaks.
        settings: how state evolution is solved.
        of: the name of a field of `FixedPoint`.

    Yields:
        A `PeakPoint` each. Of the cubic fitted to five points of the grid, 3 % apart in α: `alpha`, `value`,
        `curvature` (place, height and d²E/dα² of its maximum), and `scatter`, the standard deviation of the points
        about it, which the nodes that jump leave. Of one fixed point, that of the grid next to `alpha`, at its own
        `alpha_nearest`: `replicon`, `squared_error`, `eta`, `Sigma`, and with a smoothing `two_minima` and `switching`
        of `MinimaStatistics`. `standard_error` has that of `value` and `alpha`, two parts added in square: that scatter
        (one residual, hence Student's factor), and the integration error from the replicas of the nodes. The latter is
        for the height that of the observable at `alpha_nearest`, since the height is stationary there; for the place
        that of the slope, from the five fixed points of each replica on its own (NaN where fewer than half of them
        have any). Where the observable jumps at its peak, `curvature` is that of the jump and the error of the place
        may be several times too small: compare another `seed`. `solves` is the number of fixed points of all nodes
        solved at this λ̃.
        A λ̃ at which no maximum is found says so and leaves the others alone. Its `result` is `left_domain` where no
        point of the grid is one, `integration_error` where the points jump too much for a cubic, or that of the fixed
        points that are missing; `message` names the cause and what to do about it.

    Raises:
        ValueError: for arguments out of range, at once; for labels without noise, which every α interpolates.
    """
    positive("noise", problem.target.noise)
    observable(str(of))
    return _peaks(problem, _falling(lams), settings, of)


def _falling(lams: Iterable[float]) -> list[float]:
    """The list, if it is one of falling numbers > 0."""
    try:
        values = None if isinstance(lams, (str, bytes)) else list(lams)
    except TypeError:
        values = None
    if values is None or any(np.shape(lam) for lam in values):
        raise ValueError(f"lams must be a list of numbers > 0, got {lams!r}")
    for lam in values:
        positive("every value of lams", lam)
    for before, lam in itertools.pairwise(values):
        if not lam < before:
            raise ValueError(f"lams must be in falling order, each value once, got {lam:g} after {before:g}")
    return [float(lam) for lam in values]


def _peaks(problem: AttentionProblem, lams: list[float], settings: TheorySettings, of: str) -> Iterator[PeakPoint]:
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
            yield PeakPoint({"lam": lam} | _record(found, row, nodes))
        else:
            yield PeakPoint({"lam": lam} | _failed(found, row))


@dataclass(frozen=True)
class _Maximum:
    """Of a cubic, in steps of the grid from its middle: NaN, but for the place, where there is none within reach.

    Attributes:
        place: where it is, or the end towards which the values rise.
        height, curvature: value and second derivative there.
        scatter: standard deviation of the points about the cubic.
        place_error, height_error: what that scatter makes of place and height.
    """

    place: float
    height: float = math.nan
    curvature: float = math.nan
    scatter: float = math.nan
    place_error: float = math.nan
    height_error: float = math.nan


@dataclass(frozen=True)
class _Peak:
    """A maximum, the α of its place, the points of the grid that were fitted, and which of them is next to it."""

    maximum: _Maximum
    alpha: float
    fitted: list[int]
    nearest: int


@dataclass(frozen=True)
class _Failure:
    """Why there is no peak."""

    result: RESULTS
    message: str


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

    def alpha(self, k: float) -> float:
        """α_k."""
        return self.threshold * math.exp(SPACING * k)

    def at(self, k: int) -> AttentionProblem:
        """The problem at α_k."""
        return problem_at(self.problem, alpha=self.alpha(k))

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
        start = _informative(self.before and self.before.point(k)) or _informative(self._nearest(k))
        if start is None:
            return solve_lowest(self.at(k), self.nodes, max_steps=self.most or COLD)
        options = {"tolerance": max(SOUGHT * _relative_error(start), 1e-10), "max_steps": self.most or FOLLOWED}
        return solve_state_evolution(self.at(k), self.nodes, start=start, **options)

    def _nearest(self, k: int) -> FixedPoint | None:
        """Of the points solved before, the one of nearest α."""
        known = self._known()
        return self.point(min(known, key=lambda other: abs(other - k))) if known else None

    def _known(self) -> list[int]:
        return [k for k, solution in self.solved.items() if _known(solution)]

    def scan(self) -> int:
        """The best of a few points of the grid that has lower ones on both sides; α_interp if there is none."""
        inner = _interior_maximum([self.value(k) for k in SCANNED])
        return 0 if inner is None else SCANNED[inner]

    def around(self, centre: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps from a point of the grid to the five points next to it that are known, and the observable there."""
        steps = range(-REACH - SPARE, REACH + SPARE + 1)
        found = ((step, self.value(centre + step)) for step in sorted(steps, key=abs))  # next to points that are known
        known = itertools.islice((pair for pair in found if math.isfinite(pair[1])), FITTED)
        near, values = np.asarray(list(known), float).reshape(-1, 2).T
        return near, values

    def peak(self, centre: int) -> _Peak | _Failure:
        """The maximum near a point of the grid; why there is none otherwise."""
        visited: set[int] = set()
        while LOWEST <= centre <= HIGHEST:
            steps, values = self.around(centre)
            if len(steps) < FITTED:
                return self._unknown(centre)
            if np.ptp(values) <= CONSTANT * np.max(np.abs(values)):
                break
            maximum = _maximum(steps, values)
            move = round(maximum.place)
            if not move or (centre + move in visited and abs(maximum.place) <= 1):
                fitted = [centre + int(step) for step in steps]
                nearest = min(fitted, key=lambda k: abs(k - centre - maximum.place))
                return _Peak(maximum, self.alpha(centre + maximum.place), fitted, nearest)
            if centre + move in visited:
                return self._torn(centre)
            visited.add(centre)
            centre += move
        return self._absent()

    def slope_error(self, fitted: Sequence[int]) -> float:
        """Standard error of dE/dk from the replicas of the nodes, each with fixed points of its own, jumps included.

        NaN where fewer than half of them have these.
        """
        slopes = [self._replica_slope(fitted, self.nodes[r : r + 1]) for r in range(self.nodes.shape[0])]
        known = [slope for slope in slopes if math.isfinite(slope)]
        return float(np.std(known, ddof=1)) / len(slopes) ** 0.5 if len(known) >= max(2, len(slopes) / 2) else math.nan

    def _replica_slope(self, fitted: Sequence[int], own: Nodes) -> float:
        values = [self._replica_value(k, own) for k in fitted]
        return float(np.polyfit(fitted, values, 1)[0]) if np.all(np.isfinite(values)) else math.nan

    def _replica_value(self, k: int, own: Nodes) -> float:
        start = self.solved[k].value
        unit = _relative_error(start) * self.nodes.shape[0] ** 0.5
        options = {"tolerance": max(SOUGHT * unit, 1e-10), "max_steps": self.most or FOLLOWED}
        found = solve_state_evolution(self.at(k), own, start=start, **options)
        known = bool(found.successful) or number(found.stats["residual"]) < ROUGHLY * unit
        return number(getattr(found.value, self.of)) if known else math.nan

    def _absent(self) -> _Failure:
        alphas = [self.alpha(k) for k in self._known()]
        searched = f"between {min(alphas):.4g} and {max(alphas):.4g}"
        return _Failure(RESULTS.left_domain, f"no interior maximum of {self.of} over α {searched}")

    def _torn(self, centre: int) -> _Failure:
        what = f"{self.of} jumps between the fixed points next to α = {self.alpha(centre):.4g}: no cubic follows them"
        return _Failure(RESULTS.integration_error, f"{what}; {self._advice()}")

    def _unknown(self, centre: int) -> _Failure:
        """Too few fixed points: as a rule the equations jump where a node, or the branch, changes."""
        near = [self.solved[k] for k in range(centre - REACH - SPARE, centre + REACH + SPARE + 1)]
        missing = [solution.result for solution in near if not _known(solution)] or [RESULTS.nonfinite]
        what = f"{len(missing)} of {len(near)} fixed points next to α = {self.alpha(centre):.4g} could not be solved"
        other = [result for result in missing if not any(bool(result == jump) for jump in UNRESOLVED)]
        if other:
            return _Failure(other[0], f"{what}: {result_message(other[0])}")
        why = "the equations jump where a node changes between two proximal minima, or the solution its branch"
        return _Failure(missing[0], f"{what}: {why}; {self._advice()}")

    def _advice(self) -> str:
        more = ["give the problem a smoothing"] if getattr(self.problem.channel, "smoothing", None) is None else []
        more += [] if self.most is None else ["raise max_iterations"]
        return ", ".join(["start the list of λ̃ from a larger one, in factors of three", *more]) + ", or use more nodes"


def _informative(point: FixedPoint | None) -> FixedPoint | None:
    """A point to continue from: from S = 0 no path leads on."""
    return None if point is None or number(point.q) == 0 else point


def _maximum(steps: np.ndarray, values: np.ndarray) -> _Maximum:
    """Of the least-squares cubic c0 + c1 k + c2 k² + c3 k³ through the points, where its second derivative is −2s < 0.

    There k = c1/(s − c2) = −(c2 + s)/3c3, s² = c2² − 3 c1 c3, of which one is free of cancellation.
    """
    powers = np.arange(COEFFICIENTS)
    design = steps[:, None] ** powers
    weights = np.linalg.pinv(design)  # of the points in each coefficient
    c = weights @ values
    root = math.sqrt(max(c[2] ** 2 - 3 * c[1] * c[3], 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        place = float(c[1] / (root - c[2]) if c[2] <= 0 else -(c[2] + root) / (3 * c[3]))
    if not root or not abs(place) <= REACH:
        return _Maximum(REACH if np.dot(steps - steps.mean(), values) > 0 else -REACH)
    at, along = place**powers, powers * place ** np.maximum(powers - 1, 0)  # cubic and slope, by coefficient
    scatter = float(np.linalg.norm(values - design @ c)) / math.sqrt(len(steps) - COEFFICIENTS)
    height_error, slope_error = (STUDENT * scatter * float(np.linalg.norm(row @ weights)) for row in (at, along))
    return _Maximum(place, float(at @ c), -2 * root, scatter, slope_error / (2 * root), height_error)


def _known(solution: Solution[FixedPoint]) -> bool:
    """Whether the fixed point is known much better than the integration error."""
    needed = min(NEEDED * _relative_error(solution.value), MOST)
    return bool(solution.successful) or number(solution.stats["residual"]) < needed


def _relative_error(point: FixedPoint) -> float:
    """Standard error of the overlaps in the units of the solver's residual; 0 where a single replica tells none."""
    return number(jnp.nan_to_num(jnp.max(jnp.abs(point.errors.overlaps) / (1 + jnp.abs(point.overlaps)))))


def _interior_maximum(values: Sequence[float]) -> int | None:
    """Index of the largest value that has lower ones on both sides."""
    inner = [i for i in range(1, len(values) - 1) if values[i - 1] < values[i] > values[i + 1]]
    return max(inner, key=lambda i: values[i]) if inner else None


def _failed(failure: _Failure, row: _Row) -> dict[str, Any]:
    record: dict[str, Any] = {"result": result_name(failure.result), "message": failure.message}
    return record | {"solves": len(row.solved), "standard_error": None} | dict.fromkeys(BLANK, math.nan)


def _record(found: _Peak, row: _Row, nodes: Nodes) -> dict[str, Any]:
    problem, solution = row.at(found.nearest), row.solved[found.nearest]
    point, maximum, spacing = solution.value, found.maximum, SPACING * found.alpha  # of α
    record: dict[str, Any] = {"alpha": found.alpha, "value": maximum.height, "scatter": maximum.scatter}
    record |= {"curvature": maximum.curvature / spacing**2, "alpha_nearest": row.alpha(found.nearest)}
    record |= {"result": SUCCESSFUL, "solves": len(row.solved)}
    record |= {name: number(getattr(point, name)) for name in ("replicon", "squared_error", "eta", "Sigma")}
    integration = row.slope_error(found.fitted) / maximum.curvature  # δk = −δ(dE/dk)/(d²E/dk²)
    record["standard_error"] = {
        "value": math.hypot(number(getattr(point.errors, row.of)), maximum.height_error),
        "alpha": spacing * math.hypot(integration, maximum.place_error),
    }
    return record | _two_minima(problem, point, nodes)


def _two_minima(problem: AttentionProblem, point, nodes) -> dict[str, float]:
    channel = problem.channel
    if not isinstance(channel, ERMChannel) or channel.smoothing is None:
        return {}
    found = channel.minima(problem.target, point.Sigma, point.m, point.q, nodes)
    return {"two_minima": number(jnp.mean(found.fraction)), "switching": number(jnp.mean(found.switching))}
