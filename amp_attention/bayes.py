"""The Bayes-optimal estimator of S0 at d → ∞: the lower bound of every other one.

The posterior mean of S0, whose spectral law is known, given the labels. Overlaps obey q = m and V = Q0 − q = E, so that
one number is left, the variance D of the effective noise: E = mmse(D) of the prior, 1/D = q̂ = 2α E Σ g² of the channel.
α is an explicit function of D, and what is asked at a given α takes the solution of one equation.

Source: arXiv:2506.01582.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Float, Scalar, ScalarLike
from amp_attention.channels import (
    AbstractPosteriorChannel,
    GaussianPosterior,
    HardmaxPosterior,
    PosteriorAverage,
    SampledHardmaxPosterior,
    Schedule,
)
from amp_attention.denoisers import PosteriorMean
from amp_attention.heads import HardmaxHead, LinearHead
from amp_attention.numerics.gaussian_nodes import gaussian_nodes
from amp_attention.numerics.implicit import implicit_root, trusted
from amp_attention.numerics.packing import upper_triangle
from amp_attention.numerics.quadrature import gauss_legendre
from amp_attention.numerics.validation import instance_of, positive, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.targets import Target

_MOST_STEPS = 100
_SMALLEST = 1e-12  # D, in units of its upper bound, below which S0 is found exactly
_POTENTIAL_NODES = 48  # of the integral of mmse


class BayesErrors(eqx.Module):
    """Standard errors from the replicas of a sampled channel, by linear response; 0 for channels in closed form.

    Attributes:
        alpha: of α at given D; 0 where α is given.
        D, q, q_hat, squared_error: at given α; 0 where D is given.
        free_entropy: of the average of log Z_out, to which φ responds with nothing else at given α.
    """

    alpha: Scalar
    D: Scalar
    q: Scalar
    q_hat: Scalar
    squared_error: Scalar
    free_entropy: Scalar


class BayesPoint(eqx.Module):
    """The Bayes-optimal estimator at one α.

    Attributes:
        alpha: α = n/d².
        D: variance of the effective noise; 0 where S0 is found exactly.
        q: overlap Tr(S S0)/d = Tr(S²)/d.
        q_hat: its conjugate, 1/D.
        squared_error: E = ‖S − S0‖²_F/d, at most the variance of the law.
        free_entropy: φ = log of the evidence over d², up to a constant of the labels; ∞ where D = 0.
        standard_error: of all these.
    """

    alpha: Scalar
    D: Scalar
    q: Scalar
    q_hat: Scalar
    squared_error: Scalar
    free_entropy: Scalar
    standard_error: BayesErrors


def posterior_channel(
    target: Target, schedule: Schedule | None = None, *, nodes: int = 2048, replicas: int = 8, seed: int = 0
) -> AbstractPosteriorChannel:
    """The channel of the posterior mean of the target's labels.

    Args:
        target: all of it is known to the estimator.
        schedule: "se" or "empirical", see `AbstractPosteriorChannel`; by default that of the channel.
        nodes, replicas, seed: of a `SampledHardmaxPosterior`; other channels have none.

    Raises:
        ValueError: for another schedule.
    """
    instance_of("target", target, Target, "a Target")
    options: dict[str, Any] = {} if schedule is None else {"schedule": schedule}
    if not isinstance(target.head, HardmaxHead):
        return GaussianPosterior(target, **options)
    if target.head.tokens == 2:
        return HardmaxPosterior(target, **options)
    return SampledHardmaxPosterior(target, nodes=nodes, replicas=replicas, seed=seed, **options)


def bayes_problem(target: Target, alpha: ScalarLike, schedule: Schedule | None = None) -> AttentionProblem:
    """The problem whose AMP is the Bayes-optimal one: `solve_amp` on it finds the posterior mean of S0.

    Args:
        target: all of it is known to the estimator.
        alpha: α = n/d² > 0.
        schedule: where AMP has its precision from, see `posterior_channel`.

    Raises:
        ValueError: for arguments out of range.
    """
    return AttentionProblem(target, posterior_channel(target, schedule), PosteriorMean(target.law), alpha)


def bayes_alpha(target: Target, D: ScalarLike, channel: AbstractPosteriorChannel | None = None) -> Scalar:
    """α(D) = 1/(2D E Σ g²) at V = mmse(D), q = Q0 − V: the explicit curve.

    Args:
        target: all of it is known to the estimator.
        D: variance of the effective noise, > 0.
        channel: another one than that of `posterior_channel`.

    Raises:
        ValueError: for arguments out of range.
    """
    return _alpha(_channel_of(target, channel), target, positive("D", D).astype(target.noise.dtype))


def _channel_of(target: Target, channel: AbstractPosteriorChannel | None) -> AbstractPosteriorChannel:
    if channel is None:
        return posterior_channel(target)
    instance_of("target", target, Target, "a Target")
    instance_of("channel", channel, AbstractPosteriorChannel, "a posterior channel, such as GaussianPosterior")
    if channel.head.tokens != target.head.tokens:
        raise ValueError(
            f"channel must have a head of the T = {target.head.tokens} tokens of the target, got {channel.head.tokens}"
        )
    return channel


def _averages(channel: AbstractPosteriorChannel, target: Target, V: Scalar) -> PosteriorAverage:
    return channel.averages(target.Q0 - V, V)


def _alpha(channel: AbstractPosteriorChannel, target: Target, D: Scalar) -> Scalar:
    V = PosteriorMean(target.law).mmse(D)
    return 1 / (2 * D * jnp.mean(_averages(channel, target, V).information))


def _excess(t: Float[Array, "1"], args) -> Float[Array, "1"]:
    """log α(e^t) − log α, falling in t."""
    channel, target, alpha = args
    return jnp.log(_alpha(channel, target, jnp.exp(t[0])) / alpha)[None]


@eqx.filter_jit
def _largest_root(channel, target: Target, alpha: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """(log D, its residual, its lower bound), from the first step of state evolution without data downwards.

    Newton steps in log D, halving a bracket where they leave it: α(D) falls on every law looked at.
    """
    args = jax.lax.stop_gradient((channel, target, alpha))
    _, V = PosteriorMean(args[1].law).start(1)
    high = -jnp.log(2 * args[2] * jnp.mean(_averages(*args[:2], V).information))
    low = high + jnp.log(jnp.asarray(_SMALLEST, high.dtype))
    accuracy = 8 * jnp.finfo(high.dtype).eps

    def go_on(carry):
        _, _, _, value, width, steps = carry
        return (jnp.abs(value) > accuracy) & (width > accuracy) & (steps < _MOST_STEPS)

    def step(carry):
        t, low, high, _, _, steps = carry
        value, slope = jax.jvp(lambda t: _excess(t[None], args)[0], (t,), (jnp.ones_like(t),))
        low, high = jnp.where(value > 0, t, low), jnp.where(value > 0, high, t)
        newton = t - value / slope
        inside = (newton >= low) & (newton <= high)
        new = jnp.where(inside, newton, (low + high) / 2)
        return new, low, high, value, jnp.abs(new - t), steps + 1

    infinite = jnp.full_like(high, jnp.inf)
    t, _, _, value, _, _ = jax.lax.while_loop(go_on, step, (high, low, high, infinite, infinite, jnp.int32(0)))
    return t, value, low


def _potential(prior: PosteriorMean, q_hat: Scalar) -> Scalar:
    """I(q̂) = ∫ mmse(1/t)/4 dt over [0, q̂]: the information that S0 + √D Z has about S0, over d²."""
    nodes, weights = gauss_legendre(_POTENTIAL_NODES, q_hat.dtype)
    values = jax.lax.map(lambda x: x * prior.mmse(1 / (q_hat * x**2)), nodes)  # t = q̂ x²
    return q_hat * jnp.sum(weights * values) / 2


def _error(values: Float[Array, " R"]) -> Scalar:
    """Of their mean; 0 for a single value, which has none."""
    R = values.size
    return jnp.std(values, ddof=1) / R**0.5 if R > 1 else jnp.zeros((), values.dtype)


def _errors(channel, target: Target, alpha: Scalar, D: Scalar, averages: PosteriorAverage, given) -> BayesErrors:
    """`given` is "alpha" or "D": one is known and the other responds to the information of the channel."""
    channel, target, alpha, D, averages = jax.lax.stop_gradient((channel, target, alpha, D, averages))
    relative = _error(averages.information) / jnp.mean(averages.information)
    free_entropy = alpha * _error(averages.log_partition)
    zero = jnp.zeros_like(D)
    if given == "D" or averages.information.size == 1:
        return BayesErrors(relative * alpha, zero, zero, zero, zero, free_entropy)
    args, one = (channel, target, alpha), jnp.ones_like(D)
    _, slope = jax.jvp(lambda t: _excess(t[None], args)[0], (jnp.log(D),), (one,))
    d_log = relative / jnp.abs(slope)
    _, d_mmse = jax.jvp(lambda t: PosteriorMean(target.law).mmse(jnp.exp(t)), (jnp.log(D),), (one,))
    E = d_log * jnp.abs(d_mmse)
    return BayesErrors(zero, D * d_log, E, d_log / D, E, free_entropy)


@eqx.filter_jit
def _at(channel: AbstractPosteriorChannel, target: Target, alpha: Scalar, D: Scalar, E: Scalar, given) -> BayesPoint:
    """Everything reported at E = mmse(D); both may be zero."""
    prior, found = PosteriorMean(target.law), D > 0
    zero, one = jnp.zeros_like(D), jnp.ones_like(D)
    noise, V = jnp.where(found, D, one), jnp.where(found, E, one)
    q_hat, averages = 1 / noise, _averages(channel, target, V)
    free_entropy = E * q_hat / 4 - _potential(prior, q_hat) + alpha * jnp.mean(averages.log_partition)
    infinite = jnp.full_like(D, jnp.inf)
    errors = jax.tree.map(lambda x: jnp.where(found, x, zero), _errors(channel, target, alpha, noise, averages, given))
    return BayesPoint(
        alpha=alpha,
        D=D,
        q=target.Q0 - E,
        q_hat=jnp.where(found, q_hat, infinite),
        squared_error=E,
        free_entropy=jnp.where(found, free_entropy, infinite),
        standard_error=errors,
    )


def bayes_point(target: Target, D: ScalarLike, channel: AbstractPosteriorChannel | None = None) -> BayesPoint:
    """The estimator at an effective noise, whose α follows: a point of the explicit curve, without iteration.

    Args:
        target: all of it is known to the estimator.
        D: variance of the effective noise, > 0; smaller at larger α.
        channel: another one than that of `posterior_channel`, for instance with more nodes.

    Raises:
        ValueError: for arguments out of range.

    Source: arXiv:2506.01582.
    """
    return _on_curve(_channel_of(target, channel), target, positive("D", D).astype(target.noise.dtype))


@eqx.filter_jit
def _on_curve(channel: AbstractPosteriorChannel, target: Target, D: Scalar) -> BayesPoint:
    return _at(channel, target, _alpha(channel, target, D), D, _mmse(target, D), "D")


def _mmse(target: Target, D: Scalar) -> Scalar:
    return jnp.maximum(PosteriorMean(target.law).mmse(D), 0)  # of a law without variance, rounding


def _linear(channel: AbstractPosteriorChannel, target: Target, alpha: Scalar, D: Scalar) -> tuple[Scalar, Scalar]:
    """(D, mmse) for little noise Δ where α(D) = α has no root at Δ = 0: both are proportional to Δ.

    From mmse = νD and E Σ g² = C/(mmse + Δ/2) at small D, that of the argument: D (2αC − ν) = Δ/2.
    """
    fixed = jax.lax.stop_gradient((channel, target, D))
    V = _mmse(fixed[1], fixed[2])
    constraints = jnp.mean(_averages(*fixed[:2], V).information) * (V + fixed[1].noise / 2)
    ratio = V / fixed[2]
    rest = 2 * alpha * constraints - ratio
    positive = rest > 0
    small = jnp.where(positive, target.noise / 2 / jnp.where(positive, rest, jnp.ones_like(rest)), jnp.zeros_like(rest))
    return small, ratio * small


def solve_bayes(
    target: Target, alpha: ScalarLike, channel: AbstractPosteriorChannel | None = None
) -> Solution[BayesPoint]:
    """The estimator at a given α, by Newton's method for log D in α(D) = α, from above.

    Args:
        target: all of it is known to the estimator.
        alpha: α = n/d² > 0.
        channel: another one than that of `posterior_channel`, for instance with more nodes.

    Returns:
        `Solution` with a `BayesPoint`, differentiable in α and every number of the target by the implicit function
        theorem. Beyond the threshold of noiseless labels of a softmax S0 is found exactly: D = E = 0, with their slopes
        in Δ from above. Results: `successful`; `max_steps_reached`.

    Raises:
        ValueError: for arguments out of range.

    Source: arXiv:2506.01582.
    """
    return _solve(_channel_of(target, channel), target, positive("alpha", alpha).astype(target.noise.dtype))


@eqx.filter_jit
def _solve(channel: AbstractPosteriorChannel, target: Target, alpha: Scalar) -> Solution[BayesPoint]:
    t, residual, low = _largest_root(channel, target, alpha)
    accurate = jnp.abs(residual) <= jnp.sqrt(jnp.finfo(t.dtype).eps)
    exact = ~accurate & (t - low < 1)  # the curve ends above this α
    channel, target, alpha = trusted((channel, target, alpha), accurate | exact)
    t = implicit_root(_excess, jax.lax.stop_gradient(t)[None], (channel, target, alpha))[0]
    little, its_error = _linear(channel, target, alpha, jnp.exp(low))
    D, E = jnp.where(exact, little, jnp.exp(t)), jnp.where(exact, its_error, _mmse(target, jnp.exp(t)))
    value = _at(channel, target, alpha, D, E, "alpha")
    result = RESULTS.where(accurate | exact, RESULTS.successful, RESULTS.max_steps_reached)
    return Solution(value, result, {"residual": jnp.where(exact, jnp.zeros_like(residual), jnp.abs(residual))})


class BayesTestErrors(eqx.Module):
    """Errors E Σ_ab (y_ab − ŷ_ab)² on fresh samples whose labels carry the noise, one entry a replica of the nodes.

    Attributes:
        optimal: of the posterior mean of the label, which no other predictor beats.
        plug_in: of the label of the posterior mean of S0.
    """

    optimal: Float[Array, " R"]
    plug_in: Float[Array, " R"]


def bayes_nodes(target: Target, nodes: int = 65_536, replicas: int = 8, seed: int = 0) -> Float[Array, "R P D"]:
    """Integration nodes of `bayes_test_errors`: D = 3(T−1) normal variables.

    Args:
        target: its head and dtype decide the nodes.
        nodes: total number of points, rounded up to a power of two per replica.
        replicas: independent scrambles, ≥ 2 for error bars.
        seed: of the scrambles.

    Raises:
        ValueError: for numbers out of range.
    """
    instance_of("target", target, Target, "a Target")
    nodes, replicas = whole_number("nodes", nodes, 1), whole_number("replicas", replicas, 1)
    points = gaussian_nodes(_node_dimension(target), nodes, replicas, whole_number("seed", seed, 0))
    return jnp.asarray(points, target.noise.dtype)


def _node_dimension(target: Target) -> int:
    return 3 * max(target.head.tokens - 1, 1)


def _row_directions(tokens: int) -> np.ndarray:
    """(K, T−1) orthonormal directions of the scores that the first row of an attention matrix depends on.

    By symmetry all rows have the same error, and few directions make a small error of integration.
    """
    rows, columns = upper_triangle(tokens)
    first = np.where(rows == 0, np.sqrt(1.0 + (columns == 0)), 0) * (columns == np.arange(tokens)[:, None])  # h_1b
    return np.linalg.qr((first[1:] - first[0]).T)[0]


def bayes_test_errors(target: Target, point: BayesPoint, nodes: Float[Array, "R P D"]) -> BayesTestErrors:
    """Test errors at a solved point; differentiable for smooth heads.

    Given the scores ω of the estimate, those of the target are N(ω, V + Δ/2). The plug-in error exceeds the optimal one
    by |E[y|ω] − ŷ|², the mean product of the errors of two estimates of E[y|ω], each from a label and its mirror image
    about ω. For the hardmax of two tokens and the linear head both errors are known in closed form.

    Args:
        target, point: those of `solve_bayes` (its `value`) or `bayes_point`.
        nodes: from `bayes_nodes`.

    Raises:
        ValueError: for what is no target, no point, or no nodes of it.

    Source: arXiv:2506.01582.
    """
    instance_of("target", target, Target, "a Target")
    instance_of("point", point, BayesPoint, "a BayesPoint, the value of a Solution of solve_bayes")
    dimension = _node_dimension(target)
    if jnp.ndim(nodes) != 3 or nodes.shape[2] != dimension:
        raise ValueError(f"nodes must be of shape (replicas, points, {dimension}), got {jnp.shape(nodes)}")
    return _test_errors(target, point, nodes)


@eqx.filter_jit
def _test_errors(target: Target, point: BayesPoint, nodes: Float[Array, "R P D"]) -> BayesTestErrors:
    head, (q, V) = target.head, (point.q, point.squared_error + target.noise / 2)
    if isinstance(head, LinearHead):
        error = jnp.broadcast_to(2 * V, nodes.shape[:1])
        return BayesTestErrors(error, error)
    if isinstance(head, HardmaxHead) and head.tokens == 2:
        optimal = 1 - 2 / jnp.pi * jnp.arcsin(q / (q + V))
        plug_in = 4 / jnp.pi * jnp.arctan2(jnp.sqrt(V), jnp.sqrt(q))
        return BayesTestErrors(*(jnp.broadcast_to(x, nodes.shape[:1]) for x in (optimal, plug_in)))
    directions = jnp.asarray(_row_directions(head.tokens), nodes.dtype)

    def errors(chunk):
        omega, first, second = (directions @ part for part in jnp.split(chunk.T, 3))
        omega = jnp.sqrt(q) * omega
        estimate = head(omega)[0]
        pairs = [[head(omega + s * step)[0] - estimate for s in root] for step in (first, second)]
        plug_in = sum(jnp.mean(jnp.sum(error**2, axis=0)) for pair in pairs for error in pair) / 4
        (a, b), (c, e) = pairs
        excess = jnp.mean(jnp.sum((a + b) * (c + e), axis=0)) / 4
        return head.tokens * jnp.stack([plug_in - excess, plug_in])

    root = jnp.sqrt(V), -jnp.sqrt(V)
    optimal, plug_in = jax.lax.map(errors, nodes).T
    return BayesTestErrors(optimal, plug_in)
