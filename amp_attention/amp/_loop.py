"""The loop around `AMP`, and what it returns."""

from types import NoneType

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Bool, Float, Int, Scalar, ScalarLike
from amp_attention.amp._amp import AMP, AMPInfo, AMPState
from amp_attention.amp._estimate import AMPEstimate, AMPHistory, overlap
from amp_attention.amp._implicit import differentiable
from amp_attention.checkpoints import Checkpoint, refuse_traced, run_fingerprint, run_in_bursts
from amp_attention.data import Data, replicated
from amp_attention.numerics.validation import instance_of, square_matrix, whole_number
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


def _unknown(shape: tuple[int, ...], data: Data) -> Array:
    """NaN, where the data are. Made there: several processes compare what they send, and NaN is not equal to itself."""
    return replicated(jnp.zeros(shape, data.dtype), data.mesh) + jnp.asarray(jnp.nan, data.dtype)


def _start(state: AMPState, data: Data, max_steps: int) -> _Carry:
    """Before the first step."""
    blank = _unknown((max_steps,), data)
    history = AMPHistory(blank, blank, blank, blank, blank, blank)
    # Arrays of JAX throughout, as the loop returns them: the first burst then runs the same program as the others.
    result = jax.tree.map(jnp.asarray, RESULTS.max_steps_reached)
    rest = (jnp.int32(0), jnp.asarray(False), result, jnp.full((), jnp.inf, data.dtype))
    return _Carry(state, history, *replicated(rest, data.mesh))


@eqx.filter_jit
def _advance(solver: AMP, problem, data, S0, carry: _Carry, until: Int[Array, ""]) -> _Carry:
    """Steps until there are `until` of them or the run is done. No number depends on how many calls that takes."""
    solver, problem, data, S0, carry = jax.lax.stop_gradient((solver, problem, data, S0, carry))

    def body(carry):
        state, info = solver.step(problem, data, carry.state)
        done, result, _ = solver.terminate(problem, data, state, info)
        history = _record(carry.history, carry.steps, state, info, S0)
        return _Carry(state, history, carry.steps + 1, done, result, info.residual)

    return jax.lax.while_loop(lambda carry: ~carry.done & (carry.steps < until), body, carry)


@eqx.filter_jit
def _report(problem, data, S0, carry: _Carry) -> Solution:
    carry = jax.lax.stop_gradient(carry)
    finished = RESULTS.where(carry.done, carry.result, RESULTS.max_steps_reached)
    successful = finished == RESULTS.successful
    value = differentiable(problem, data, carry.state, S0, carry.history, successful)
    stats = {"iterations": carry.steps, "residual": carry.residual, "damping": carry.state.control.damping}
    return Solution(value, finished, stats)


def _in_bursts(checkpoint: Checkpoint, solver: AMP, problem, data: Data, S0, start: _Carry, max_steps: int) -> _Carry:
    refuse_traced(checkpoint, (solver, problem, data, S0, start))
    inputs = {"problem": problem, "data": data, "S0": S0, "damping": solver.damping, "start": start.state}
    fingerprint = run_fingerprint(
        "amp",
        data.dtype,
        devices=1 if data.mesh is None else data.mesh.size,
        n=data.n,
        tokens=data.T,
        d=data.d,
        max_steps=max_steps,
        tolerance=float(solver.resolved_tolerance(data)),
        **inputs,
    )
    return run_in_bursts(
        checkpoint,
        fingerprint,
        lambda: start,
        lambda carry, until: _advance(solver, problem, data, S0, carry, jnp.int32(min(until, max_steps))),
        lambda carry: (int(carry.steps), bool(carry.done) or int(carry.steps) >= max_steps),
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
    checkpoint: Checkpoint | None = None,
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
        checkpoint: where to write the iteration's state from time to time, and whether to go on from there; the
            result is the same, bit by bit, as without. Not under `jit`, `grad` or `vmap`.

    Returns:
        `Solution` with an `AMPEstimate`; `stats` has `iterations`, `residual` (of the undamped map) and the last
        `damping`. Results: `successful`; `max_steps_reached`; `nonfinite` (NaN in the data), `left_domain` (Γ ≤ 0) and
        `diverged`, each with the last finite iterate as value.

    Raises:
        ValueError: for arguments out of range or of mismatched shapes; `CheckpointError`, which is one, for a
            checkpoint that is another run's or damaged, or cannot be written.
    """
    max_steps = whole_number("max_steps", max_steps, 1)
    instance_of("problem", problem, AttentionProblem, "an AttentionProblem")
    instance_of("data", data, Data, "Data")
    instance_of("checkpoint", checkpoint, (Checkpoint, NoneType), "a Checkpoint or None")
    for name, matrix in {"S0": S0, "start": None if isinstance(start, AMPState) else start}.items():
        if matrix is not None:
            square_matrix(name, matrix, data.d)
    check_fits(problem, data, start=start.S if isinstance(start, AMPState) else None)
    dtype = data.dtype
    problem, solver = cast(problem, dtype), AMP(tolerance, damping)
    S0 = _unknown((data.d, data.d), data) if S0 is None else replicated(jnp.asarray(S0, dtype), data.mesh)
    state = solver.init(problem, data, start)
    solver = eqx.tree_at(lambda s: s.tolerance, solver, solver.resolved_tolerance(data), is_leaf=lambda x: x is None)
    solver, problem = replicated((solver, problem), data.mesh)
    carry = _start(state, data, max_steps)
    if checkpoint is None:
        carry = _advance(solver, problem, data, S0, carry, jnp.int32(max_steps))
    else:
        carry = _in_bursts(checkpoint, solver, problem, data, S0, carry, max_steps)
    return _report(problem, data, S0, carry)
