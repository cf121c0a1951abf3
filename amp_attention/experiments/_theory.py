"""State evolution over a grid: continuation in a Python loop over one compiled solver."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._solution import Solution
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._records import (
    SUCCESSFUL,
    THEORY_NAMES,
    guarded,
    number,
    numbers,
    outcome,
    solution_document,
    solution_from,
)
from amp_attention.experiments._settings import SolverSettings
from amp_attention.experiments._store import NOT_STORED, Steps
from amp_attention.experiments._timing import timed
from amp_attention.numerics.devices import device_mesh
from amp_attention.numerics.validation import whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution import (
    FixedPoint,
    informed_start,
    solve_each,
    solve_interpolator,
    solve_lowest,
    state_evolution_nodes,
    uninformed_start,
)
from amp_attention.thresholds import interpolates


@dataclass(frozen=True, kw_only=True)
class TheorySettings(SolverSettings):
    """How the state evolution of a sweep is solved.

    The seed is that of the scrambles, the tolerance is on the residual of the undamped map, and each device solves
    problems of its own. The theory is that of full width; `width_binds` says where κ is too small for it.

    Attributes:
        nodes: Sobol points of the Gaussian averages.
        replicas: scrambled subsets behind each standard error.
    """

    nodes: int = 4096
    replicas: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("nodes", self.nodes, 1)
        whole_number("replicas", self.replicas, 1)


@dataclass(frozen=True)
class TheoryPoint:
    """One solved fixed point.

    Attributes:
        record: the numbers by name, as they are written to files.
        problem: what was solved.
        solution: the engine's; None if it raised.
    """

    record: dict[str, Any]
    problem: AttentionProblem
    solution: Any

    @property
    def value(self) -> Any:
        """The fixed point; None if the engine raised."""
        return None if self.solution is None else self.solution.value

    @property
    def successful(self) -> bool:
        """Whether the fixed point was found."""
        return self.record["result"] == SUCCESSFUL


_NEIGHBOURS = 3  # solved points that a start is extrapolated from


class TheorySweep:
    """Solves one problem after the other, each from two starts: continued from those before it, and near the target.

    The lower free entropy is kept, so a sweep does not stay on a branch that has stopped being the lowest. The shapes
    are the same for all points, so the solver is compiled once, whatever the length of the sweep.
    """

    def __init__(self, settings: TheorySettings = TheorySettings(), store: Steps = NOT_STORED):
        self.settings, self.store = settings, store
        self._nodes: Any = None
        self._solved: list[_Solved] = []

    def solve(self, problem: AttentionProblem) -> TheoryPoint:
        """The fixed point of lowest free entropy among those found."""
        return self.solve_together([problem])[0]

    def solve_together(self, problems: Sequence[AttentionProblem]) -> list[TheoryPoint]:
        """The same for several problems, divided over the devices; their seconds are those of each on average."""
        if len(problems) > 1 and any(map(interpolates, problems)):
            return [self.solve(problem) for problem in problems]
        where = "; ".join(f"alpha {head['alpha']!r}, lam {head['lam']!r}" for head in map(_head, problems))
        found = self.store.step(f"fixed point at {where}", lambda: self._computed(problems))
        points = [_point(problem, entry) for problem, entry in zip(problems, found, strict=True)]
        self._solved += [_Solved(p.problem, p.value) for p in points if p.successful and not interpolates(p.problem)]
        return points

    def _computed(self, problems: Sequence[AttentionProblem]) -> list[dict[str, Any]]:
        """Of each problem the `record`, and the `solution` unless the engine raised."""
        answer, failed = guarded(timed, self._solutions, problems)
        if failed is not None:
            blank = numbers({}, THEORY_NAMES) | {"standard_error": None, "stable": None, "width_binds": None}
            blank |= {"iterations": None, "residual": None}
            return [{"record": _head(problem) | failed | blank, "solution": None} for problem in problems]
        solutions, timing = answer
        share = 1 / len(problems)
        seconds = {"seconds": timing.seconds * share, "compile_seconds": timing.compile_seconds * share}
        return [
            {"record": _head(problem) | self._record(found) | seconds, "solution": solution_document(found)}
            for problem, found in zip(problems, solutions, strict=True)
        ]

    def nodes_for(self, problem: AttentionProblem):
        """Integration nodes, the same for all points."""
        if self._nodes is None:
            settings = self.settings
            self._nodes = state_evolution_nodes(problem, settings.nodes, settings.replicas, settings.seed)
        return self._nodes

    def _solutions(self, problems: Sequence[AttentionProblem]) -> list[Solution[FixedPoint]]:
        settings = self.settings
        nodes = self.nodes_for(problems[0])
        options: dict[str, Any] = {"tolerance": settings.tolerance, "damping": settings.damping}
        if settings.max_iterations is not None:
            options["max_steps"] = settings.max_iterations
        if interpolates(problems[0]):
            return [solve_interpolator(problems[0], nodes)]
        starts = [extrapolated(problem, self._solved) if self._solved else None for problem in problems]
        if settings.devices == 1:
            first = uninformed_start(problems[0]) if starts[0] is None else starts[0]
            return [solve_lowest(problems[0], nodes, starts=[first, informed_start(problems[0])], **options)]
        return solve_each(problems, nodes, starts=starts, mesh=device_mesh(settings.devices), **options)

    def _record(self, solution) -> dict[str, Any]:
        value = solution.value
        record = outcome(solution) | numbers(value, THEORY_NAMES)
        record["stable"] = None if math.isnan(record["replicon"]) else bool(value.stable)
        record["width_binds"] = bool(self.settings.kappa < record["rank_fraction"])
        record["iterations"] = int(number(solution.stats["iterations"]))
        record["residual"] = number(solution.stats["residual"])
        record["standard_error"] = numbers(value.standard_error, THEORY_NAMES)
        return record


def _point(problem: AttentionProblem, found: Mapping[str, Any]) -> TheoryPoint:
    solution = found["solution"]
    return TheoryPoint(found["record"], problem, None if solution is None else solution_from(solution))


def _head(problem: AttentionProblem) -> dict[str, float]:
    return {"alpha": number(problem.alpha), "lam": number(getattr(problem.denoiser, "lam", None))}


class _Solved:
    """A solved problem as plain numbers: where it lies, what else it is made of, and its fixed point.

    Attributes:
        point: the fixed point.
        position: (log α, log λ̃).
        rest: everything else about the problem.
        coordinates: (log Σ, m, log(q − m²/Q′)): any values of these are overlaps.
    """

    def __init__(self, problem: AttentionProblem, point: FixedPoint):
        self.point, (self.position, self.rest) = point, _described(problem)
        self.variance = number(problem.target.score_variance)
        m, q = number(point.m), number(point.q)
        with np.errstate(divide="ignore", invalid="ignore"):
            self.coordinates = np.array([np.log(number(point.Sigma)), m, np.log(q - m**2 / self.variance)])


def _described(problem: AttentionProblem) -> tuple[np.ndarray, tuple]:
    """(log α, log λ̃), and the rest of the problem as something to compare."""
    leaves, structure = jax.tree.flatten(problem_at(problem, alpha=1.0, lam=1.0))
    rest = (structure, *(np.asarray(leaf).tobytes() for leaf in leaves))
    with np.errstate(divide="ignore"):
        return np.log([number(problem.alpha), number(getattr(problem.denoiser, "lam", None))]), rest


def extrapolated(problem: AttentionProblem, solved: Sequence[_Solved]) -> FixedPoint:
    """A start for a problem: the overlaps as a linear function of (log α, log λ̃) through its nearest neighbours.

    Args:
        problem: what is to be solved.
        solved: what was solved before, in order; not empty.

    Returns:
        The last fixed point, or the nearest one with its (Σ, m, q) moved, where the problems differ in α and λ̃ alone.
    """
    here, rest = _described(problem)
    same = [entry for entry in solved if entry.rest == rest and np.all(np.isfinite(entry.position))]
    if not same or not np.all(np.isfinite(here)):  # λ̃ = 0 has no place among the others
        return solved[-1].point
    offsets = np.array([entry.position - here for entry in same])
    near = np.argsort(np.linalg.norm(offsets, axis=1), kind="stable")[:_NEIGHBOURS]
    nearest, points = same[near[0]], np.array([same[i].coordinates for i in near])
    if not np.all(np.isfinite(points)):
        return nearest.point
    slopes, *_ = np.linalg.lstsq(offsets[near[1:]] - offsets[near[0]], points[1:] - points[0], rcond=1e-6)
    Sigma, m, residual = points[0] + np.clip(-offsets[near[0]] @ slopes, -1, 1)
    moved = (np.exp(Sigma), m, np.exp(residual) + m**2 / nearest.variance)
    moved = tuple(jnp.asarray(value, nearest.point.q.dtype) for value in moved)
    return eqx.tree_at(lambda point: (point.Sigma, point.m, point.q), nearest.point, moved)


def state_evolution_sweep(
    problems: Iterable[AttentionProblem], settings: TheorySettings = TheorySettings(), *, store: Steps = NOT_STORED
) -> Iterator[TheoryPoint]:
    """Fixed points of a list of problems of the same shapes, in order, as they are found.

    Args:
        problems: for instance a `problem_grid`; neighbours in the list should be neighbours in parameters.
        settings: how to solve.
        store: keeps what is found, for instance a `SweepStore`.

    Yields:
        A `TheoryPoint` each; one that fails says so in its record and leaves the others alone.
    """
    sweep = TheorySweep(settings, store)
    problems, size = list(problems), settings.devices
    for i in range(0, len(problems), size):
        yield from sweep.solve_together(problems[i : i + size])
