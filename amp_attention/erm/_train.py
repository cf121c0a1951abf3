"""Training of the weights by gradient methods: the reference that AMP is compared with."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Float, PRNGKeyArray, Scalar, ScalarLike
from amp_attention.data import Data, replicated
from amp_attention.erm._optimizers import OPTIMIZERS, minimise, named_optimizer
from amp_attention.numerics.validation import positive, whole_number
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


@eqx.filter_jit
def _train(problem, data, W, S0, optimizer, learning_rate, tolerance, max_steps: int):
    d, p = W.shape
    if isinstance(optimizer, str):
        optimizer = named_optimizer(optimizer, learning_rate, max_steps)
    # In units of d² the objective is L itself, whose Hessian in the entries of W is of order 1.
    value_fn = lambda W: d**2 * training_objective(problem, tied_matrix(W), data)  # noqa: E731
    scale = (p * d) ** 0.25 / (2 * d**1.5)
    Gamma_at_zero = curvature(problem.channel.loss, jnp.zeros((d, d), W.dtype), data)

    def full_residual(W, norm):
        _, certificate, Gamma = _certificate(problem, tied_matrix(W), data)
        in_weights = norm / Gamma
        return jnp.maximum(in_weights, certificate.gradient_norm) if p >= d else in_weights

    def stop(W, gradient):
        norm = scale * jnp.sqrt(jnp.sum(gradient**2))
        cheap = norm / Gamma_at_zero
        # The full residual costs two more passes and an eigendecomposition: only once the cheap one is small.
        residual = jax.lax.cond(cheap <= tolerance, lambda: full_residual(W, norm), lambda: cheap)
        return residual <= tolerance, residual

    minimum = minimise(value_fn, W, optimizer, stop, max_steps)
    result = RESULTS.where(minimum.converged, RESULTS.successful, RESULTS.max_steps_reached)
    result = RESULTS.where(minimum.finite, result, RESULTS.nonfinite)
    stats = {"iterations": minimum.steps, "residual": minimum.residual}
    return Solution(_describe(problem, data, minimum.params, S0), result, stats)


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
        tolerance: on the residual above; 1e-7 in float64, 1e-4 in float32 by default.
        learning_rate: of `adam`; entries of W are of order 1.

    Returns:
        `Solution` with `TrainedWeights`; `stats` has `iterations` and `residual`. Results: `successful`,
        `max_steps_reached`, `nonfinite` (with the last finite weights).

    Raises:
        ValueError: for arguments out of range or of mismatched shapes.
    """
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)} or an optax transformation, got {optimizer!r}"
        )
    check_fits(problem, data, S0=S0)
    dtype = data.dtype
    width = whole_number("width", data.d if width is None else width, 1)
    tolerance = (1e-7 if dtype == jnp.float64 else 1e-4) if tolerance is None else tolerance
    if max_steps is None:
        max_steps = 10_000 if optimizer == "adam" else 2000
    W = jax.random.normal(key, (data.d, width), dtype)
    numbers = (positive("learning_rate", learning_rate).astype(dtype), positive("tolerance", tolerance).astype(dtype))
    S0 = None if S0 is None else jnp.asarray(S0, dtype)
    problem, W, S0, numbers = replicated((cast(problem, dtype), W, S0, numbers), data.mesh)
    return _train(problem, data, W, S0, optimizer, *numbers, whole_number("max_steps", max_steps, 1))
