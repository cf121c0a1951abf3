"""Training of the weights by gradient methods: the reference that AMP is compared with."""

import math
from types import NoneType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Float, Int, PRNGKeyArray, Scalar, ScalarLike
from amp_attention.checkpoints import Checkpoint, digest, refuse_traced, run_fingerprint, run_in_bursts
from amp_attention.data import Data, replicated
from amp_attention.erm._optimizers import OPTIMIZERS, Search, advance, begin, best, named_optimizer
from amp_attention.numerics.validation import (
    instance_of,
    positive,
    random_key,
    reachable_tolerance,
    square_matrix,
    whole_number,
)
from amp_attention.objective import check_fits, curvature, loss_and_gradient, stationarity, training_objective
from amp_attention.problem import AttentionProblem, cast


class TrainedWeights(eqx.Module):
    """Where training ended.

    Attributes:
        W: (d, p) weights.
        S: WWᵀ/√(pd).
        objective: d⁻²L.
        train_error: d⁻²Σℓ.
        gradient_norm: KKT residual of S over all PSD matrices, with Γ = α mean Σ_k |∂²ℓ/∂z_k²|; it vanishes at the
            minimum only where the width does not bind (p ≥ d is always enough).
        q, m, trace: Tr S²/d, Tr(S S0)/d (NaN without S0), Tr S/d.
        squared_error: ‖S − S0‖²_F/d; NaN without S0.
        zero_fraction: fraction of eigenvalues that one proximal step from S sets to zero.
    """

    W: Float[Array, "d p"]
    S: Float[Array, "d d"]
    objective: Scalar
    train_error: Scalar
    gradient_norm: Scalar
    q: Scalar
    m: Scalar
    trace: Scalar
    squared_error: Scalar
    zero_fraction: Scalar


def tied_matrix(W: Float[Array, "d p"]) -> Float[Array, "d d"]:
    """S = WWᵀ/√(pd)."""
    d, p = W.shape
    return jnp.matmul(W, W.T, precision="highest") / math.sqrt(p * d)


def _certificate(problem, S, data):
    """(train error, Stationarity, Γ) of S."""
    train_error, gradient = loss_and_gradient(problem.channel.loss, S, data)
    Gamma = curvature(problem.channel.loss, S, data)
    return train_error, stationarity(problem.denoiser, S, gradient, Gamma), Gamma


class _Method(eqx.Module):
    """How the weights are optimised.

    Attributes:
        optimizer: a name, or an optax transformation.
        learning_rate: of `adam`.
        tolerance: on the residual.
        max_steps: over which the rate of `adam` falls.
    """

    optimizer: Any
    learning_rate: Scalar
    tolerance: Scalar
    max_steps: int = eqx.field(static=True)

    def transformation(self) -> optax.GradientTransformation:
        """What optax runs."""
        if isinstance(self.optimizer, str):
            return named_optimizer(self.optimizer, self.learning_rate, self.max_steps)
        return self.optimizer


@eqx.filter_jit
def _begin(problem, data, W, method: _Method) -> tuple[Scalar, Search]:
    """Γ at S = 0, and the optimiser before its first step."""
    Gamma_at_zero = curvature(problem.channel.loss, jnp.zeros((data.d, data.d), W.dtype), data)
    return Gamma_at_zero, begin(W, method.transformation())


@eqx.filter_jit
def _advance(problem, data, method: _Method, Gamma_at_zero, search: Search, until: Int[Array, ""]) -> Search:
    d, p = search.params.shape
    # In units of d² the objective is L itself, whose Hessian in the entries of W is of order 1.
    value_fn = lambda W: d**2 * training_objective(problem, tied_matrix(W), data)  # noqa: E731
    scale = (p * d) ** 0.25 / (2 * d**1.5)

    def full_residual(W, norm):
        _, certificate, Gamma = _certificate(problem, tied_matrix(W), data)
        in_weights = norm / Gamma
        return jnp.maximum(in_weights, certificate.gradient_norm) if p >= d else in_weights

    def stop(W, gradient):
        norm = scale * jnp.sqrt(jnp.sum(gradient**2))
        cheap = norm / Gamma_at_zero
        # The full residual costs two more passes and an eigendecomposition: only once the cheap one is small.
        residual = jax.lax.cond(cheap <= method.tolerance, lambda: full_residual(W, norm), lambda: cheap)
        return residual <= method.tolerance, residual

    return advance(value_fn, search, method.transformation(), stop, until)


@eqx.filter_jit
def _report(problem, data, S0, search: Search) -> Solution:
    minimum = best(search)
    result = RESULTS.where(minimum.converged, RESULTS.successful, RESULTS.max_steps_reached)
    result = RESULTS.where(minimum.finite, result, RESULTS.nonfinite)
    stats = {"iterations": minimum.steps, "residual": minimum.residual}
    return Solution(_describe(problem, data, minimum.params, S0), result, stats)


