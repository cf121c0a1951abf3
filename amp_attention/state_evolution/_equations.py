"""Free entropy Φ and the equations that make it stationary."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, Scalar
from amp_attention.channels import NO_GUESS, ChannelAverage, Guess
from amp_attention.numerics.validation import described, instance_of, whole_number
from amp_attention.problem import AttentionProblem

Nodes = Float[Array, "R P D"]


class OrderParameters(eqx.Module):
    """The six numbers of state evolution: overlaps Σ, m, q and their conjugates Σ̂, m̂, q̂."""

    Sigma: Scalar
    m: Scalar
    q: Scalar
    Sigma_hat: Scalar
    m_hat: Scalar
    q_hat: Scalar


def state_evolution_nodes(problem: AttentionProblem, nodes: int = 4096, replicas: int = 8, seed: int = 0) -> Nodes:
    """Integration nodes of the problem's channel: fix them once and Φ is one smooth deterministic function.

    Args:
        problem: its channel, number of tokens and dtype decide the nodes.
        nodes: total number of points, rounded up to a power of two per replica.
        replicas: independent scrambles behind each standard error, ≥ 2 for error bars.
        seed: of the scrambles.

    Returns:
        Array (replicas, points, D) in the problem's dtype.

    Raises:
        ValueError: for what is no problem, or numbers out of range.
    """
    instance_of("problem", problem, AttentionProblem, "an AttentionProblem")
    nodes, replicas = whole_number("nodes", nodes, 1), whole_number("replicas", replicas, 1)
    seed = whole_number("seed", seed, 0)
    return jnp.asarray(problem.channel.nodes(problem.target, nodes, replicas, seed), problem.alpha.dtype)


def check_nodes(problem: AttentionProblem, nodes: Nodes) -> None:
    """ValueError unless `problem` is a problem, and `nodes` an array that its channel can have made.

    Shape and type alone are looked at, so that both may be traced. Costs about a millisecond: once a solution.
    """
    instance_of("problem", problem, AttentionProblem, "an AttentionProblem")
    D = problem.channel.nodes(problem.target, 1, 1).shape[-1]
    array = isinstance(nodes, jax.Array | np.ndarray) and jnp.issubdtype(nodes.dtype, np.floating)
    if not array or nodes.ndim != 3 or 0 in nodes.shape or nodes.shape[-1] != D:
        raise ValueError(
            f"nodes must be floating-point numbers of shape (replicas, points, {D}), which state_evolution_nodes makes "
            f"for this problem, got {described(nodes)}"
        )


def conjugates(alpha: Scalar, d_Sigma: Array, d_m: Array, d_q: Array) -> tuple[Array, Array, Array]:
    """Σ̂ = 4α ∂M/∂q, m̂ = −2α ∂M/∂m, q̂ = −4α ∂M/∂Σ."""
    return 4 * alpha * d_q, -2 * alpha * d_m, -4 * alpha * d_Sigma


def channel_equations(problem: AttentionProblem, overlaps: Float[Array, "3"], nodes: Nodes) -> Float[Array, "3"]:
    """(Σ̂, m̂, q̂) of the overlaps (Σ, m, q)."""
    return channel_step(problem, overlaps, nodes)[0]


def channel_step(
    problem: AttentionProblem,
    overlaps: Float[Array, "3"],
    nodes: Nodes,
    guess: Guess = NO_GUESS,
) -> tuple[Float[Array, "3"], Any]:
    """`channel_equations` with the memory of the channel: its `points`, for the guess of the next call."""
    Sigma, m, q = overlaps
    found = problem.channel.gradient(problem.target, Sigma, m, q, nodes, guess)
    hats = conjugates(problem.alpha, found.d_Sigma, found.d_m, found.d_q)
    return jnp.stack([jnp.mean(x) for x in hats]), found.points


def prior_equations(problem: AttentionProblem, hats: Float[Array, "3"]) -> Float[Array, "3"]:
    """(Σ, m, q) of the conjugates (Σ̂, m̂, q̂)."""
    return jnp.stack(problem.denoiser.moments(problem.target.law, *hats))


def update(problem: AttentionProblem, overlaps: Float[Array, "3"], nodes: Nodes) -> Float[Array, "3"]:
    """One plain step of state evolution, channel then prior: its fixed points are the stationary points of Φ."""
    return prior_equations(problem, channel_equations(problem, overlaps, nodes))


def legendre_coupling(order: OrderParameters) -> Scalar:
    """(q̂Σ + 2m̂m − Σ̂q)/4."""
    return (order.q_hat * order.Sigma + 2 * order.m_hat * order.m - order.Sigma_hat * order.q) / 4


def free_entropy(problem: AttentionProblem, order: OrderParameters, nodes: Nodes) -> Scalar:
    """Φ(Σ,m,q,Σ̂,m̂,q̂) = (q̂Σ + 2m̂m − Σ̂q)/4 + α M(Σ,m,q) + prior potential.

    Differentiable in the order parameters and in every number of the problem; at its stationary point it equals the
    training objective d⁻²L.

    Source: arXiv:2509.24914.
    """
    average: ChannelAverage = problem.channel.average(problem.target, order.Sigma, order.m, order.q, nodes)
    return free_entropy_of(problem, order, jnp.mean(average.potential))


def free_entropy_of(problem: AttentionProblem, order: OrderParameters, M: Scalar) -> Scalar:
    """`free_entropy` where M is known."""
    prior = problem.denoiser.potential(problem.target.law, order.Sigma_hat, order.m_hat, order.q_hat)
    return legendre_coupling(order) + problem.alpha * M + prior
