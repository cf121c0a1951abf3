"""Newton's method along one positive number of a problem, each fixed point continued from the one before.

It looks for a root of a function of the fixed point (a margin that changes sign at a boundary, the derivative of an
observable) in t = log x, on the host, with one solve of state evolution a step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from amp_attention._solution import RESULTS, Solution
from amp_attention.numerics.bracketed_newton import BracketedNewton
from amp_attention.numerics.validation import positive, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.sensitivity import parameter, with_parameter
from amp_attention.state_evolution import (
    FixedPoint,
    Nodes,
    informed_start,
    solve_lowest,
    solve_state_evolution,
    uninformed_start,
)

LONGEST = math.log(4)  # step in log x
_CLOSE = 1e-3  # distance in log x at which one gives up on a fixed point that cannot be solved


@dataclass(frozen=True)
class Slope:
    """A function f at one fixed point.

    Attributes:
        value: f.
        slope: df/d log x.
        converged: whether the root counts as found here.
        detail: whatever else was computed.
    """

    value: float
    slope: float
    converged: bool
    detail: Any = None


@dataclass(frozen=True)
class Step:
    """One fixed point on the way: the number x, the problem and its solution there, and the function."""

    x: float
    problem: AttentionProblem
    solution: Solution[FixedPoint]
    found: Slope


@dataclass(frozen=True)
class Walk:
    """A search along one number.

    Attributes:
        steps: those whose fixed point converged, in the order they were taken; the last is where the search ended.
        bound: "lower" or "upper" where it ended at an end of the bounds with f pointing outwards; else None.
        solves: fixed points solved.
        result: `successful` (a root, or a bound); `max_steps_reached`; or that of state evolution where it failed.
    """

    steps: tuple[Step, ...]
    bound: Literal["lower", "upper"] | None
    solves: int
    result: RESULTS


Function = Callable[[AttentionProblem, Solution[FixedPoint]], Slope]


def newton_along(
    problem: AttentionProblem,
    nodes: Nodes,
    function: Function,
    *,
    along: str,
    bounds: tuple[float, float],
    start: FixedPoint | None = None,
    max_solves: int = 30,
    longest: float = LONGEST,
    **options: Any,
) -> Walk:
    """A root of `function`, increasing where it crosses zero.

    Args:
        problem: its own value of the number is the first guess.
        nodes: from `state_evolution_nodes`.
        function: (problem, solution) ↦ `Slope`.
        along: the number that is varied, a key of `sensitivity.PARAMETERS`.
        bounds: smallest and largest value of the number, 0 < lower < upper.
        start: a fixed point near the first guess; without one, the lowest free entropy of two starts is taken.
        max_solves: most fixed points to solve.
        longest: longest step in log x; the one taken where the slope has the wrong sign.
        options: of `solve_state_evolution`; its tolerance is 1e-11 (float32: 1e-6) unless given.

    Raises:
        ValueError: for arguments out of range.
    """
    lower, upper = _logarithms(bounds)
    max_solves, longest = whole_number("max_solves", max_solves, 1), float(positive("longest", longest))
    t = min(max(_first_guess(problem, along), lower), upper)
    options = {"tolerance": 1e-11 if nodes.dtype == np.float64 else 1e-6} | options
    bracket, steps, solves = BracketedNewton(lower, upper, longest=longest), (), 0
    result = RESULTS.max_steps_reached
    while solves < max_solves:
        moved = with_parameter(problem, along, math.exp(t))
        solution = _solve(moved, nodes, start, options)
        solves += 1
        if not bool(solution.successful):
            result = solution.result
            if not steps or abs(t - math.log(steps[-1].x)) < _CLOSE:
                break
            t = (t + math.log(steps[-1].x)) / 2  # back towards what could be solved
            continue
        start, found = solution.value, function(moved, solution)
        steps = (*steps, Step(math.exp(t), moved, solution, found))
        bound = "lower" if t == lower and found.value > 0 else "upper" if t == upper and found.value < 0 else None
        if bound or found.converged:
            return Walk(steps, bound, solves, RESULTS.successful)
        bracket = bracket.narrowed(t, found.value)
        t, result = bracket.next(t, found.value, found.slope), RESULTS.max_steps_reached
    return Walk(steps, None, solves, result)


def _solve(problem, nodes, start, options) -> Solution[FixedPoint]:
    """By continuation from `start`; without one, on the lowest of the branches found."""
    if start is not None:
        return solve_state_evolution(problem, nodes, start=start, **options)
    return solve_lowest(problem, nodes, starts=[uninformed_start(problem), informed_start(problem)], **options)


def _first_guess(problem: AttentionProblem, along: str) -> float:
    """Its logarithm; −∞ for 0."""
    guess = parameter(problem, along)
    if guess is None:
        raise ValueError(f"along must be a number that this problem has, got {along!r}")
    return math.log(float(guess)) if guess > 0 else -math.inf


def _logarithms(bounds: tuple[float, float]) -> tuple[float, float]:
    try:
        lower, upper = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        lower = upper = math.nan
    if not 0 < lower < upper < math.inf:
        raise ValueError(f"bounds must be two numbers 0 < lower < upper, got {bounds}")
    return math.log(lower), math.log(upper)
