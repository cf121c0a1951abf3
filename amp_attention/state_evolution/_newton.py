"""Fixed points of a map by Newton's method, with damped iteration wherever Newton does not help."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import RESULTS
from amp_attention._typing import Array, Bool, Float, Int, Scalar

_MOST_DAMPING = 0.99
_MOST_INVALID = 20
_NEAR = 0.03  # of a known solution, per coordinate
_FAR = 0.3  # from the last evaluation, per coordinate
_MOST_STALE = 100  # evaluations without a new best residual after which there is no more to be had


class FixedPointState(eqx.Module):
    """State of `SafeguardedNewton`.

    Attributes:
        y: the last accepted point.
        step: F(y) − y there.
        jacobian: of F(y) − y there.
        norm: max |F(y) − y| there, the merit of a point.
        best: the smallest norm seen.
        residual: the residual that convergence is judged by.
        lowest: the smallest residual of all points evaluated, accepted or not, and where.
        candidate: the point to evaluate next.
        newton: whether the candidate is a Newton step (else a damped step of F, or the start).
        damping: weight of the old iterate in damped steps.
        rejected: Newton steps rejected so far.
        wait: damped steps to take before the next Newton step.
        evaluations: calls of F so far.
        invalid: damped candidates in a row at which F was not finite.
        stale: evaluations since the best norm last fell.
        memory: what F remembers of its last evaluation.
        thorough: whether the next evaluation of F is to be thorough.
        confirming: whether it is there to confirm a solution.
        doubted: whether a solution was not confirmed.
    """

    y: Float[Array, " N"]
    step: Float[Array, " N"]
    jacobian: Float[Array, "N N"]
    norm: Scalar
    best: Scalar
    residual: Scalar
    lowest: tuple[Scalar, Float[Array, " N"]]
    candidate: Float[Array, " N"]
    newton: Bool[Array, ""]
    damping: Scalar
    rejected: Int[Array, ""]
    wait: Int[Array, ""]
    evaluations: Int[Array, ""]
    invalid: Int[Array, ""]
    stale: Int[Array, ""]
    memory: Any
    thorough: Bool[Array, ""]
    confirming: Bool[Array, ""]
    doubted: Bool[Array, ""]


class SafeguardedNewton(eqx.Module):
    """Solver of F(y) = y: init / step / terminate.

    Each step evaluates F and its Jacobian at one candidate. After `warmup` damped steps, Newton candidates
    y − (∂F − 1)⁻¹(F − y), no longer than `radius`, are accepted if they shrink max |F − y|, and after the first
    rejection only if they halve the smallest one seen. The k-th rejection is followed by 2^min(k, 4) damped steps,
    always accepted: the solver converges wherever damped iteration does, and Newton steps can only shorten it. Damping
    rises when a damped step is not finite, or overshoots: F(y) − y turns round and grows.

    F may be cheap to evaluate near its last evaluation, at the risk of being another branch of what it should be: after
    short Newton steps. A solution is confirmed by a thorough evaluation; if it disagrees, all are from then on, and the
    run starts anew where it is.

    Args:
        tolerance: on the residual of the undamped map.
        max_steps: most evaluations of F.
        damping: weight of the OLD iterate in damped steps; 0 is the plain map.
        warmup: damped steps before the first Newton step.
        known: a solution that is known already; a run that comes near it ends there with `max_steps_reached`.
        radius: longest Newton step, per coordinate.
    """

    tolerance: Scalar
    max_steps: Int[Array, ""]
    damping: Scalar
    warmup: Int[Array, ""]
    known: Float[Array, " N"] | None = None
    radius: float = 1.0

    def init(self, y: Float[Array, " N"], memory: Any = None) -> FixedPointState:
        """Before the first evaluation, at the start y."""
        infinite = jnp.asarray(jnp.inf, y.dtype)
        return FixedPointState(
            y=y,
            step=jnp.zeros_like(y),
            jacobian=-jnp.eye(y.shape[0], dtype=y.dtype),
            norm=infinite,
            best=infinite,
            residual=infinite,
            lowest=(infinite, y),
            candidate=y,
            newton=jnp.asarray(False),
            damping=self.damping,
            rejected=jnp.int32(0),
            wait=self.warmup,
            evaluations=jnp.int32(0),
            invalid=jnp.int32(0),
            stale=jnp.int32(0),
            memory=memory,
            thorough=jnp.asarray(True),
            confirming=jnp.asarray(False),
            doubted=jnp.asarray(False),
        )

    def step(self, function: Callable, mix: Callable, state: FixedPointState) -> FixedPointState:
        """Evaluate F at the candidate, accept it or not, and choose the next candidate.

        `function(y, memory, thorough)` returns F(y), the residual to judge convergence by, whether to jump to F(y)
        next, and the memory of the next evaluation; `mix(y, F(y), damping)` is the damped step.
        """

        def displacement(y):
            image, residual, jump, memory = function(y, state.memory, state.thorough)
            return image - y, (image - y, residual, jump, memory)

        jacobian, (step, residual, jump, memory) = jax.jacfwd(displacement, has_aux=True)(state.candidate)
        norm = jnp.max(jnp.abs(step))
        finite = jnp.isfinite(norm)
        solved = residual <= self.tolerance
        doubted = state.doubted | (state.confirming & ~solved)
        state = _anew(state, state.confirming)
        limit = jnp.where(state.rejected == 0, 0.9, 0.5) * state.best
        accept = finite & (~state.newton | (norm < limit))

        def keep(new, old):
            return jnp.where(accept, new, old)

        failed = ~finite & ~state.newton
        overshot = accept & ~state.newton & (norm > state.norm) & (jnp.dot(step, state.step) < 0)
        damping = jnp.where(overshot | failed, jnp.minimum(0.5 + state.damping / 2, _MOST_DAMPING), state.damping)
        refused = state.newton & ~accept
        rejected = jnp.where(refused, state.rejected + 1, state.rejected)
        wait = jnp.where(refused, 2 ** jnp.minimum(rejected, 4), jnp.maximum(state.wait - 1, 0))

        y, step, jacobian = keep(state.candidate, state.y), keep(step, state.step), keep(jacobian, state.jacobian)
        newton_step = -jnp.linalg.solve(jacobian, step)
        length = jnp.max(jnp.abs(newton_step))
        newton_step = newton_step * jnp.minimum(1, self.radius / jnp.maximum(length, self.radius))
        confirm = accept & solved & ~state.thorough
        newton = accept & (wait == 0) & ~jump & ~confirm & jnp.all(jnp.isfinite(newton_step))
        damped = mix(y, y + step, jnp.where(jump & accept, jnp.zeros_like(damping), damping))
        candidate = jnp.where(confirm, y, jnp.where(newton, y + newton_step, damped))
        far = jnp.max(jnp.abs(candidate - state.candidate)) > _FAR
        return FixedPointState(
            y=y,
            step=step,
            jacobian=jacobian,
            norm=keep(norm, state.norm),
            best=jnp.where(accept, jnp.minimum(norm, state.best), state.best),
            residual=keep(residual, state.residual),
            lowest=jax.tree.map(
                lambda new, old: jnp.where(finite & (residual < state.lowest[0]), new, old),
                (residual, state.candidate),
                state.lowest,
            ),
            candidate=candidate,
            newton=newton,
            damping=damping,
            rejected=rejected,
            wait=wait,
            evaluations=state.evaluations + 1,
            stale=jnp.where(accept & (norm < state.best), 0, state.stale + 1),
            invalid=jnp.where(failed, state.invalid + 1, jnp.where(finite, 0, state.invalid)),
            memory=memory,
            thorough=doubted | confirm | far | ~newton,
            confirming=confirm,
            doubted=doubted,
        )

    def stalled(self, state: FixedPointState) -> Bool[Array, ""]:
        """Whether the residual has stopped falling for good."""
        return state.stale >= _MOST_STALE

    def joined(self, state: FixedPointState) -> Bool[Array, ""]:
        """Whether the run has come so near the known solution that Newton steps would end there."""
        if self.known is None:
            return jnp.asarray(False)
        return (jnp.max(jnp.abs(state.y - self.known)) <= _NEAR) & (state.norm <= _NEAR)

    def terminate(self, state: FixedPointState) -> tuple[Bool[Array, ""], RESULTS]:
        """Whether to stop, and how the run then ended."""
        converged = (state.residual <= self.tolerance) & ~state.confirming
        lost = state.invalid > _MOST_INVALID
        out = (state.evaluations >= self.max_steps) | self.stalled(state) | self.joined(state)
        result = RESULTS.where(lost, RESULTS.left_domain, RESULTS.max_steps_reached)
        return converged | lost | out, RESULTS.where(converged, RESULTS.successful, result)


def _anew(state: FixedPointState, where: Bool[Array, ""]) -> FixedPointState:
    """What has been reached is forgotten `where` F turns out to be another function."""
    infinite = jnp.asarray(jnp.inf, state.y.dtype)
    reached = lambda s: (s.norm, s.best, s.lowest[0], s.newton)  # noqa: E731
    fresh = (infinite, infinite, infinite, jnp.asarray(False))
    chosen = [jnp.where(where, new, old) for new, old in zip(fresh, reached(state), strict=True)]
    return eqx.tree_at(reached, state, tuple(chosen))


def solve_fixed_point(
    function: Callable, mix: Callable, start: Float[Array, " N"], solver: SafeguardedNewton, memory: Any = None
) -> tuple[FixedPointState, RESULTS]:
    """Run the solver to its end, at the point of the smallest residual; `memory` is that of the first evaluation."""
    state = jax.lax.while_loop(
        lambda state: ~solver.terminate(state)[0],
        lambda state: solver.step(function, mix, state),
        solver.init(start, memory),
    )
    result = solver.terminate(state)[1]
    residual, y = state.lowest
    found = jnp.isfinite(residual)  # where F was finite at all
    y, residual = jnp.where(found, y, state.y), jnp.where(found, residual, state.residual)
    return eqx.tree_at(lambda s: (s.y, s.residual), state, (y, residual)), result
