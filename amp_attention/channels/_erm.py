"""Empirical risk minimisation: the proximal channel and its Gaussian average."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from amp_attention._typing import Array, Bool, Float, Scalar, ScalarLike
from amp_attention.channels._channel import (
    NO_GUESS,
    AbstractChannel,
    ChannelAverage,
    ChannelGradient,
    ChannelStep,
    Guess,
)
from amp_attention.channels._loss import AbstractLoss, LossDerivatives
from amp_attention.channels._proximal import proximal_point
from amp_attention.heads import AbstractHead
from amp_attention.numerics.gaussian_nodes import gaussian_nodes
from amp_attention.numerics.lanes import lane_count, solve_symmetric
from amp_attention.numerics.validation import positive
from amp_attention.targets import Target


def safe_sqrt(x: Array) -> Array:
    """√max(x, 0) whose derivative at 0 is 0 instead of infinite."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, jnp.ones_like(x))), jnp.zeros_like(x))


def _width(smoothing: ScalarLike | None) -> Scalar | None:
    return None if smoothing is None else positive("smoothing", smoothing)


class MinimaStatistics(eqx.Module):
    """How often a sample has two proximal minima, one entry a replica of the nodes.

    Attributes:
        fraction: share of samples with two different minima.
        switching: E[δ(D) ‖g_a − g_b‖²], D the difference of their values: how many samples are about to change from one
            to the other, weighted by how far g then jumps. Where it is positive two replicas of AMP part like the
            square root of their distance: replica symmetry is unstable whatever the smooth part of the replicon is.
    """

    fraction: Float[Array, " R"]
    switching: Float[Array, " R"]


