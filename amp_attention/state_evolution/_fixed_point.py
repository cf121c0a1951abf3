"""What state evolution predicts at a fixed point, with the standard error of every number."""

from typing import Any, Optional

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Bool, Float, Scalar
from amp_attention.channels import NO_GUESS, ChannelAverage, Guess
from amp_attention.denoisers import DenoiserAverage
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution._equations import (
    Nodes,
    OrderParameters,
    conjugates,
    free_entropy_of,
    legendre_coupling,
)


class FixedPoint(eqx.Module):
    """A solved point of state evolution. Normalisations as in the theory: everything is O(1) at d → ∞.

    Attributes:
        Sigma, m, q: overlaps Σ (response), m = Tr(S S0)/d, q = Tr(S²)/d.
        Sigma_hat, m_hat, q_hat: their conjugates.
        delta, epsilon, eta: S ~ η ReLU(S0 + δZ − ε), the law of the learned matrix.
        test_error: E Σ_ab (y_ab − σ̃_β(ω)_ab)² on fresh samples whose labels carry the noise.
        train_objective: d⁻²L = train_error + penalty.
        train_error: α E ℓ.
        free_entropy: Φ, equal to train_objective at the fixed point.
        squared_error: ‖S − S0‖²/d.
        trace: Tr S/d.
        zero_fraction, rank_fraction: F and 1 − F.
        replicon: R of the stability condition R < 1.
        integration_gap: Σ̂ by the envelope form minus Σ̂ by its trace form: zero up to the integration error.
        standard_error: the same fields, each its standard error over the replicas of the nodes; None inside itself.
    """

    Sigma: Scalar
    m: Scalar
    q: Scalar
    Sigma_hat: Scalar
    m_hat: Scalar
    q_hat: Scalar
    delta: Scalar
    epsilon: Scalar
    eta: Scalar
    test_error: Scalar
    train_objective: Scalar
    train_error: Scalar
    free_entropy: Scalar
    squared_error: Scalar
    trace: Scalar
    zero_fraction: Scalar
    rank_fraction: Scalar
    replicon: Scalar
    integration_gap: Scalar
    standard_error: Optional["FixedPoint"] = None

    @property
    def stable(self) -> Bool[Array, ""]:
        """Replicon stability, R < 1."""
        return self.replicon < 1

    @property
    def errors(self) -> "FixedPoint":
        """`standard_error`, of a point that has one."""
        if self.standard_error is None:
            raise ValueError("standard_error must be present, got None: these are themselves standard errors")
        return self.standard_error

    @property
    def overlaps(self) -> Float[Array, "3"]:
        """(Σ, m, q), what the solver iterates."""
        return jnp.stack([self.Sigma, self.m, self.q])

    @property
    def order(self) -> OrderParameters:
        """The six order parameters alone."""
        return OrderParameters(self.Sigma, self.m, self.q, self.Sigma_hat, self.m_hat, self.q_hat)


def _report(
    problem: AttentionProblem, overlaps: Float[Array, "3"], average: ChannelAverage, prior: DenoiserAverage
) -> FixedPoint:
    """Every observable of a fixed point from its overlaps and the averages of channel and denoiser; no error bars."""
    alpha = problem.alpha
    Sigma_hat, m_hat, q_hat = _conjugates(problem, average)
    order = OrderParameters(overlaps[0], overlaps[1], overlaps[2], Sigma_hat, m_hat, q_hat)
    train_error = alpha * average.train_loss
    return FixedPoint(
        order.Sigma,
        order.m,
        order.q,
        order.Sigma_hat,
        order.m_hat,
        order.q_hat,
        delta=prior.delta,
        epsilon=prior.epsilon,
        eta=prior.eta,
        test_error=average.test_error,
        train_objective=train_error + prior.penalty,
        train_error=train_error,
        free_entropy=legendre_coupling(order) + alpha * average.potential + prior.potential,
        squared_error=prior.squared_error,
        trace=prior.trace,
        zero_fraction=prior.zero_fraction,
        rank_fraction=1 - prior.zero_fraction,
        replicon=2 * alpha * average.squared_jacobian * prior.tangent_overlap / order.Sigma_hat**2,
        integration_gap=order.Sigma_hat + 2 * alpha * average.divergence,
    )


