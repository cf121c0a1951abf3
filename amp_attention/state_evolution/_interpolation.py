"""The limit λ → 0⁺ below the interpolation threshold: the minimum-nuclear-norm interpolator.

Every sample is fitted exactly, so z* is the projection of ω on the label's fibre and a sample acts as C_T linear
measurements of its scores. Then η = β0/β and, with D₁ = ∂₁J/(4δ), (δ, ε) solve

    α C_T = D₁(δ, ε),      Q0 + Δ/2 = J − (δ/2) ∂₁J − ε ∂₂J,

the second of which reads ‖S/η − S0‖²/d + Δ/2 = 2 α C_T δ².

Source: arXiv:2509.24914.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Scalar
from amp_attention.channels import ERMChannel, SquaredLoss
from amp_attention.denoisers import NuclearNorm
from amp_attention.heads import SoftmaxHead
from amp_attention.numerics.bisection import bisect
from amp_attention.problem import AttentionProblem
from amp_attention.spectral_laws import AbstractSpectralLaw, FreeConvolution
from amp_attention.spectral_laws.free_convolution import Above
from amp_attention.state_evolution._equations import Nodes
from amp_attention.state_evolution._fixed_point import FixedPoint, standard_error

_DECADES = 6.0  # δ is searched this far around the scale of the target


def _above(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar) -> Above:
    return FreeConvolution(law, delta).above(epsilon)


def _bracket(problem: AttentionProblem) -> tuple[Scalar, Scalar]:
    """log δ between which every solution lies."""
    scale = jnp.log(jnp.sqrt(problem.target.score_variance))
    return scale - _DECADES * jnp.log(10.0).astype(scale.dtype), scale + _DECADES * jnp.log(10.0).astype(scale.dtype)


@eqx.filter_jit
def interpolation_threshold(problem: AttentionProblem) -> Scalar:
    """α_interp, below which λ → 0⁺ fits every sample exactly (Δ > 0).

    δ̄ solves Q0 + Δ/2 = J(δ̄, 0) − (δ̄/2) ∂₁J(δ̄, 0); α_interp = D₁(δ̄, 0)/C_T. At Δ = 0 it is the threshold of perfect
    recovery in disguise: δ̄ → 0.

    Args:
        problem: its target and the constraints of its head are read.

    Returns:
        α_interp. Not differentiable.
    """
    law, variance = problem.target.law, problem.target.score_variance
    zero = jnp.zeros_like(variance)

    def is_left(log_delta):
        delta = jnp.exp(log_delta)
        above = _above(law, delta, zero)
        return above.J - 2 * delta**2 * above.D1 < variance

    delta = jnp.exp(bisect(is_left, *_bracket(problem)))
    return _above(law, delta, zero).D1 / problem.target.head.constraints


@eqx.filter_jit
def _noise_and_threshold(problem: AttentionProblem) -> tuple[Scalar, Scalar]:
    """(δ, ε) of the interpolator, in units of S0, by a bisection within a bisection."""
    law, noise = problem.target.law, problem.target.noise
    measurements = problem.alpha * problem.target.head.constraints
    _, right = law.components()

    def threshold(delta):
        end = jnp.maximum(right[-1], 0) + 2 * delta
        return bisect(lambda epsilon: measurements < _above(law, delta, epsilon).D1, jnp.zeros_like(delta), end)

    def is_left(log_delta):
        delta = jnp.exp(log_delta)
        error = _above(law, delta, threshold(delta)).error
        return error + noise / 2 > 2 * measurements * delta**2

    delta = jnp.exp(bisect(is_left, *_bracket(problem)))
    return delta, threshold(delta)


def interpolates(problem: AttentionProblem) -> bool:
    """Whether the problem is one of λ → 0⁺ that this branch describes: λ̃ = 0, α < α_interp, a squared softmax loss.

    Needs concrete numbers.
    """
    lam = problem.denoiser.lam if isinstance(problem.denoiser, NuclearNorm) else None
    channel = problem.channel
    fits = isinstance(channel, ERMChannel) and isinstance(channel.loss, SquaredLoss)
    return lam is not None and fits and bool(lam == 0) and bool(problem.alpha < interpolation_threshold(problem))


@eqx.filter_jit
def solve_interpolator(problem: AttentionProblem, nodes: Nodes) -> Solution[FixedPoint]:
    """The fixed point at λ → 0⁺ below the interpolation threshold, in closed form up to two numbers.

    Args:
        problem: with α < α_interp; its λ̃ is not read.
        nodes: for the test error, the one Gaussian average left.

    Returns:
        Solution with value `FixedPoint`: Σ = ∞, Σ̂ = m̂ = q̂ = 0 and a fitted training set, everything else finite. The
        standard error is zero except for the test error. Result `left_domain` at or above the threshold.
    """
    target, channel = problem.target, problem.channel
    delta, epsilon = _noise_and_threshold(problem)
    convolution = FreeConvolution(target.law, delta)
    above = convolution.above(epsilon)
    scale = _temperature_ratio(problem)
    m, q = scale * above.m, scale**2 * above.J
    zero = jnp.zeros_like(q)
    average = channel.average(target, zero, m, q, nodes)
    measurements = problem.alpha * target.head.constraints
    point = FixedPoint(
        Sigma=jnp.full_like(q, jnp.inf),
        m=m,
        q=q,
        Sigma_hat=zero,
        m_hat=zero,
        q_hat=zero,
        delta=delta,
        epsilon=epsilon,
        eta=scale,
        test_error=jnp.mean(average.test_error),
        train_objective=zero,
        train_error=zero,
        free_entropy=zero,
        squared_error=above.squared_error(scale),
        trace=scale * above.trace,
        zero_fraction=above.zero_fraction,
        rank_fraction=above.rank_fraction,
        replicon=convolution.tangent_overlap(epsilon) / (2 * measurements),
        integration_gap=zero,
    )
    errors = jax.tree.map(jnp.zeros_like, point)
    errors = eqx.tree_at(lambda p: p.test_error, errors, standard_error(average.test_error))
    point = eqx.tree_at(lambda p: p.standard_error, point, errors, is_leaf=lambda x: x is None)
    residual = jnp.abs(above.D1 - measurements)
    small = residual <= 1e3 * jnp.finfo(q.dtype).eps ** 0.75
    result = RESULTS.where(small, RESULTS.successful, RESULTS.left_domain)
    return Solution(point, result, {"iterations": jnp.int32(1), "residual": residual})


def _temperature_ratio(problem: AttentionProblem) -> Array:
    """β0/β, the factor between what a student of another temperature learns and S0."""
    head, head0 = problem.channel.loss.head, problem.target.head  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(head, SoftmaxHead) and isinstance(head0, SoftmaxHead):
        return head0.beta / head.beta
    return jnp.ones_like(problem.alpha)
