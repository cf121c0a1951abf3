"""Solving state evolution: one problem, the lowest of several starts, a trajectory in time."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Bool, Float, Int, Scalar, ScalarLike
from amp_attention.channels import NO_GUESS, Guess
from amp_attention.numerics.implicit import implicit_root, trusted
from amp_attention.numerics.validation import fraction, reachable_tolerance, real_array, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution._equations import (
    Nodes,
    OrderParameters,
    channel_equations,
    channel_step,
    check_nodes,
    prior_equations,
)
from amp_attention.state_evolution._fixed_point import FixedPoint, free_entropy_at, report, report_with_errors
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
        tolerance: on the residual max |F(x) − x|/(1 + |x|) of the undamped map; 1e-8 in float64, 1e-5 in float32 by
            default, and there at least 1e-6, where rounding stops it.
        max_steps: most channel evaluations.
        damping: weight of the OLD iterate in damped steps, in [0, 1); 0.5 by default.

    Differentiable in every number of the problem (α, λ̃, β, β0, Δ, the parameters of the law), in every mode and to
    second order, by the implicit function theorem: the iteration is not differentiated. Derivatives are NaN unless the
    result is `successful`; nodes, start and standard errors carry none.

    Returns:
        Solution with value `FixedPoint` (standard errors included) and stats `iterations` (channel evaluations) and
        `residual`. Results: `successful`; `integration_error` (no fixed point closer than the standard errors: use more
        nodes); `max_steps_reached`; `left_domain`; `nonfinite`.

    Raises:
        ValueError: for arguments of another kind or out of range, or nodes of another problem's shape.

    Source: arXiv:2509.24914.
    """
    check_nodes(problem, nodes)
    return _attach(problem, nodes, _run(problem, nodes, start, tolerance, max_steps, damping))


def _run(problem, nodes, start=None, tolerance=None, max_steps=1000, damping=None, known=None) -> "_Candidate":
    """Check the arguments and search from one start, out of reach of differentiation; not beyond a `known` solution."""
    dtype = problem.alpha.dtype
    max_steps = whole_number("max_steps", max_steps, 1)
    x, near = _start(problem, start)
    tolerance = reachable_tolerance("tolerance", default_tolerance(dtype) if tolerance is None else tolerance, dtype)
    damping = 0.5 if damping is None else fraction("damping", damping)
    solver = SafeguardedNewton(
        tolerance=jnp.asarray(tolerance, dtype),
        max_steps=jnp.int32(max_steps),
        damping=jnp.asarray(damping, dtype),
        warmup=jnp.where(near, jnp.int32(0), jnp.int32(_WARMUP)),
        known=jnp.full(3, jnp.inf, dtype) if known is None else known.coordinates,
    )
    return _search(*jax.lax.stop_gradient((problem, nodes, jnp.asarray(x, dtype), solver)))


def _start(problem, start):
    """(Σ, m, q) of a start, and whether Newton's method may begin there at once."""
    if start is None:
        return uninformed_start(problem), False
    if isinstance(start, FixedPoint):
        return start.overlaps, True
    if isinstance(start, tuple):
        return start
    overlaps = real_array(start)
    if overlaps is None or overlaps.shape != (3,):
        raise ValueError(f"start must be a FixedPoint or three numbers (Sigma, m, q), got {start}")
    return start, False


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


class _Given(NamedTuple):
    """What the equations depend on, and where the samples' problems are solved from: see `channel_step`."""

    problem: AttentionProblem
    nodes: Nodes
    guess: Guess = NO_GUESS


def _equation(y: Float[Array, "3"], given: _Given):
    """(image, residual, collapsed, points) of the chart's coordinates y under one plain step of state evolution."""
    problem = given.problem
    chart = _Chart(problem.target.score_variance)
    x = chart.overlaps(y)
    hats, points = channel_step(problem, x, *given[1:])
    image = prior_equations(problem, hats)
    residual = jnp.max(jnp.abs(image - x) / (1 + jnp.abs(x)))
    return chart.coordinates(image), residual, jnp.all(image == 0), points


def _displacement(y: Float[Array, "3"], given: _Given) -> Float[Array, "3"]:
    """F(y) − y: zero at a fixed point."""
    return _equation(y, given)[0] - y


class _Candidate(eqx.Module):
    """Where a search ended; carries no derivative. The free entropy is infinite where it did not converge."""

    points: Any
    overlaps: Float[Array, "3"]
    coordinates: Float[Array, "3"]
    free_entropy: Scalar
    result: RESULTS
    residual: Scalar
    stalled: Bool[Array, ""]
    evaluations: Int[Array, ""]


@eqx.filter_jit
def _search(problem: AttentionProblem, nodes: Nodes, start: Float[Array, "3"], solver: SafeguardedNewton) -> _Candidate:
    """Iterate from one start."""
    chart = _Chart(problem.target.score_variance)
    state, result = solve_fixed_point(
        lambda y, points, thorough: _equation(y, _Given(problem, nodes, Guess(points, thorough))),
        chart.mix,
        chart.coordinates(start),
        solver,
        problem.channel.unsolved(nodes),
    )
    overlaps, successful = chart.overlaps(state.y), result == RESULTS.successful
    potential = jax.lax.cond(
        successful,
        lambda: free_entropy_at(problem, overlaps, nodes, state.memory),
        lambda: jnp.full_like(state.residual, jnp.inf),
    )
    coordinates = jnp.where(successful, state.y, jnp.full_like(state.y, jnp.inf))
    evaluations = state.evaluations + successful.astype(jnp.int32)
    ended = (overlaps, coordinates, potential, result, state.residual, solver.stalled(state), evaluations)
    return _Candidate(state.memory, *ended)


