"""State evolution over a grid: continuation in a Python loop over one compiled solver."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from amp_attention.experiments._records import SUCCESSFUL, THEORY_NAMES, guarded, number, numbers, outcome
from amp_attention.experiments._timing import timed
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution import (
    informed_start,
    solve_interpolator,
    solve_lowest,
    state_evolution_nodes,
    uninformed_start,
)
from amp_attention.thresholds import interpolates


@dataclass(frozen=True)
class TheorySettings:
    """How the state evolution of a sweep is solved.

    Attributes:
        nodes: Sobol points of the Gaussian averages.
        replicas: scrambled subsets behind each standard error.
        seed: of the scrambles.
        tolerance: residual of the undamped map; None for the engine's default.
        max_iterations: None for the engine's default.
        damping: weight of the old iterate; None for automatic.
        kappa: student width p/d; the theory is that of full width, `width_binds` says where κ is too small for it.
    """

    nodes: int = 4096
    replicas: int = 8
    seed: int = 0
    tolerance: float | None = None
    max_iterations: int | None = None
    damping: float | None = None
    kappa: float = 1.0


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


class TheorySweep:
    """Solves one problem after the other, each from two starts: the fixed point before it, and near the target.

    The lower free entropy is kept, so a sweep does not stay on a branch that has stopped being the lowest. The shapes
    are the same for all points, so the solver is compiled once, whatever the length of the sweep.
    """

    def __init__(self, settings: TheorySettings = TheorySettings()):
        self.settings = settings
        self._nodes: Any = None
        self._previous: Any = None

    def solve(self, problem: AttentionProblem) -> TheoryPoint:
        """The fixed point of lowest free entropy among those found."""
        lam, alpha = number(getattr(problem.denoiser, "lam", None)), number(problem.alpha)
        head = {"alpha": alpha, "lam": lam}
        outcome_of, failed = guarded(timed, self._solution, problem)
        if failed is not None:
            blank = numbers({}, THEORY_NAMES) | {"standard_error": None, "stable": None, "width_binds": None}
            return TheoryPoint(head | failed | blank | {"iterations": None, "residual": None}, problem, None)
        solution, timing = outcome_of
        record = head | self._record(solution) | {"seconds": timing.seconds, "compile_seconds": timing.compile_seconds}
        return TheoryPoint(record, problem, solution)

    def nodes_for(self, problem: AttentionProblem):
        """Integration nodes, the same for all points."""
        if self._nodes is None:
            settings = self.settings
            self._nodes = state_evolution_nodes(problem, settings.nodes, settings.replicas, settings.seed)
        return self._nodes

    def _solution(self, problem: AttentionProblem):
        settings = self.settings
        nodes = self.nodes_for(problem)
        options: dict[str, Any] = {"tolerance": settings.tolerance, "damping": settings.damping}
        if settings.max_iterations is not None:
            options["max_steps"] = settings.max_iterations
        if interpolates(problem):
            return solve_interpolator(problem, nodes)
        first = uninformed_start(problem) if self._previous is None else self._previous
        solution = solve_lowest(problem, nodes, starts=[first, informed_start(problem)], **options)
        if outcome(solution)["result"] == SUCCESSFUL:
            self._previous = solution.value
        return solution

    def _record(self, solution) -> dict[str, Any]:
        value = solution.value
        record = outcome(solution) | numbers(value, THEORY_NAMES)
        record["stable"] = None if math.isnan(record["replicon"]) else bool(value.stable)
        record["width_binds"] = bool(self.settings.kappa < record["rank_fraction"])
        record["iterations"] = int(number(solution.stats["iterations"]))
        record["residual"] = number(solution.stats["residual"])
        record["standard_error"] = numbers(value.standard_error, THEORY_NAMES)
        return record


def state_evolution_sweep(
    problems: Iterable[AttentionProblem], settings: TheorySettings = TheorySettings()
) -> Iterator[TheoryPoint]:
    """Fixed points of a list of problems of the same shapes, in order, as they are found.

    Args:
        problems: for instance a `problem_grid`; neighbours in the list should be neighbours in parameters.
        settings: how to solve.

    Yields:
        A `TheoryPoint` each; one that fails says so in its record and leaves the others alone.
    """
    sweep = TheorySweep(settings)
    for problem in problems:
        yield sweep.solve(problem)
