"""The loop around `AMP`, and what it returns."""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Bool, Float, Int, Scalar, ScalarLike
from amp_attention.amp._amp import AMP, AMPInfo, AMPState
from amp_attention.channels import ERMChannel
from amp_attention.data import Data
from amp_attention.numerics.validation import whole_number
from amp_attention.objective import check_fits, loss_and_gradient, stationarity
from amp_attention.problem import AttentionProblem, cast


class AMPHistory(eqx.Module):
    """Order parameters after each step, in arrays of `max_steps` entries; NaN beyond the last step.

    Attributes:
        q: Tr S²/d.
        m: Tr(S S0)/d; NaN without S0.
        V, Gamma: V and Γ.
        residual: of the undamped map, at the iterate the step started from.
        damping: weight of the old iterate.
    """

    q: Float[Array, " steps"]
    m: Float[Array, " steps"]
    V: Float[Array, " steps"]
    Gamma: Float[Array, " steps"]
    residual: Float[Array, " steps"]
    damping: Float[Array, " steps"]


class AMPEstimate(eqx.Module):
    """Where AMP ended.

    Attributes:
        S: the estimate.
        V, Gamma: variance and Γ of the last step.
        objective: d⁻²L at S.
        train_error: d⁻²Σℓ at S.
        gradient_norm: KKT residual at S, 0 at a minimiser.
        q, m, trace: Tr S²/d, Tr(S S0)/d (NaN without S0), Tr S/d.
        squared_error: ‖S − S0‖²_F/d; NaN without S0.
        zero_fraction: fraction of zero eigenvalues of S.
        history: order parameters step by step.
        state: the solver's state, to go on from (`start=`).
    """

    S: Float[Array, "d d"]
    V: Scalar
    Gamma: Scalar
    objective: Scalar
    train_error: Scalar
    gradient_norm: Scalar
    q: Scalar
    m: Scalar
    trace: Scalar
    squared_error: Scalar
    zero_fraction: Scalar
    history: AMPHistory
    state: AMPState


class _Carry(eqx.Module):
    state: AMPState
    history: AMPHistory
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    result: RESULTS
    residual: Scalar


def _overlap(A, B):
    return jnp.sum(A * B) / A.shape[0]


def _record(history: AMPHistory, step, state: AMPState, info: AMPInfo, S0) -> AMPHistory:
    q, m = _overlap(state.S, state.S), _overlap(state.S, S0)
    row = AMPHistory(q, m, state.V, state.Gamma, info.residual, info.damping)
    return jax.tree.map(lambda array, value: array.at[step].set(value), history, row)


@eqx.filter_jit
def _solve(solver: AMP, problem, data, state: AMPState, S0, max_steps: int) -> Solution:
    dtype = data.X.dtype
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
    carry = jax.lax.while_loop(going, body, carry)
    finished = RESULTS.where(carry.done, carry.result, RESULTS.max_steps_reached)
    value = _estimate(problem, data, carry.state, S0, carry.history)
    stats = {"iterations": carry.steps, "residual": carry.residual, "damping": carry.state.control.damping}
    return Solution(value, finished, stats)


def _estimate(problem: AttentionProblem, data: Data, state: AMPState, S0, history: AMPHistory) -> AMPEstimate:
    """Everything reported about a state, by one more pass over the data."""
    S, nan = state.S, jnp.full((), jnp.nan, state.S.dtype)
    train_error = gradient_norm = objective = zero_fraction = nan
    if isinstance(problem.channel, ERMChannel):
        train_error, gradient = loss_and_gradient(problem.channel.loss, S, data)
        objective = train_error + problem.denoiser.objective(S)
        Gamma = jnp.where(state.Gamma > 0, state.Gamma, jnp.ones_like(state.Gamma))
        certificate = stationarity(problem.denoiser, S, gradient, Gamma)
        gradient_norm, zero_fraction = certificate.gradient_norm, certificate.zero_fraction
    return AMPEstimate(
        S=S,
        V=state.V,
        Gamma=state.Gamma,
        objective=objective,
        train_error=train_error,
        gradient_norm=gradient_norm,
        q=_overlap(S, S),
        m=_overlap(S, S0),
        trace=jnp.trace(S) / data.d,
        squared_error=_overlap(S - S0, S - S0),
        zero_fraction=zero_fraction,
        history=history,
        state=state,
    )


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
    dtype = data.X.dtype
    problem, solver = cast(problem, dtype), AMP(tolerance, damping)
    # One structure of arguments whatever was given, hence one compilation: without S0 all its overlaps are NaN.
    S0 = jnp.full((data.d, data.d), jnp.nan, dtype) if S0 is None else jnp.asarray(S0, dtype)
    state = solver.init(problem, data, start)
    solver = eqx.tree_at(lambda s: s.tolerance, solver, solver.resolved_tolerance(data), is_leaf=lambda x: x is None)
    return _solve(solver, problem, data, state, S0, whole_number("max_steps", max_steps, 1))