@eqx.filter_jit
def _attach(problem: AttentionProblem, nodes: Nodes, found: _Candidate) -> Solution[FixedPoint]:
    """The solution at the fixed point that a search has found."""
    successful = found.result == RESULTS.successful
    points, thorough = jax.lax.stop_gradient((found.points, ~successful))
    given = _differentiable(_Given(problem, nodes, Guess(points, thorough)), found.overlaps, successful)
    point = report_with_errors(*given)
    errors = point.errors.overlaps / (1 + jnp.abs(point.overlaps))
    # With finitely many nodes F jumps where a node changes between two minima; no fixed point need exist then.
    unresolved = (found.result == RESULTS.max_steps_reached) & found.stalled & (found.residual <= jnp.max(errors))
    result = RESULTS.where(unresolved, RESULTS.integration_error, found.result)
    finite = jnp.isfinite(point.free_entropy) & jnp.isfinite(point.test_error)
    result = RESULTS.where(finite | (result != RESULTS.successful), result, RESULTS.nonfinite)
    return Solution(point, result, {"iterations": found.evaluations + 1, "residual": found.residual})


def _differentiable(given: _Given, overlaps: Float[Array, "3"], valid: Bool[Array, ""]):
    """(problem, overlaps, and the rest of `given`): functions of the problem, with NaN derivatives unless `valid`."""
    overlaps, nodes = jax.lax.stop_gradient((overlaps, given.nodes))
    given = given._replace(problem=trusted(given.problem, valid), nodes=nodes)
    chart = _Chart(given.problem.target.score_variance)
    y = jax.lax.stop_gradient(chart).coordinates(overlaps)
    return given.problem, chart.overlaps(implicit_root(_displacement, y, given)), *given[1:]


def implicit_fixed_point(problem: AttentionProblem, nodes: Nodes, solution: Solution[FixedPoint]) -> FixedPoint:
    """A fixed point already solved, as a differentiable function of the problem: nothing is iterated.

    Args:
        problem, nodes: those of the solution.
        solution: from `solve_state_evolution` or `solve_lowest`.

    Returns:
        The same observables without standard errors, with derivatives in every number of `problem` by the implicit
        function theorem, in every mode and to second order; NaN where the solution is not `successful`, or is that of
        another problem.
    """
    valid = solves(problem, nodes, solution)
    return report(*_differentiable(_Given(problem, nodes), solution.value.overlaps, valid))


def solves(problem: AttentionProblem, nodes: Nodes, solution: Solution[FixedPoint]) -> Bool[Array, ""]:
    """Whether a solution is `successful` and one of this problem: the residual of its equations is about its own."""
    problem, nodes, found = jax.lax.stop_gradient((problem, nodes, solution))
    y = _Chart(problem.target.score_variance).coordinates(found.value.overlaps)
    residual = _equation(y, _Given(problem, nodes))[1]
    return found.successful & (residual <= 10 * found.stats["residual"] + 100 * default_tolerance(y.dtype))


def solve_lowest(
    problem: AttentionProblem, nodes: Nodes, starts: list | None = None, **options
) -> Solution[FixedPoint]:
    """Solve from several starts and keep the lowest free entropy among the points that converged.

    A search that comes near the point kept so far ends there.

    Args:
        problem, nodes, options: as in `solve_state_evolution`; derivatives as there, along the branch that is kept.
        starts: starting points; an uninformed and an informed one by default.

    Returns:
        The best solution; `iterations` counts the evaluations of all starts.

    Raises:
        ValueError: for arguments of another kind or out of range.
    """
    check_nodes(problem, nodes)
    starts = [uninformed_start(problem), informed_start(problem)] if starts is None else starts
    best = _run(problem, nodes, starts[0], **options)
    evaluations = best.evaluations
    for start in starts[1:]:
        other = _run(problem, nodes, start, **options, known=best)
        evaluations = evaluations + other.evaluations
        lower = (other.free_entropy < best.free_entropy) | (best.result != RESULTS.successful)
        better = (other.result == RESULTS.successful) & lower
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), other, best)  # noqa: B023
    return _attach(problem, nodes, eqx.tree_at(lambda c: c.evaluations, best, evaluations))


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

    Raises:
        ValueError: for arguments of another kind or out of range.
    """
    check_nodes(problem, nodes)
    steps = whole_number("steps", steps, 0)
    first = jnp.zeros(3, problem.alpha.dtype) if start is None else start

    def advance(x, _):
        hats = channel_equations(problem, x, nodes)
        new = prior_equations(problem, hats)
        return new, (new, hats)

    _, (overlaps, hats) = jax.lax.scan(advance, first, length=steps)
    overlaps = jnp.concatenate([first[None], overlaps])
    return OrderParameters(*overlaps.T, *hats.T)