def _conjugates(problem: AttentionProblem, average: ChannelAverage) -> tuple[Array, Array, Array]:
    return conjugates(problem.alpha, average.d_Sigma, average.d_m, average.d_q)


def _channel(problem: AttentionProblem, overlaps: Float[Array, "3"], nodes: Nodes, guess: Guess) -> ChannelAverage:
    Sigma, m, q = overlaps
    return problem.channel.average(problem.target, Sigma, m, q, nodes, guess)


def report(
    problem: AttentionProblem,
    overlaps: Float[Array, "3"],
    nodes: Nodes,
    guess: Guess = NO_GUESS,
) -> FixedPoint:
    """Every observable at solved overlaps, differentiable in all arguments; no error bars."""
    mean = jax.tree.map(jnp.mean, _channel(problem, overlaps, nodes, guess))
    prior = problem.denoiser.average(problem.target.law, *_conjugates(problem, mean))
    return _report(problem, overlaps, mean, prior)


def free_entropy_at(problem: AttentionProblem, overlaps: Float[Array, "3"], nodes: Nodes, points: Any) -> Scalar:
    """Φ at overlaps whose samples' problems are solved already, and the conjugates that go with them."""
    mean = jax.tree.map(jnp.mean, _channel(problem, overlaps, nodes, Guess(points, False)))
    Sigma, m, q = overlaps
    return free_entropy_of(problem, OrderParameters(Sigma, m, q, *_conjugates(problem, mean)), mean.potential)


def report_with_errors(
    problem: AttentionProblem,
    overlaps: Float[Array, "3"],
    nodes: Nodes,
    guess: Guess = NO_GUESS,
) -> FixedPoint:
    """`report` with standard errors by linear response: nothing is solved again, and they carry no derivative.

    Replica r of the nodes changes the channel averages by a_r, hence the fixed point of x = F(x, a) by
    δx_r = −(∂F/∂x − 1)⁻¹ ∂F/∂a a_r, hence each observable by its total derivative. The standard error is the scatter
    over replicas divided by √R; NaN for a single replica.
    """

    def averages(x):
        average = _channel(problem, x, nodes, guess)
        return jax.tree.map(jnp.mean, average), average

    def priors(hats):
        prior = problem.denoiser.average(problem.target.law, *hats)
        return prior, prior

    # One pass for the values and their slopes: a second one would double the proximal steps.
    slopes, replicas = jax.jacfwd(averages, has_aux=True)(overlaps)
    mean = jax.tree.map(jnp.mean, replicas)
    prior_slopes, prior = jax.jacfwd(priors, has_aux=True)(jnp.stack(_conjugates(problem, mean)))
    point = _report(problem, overlaps, mean, prior)
    errors = _standard_errors(*jax.lax.stop_gradient((problem, overlaps, replicas, slopes, prior, prior_slopes)))
    return eqx.tree_at(lambda p: p.standard_error, point, errors, is_leaf=lambda x: x is None)


def _standard_errors(problem, overlaps, replicas, slopes, prior, prior_slopes) -> FixedPoint:
    """The scatter over replicas of the linear response of every observable."""
    mean = jax.tree.map(jnp.mean, replicas)
    offsets = jax.tree.map(lambda r, m: r - m[None], replicas, mean)

    def prior_change(change):
        moved = jnp.stack(_conjugates(problem, change))
        return jax.tree.map(lambda slope: jnp.tensordot(slope, moved, 1), prior_slopes)

    def overlaps_change(change):
        moved = prior_change(change)
        return jnp.stack([moved.Sigma, moved.m, moved.q])

    jacobian = overlaps_change(slopes) - jnp.eye(3, dtype=overlaps.dtype)

    def response(offset):
        shift = -jnp.linalg.solve(jacobian, overlaps_change(offset))
        change = jax.tree.map(lambda a, slope: a + jnp.dot(slope, shift), offset, slopes)
        tangents = (shift, change, prior_change(change))
        return jax.jvp(lambda *args: _report(problem, *args), (overlaps, mean, prior), tangents)[1]

    return jax.tree.map(standard_error, jax.vmap(response)(offsets))


def standard_error(replicas: Float[Array, " R"]) -> Scalar:
    """Of a mean over replicas; NaN for a single one."""
    count = replicas.shape[0]
    if count == 1:
        return jnp.full((), jnp.nan, replicas.dtype)
    return jnp.std(replicas, ddof=1) / count**0.5
