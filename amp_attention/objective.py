"""The training objective as a function of S, and the certificate that an S minimises it.

Shared by everything that minimises: d⁻²L(S) = d⁻² Σ_μ ℓ(z_μ(S); y_μ) + penalty(S).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar
from amp_attention.channels import AbstractLoss, ERMChannel
from amp_attention.data import Data, Samples, adjoint_sum, scores, sum_over_samples
from amp_attention.denoisers import AbstractDenoiser
from amp_attention.problem import AttentionProblem


def loss_and_gradient(loss: AbstractLoss, S: Float[Array, "d d"], data: Data) -> tuple[Scalar, Float[Array, "d d"]]:
    """d⁻²Σℓ and its gradient in units of the eigenvalues of S, in one pass over the data.

    Args:
        loss: the loss of one sample.
        S: symmetric matrix.
        data: the samples.

    Returns:
        d⁻²Σℓ, and (1/d) ∇_S Σℓ = (1/d) Σ_μ Σ_{a≤b} ∂ℓ_μ/∂z_ab A_μ,ab: symmetric, with eigenvalues of order 1.
    """
    d = data.d

    def body(shared, samples: Samples):
        loss, S = shared
        z = scores(S, samples.X)
        values, pullback = jax.vjp(lambda z: loss.values(z, samples.y), z)
        (slope,) = pullback(jnp.ones_like(values))
        return (jnp.sum(samples.masked(values)), adjoint_sum(samples.masked(slope), samples.X)), ()

    (total, gradient), _ = sum_over_samples(body, (loss, S), data)
    return total / d**2, gradient.matrix / d


def _mean_loss(loss, S, data):
    def body(shared, samples: Samples):
        loss, S = shared
        return jnp.sum(samples.masked(loss.values(scores(S, samples.X), samples.y))), ()

    total, _ = sum_over_samples(body, (loss, S), data)
    return total / data.d**2


@eqx.filter_custom_jvp
def training_loss(loss: AbstractLoss, S: Float[Array, "d d"], data: Data) -> Scalar:
    """d⁻²Σℓ(z(S); y), differentiable in everything.

    Along dS the derivative is ⟨G, dS⟩ with G from the same pass over the data as the value, so that nothing per sample
    is stored, forward or reverse. Along the numbers of the loss and along the data it is that of the plain sum.
    """
    return _mean_loss(loss, S, data)


@training_loss.def_jvp
def _training_loss_jvp(primals, tangents):
    loss, S, data = primals
    d_loss, dS, d_data = tangents
    value, gradient = loss_and_gradient(loss, S, data)
    tangent = jnp.zeros_like(value) if dS is None else jnp.sum(gradient * dS) / data.d
    if jax.tree.leaves((d_loss, d_data)):
        tangent += eqx.filter_jvp(lambda loss, data: _mean_loss(loss, S, data), (loss, data), (d_loss, d_data))[1]
    return value, tangent


def training_objective(problem: AttentionProblem, S: Float[Array, "d d"], data: Data) -> Scalar:
    """d⁻²L = d⁻² Σ_μ ℓ_μ + the penalty's part (λ̃ Tr S/d for the nuclear norm).

    Args:
        problem: with an `ERMChannel`; its `alpha` is not read, n is that of the data.
        S: symmetric; positive semi-definite for the nuclear norm's formula to mean the norm.
        data: the samples.

    Returns:
        The objective; jit, grad, jvp and Hessian-vector products all work.

    Source: arXiv:2509.24914.
    """
    if not isinstance(problem.channel, ERMChannel):
        raise TypeError(
            f"channel must be an ERMChannel to have a training objective, got {type(problem.channel).__name__}"
        )
    return training_loss(problem.channel.loss, S, data) + problem.denoiser.objective(S)


def curvature(loss: AbstractLoss, S: Float[Array, "d d"], data: Data) -> Scalar:
    """α mean_μ Σ_k |∂²ℓ/∂z_k²| at S, α = n/d²: what Γ is at V = 0, made positive for losses that are not convex."""

    def body(shared, samples: Samples):
        loss, S = shared
        diagonal = jnp.abs(jnp.diagonal(loss.hessian(scores(S, samples.X), samples.y))).T
        return jnp.sum(samples.masked(diagonal)), ()

    total, _ = sum_over_samples(body, (loss, S), data)
    return total / data.d**2


class Stationarity(eqx.Module):
    """How far an S is from a stationary point of the objective.

    Attributes:
        gradient_norm: the KKT residual ‖S − prox(S − G/Γ)‖_F/√d; for the nuclear norm ‖S − (S − G/Γ)₊‖_F/√d with
            G = sym[(1/d)∇_S Σℓ] + λ̃ I. Zero exactly at a stationary point over the denoiser's domain.
        zero_fraction: fraction of eigenvalues that the proximal step sets to 0.
    """

    gradient_norm: Scalar
    zero_fraction: Scalar


def stationarity(
    denoiser: AbstractDenoiser, S: Float[Array, "d d"], gradient: Float[Array, "d d"], Gamma: Scalar
) -> Stationarity:
    """The KKT residual of S, by one proximal step of length 1/Γ of the penalty.

    The gradient in S alone says nothing where S = 0 (its norm need not vanish at a minimum), nor does that in W (it
    always vanishes there); the residual of the proximal step says both.

    Args:
        denoiser: the penalty.
        S: symmetric matrix.
        gradient: (1/d)∇_S Σℓ at S, of the loss alone.
        Gamma: Γ > 0, the curvature that sets the step.

    Source: arXiv:2509.24914.
    """
    step = denoiser.apply(Gamma * S - gradient, Gamma)
    gradient_norm = jnp.sqrt(jnp.sum((S - step.S) ** 2)) / math.sqrt(S.shape[0])
    return Stationarity(gradient_norm, jnp.mean((step.eigenvalues == 0).astype(S.dtype)))


def check_fits(problem: AttentionProblem, data: Data, **matrices: Float[Array, "d d"] | None) -> None:
    """Refuse data with another number of tokens than the problem's, and matrices that are not d×d.

    Raises:
        ValueError: naming the argument, its shape and the shape that fits.
    """
    if problem.tokens != data.T:
        raise ValueError(f"data must have T = {problem.tokens} tokens for this problem, got {data.T}")
    for name, matrix in matrices.items():
        if matrix is not None and matrix.shape != (data.d, data.d):
            raise ValueError(f"{name} must have shape {(data.d, data.d)}, got {matrix.shape}")
