"""Sample ratios where learning changes in kind: interpolation, perfect recovery, Bayes-optimal recovery.

All are differentiable to second order in every mode: a bisection finds the one unknown, the implicit function theorem
differentiates it. A number without meaning (interpolation at Δ = 0, perfect recovery at Δ > 0) is NaN, and so are its
derivatives. None depends on the temperatures: β0 ≠ β rescales S0 and √Δ by the same factor.

Source: arXiv:2509.24914.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar, ScalarLike
from amp_attention.bayes import posterior_channel
from amp_attention.channels import ERMChannel, SquaredLoss
from amp_attention.denoisers import NuclearNorm
from amp_attention.heads import HardmaxHead
from amp_attention.numerics.bisection import bisect
from amp_attention.numerics.implicit import implicit_root, trusted
from amp_attention.numerics.validation import instance_of, non_negative, positive, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.spectral_laws import AbstractSpectralLaw, FreeConvolution, MarchenkoPastur
from amp_attention.targets import Target

_REACH = 18.0  # log δ̄ is searched this far around log √(Q0 + Δ/2)


class Thresholds(eqx.Module):
    """Thresholds in α = n/d² of one target, or derivatives of them.

    Attributes:
        interpolation: α_interp, below which λ → 0⁺ fits every noisy sample; NaN at Δ = 0, where every α does.
        recovery: α_perf, above which λ → 0⁺ finds S0 exactly; NaN at Δ > 0, where no α does.
        bayes: above which the Bayes-optimal estimator of noiseless labels finds S0 exactly; whatever Δ of the target.
    """

    interpolation: Scalar
    recovery: Scalar
    bayes: Scalar


class ThresholdGradients(eqx.Module):
    """Derivatives of `Thresholds`; NaN where the threshold has no meaning or knows no noise.

    Attributes:
        kappa0: in κ0; None for a law without it.
        noise: in Δ.
    """

    kappa0: Thresholds | None
    noise: Thresholds


def _excess(y: Float[Array, "1"], args) -> Float[Array, "1"]:
    """(‖X − S0‖²/d + Δ/2)/δ² − 2 D₁ at δ = e^y, ε = 0: positive below δ̄, and free of cancellation at small δ."""
    law, noise = args
    delta = jnp.exp(y[0])
    above = FreeConvolution(law, delta).above(jnp.zeros_like(delta))
    return ((above.error + noise / 2) / delta**2 - 2 * above.D1)[None]


@eqx.filter_jit
def _interpolation(law: AbstractSpectralLaw, noise: Scalar) -> Scalar:
    """α_interp C_T."""
    meaningful = noise > 0
    noisy = jnp.where(meaningful, noise, jnp.ones_like(noise))
    fixed = jax.lax.stop_gradient((law, noisy))
    middle = jnp.log(fixed[0].moment(2) + fixed[1] / 2) / 2
    y = bisect(lambda y: _excess(y[None], fixed)[0] > 0, middle - _REACH, middle + _REACH)
    found = jnp.abs(y - middle) < 0.999 * _REACH
    law, noisy = trusted((law, noisy), meaningful & found)
    y = implicit_root(_excess, y[None], (law, noisy))
    D1 = FreeConvolution(law, jnp.exp(y[0])).above(jnp.zeros_like(noise)).D1
    # A factor, not a selection: its derivative is NaN as well, forward and reverse.
    return D1 + _zero_or_nan(meaningful, noise) * noise


def _zero_or_nan(valid, like: Scalar) -> Scalar:
    return jnp.where(valid, 0, jnp.nan).astype(like.dtype)


def interpolation_threshold(law: AbstractSpectralLaw, noise: ScalarLike, constraints: int) -> Scalar:
    """α_interp, below which λ → 0⁺ fits every sample exactly (Δ > 0).

    δ̄ solves Q0 + Δ/2 = J(δ̄, 0) − (δ̄/2) ∂₁J(δ̄, 0); α_interp = D₁(δ̄, 0)/C_T, with D₁ = ∂₁J/(4δ). For PSD targets of
    rank fraction r it tends to (1 − (1−r)²/2)/(2 C_T) as Δ → 0⁺, like Δ^{1/3} when r < 1: the statistical dimension of
    the tangent cone of PSD matrices at S0. That exceeds α_perf when r < 1; at Δ = 0 itself every α interpolates.

    Args:
        law: spectral law of the target. Where Tr S0 ≤ 0, δ̄ = ∞ and α_interp = 1/(4 C_T), without a derivative.
        noise: Δ ≥ 0, a variance: N(0, Δ/(2−δ_ab)) on the scores.
        constraints: C_T of the head, `head.constraints`: (T²+T−2)/2 for the softmax, 1 for the linear head.

    Returns:
        Scalar, differentiable in law and noise; NaN at Δ = 0.

    Raises:
        ValueError: for arguments out of range.

    Source: arXiv:2509.24914.
    """
    constraints = whole_number("constraints", constraints, 1)
    instance_of("law", law, AbstractSpectralLaw, "a spectral law")
    return _interpolation(law, non_negative("noise", noise).astype(law.dtype)) / constraints


def rank_fraction(law: AbstractSpectralLaw | ScalarLike) -> Scalar:
    """Share of non-zero eigenvalues of S0: min(κ0, 1) of a Marchenko–Pastur law, 1 − μ0({0}) in general.

    Args:
        law: a law, or a number > 0, of which what exceeds 1 does not count (κ0).

    Returns:
        Scalar in (0, 1]; its derivative is 0 from 1 on, and in eigenvalues.
    """
    if isinstance(law, MarchenkoPastur):
        rank = law.kappa0
    else:
        rank = 1 - law.atom() if isinstance(law, AbstractSpectralLaw) else positive("rank_fraction", law)
    return jnp.where(rank < 1, rank, jnp.ones_like(rank))


def _partial_moments(angle: Scalar) -> tuple[Scalar, Scalar]:
    """∫(s−c)₊ρ(ds) and ∫(s−c)₊²ρ(ds), ρ the semicircle on [−2, 2], c = 2 cos(angle)."""
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    segment = angle - sine * cosine
    first = 4 / jnp.pi * (sine**3 / 3 - cosine * segment / 2)
    product = (segment - 2 / 3 * cosine * sine**3) / jnp.pi  # ∫ s (s−c)₊ρ
    return first, product - 2 * cosine * first


def _balance(angle: Float[Array, "1"], rank: Scalar) -> Float[Array, "1"]:
    """(1−r) ∫(s−c)₊ρ(ds) − c r at c = 2 cos(angle)."""
    return (1 - rank) * _partial_moments(angle)[0] - 2 * jnp.cos(angle) * rank


@eqx.filter_jit
def _recovery(rank: Scalar) -> Scalar:
    """2 C_T α_perf = min over c of r(2−r) + r(1−r) c² + (1−r)² ∫(s−c)₊²ρ(ds), attained where `_balance` vanishes.

    Written as a minimum, an error of c enters squared.
    """
    fixed, zero = jax.lax.stop_gradient(rank), jnp.zeros_like(rank)
    angle = bisect(lambda angle: _balance(angle[None], fixed)[0] < 0, zero, zero + jnp.pi / 2)
    angle = implicit_root(_balance, angle[None], rank)[0]
    rest = 1 - rank
    return rank * (1 + rest) + rank * rest * (2 * jnp.cos(angle)) ** 2 + rest**2 * _partial_moments(angle)[1]


def recovery_threshold(law: AbstractSpectralLaw | ScalarLike, constraints: int) -> Scalar:
    """α_perf, above which the minimum-nuclear-norm interpolator of noiseless labels is S0.

    c solves (1−r) ∫(s−c)₊ρ(ds) = c r, with ρ the semicircle on [−2, 2] and r the rank fraction of S0;
    α_perf = [1 − (1−r)² + (1−r)² ∫s(s−c)₊ρ(ds)]/(2 C_T). At r = 1 it is 1/(2 C_T), and its derivative in r is 0.

    Args:
        law: as for `rank_fraction`: the spectral law of a PSD target, or κ0.
        constraints: C_T, as for `interpolation_threshold`.

    Returns:
        Scalar, differentiable in κ0; the derivative tends to 3/C_T as κ0 → 0.

    Raises:
        ValueError: for arguments out of range.

    Source: arXiv:2509.24914.
    """
    constraints = whole_number("constraints", constraints, 1)
    return _recovery(rank_fraction(law)) / (2 * constraints)


def bayes_recovery_threshold(law: AbstractSpectralLaw | ScalarLike, constraints: int) -> Scalar:
    """(2r − r²)/(2 C_T), r the rank fraction: as many equations as S0 has degrees of freedom.

    Args:
        law, constraints: as for `recovery_threshold`.

    Returns:
        Scalar, differentiable in κ0; 1/(2 C_T) with derivative 0 from κ0 = 1 on.

    Raises:
        ValueError: for arguments out of range.

    Source: arXiv:2509.24914.
    """
    constraints = whole_number("constraints", constraints, 1)
    rank = rank_fraction(law)
    return rank * (2 - rank) / (2 * constraints)


def weak_recovery_threshold(target: Target) -> Scalar:
    """α/κ0 at κ0 → 0 below which labels tell no more of a Marchenko–Pastur target than the law does: 1/(2 E Σ g²).

    The average is that of the posterior channel at q = 0 and V = 1; the Bayes-optimal error is 1 up to there. At κ0 > 0
    the error falls from α = 0 on, and there is no such threshold.

    Args:
        target: its head and noise are read.

    Returns:
        Scalar, differentiable in Δ; for a softmax 1/(2 C_T) (1 + Δ/2).

    Source: arXiv:2506.01582, with the derivative of the hardmax channel put right.
    """
    one = jnp.ones_like(target.noise)
    return 1 / (2 * jnp.mean(posterior_channel(target).averages(jnp.zeros_like(one), one).information))


@eqx.filter_jit
def thresholds(target: Target) -> Thresholds:
    """All thresholds of one target: its law, the constraints of its head and its noise are read.

    Raises:
        ValueError: for a hardmax, whose labels set no equations.
    """
    if isinstance(target.head, HardmaxHead):
        raise ValueError(f"target.head must be a softmax or linear head, got {target.head}")
    law, noise, constraints = target.law, target.noise, target.head.constraints
    noiseless = noise == 0
    independent = 0 * trusted(noise, jnp.zeros_like(noiseless))  # no derivative in a noise that is not there
    missing = _zero_or_nan(noiseless, noise) * (1 + independent)
    # A term of its own: the recovery threshold does not depend on all of the law (not on κ0 ≥ 1, for one).
    unknown = sum((jnp.sum(0 * leaf) for leaf in jax.tree.leaves(trusted(law, noiseless))), jnp.zeros_like(noise))
    return Thresholds(
        interpolation=interpolation_threshold(law, noise, constraints),
        recovery=recovery_threshold(law, constraints) + missing + unknown,
        bayes=bayes_recovery_threshold(law, constraints) + independent,
    )


@eqx.filter_jit
def threshold_gradients(target: Target) -> ThresholdGradients:
    """Derivatives of `thresholds` in the numbers of the target that have a name, κ0 and Δ."""

    def derivative(place) -> Thresholds:
        # Forward, in one number at a time: a derivative that is NaN then leaves the others alone.
        return jax.jacfwd(lambda value: thresholds(eqx.tree_at(place, target, value)))(place(target))

    has_width = isinstance(target.law, MarchenkoPastur)
    in_width = derivative(lambda target: target.law.kappa0) if has_width else None
    return ThresholdGradients(in_width, derivative(lambda target: target.noise))


def interpolates(problem: AttentionProblem) -> bool:
    """Whether λ → 0⁺ fits every sample, so that `solve_interpolator` describes it.

    True for λ̃ = 0, a squared loss, and Δ = 0 or α < α_interp. Needs concrete numbers.
    """
    lam = problem.denoiser.lam if isinstance(problem.denoiser, NuclearNorm) else None
    fits = isinstance(problem.channel, ERMChannel) and isinstance(problem.channel.loss, SquaredLoss)
    if lam is None or not fits or bool(lam != 0):
        return False
    target = problem.target
    threshold = interpolation_threshold(target.law, target.noise, target.head.constraints)
    return bool(target.noise == 0) or bool(problem.alpha < threshold)
