"""The loop around `AMP`, and what it returns."""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Bool, Float, Int, Scalar, ScalarLike
from amp_attention.amp._amp import AMP, AMPInfo, AMPState
from amp_attention.amp._estimate import AMPEstimate, AMPHistory, overlap, target_or_nan
from amp_attention.amp._implicit import differentiable
from amp_attention.data import Data, replicated
from amp_attention.numerics.validation import whole_number
from amp_attention.objective import check_fits
from amp_attention.problem import AttentionProblem, cast


class _Carry(eqx.Module):
    state: AMPState
    history: AMPHistory
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    result: RESULTS
    residual: Scalar


def _record(history: AMPHistory, step, state: AMPState, info: AMPInfo, S0) -> AMPHistory:
    q, m = overlap(state.S, state.S), overlap(state.S, S0)
    row = AMPHistory(q, m, state.V, state.Gamma, info.residual, info.damping)
    return jax.tree.map(lambda array, value: array.at[step].set(value), history, row)


def _iterate(solver: AMP, problem, data, state: AMPState, S0, max_steps: int) -> _Carry:
    dtype = data.dtype
    blank = jnp.full((max_steps,), jnp.nan, dtype)
    history = AMPHistory(blank, blank, blank, blank, blank, blank)
    infinity = jnp.full((), jnp.inf, dtype)

    def going(carry):
        return ~carry.done & (carry.steps < max_steps)

    def body(carry):
        state, info = solver.step(problem, data, carry.state)
        done, result, _ = solver.terminate(problem, data, state, info)
        history = _record(carry.history, carry.steps, state, info, S0)
        return _Carry(state, history, carry.steps + 1, done, result, info.residual)

    carry = _Carry(state, history, jnp.int32(0), jnp.asarray(False), RESULTS.max_steps_reached, infinity)
    return jax.lax.while_loop(going, body, carry)


@eqx.filter_jit
def _solve(solver: AMP, problem, data, state: AMPState, S0, max_steps: int) -> Solution:
    carry = _iterate(*jax.lax.stop_gradient((solver, problem, data, state, S0)), max_steps)
    finished = RESULTS.where(carry.done, carry.result, RESULTS.max_steps_reached)
    successful = finished == RESULTS.successful
    value = differentiable(problem, data, carry.state, S0, carry.history, successful)
    stats = {"iterations": carry.steps, "residual": carry.residual, "damping": carry.state.control.damping}
    return Solution(value, finished, stats)


def solve_amp(
    problem: AttentionProblem,
    data: Data,
    *,
    S0: Float[Array, "d d"] | None = None,
    start: AMPState | Float[Array, "d d"] | None = None,
    tolerance: ScalarLike | None = None,
    max_steps: int = 500,
    damping: ScalarLike | None = None,
) -> Solution[AMPEstimate]:
    """Run AMP on one data set to the minimiser of the training objective.

    Compiled once per shape: repeated calls with other numbers (λ̃, β, α, tolerance, data) of the same shapes do not
    compile again. Everything is computed in the dtype of the data; the problem is cast to it.

    Differentiable, forward and reverse, in the problem and the data (`jax.grad`, `jax.jvp`, `jax.jacfwd`, ...), by the
    implicit function theorem at the fixed point: S, objective, train_error, q, m, trace and squared_error have
    derivatives, the rest has none. They are as exact as the fixed point (`tolerance`), and NaN where the result is not
    successful. To differentiate a solution already found, see `differentiable_estimate`.

    Args:
        problem: channel and denoiser are read; the target and `alpha` are not, since the data have their own.
        data: tokens and labels.
        S0: target matrix, only to report overlaps.
        start: a symmetric matrix (with g = 0, V = 0), or the `state` of an earlier estimate for the same data;
            S = 0 by default.
        tolerance: see `AMP`.
        max_steps: most AMP steps.
        damping: weight of the old iterate; None for automatic.

    Returns:
        `Solution` with an `AMPEstimate`; `stats` has `iterations`, `residual` (of the undamped map) and the last
        `damping`. Results: `successful`; `max_steps_reached`; `nonfinite` (NaN in the data), `left_domain` (Γ ≤ 0) and
        `diverged`, each with the last finite iterate as value.

    Raises:
        ValueError: for arguments out of range or of mismatched shapes.
    """
    check_fits(problem, data, S0=S0, start=start.S if isinstance(start, AMPState) else start)
    dtype = data.dtype
    problem, solver = cast(problem, dtype), AMP(tolerance, damping)
    S0 = target_or_nan(S0, data)
    state = solver.init(problem, data, start)
    solver = eqx.tree_at(lambda s: s.tolerance, solver, solver.resolved_tolerance(data), is_leaf=lambda x: x is None)
    solver, problem, S0 = replicated((solver, problem, S0), data.mesh)
    return _solve(solver, problem, data, state, S0, whole_number("max_steps", max_steps, 1))
