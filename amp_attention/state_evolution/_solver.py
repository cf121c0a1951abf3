"""Solving state evolution: one problem, the lowest of several starts, a trajectory in time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Float, ScalarLike
from amp_attention.numerics.validation import fraction, positive, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution._equations import Nodes, OrderParameters, channel_equations, prior_equations, update
from amp_attention.state_evolution._fixed_point import FixedPoint, report_with_errors
from amp_attention.state_evolution._newton import SafeguardedNewton, solve_fixed_point

_WARMUP = 3  # damped steps that bring a cold start into the basin of Newton's method


def default_tolerance(dtype) -> float:
    """1e-8 in float64, 1e-5 in float32."""
    return 1e-8 if jnp.finfo(dtype).bits > 32 else 1e-5


def uninformed_start(problem: AttentionProblem) -> Float[Array, "3"]:
    """(Σ, m, q) = 0: S = 0, where AMP starts."""
    return jnp.zeros(3, problem.alpha.dtype)


def informed_start(problem: AttentionProblem) -> Float[Array, "3"]:
    """Almost at the target: S ≈ S0."""
    Q0 = problem.target.Q0
    return jnp.stack([0.05 * jnp.ones_like(Q0), 0.99 * Q0, Q0])


def solve_state_evolution(
    problem: AttentionProblem,
    nodes: Nodes,
    *,
    start: FixedPoint | Float[Array, "3"] | None = None,
    tolerance: ScalarLike | None = None,
    max_steps: int = 1000,
    damping: ScalarLike | None = None,
) -> Solution[FixedPoint]:
    """Solve Φ's stationarity equations for one problem.

    Unknowns (Σ, m, q) of x = F(x), F the channel then the prior equations; safeguarded Newton steps whose Jacobian
    comes with the same pass over the nodes, damped steps of F where Newton does not help. Compiled once for all
    problems of the same shapes; works under `vmap`.

    Args:
        problem: the problem; λ̃ > 0, or λ̃ = 0 above the interpolation threshold.
        nodes: from `state_evolution_nodes`.
        start: a previous solution's value (continuation) or (Σ, m, q); by default 0, AMP's own start S = 0.
        tolerance: on the residual max |F(x) − x|/(1 + |x|) of the undamped map; 1e-8 in float64, 1e-5 in float32.
        max_steps: most channel evaluations.
        damping: weight of the OLD iterate in damped steps, in [0, 1); 0.5 by default.

    Returns:
        Solution with value `FixedPoint` (standard errors included) and stats `iterations` (channel evaluations) and
        `residual`. Results: `successful`; `integration_error` (no fixed point closer than the standard errors: use more
        nodes); `max_steps_reached`; `left_domain`; `nonfinite`.

    Raises:
        ValueError: for arguments out of range.

    Source: arXiv:2509.24914.
    """
    dtype = problem.alpha.dtype
    max_steps = whole_number("max_steps", max_steps, 1)
    x = uninformed_start(problem) if start is None else start.overlaps if isinstance(start, FixedPoint) else start
    tolerance = default_tolerance(dtype) if tolerance is None else positive("tolerance", tolerance)
    damping = 0.5 if damping is None else fraction("damping", damping)
    solver = SafeguardedNewton(
        tolerance=jnp.asarray(tolerance, dtype),
        max_steps=jnp.int32(max_steps),
        damping=jnp.asarray(damping, dtype),
        warmup=jnp.int32(0 if isinstance(start, FixedPoint) else _WARMUP),
    )
    return _solve(problem, nodes, jnp.asarray(x, dtype), solver)


class _Chart(eqx.Module):
    """Coordinates (log Σ, m, log(q − m²/Q′)), in which the whole domain of state evolution is a box.

    Logarithms stop at `floor`, which stands for 0: rank collapse is the point (floor, 0, floor).
    """

    score_variance: Float[Array, ""]

    @property
    def floor(self) -> float:
        return float(np.log(np.finfo(self.score_variance.dtype).tiny)) / 4

    def coordinates(self, x):
        Sigma, m, q = x
        residual = q - m**2 / self.score_variance
        smallest = jnp.exp(jnp.asarray(self.floor, x.dtype))
        logarithm = lambda value: jnp.log(jnp.maximum(value, smallest))  # noqa: E731
        return jnp.stack([logarithm(Sigma), m, logarithm(residual)])

    def overlaps(self, y):
        exponential = lambda value: jnp.where(value > self.floor, jnp.exp(value), jnp.zeros_like(value))  # noqa: E731
        return jnp.stack([exponential(y[0]), y[1], exponential(y[2]) + y[1] ** 2 / self.score_variance])

    def mix(self, y, image, damping):
        """Damping acts on Σ, m and q themselves."""
        return self.coordinates(damping * self.overlaps(y) + (1 - damping) * self.overlaps(image))


@eqx.filter_jit
def _solve(problem, nodes, start, solver) -> Solution[FixedPoint]:
    chart = _Chart(problem.target.score_variance)

    def function(y):
        x = chart.overlaps(y)
        image = update(problem, x, nodes)
        residual = jnp.max(jnp.abs(image - x) / (1 + jnp.abs(x)))
        collapsed = jnp.all(image == 0)
        return chart.coordinates(image), residual, collapsed

    state, result = solve_fixed_point(function, chart.mix, chart.coordinates(start), solver)
    point = report_with_errors(problem, chart.overlaps(state.y), nodes)
    errors = point.errors.overlaps / (1 + jnp.abs(point.overlaps))
    # With finitely many nodes F jumps where a node changes between two minima; no fixed point need exist then.
    unresolved = (result == RESULTS.max_steps_reached) & solver.stalled(state) & (state.residual <= jnp.max(errors))
    result = RESULTS.where(unresolved, RESULTS.integration_error, result)
    finite = jnp.isfinite(point.free_entropy) & jnp.isfinite(point.test_error)
    result = RESULTS.where(finite | (result != RESULTS.successful), result, RESULTS.nonfinite)
    return Solution(point, result, {"iterations": state.evaluations + 1, "residual": state.residual})


def solve_lowest(
    problem: AttentionProblem, nodes: Nodes, starts: list | None = None, **options
) -> Solution[FixedPoint]:
    """Solve from several starts and keep the lowest free entropy among the points that converged.

    Args:
        problem, nodes, options: as in `solve_state_evolution`.
        starts: starting points; an uninformed and an informed one by default.

    Returns:
        The best solution; `iterations` counts the evaluations of all starts.
    """
    starts = [uninformed_start(problem), informed_start(problem)] if starts is None else starts
    solutions = [solve_state_evolution(problem, nodes, start=start, **options) for start in starts]
    best = solutions[0]
    for other in solutions[1:]:
        lower = other.value.free_entropy < best.value.free_entropy
        better = other.successful & (lower | ~best.successful)
        result = RESULTS.where(better, other.result, best.result)
        pick = lambda a, b: jnp.where(better, a, b)  # noqa: B023, E731
        value, stats = jax.tree.map(pick, (other.value, other.stats), (best.value, best.stats))
        best = Solution(value, result, stats)
    evaluations = sum(solution.stats["iterations"] for solution in solutions)
    return Solution(best.value, best.result, {**best.stats, "iterations": evaluations})


@eqx.filter_jit
def trajectory(
    problem: AttentionProblem, nodes: Nodes, steps: int, start: Float[Array, "3"] | None = None
) -> OrderParameters:
    """State evolution in time: channel then prior equations, once for each AMP step.

    Args:
        problem, nodes: as in `solve_state_evolution`.
        steps: number of AMP iterations to follow.
        start: (Σ, m, q) of AMP's start; (0, 0, 0), AMP's default S = 0, if not given.

    Returns:
        OrderParameters of arrays: Sigma, m, q of shape (steps + 1,), entry t after t iterations; the conjugates of
        shape (steps,), entry t computed from entry t of the overlaps.
    """
    first = jnp.zeros(3, problem.alpha.dtype) if start is None else start

    def advance(x, _):
        hats = channel_equations(problem, x, nodes)
        new = prior_equations(problem, hats)
        return new, (new, hats)

    _, (overlaps, hats) = jax.lax.scan(advance, first, length=steps)
    overlaps = jnp.concatenate([first[None], overlaps])
    return OrderParameters(*overlaps.T, *hats.T)