class ERMChannel(AbstractChannel):
    """g = −∇ℓ(z*), z* = argmin_z ‖z − ω‖²/(2Σ) + ℓ(z; y), and M = E min_z[...].

    Two starts, ω and its projection on the fibre {z : head(z) = y}; the lower objective is kept, since the loss need
    not be convex in z when Σ is large.

    Args:
        loss: the loss of one sample.
        optimizer: an optax optimiser for the inner problem, run sample by sample; None for the engine's damped Newton
            on all samples at once, which is 10–100 times faster.
        smoothing: τ > 0, in units of the loss, or None. Where Σ is large a sample can have two minima, and g jumps
            where they change places. With finitely many nodes the averages jump as well, and state evolution need not
            have a fixed point. With τ the averages (not `apply`) pass from one minimum to the other while their values
            differ by less than τ; the bias is O(τ²).

    Source: arXiv:2509.24914.
    """

    loss: AbstractLoss
    optimizer: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    smoothing: Float[Array, ""] | None = eqx.field(default=None, converter=_width)

    @property
    def head(self) -> AbstractHead:
        """That of the loss."""
        return self.loss.head

    def _point(self, omega, y, variance, guess: Guess):
        """Proximal points, and the loss with its derivatives there."""
        first = omega if guess.points is None else guess.points
        project = lambda: jax.lax.stop_gradient(self.loss.head.project(omega, y))  # noqa: E731
        second = jax.lax.cond(jnp.asarray(guess.thorough), project, lambda: jax.lax.stop_gradient(first))
        starts = jnp.stack([jax.lax.stop_gradient(first), second])
        return proximal_point(
            self.loss, omega, y, variance, starts=starts, thorough=guess.thorough, optimizer=self.optimizer
        )

    def _minima(self, omega, y, variance, guess: Guess) -> "_Minima":
        """The proximal points of all samples: the lower minimum, or both where these are to be mixed."""

        def known(starts):
            """The points of the guess, and where there is none, `starts`."""
            points = guess.points
            return starts if points is None else jnp.where(guess.thorough | jnp.isnan(points), starts, points)

        if self.smoothing is None:
            z, loss = self._point(omega, y, variance, Guess(known(omega), guess.thorough))
            potential = _potential(loss, variance)
            return _Minima(z, loss, potential, jnp.zeros_like(potential), jnp.zeros_like(potential, bool), None)
        pair = lambda x: jnp.concatenate([x, x], axis=-1)  # noqa: E731
        starts = known(jnp.concatenate([omega, self.loss.head.project(omega, y)], axis=1))
        z, loss = proximal_point(
            self.loss,
            pair(omega),
            pair(y),
            variance,
            starts=jax.lax.stop_gradient(starts)[None],
            thorough=guess.thorough,
            optimizer=self.optimizer,
        )
        return _mixed_minima(z, loss, _potential(loss, variance), self.smoothing)

    @eqx.filter_jit
    def apply(
        self,
        omega: Float[Array, "K n"],
        y: Float[Array, "... n"],
        variance: Scalar,
        guess: Guess = NO_GUESS,
    ) -> ChannelStep:
        """The proximal step of each sample; the points of `guess` replace the start ω."""
        z, loss = self._point(omega, y, variance, guess)
        return ChannelStep(z, -loss.gradient, jnp.trace(_jacobian(loss, variance)))

    def nodes(self, target: Target, nodes: int, replicas: int, seed: int = 0) -> np.ndarray:
        """Sobol nodes for (u, ξ), of shape (replicas, points, 2C): C directions of the scores that matter, each.

        Every point comes with its mirror image in ξ. Then E g(√(q−m²/Q′) ξ)·ξ has no error of order g, and ∂M/∂q stays
        regular as q → m²/Q′. A quadratic loss needs four points, which integrate it exactly.
        """
        if self.loss.quadratic:
            corners = np.stack(np.meshgrid([-1.0, 1.0], [-1.0, 1.0]), axis=-1).reshape(1, 4, 2)
            return np.repeat(corners, replicas, axis=0)
        directions = self.directions(target).shape[1]
        points = gaussian_nodes(2 * directions, max(nodes // 2, replicas), replicas, seed)
        mirror = np.concatenate([np.ones(directions), -np.ones(directions)])
        return np.concatenate([points, points * mirror], axis=1)

    def directions(self, target: Target) -> np.ndarray:
        """The directions of score space that both label and loss depend on."""
        if type(target.head) is type(self.loss.head):
            return self.loss.directions
        return np.eye(self.loss.head.scores)

    def unsolved(self, nodes: Float[Array, "R P D"]) -> Any:
        """NaN for each node, in the order of `mean_over_nodes`."""
        blocks, lanes = _blocks(nodes, self.loss.head.scores)[0].shape[::2]
        lanes = lanes if self.smoothing is None else 2 * lanes
        return jnp.full((blocks, self.loss.head.scores, lanes), jnp.nan, nodes.dtype)

    @eqx.filter_jit
    def gradient(
        self,
        target: Target,
        Sigma: Scalar,
        m: Scalar,
        q: Scalar,
        nodes: Float[Array, "R P D"],
        guess: Guess = NO_GUESS,
    ) -> ChannelGradient:
        """(∂M/∂Σ, ∂M/∂m, ∂M/∂q) by the envelope theorem; −E tr ∂g/2 replaces ∂M/∂q where q = m²/Q′."""
        joint = _JointGaussian(target, m, q)

        def terms(u, xi, points):
            _, omega, y = joint.samples(u, xi)
            minima = self._minima(omega, y, Sigma, Guess(points, guess.thorough))
            divergence = jnp.trace(jax.lax.stop_gradient(_jacobian(minima.loss, Sigma)))
            envelope = joint.envelope(-minima.loss.gradient, minima.tile(u), minima.tile(xi))
            return jax.tree.map(minima.mix, (envelope, divergence)), jax.lax.stop_gradient(minima.z)

        means, points = self.mean_over_nodes(terms, target, nodes, guess.points)
        (d_Sigma, d_m, d_residual), divergence = means
        return ChannelGradient(d_Sigma, *joint.overlap_derivatives(d_m, d_residual, divergence), points)

    @eqx.filter_jit
    def average(
        self,
        target: Target,
        Sigma: Scalar,
        m: Scalar,
        q: Scalar,
        nodes: Float[Array, "R P D"],
        guess: Guess = NO_GUESS,
    ) -> ChannelAverage:
        """Means over the nodes of each replica."""
        joint = _JointGaussian(target, m, q)

        def terms(u, xi, points):
            _, omega, y = joint.samples(u, xi)
            minima = self._minima(omega, y, Sigma, Guess(points, guess.thorough))
            jacobian = _jacobian(minima.loss, Sigma)
            error = (y - self.loss.head(omega)) ** 2
            others = (
                minima.potential,
                minima.mix(jnp.trace(jacobian)) + minima.jumps,
                minima.mix(jnp.sum(jacobian**2, axis=(0, 1))),
                minima.mix(minima.loss.values),
                jnp.sum(error, axis=tuple(range(error.ndim - 1))),
            )
            envelope = joint.envelope(-minima.loss.gradient, minima.tile(u), minima.tile(xi))
            return (jax.tree.map(minima.mix, envelope), others), None

        (envelope, others), _ = self.mean_over_nodes(terms, target, nodes, guess.points)
        d_Sigma, d_m, d_residual = envelope
        potential, divergence, squared_jacobian, train_loss, test_error = others
        d_m, d_q = joint.overlap_derivatives(d_m, d_residual, divergence)
        return ChannelAverage(
            potential=potential,
            d_Sigma=d_Sigma,
            d_m=d_m,
            d_q=d_q,
            divergence=divergence,
            squared_jacobian=squared_jacobian,
            train_loss=train_loss,
            test_error=test_error,
        )

    @eqx.filter_jit
    def minima(
        self, target: Target, Sigma: Scalar, m: Scalar, q: Scalar, nodes: Float[Array, "R P D"]
    ) -> MinimaStatistics:
        """Two proximal minima among the nodes; δ(D) has the width of `smoothing`, which must be given."""
        if self.smoothing is None:
            raise ValueError("smoothing must be given for statistics of two minima, got None")
        joint = _JointGaussian(target, m, q)

        def terms(u, xi, _):
            _, omega, y = joint.samples(u, xi)
            minima = self._minima(omega, y, Sigma, NO_GUESS)
            return (minima.distinct.astype(omega.dtype), minima.jumps), None

        return MinimaStatistics(*self.mean_over_nodes(terms, target, nodes)[0])

    def mean_over_nodes(self, terms: Callable, target: Target, nodes: Float[Array, "R P D"], points: Any = None):
        """Means over each replica of the nodes, computed chunk by chunk, and outputs of all samples.

        Args:
            terms: (u, ξ, its part of `points`) of a chunk ↦ what to average, a tree of (n,), and outputs, samples last.
            target: of the directions that matter.
            nodes: integration nodes.
            points: outputs of another call.
        """
        replicas = nodes.shape[0]
        directions = jnp.asarray(self.directions(target), nodes.dtype)
        lanes, block = _blocks(nodes, self.loss.head.scores)

        def block_means(chunk):
            u, xi = jnp.split(chunk[0], 2)
            values, outputs = terms(directions @ u, directions @ xi, chunk[1])
            return jax.tree.map(lambda value: jnp.mean(value.reshape(-1, block), axis=1), values), outputs

        means, outputs = jax.lax.map(block_means, (lanes, points))
        return jax.tree.map(lambda x: jnp.mean(x.reshape(replicas, -1), axis=1), means), outputs


def _blocks(nodes, scores: int) -> tuple[Float[Array, "blocks D lanes"], int]:
    """The nodes in chunks of as many as are worked on together, and how many in a row are of one replica."""
    replicas, points, dimension = nodes.shape
    most = lane_count(scores)
    block = math.gcd(points, 2 ** int(math.log2(most)))
    blocks = replicas * points // block
    together = max(k for k in range(1, most // block + 1) if blocks % k == 0)
    return jnp.swapaxes(nodes.reshape(blocks // together, together * block, dimension), 1, 2), block


def _potential(loss: LossDerivatives, variance):
    """min_z[‖z − ω‖²/(2Σ) + ℓ(z; y)] as Σ‖∇ℓ‖²/2 + ℓ."""
    return variance * jnp.sum(loss.gradient**2, axis=0) / 2 + loss.values


def _jacobian(loss: LossDerivatives, variance):
    """∂g/∂ω = −(I + ΣH)⁻¹H, shape (K, K, n)."""
    size, dtype = loss.gradient.shape[0], loss.gradient.dtype
    change = variance * loss.hessian
    # Where ΣH is beyond 1/ε the 1 is lost in rounding, and what is left may be singular.
    rounding = 4 * size * jnp.finfo(dtype).eps * jnp.max(jnp.abs(change), axis=(0, 1))
    diagonal = jnp.eye(size, dtype=dtype)[..., None] * (1 + jax.lax.stop_gradient(rounding)[None, None])
    return -solve_symmetric(change + diagonal, loss.hessian)


class _Minima(eqx.Module):
    """Proximal points of n samples, one or two lanes a sample (all first minima, then all second ones).

    Attributes:
        z: the points, lanes last.
        loss: ℓ and its derivatives there.
        potential: (n,) the smooth minimum of the values at them.
        jumps: (n,) what passing from one minimum to the other adds to tr ∂g.
        distinct: (n,) whether a sample is known to have two minima.
        weight: (n,) of the first minimum; None where there is one lane a sample.
    """

    z: Float[Array, "K lanes"]
    loss: LossDerivatives
    potential: Float[Array, " n"]
    jumps: Float[Array, " n"]
    distinct: Bool[Array, " n"]
    weight: Float[Array, " n"] | None

    def tile(self, x: Float[Array, "K n"]) -> Float[Array, "K lanes"]:
        """Something of each sample, for each lane."""
        return x if self.weight is None else jnp.concatenate([x, x], axis=-1)

    def mix(self, x: Float[Array, " lanes"]) -> Float[Array, " n"]:
        """The weighted mean over the minima of a sample."""
        if self.weight is None:
            return x
        first, second = jnp.split(x, 2)
        return second + self.weight * (first - second)


def _mixed_minima(z, loss: LossDerivatives, values, tau) -> _Minima:
    """Weights w = t²(3 − 2t), t = (1 + D/τ)/2 in [0, 1], D = b − a the difference of the values of the minima.

    The smooth minimum μ = a + h(D) with h′ = 1 − w is the one whose derivative is the mean of those of a and b; since
    ∂D/∂ω = g_a − g_b, the mean g has the extra divergence w′ ‖g_a − g_b‖².
    """
    (a, b), (g_a, g_b), (z_a, z_b) = (jnp.split(x, 2, axis=-1) for x in (values, loss.gradient, z))
    scale = 1 + jnp.max(jnp.abs(z_a), axis=0)
    same = jnp.max(jnp.abs(z_a - z_b), axis=0) <= jnp.sqrt(jnp.finfo(z.dtype).eps) * scale
    t = jnp.where(same, jnp.ones_like(a), (1 + (b - a) / tau) / 2)
    inside = (t > 0) & (t < 1)
    t = jnp.where(inside, t, (t >= 1).astype(t.dtype))
    excess = 2 * tau * (t - 1 / 2 - t**3 + t**4 / 2)  # h(D) for |D| < τ
    potential = jnp.where(inside, a + excess, jnp.where(t == 1, a, b))
    jumps = 3 * t * (1 - t) / tau * jnp.sum((g_a - g_b) ** 2, axis=0)
    return _Minima(z, loss, potential, jumps, ~same, t**2 * (3 - 2 * t))


class _JointGaussian(eqx.Module):
    """(z0, ω) with covariances [[Q′, m], [m, q]]: z0 = √Q′ u, ω = (m/√Q′) u + √(q − m²/Q′) ξ."""

    target: Target
    m: Scalar
    q: Scalar

    @property
    def residual(self):
        """q − m²/Q′ ≥ 0, the part of ω that knows nothing of z0."""
        return jnp.maximum(self.q - self.m**2 / self.target.score_variance, 0)

    def samples(self, u, xi):
        width = jnp.sqrt(self.target.score_variance)
        z0 = width * u
        omega = self.m / width * u + safe_sqrt(self.residual) * xi
        return z0, omega, self.target.head(z0)

    def envelope(self, g, u, xi):
        """Per-sample ∂M/∂Σ, ∂M/∂m and ∂M/∂q, the last two at fixed residual and fixed m."""
        root = safe_sqrt(self.residual)
        inverse = jnp.where(root > 0, 1 / jnp.where(root > 0, root, jnp.ones_like(root)), jnp.zeros_like(root))
        width = jnp.sqrt(self.target.score_variance)
        return (
            -jnp.sum(g**2, axis=0) / 2,
            -jnp.sum(g * u, axis=0) / width,
            -jnp.sum(g * xi, axis=0) * inverse / 2,
        )

    def overlap_derivatives(self, d_m, d_residual, divergence):
        """(∂M/∂m at fixed q, ∂M/∂q), from the derivatives at fixed residual and the trace form for residual = 0."""
        d_q = jnp.where(self.residual > 0, d_residual, -divergence / 2)
        return d_m - 2 * self.m / self.target.score_variance * d_q, d_q