def _in_bursts(checkpoint: Checkpoint, problem, data: Data, W, method: _Method) -> Search:
    refuse_traced(checkpoint, (problem, data, W, method))
    optimizer = method.optimizer
    if not isinstance(optimizer, str):  # functions, which have no fingerprint
        optimizer = digest(jax.eval_shape(lambda W: begin(W, method.optimizer).state, W))
    fingerprint = run_fingerprint(
        "training",
        data.dtype,
        devices=1 if data.mesh is None else data.mesh.size,
        n=data.n,
        tokens=data.T,
        d=data.d,
        width=W.shape[1],
        max_steps=method.max_steps,
        tolerance=float(method.tolerance),
        learning_rate=float(method.learning_rate),
        optimizer=optimizer,
        problem=problem,
        data=data,
        start=W,
    )

    def go_on(state: tuple[Scalar, Search], until: int) -> tuple[Scalar, Search]:
        Gamma_at_zero, search = state
        search = _advance(problem, data, method, Gamma_at_zero, search, jnp.int32(min(until, method.max_steps)))
        return Gamma_at_zero, search

    def progress(state: tuple[Scalar, Search]) -> tuple[int, bool]:
        _, search = state
        steps = int(search.minimum.steps)
        return steps, bool(search.ended) or steps >= method.max_steps

    _, search = run_in_bursts(checkpoint, fingerprint, lambda: _begin(problem, data, W, method), go_on, progress)
    return search


def _describe(problem, data, W, S0) -> TrainedWeights:
    S = tied_matrix(W)
    train_error, certificate, _ = _certificate(problem, S, data)
    overlap = lambda A, B: jnp.sum(A * B) / data.d  # noqa: E731
    nan = jnp.full((), jnp.nan, S.dtype)
    return TrainedWeights(
        W=W,
        S=S,
        objective=train_error + problem.denoiser.objective(S),
        train_error=train_error,
        gradient_norm=certificate.gradient_norm,
        q=overlap(S, S),
        m=nan if S0 is None else overlap(S, S0),
        trace=jnp.trace(S) / data.d,
        squared_error=nan if S0 is None else overlap(S - S0, S - S0),
        zero_fraction=certificate.zero_fraction,
    )


def train(
    problem: AttentionProblem,
    data: Data,
    *,
    key: PRNGKeyArray,
    S0: Float[Array, "d d"] | None = None,
    optimizer: str | optax.GradientTransformation = "lbfgs",
    width: int | None = None,
    max_steps: int | None = None,
    tolerance: ScalarLike | None = None,
    learning_rate: ScalarLike = 0.1,
    checkpoint: Checkpoint | None = None,
) -> Solution[TrainedWeights]:
    """Minimise L over the weights W of S = WWᵀ/√(pd), from W ~ N(0, 1).

    Stops where the gradient vanishes: ‖G S^{1/2}‖_F/(Γ√d), which is the gradient in W in intensive units, and for p ≥ d
    also the KKT residual in S, which alone tells S = 0 from a saddle. G = (1/d)∇_S Σℓ + λ̃ I.

    Args:
        problem: channel and denoiser are read; cast to the dtype of the data.
        data: tokens and labels.
        key: of the random starting weights.
        S0: target matrix, only to report overlaps.
        optimizer: `lbfgs`, `adam` (full batch, cosine decay over `max_steps`), or any optax transformation; pass the
            same object again to avoid a second compilation.
        width: p ≥ 1; d by default, which never binds.
        max_steps: most optimiser steps; 10000 for `adam`, 2000 otherwise by default.
        tolerance: on the residual above; 1e-7 in float64, 1e-4 in float32 by default, and there at least 1e-6.
        learning_rate: of `adam`; entries of W are of order 1.
        checkpoint: where to write the optimiser's state from time to time, and whether to go on from there; the result
            is the same, bit by bit, as without. Of an optax transformation of your own only the structure of its state
            tells it from others: its numbers, a learning rate for instance, must be the same when it goes on.

    Returns:
        `Solution` with `TrainedWeights`; `stats` has `iterations` and `residual`. Results: `successful`,
        `max_steps_reached`, `nonfinite` (with the last finite weights).

    Raises:
        ValueError: for arguments out of range or of mismatched shapes; `CheckpointError`, which is one, for a
            checkpoint that is another run's or damaged, or cannot be written.
    """
    instance_of("problem", problem, AttentionProblem, "an AttentionProblem")
    instance_of("data", data, Data, "Data")
    instance_of("checkpoint", checkpoint, (Checkpoint, NoneType), "a Checkpoint or None")
    random_key("key", key)
    if optimizer not in OPTIMIZERS if isinstance(optimizer, str) else not hasattr(optimizer, "update"):
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)} or an optax transformation, got {optimizer!r}"
        )
    check_fits(problem, data)
    if S0 is not None:
        square_matrix("S0", S0, data.d)
    dtype = data.dtype
    width = whole_number("width", data.d if width is None else width, 1)
    tolerance = (1e-7 if dtype == jnp.float64 else 1e-4) if tolerance is None else tolerance
    numbers = (
        positive("learning_rate", learning_rate).astype(dtype),
        reachable_tolerance("tolerance", tolerance, dtype),
    )
    if max_steps is None:
        max_steps = 10_000 if isinstance(optimizer, str) and optimizer == "adam" else 2000
    max_steps = whole_number("max_steps", max_steps, 1)
    W = jax.random.normal(key, (data.d, width), dtype)
    S0 = None if S0 is None else jnp.asarray(S0, dtype)
    problem, W, S0, numbers = replicated((cast(problem, dtype), W, S0, numbers), data.mesh)
    method = _Method(optimizer, *numbers, max_steps)
    if checkpoint is None:
        Gamma_at_zero, search = _begin(problem, data, W, method)
        search = _advance(problem, data, method, Gamma_at_zero, search, jnp.int32(method.max_steps))
    else:
        search = _in_bursts(checkpoint, problem, data, W, method)
    return _report(problem, data, S0, search)
