"""The number of a problem, λ̃ for instance, at which an observable of state evolution is least or greatest.

Newton's method on the implicit derivative: each step solves state evolution once and reads dE/dx and d²E/dx² there.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import ScalarLike
from amp_attention.continuation import Slope, Walk, newton_along
from amp_attention.numerics.validation import positive
from amp_attention.problem import AttentionProblem
from amp_attention.sensitivity import PARAMETERS, Observable, expansion, observable, with_parameter
from amp_attention.state_evolution import FixedPoint, Nodes, solve_lowest

NARROW = 1e-3  # relative width to which the λ̃ of the collapse is found, where no derivative vanishes on the way to it
CLOSE, BEYOND = 1e-4, 1.05  # q/Q0 of an optimum that may be the collapse; the factor in λ̃ at which one looks beyond it


@dataclass(frozen=True)
class Optimum:
    """Where an observable E is extremal along one positive number x of a problem.

    Attributes:
        x: the number there.
        value: E there.
        gradient: dE/dx, zero up to the tolerance unless `bound` is set.
        curvature: d²E/dx².
        bound: "lower" or "upper" where E still falls (rises, if maximised) at that end of the bounds; else None.
        collapse: whether x is the λ̃ at which S collapses to zero, to a relative 1e-3, or lies beyond, where `bounds`
            do. E is constant from there on: every larger λ̃ is as good, and x is no optimum of a learned matrix.
        problem: the problem at x.
        solution: its fixed point; None if no fixed point could be solved.
        visited: (x, E) of the fixed points solved on the way, in the order of x.
        solves: fixed points solved.
        result: `successful`; `max_steps_reached`; or that of the fixed point where state evolution failed. The numbers
            above are then those of the last point that was solved, NaN if none was.
    """

    x: float
    value: float
    gradient: float
    curvature: float
    bound: Literal["lower", "upper"] | None
    collapse: bool
    problem: AttentionProblem
    solution: Solution[FixedPoint] | None
    visited: tuple[tuple[float, float], ...]
    solves: int
    result: RESULTS

    @property
    def successful(self) -> bool:
        """Whether the optimum, or a bound or the collapse that takes its place, was found."""
        return bool(self.result == RESULTS.successful)


def optimise(
    problem: AttentionProblem,
    nodes: Nodes,
    *,
    of: Observable = "test_error",
    along: str = "lam",
    maximise: bool = False,
    bounds: tuple[float, float] = (1e-5, 1e2),
    start: FixedPoint | None = None,
    tolerance: ScalarLike = 1e-8,
    max_solves: int = 30,
    **options: Any,
) -> Optimum:
    """The extremum of an observable nearest to where the problem stands.

    Args:
        problem: its own value of the number is the first guess.
        nodes: from `state_evolution_nodes`.
        of: a field of `FixedPoint`, or a function (problem, fixed point) ↦ scalar.
        along: the number that is varied, a key of `sensitivity.PARAMETERS`; it must be > 0.
        maximise: look for a maximum.
        bounds: smallest and largest value of the number, 0 < lower < upper.
        start: a fixed point near the first guess.
        tolerance: on |dE/dx|.
        max_solves: most fixed points to solve.
        options: `longest` of `newton_along`, the longest step in log x, and those of `solve_state_evolution`, whose
            tolerance is 1e-11 (float32: 1e-6) unless given.

    Returns:
        `Optimum`.

    Raises:
        ValueError: for arguments out of range.
    """
    limit, sign = float(positive("tolerance", tolerance)), -1.0 if maximise else 1.0
    largest = 0.0  # x at which S is not zero

    def derivative(problem, solution) -> Slope:
        nonlocal largest
        x, here = float(PARAMETERS[along](problem)), expansion(problem, nodes, solution, of, along)
        value, first, second = float(here.value), float(here.first), float(here.second)
        if along == "lam" and _collapsed(solution) and abs(first) <= limit:  # as good as a rise: the search turns back
            return Slope(1.0, 0.0, x <= largest * (1 + NARROW), (value, first, second))
        largest = max(largest, x)
        slope, curvature = sign * x * first, sign * (x * x * second + x * first)  # dE/dt and d²E/dt², t = log x
        return Slope(slope, curvature, abs(first) <= limit and curvature > 0, (value, first, second))

    walk = newton_along(
        problem, nodes, derivative, along=along, bounds=bounds, start=start, max_solves=max_solves, **options
    )
    found = _optimum(problem, walk)
    level = found.successful and abs(found.gradient) <= limit  # not at a bound, unless E is constant there
    return _at_collapse(found, nodes, of, sign, options) if along == "lam" and level else found


def _collapsed(solution: Solution[FixedPoint]) -> bool:
    """Whether S = 0."""
    return bool(solution.value.rank_fraction == 0)


def _optimum(problem: AttentionProblem, walk: Walk) -> Optimum:
    if not walk.steps:
        nan = math.nan
        return Optimum(nan, nan, nan, nan, None, False, problem, None, (), walk.solves, walk.result)
    last = walk.steps[-1]
    value, first, second = last.found.detail
    visited = tuple(sorted((step.x, step.found.detail[0]) for step in walk.steps))
    numbers = last.x, value, first, second, walk.bound, False
    return Optimum(*numbers, last.problem, last.solution, visited, walk.solves, walk.result)


def _at_collapse(found: Optimum, nodes: Nodes, of: Observable, sign: float, options: dict[str, Any]) -> Optimum:
    """The optimum, said to be the collapse where it is: S = 0, or next to it and no better than what lies beyond."""
    assert found.solution is not None
    if _collapsed(found.solution):
        return replace(found, bound=None, collapse=True)
    if found.solution.value.q > CLOSE * found.problem.target.Q0:
        return found
    problem = with_parameter(found.problem, "lam", BEYOND * found.x)
    beyond = solve_lowest(problem, nodes, **{name: v for name, v in options.items() if name != "longest"})
    if not (bool(beyond.successful) and _collapsed(beyond)):
        return replace(found, solves=found.solves + 1)
    gain = sign * (found.value - float(observable(of)(problem, beyond.value)))
    flat = 1e-10 * abs(found.value)  # rounding
    return replace(found, collapse=gain >= -flat, solves=found.solves + 1)


def optimise_each(
    problems: Iterable[AttentionProblem], nodes: Nodes, *, along: str = "lam", **options: Any
) -> Iterator[Optimum]:
    """`optimise` for one problem after the other, each from the optimum of the one before.

    Args:
        problems: neighbours in parameters, for instance a grid of α. The first guess is that of the first problem.
        nodes: the same for all.
        along: the number that is varied.
        options: of `optimise`.

    Yields:
        An `Optimum` each; one that fails leaves the others alone.
    """
    last: Optimum | None = None
    for problem in problems:
        start = None
        if last is not None and last.solution is not None:
            problem, start = with_parameter(problem, along, last.x), last.solution.value
        optimum = optimise(problem, nodes, along=along, start=start, **options)
        last = optimum if optimum.successful else last
        yield optimum
