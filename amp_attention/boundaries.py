"""Lines in the plane of (α, λ̃) where what is learned changes in kind.

Each is the zero of a margin, a smooth function of the fixed point: how far the threshold ε is from the end of the bulk,
the replicon from 1, an eigenvalue from detaching. Rank collapse needs no fixed point: there S = 0 begins to be one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Scalar, ScalarLike
from amp_attention.continuation import Slope, newton_along
from amp_attention.denoisers import NuclearNorm
from amp_attention.numerics.validation import positive, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.sensitivity import PARAMETERS, gradient, slope
from amp_attention.spectrum import bleed_out_margin, detachment, support_end
from amp_attention.state_evolution import FixedPoint, Nodes, channel_equations

Margin = Callable[[AttentionProblem, FixedPoint], Scalar]


@eqx.filter_jit
def collapse_lam(problem: AttentionProblem, nodes: Nodes) -> Scalar:
    """λ̃_c, from which on S = 0 is a fixed point of state evolution (F = 1): m̂ x₊/2 at Σ = m = q = 0.

    x₊ is the right end of the support of μ_δ, with δ = √q̂/m̂ and the conjugates those of S = 0. Where the transition is
    continuous it is the line of rank collapse; a fixed point of lower Φ may survive above it where it is not.

    Args:
        problem: with the nuclear norm; its λ̃ is not read.
        nodes: from `state_evolution_nodes`.

    Returns:
        λ̃_c, differentiable in every number of the problem.

    Raises:
        TypeError: for another penalty.

    Source: arXiv:2509.24914.
    """
    if not isinstance(problem.denoiser, NuclearNorm):
        raise TypeError(f"denoiser must be NuclearNorm to have a rank collapse, got {type(problem.denoiser).__name__}")
    _, m_hat, q_hat = channel_equations(problem, jnp.zeros(3, problem.alpha.dtype), nodes)
    return m_hat * support_end(problem.target.law, jnp.sqrt(q_hat) / m_hat) / 2


def replicon_margin(problem: AttentionProblem, point: FixedPoint) -> Scalar:
    """1 − R: positive where the fixed point is stable."""
    return 1 - point.replicon


def bleed_out(problem: AttentionProblem, point: FixedPoint) -> Scalar:
    """ε minus the end of the bulk: negative where a part of the bulk is positive in S."""
    return bleed_out_margin(problem.target.law, point.delta, point.epsilon)


@dataclass(frozen=True)
class OutlierDetachment:
    """1 − δ²∫bulk_k(dx)/(s_k−x)²: positive where the k-th eigenvalue of a list is detached from those below it."""

    k: int

    def __call__(self, problem: AttentionProblem, point: FixedPoint) -> Scalar:
        """The margin of `spectrum.detachment`."""
        return detachment(problem.target.law, point.delta, self.k)  # pyright: ignore[reportArgumentType]


def margins(outliers: int = 0) -> Mapping[str, Margin]:
    """The margins by name: `replicon`, `bleed_out`, and `outlier_k` for the k ≤ `outliers` largest eigenvalues."""
    detached = {f"outlier_{k}": OutlierDetachment(k) for k in range(1, whole_number("outliers", outliers, 0) + 1)}
    return {"replicon": replicon_margin, "bleed_out": bleed_out} | detached


def named_margin(margin: Margin | str) -> Margin:
    """A margin given itself or by name: `replicon`, `bleed_out` or `outlier_k`.

    Raises:
        ValueError: for another name.
    """
    if callable(margin):
        return margin
    kind, _, k = margin.partition("_")
    if kind == "outlier" and k.isdecimal() and int(k) >= 1:
        return OutlierDetachment(int(k))
    known = margins()
    if margin not in known:
        raise ValueError(f"margin must be {', '.join(known)}, outlier_k or a function, got {margin!r}")
    return known[margin]


@dataclass(frozen=True)
class Crossing:
    """Where a margin is zero along one number x of a problem.

    Attributes:
        x: the number there, NaN unless `successful`.
        margin: the margin there, zero up to the tolerance.
        problem, solution: the problem at x and its fixed point; None if none was solved.
        solves: fixed points solved.
        result: `successful`; `left_domain` if the margin keeps its sign up to the end of the bounds;
            `max_steps_reached`; or that of the fixed point where state evolution failed.
    """

    x: float
    margin: float
    problem: AttentionProblem | None
    solution: Solution[FixedPoint] | None
    solves: int
    result: RESULTS

    @property
    def successful(self) -> bool:
        """Whether the margin is zero at x."""
        return bool(self.result == RESULTS.successful)


def crossing(
    problem: AttentionProblem,
    nodes: Nodes,
    margin: Margin | str,
    *,
    along: str = "lam",
    bounds: tuple[float, float],
    increasing: bool = True,
    start: FixedPoint | None = None,
    tolerance: ScalarLike = 1e-10,
    max_solves: int = 40,
    **options: Any,
) -> Crossing:
    """The zero of a margin along one number, by Newton steps with its implicit derivative.

    Args:
        problem: its own value of the number is the first guess.
        nodes: from `state_evolution_nodes`.
        margin: (problem, fixed point) ↦ scalar, or the name of one of `margins()`.
        along: the number that is varied, a key of `sensitivity.PARAMETERS`.
        bounds: smallest and largest value of the number, between which the margin changes sign once.
        increasing: whether it is positive at the upper bound.
        start: a fixed point near the first guess.
        tolerance: on the relative step in x that is left.
        max_solves: most fixed points to solve.
        options: of `solve_state_evolution`.

    Returns:
        `Crossing`.

    Raises:
        ValueError: for arguments out of range.
    """
    limit, sign = float(positive("tolerance", tolerance)), 1.0 if increasing else -1.0
    read = named_margin(margin)

    def along_log(problem, solution) -> Slope:
        value, first = slope(problem, nodes, solution, read, along)
        value, derivative = sign * float(value), sign * float(PARAMETERS[along](problem) * first)
        return Slope(value, derivative, abs(value) <= limit * max(derivative, 0.0), sign * value)

    walk = newton_along(
        problem, nodes, along_log, along=along, bounds=bounds, start=start, max_solves=max_solves, **options
    )
    if not walk.steps:
        return Crossing(math.nan, math.nan, None, None, walk.solves, walk.result)
    last, result = walk.steps[-1], RESULTS.left_domain if walk.bound else walk.result
    x = last.x if bool(result == RESULTS.successful) else math.nan
    return Crossing(x, last.found.detail, last.problem, last.solution, walk.solves, result)


def crossing_gradient(
    nodes: Nodes, margin: Margin | str, found: Crossing, along: str = "lam"
) -> dict[str, Array | None]:
    """Derivatives of the crossing x in the other numbers: dx/dθ = −(∂margin/∂θ)/(∂margin/∂x).

    Returns:
        By name; None where the problem has no such number.
    """
    if found.problem is None or found.solution is None:
        raise ValueError("found must be a crossing with a solution, got one that failed")
    total = gradient(found.problem, nodes, found.solution, named_margin(margin)).named
    across = total.pop(along)
    assert across is not None
    return {name: None if value is None else -value / across for name, value in total.items()}
