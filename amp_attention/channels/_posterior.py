"""Posterior means of the scores of one sample given its label: the channels of the Bayes-optimal estimator.

A score z has the prior N(ω, V) and the label is that of z + noise of variance Δ/2. Then g = (E[z|y] − ω)/V is the
derivative in ω of log Z_out(y; ω, V), and E Σ g(z − ω) = V E Σ g² for every one of these channels.
"""

import abc
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jax.scipy.stats import norm

from amp_attention._typing import Array, Float, Scalar
from amp_attention.channels._channel import NO_GUESS, AbstractChannel, ChannelStep, Guess
from amp_attention.channels._row_maxima import kinds_of_columns, row_maxima_probability
from amp_attention.heads import AbstractHead, HardmaxHead, LinearHead, SoftmaxHead
from amp_attention.numerics.gaussian_nodes import gaussian_nodes
from amp_attention.numerics.quadrature import gauss_legendre
from amp_attention.numerics.validation import LARGEST_SEED, instance_of, whole_number
from amp_attention.targets import Target

Schedule = Literal["se", "empirical"]
SCHEDULES = ("se", "empirical")
MOST_SUMMED_TOKENS = 6  # of a hardmax, whose labels are summed over one by one
_SHIFTS, _SHIFTED_POINTS = 8, 32
_PREDICTION_NODES = 128


class PosteriorAverage(eqx.Module):
    """Averages of a posterior channel over ω ~ N(0, q I) and the labels, one entry a replica of its nodes.

    Attributes:
        information: E Σ_{a≤b} g_ab², which equals −E tr ∂g; channels in closed form have one entry.
        log_partition: E log Z_out, up to a constant of the labels.
    """

    information: Float[Array, " R"]
    log_partition: Float[Array, " R"]


class AbstractPosteriorChannel(AbstractChannel):
    """The posterior mean of the scores, and its averages.

    In AMP the precision that a sample adds, −tr ∂g, is replaced by its mean: that of state evolution at the overlap
    q = Q0 − V of the variance V that AMP has reached, so that V falls as state evolution says, or that of the samples
    at hand by E tr ∂g = −E Σ g². The latter can collapse to V → 0 away from S0 where samples are few (d of some tens,
    labels without noise); the run then ends with `max_steps_reached`.

    Args:
        target: what labels the data; its head, noise and Q0 are read.
        schedule: "se" or "empirical".

    Raises:
        ValueError: for another kind of head or schedule.
    """

    target: Target
    schedule: Schedule = eqx.field(static=True)

    def __init__(self, target: Target, schedule: Schedule = "se"):
        instance_of("target", target, Target, "a Target")
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
        self.target, self.schedule = target, schedule

    @property
    def head(self) -> AbstractHead:
        """That of the target."""
        return self.target.head

    @abc.abstractmethod
    def score(self, omega: Float[Array, "K n"], y: Float[Array, "... n"], variance: Scalar) -> Float[Array, "K n"]:
        """g, the derivative in ω of log Z_out, of n samples; `variance` is that of the noisy scores, V + Δ/2."""

    @abc.abstractmethod
    def averages(self, q: Scalar, V: Scalar) -> PosteriorAverage:
        """Averages at overlap q and variance V of the scores."""

    @eqx.filter_jit
    def predict(self, z: Float[Array, "K n"], variance: Scalar) -> Float[Array, "... n"]:
        """The posterior mean of the label, E head(ζ) over ζ ~ N(z, V + Δ/2), by 128 Sobol points and their mirrors."""
        points = jnp.asarray(gaussian_nodes(z.shape[0], _PREDICTION_NODES, 1)[0], z.dtype)
        width = jnp.sqrt(variance + self.target.noise / 2)

        def add(total, point):
            step = width * point[:, None]
            return total + (self.head(z + step) + self.head(z - step)) / 2, None

        blank = jax.eval_shape(self.head, z)
        total, _ = jax.lax.scan(add, jnp.zeros(blank.shape, blank.dtype), points)
        return total / points.shape[0]

    @eqx.filter_jit
    def apply(
        self,
        omega: Float[Array, "K n"],
        y: Float[Array, "... n"],
        variance: Scalar,
        guess: Guess = NO_GUESS,
    ) -> ChannelStep:
        """The posterior means ω + V g, with −tr ∂g by the schedule."""
        g = self.score(omega, y, variance + self.target.noise / 2)
        if self.schedule == "empirical":
            precision = jnp.sum(g**2, axis=0)
        else:
            information = self.averages(jnp.maximum(self.target.Q0 - variance, 0), variance).information
            precision = jnp.broadcast_to(jnp.mean(information), g.shape[1:])
        return ChannelStep(omega + variance * g, g, -precision)


class GaussianPosterior(AbstractPosteriorChannel):
    """Labels that determine C_T directions of the noisy scores and say nothing of the others: softmax and linear heads.

    g = P(z⁰ − ω)/(V + Δ/2), P the projector on the directions of the head and z⁰ any scores that the label fits.

    Source: arXiv:2506.01582.
    """

    def __init__(self, target: Target, schedule: Schedule = "se"):
        super().__init__(target, schedule)
        instance_of("target.head", target.head, (SoftmaxHead, LinearHead), "a softmax or linear head")

    def score(self, omega: Float[Array, "K n"], y: Float[Array, "... n"], variance: Scalar) -> Float[Array, "K n"]:
        """From ω to its projection on the fibre of y."""
        return (self.head.project(omega, y) - omega) / variance

    def averages(self, q: Scalar, V: Scalar) -> PosteriorAverage:
        """C_T/(V + Δ/2), whatever q."""
        total = (V + self.target.noise / 2)[None]
        return PosteriorAverage(self.head.constraints / total, -self.head.constraints * jnp.log(total) / 2)


def bivariate_normal(h: Float[Array, "..."], k: Float[Array, "..."], r: Float[Array, "..."]) -> Float[Array, "..."]:
    """P(X ≤ h, Y ≤ k) of standard normals with correlation r, |r| ≤ 1/2, by Plackett's integral along the correlation.

    24 Gauss nodes; absolute error below 1e-14 at |r| = 1/3.
    """
    nodes, weights = gauss_legendre(24, h.dtype)

    def density(share):
        t = share * r
        rest = 1 - t**2
        return jnp.exp(-(h**2 - 2 * t * h * k + k**2) / (2 * rest)) / (2 * jnp.pi * jnp.sqrt(rest))

    return norm.cdf(h) * norm.cdf(k) + r * jnp.tensordot(weights, jax.vmap(density)(nodes), 1)


def _smallest(Z: Array) -> Array:
    """The model gives a label of probability Z with that very probability; below this Z is rounding."""
    return jnp.asarray(jnp.finfo(Z.dtype).eps ** 0.75, Z.dtype)


def _orthant(k1, k2, r) -> tuple[Array, Array, Array]:
    """log Z, Z = P(X ≤ k_1, Y ≤ k_2) at correlation r, and its derivatives in k_1 and k_2."""
    Z = bivariate_normal(k1, k2, r)
    Z = jnp.maximum(Z, _smallest(Z))
    rest = jnp.sqrt(1 - r**2)
    a = norm.pdf(k1) * norm.cdf((k2 - r * k1) / rest) / Z
    b = norm.pdf(k2) * norm.cdf((k1 - r * k2) / rest) / Z
    return jnp.log(Z), a, b


def _trapezoid(ratio: Scalar, nodes: int) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Nodes in [−9, 9], densest at 0 on the scale of min(ratio, 1), and weights."""
    scale = jnp.minimum(ratio, jnp.ones_like(ratio))
    last = jnp.arcsinh(9 / scale)
    t = jnp.linspace(-1, 1, nodes, dtype=ratio.dtype) * last
    return scale * jnp.sinh(t), scale * jnp.cosh(t) * last * 2 / (nodes - 1)


class HardmaxPosterior(AbstractPosteriorChannel):
    """Labels of a hardmax of two tokens, in closed form.

    Row i has its largest score on the diagonal where u_i = √2 z_ii − z_12 > 0. Given ω, (u_1, u_2) is normal with means
    w_i, variances 3(V + Δ/2) and correlation 1/3, and the label tells their signs s_i: with r = s_1 s_2/3,
    k_i = s_i w_i/√(3(V + Δ/2)) and Z = P(X ≤ k_1, Y ≤ k_2), g is the derivative of log Z.

    The published formula for this channel has the density of (X, Y) in place of the derivative of their distribution
    function, for which E Σ g(z − ω) = V E Σ g² does not hold.

    Source: arXiv:2506.01582, with the derivative put right.
    """

    def __init__(self, target: Target, schedule: Schedule = "se"):
        super().__init__(target, schedule)
        if not isinstance(target.head, HardmaxHead) or target.head.tokens != 2:
            raise ValueError(f"target must have a hardmax of T = 2 tokens, got {target.head}")

    def score(self, omega: Float[Array, "K n"], y: Float[Array, "2 2 n"], variance: Scalar) -> Float[Array, "K n"]:
        """The derivative of log Z in ω."""
        root, width = math.sqrt(2), jnp.sqrt(3 * variance)
        s1, s2 = 2 * y[0, 0] - 1, 2 * y[1, 1] - 1
        k1, k2 = s1 * (root * omega[0] - omega[1]) / width, s2 * (root * omega[2] - omega[1]) / width
        _, a, b = _orthant(k1, k2, s1 * s2 / 3)
        A, B = s1 * a / width, s2 * b / width
        return jnp.stack([root * A, -(A + B), root * B])

    @eqx.filter_jit
    def averages(self, q: Scalar, V: Scalar) -> PosteriorAverage:
        """By the trapezoidal rule on a grid that resolves both q and V."""
        total = V + self.target.noise / 2
        q = jnp.maximum(q, jnp.finfo(q.dtype).eps * total)
        x, weight = _trapezoid(jnp.sqrt(total / q), 200)
        x, y = x[:, None], x[None, :]
        density = 3 / (4 * math.sqrt(2) * jnp.pi) * jnp.exp(-9 / 16 * (x**2 - 2 / 3 * x * y + y**2))
        density *= weight[:, None] * weight[None, :]  # of w/√(3q)
        k1, k2 = jnp.broadcast_arrays(jnp.sqrt(q / total) * x, jnp.sqrt(q / total) * y)

        def labels(product):
            """Both labels with s_1 s_2 = product, which are mirror images."""
            log, a, b = _orthant(k1, product * k2, product / 3)
            weighted = 2 * density * jnp.exp(log)
            squares = (2 * a**2 + 2 * b**2 + (a + product * b) ** 2) / (3 * total)
            return jnp.stack([jnp.sum(weighted * squares), jnp.sum(weighted * log)])

        same = jnp.ones_like(total)
        return PosteriorAverage(*(labels(same) + labels(-same))[:, None])


class SampledHardmaxPosterior(AbstractPosteriorChannel):
    """Labels of a hardmax of any number of tokens, by quasi-Monte Carlo.

    A label says in which column c_a each row has its maximum; g is the gradient of the log of its probability Z, which
    `row_maxima_probability` makes an average over T uniform variables. AMP uses the same points for all samples.

    The averages are sums over all labels y of Σ_y |∇Z|²/Z and Σ_y Z log Z at random ω. Each is estimated from eight
    random shifts of 32 points: products of different shifts for |∇Z|², and the jackknife for what noise in Z leaves.

    Args:
        target: what labels the data, with a `HardmaxHead`.
        schedule: "empirical" by default: the averages are long sums.
        nodes: Sobol points of the averages over ω, rounded up to a power of two per replica.
        replicas: independent scrambles, ≥ 2 for error bars.
        seed: of the scrambles.
        points: behind each g of AMP, rounded up to a power of two.

    Raises:
        ValueError: for arguments out of range; the averages for more than 6 tokens, whose labels are too many.

    Source: arXiv:2506.01582.
    """

    normals: Float[Array, "R P D"]
    points: Float[Array, "T N"]

    def __init__(
        self,
        target: Target,
        schedule: Schedule = "empirical",
        *,
        nodes: int = 2048,
        replicas: int = 8,
        seed: int = 0,
        points: int = 64,
    ):
        super().__init__(target, schedule)
        instance_of("target.head", target.head, HardmaxHead, "a hardmax head")
        nodes, replicas = whole_number("nodes", nodes, 1), whole_number("replicas", replicas, 1)
        seed, points = whole_number("seed", seed, 0, LARGEST_SEED), whole_number("points", points, 2)
        T, dtype = target.head.tokens, target.noise.dtype
        self.normals = jnp.asarray(gaussian_nodes(target.head.scores + T, nodes, replicas, seed), dtype)
        self.points = _with_mirrors(_uniform(T, points // 2, dtype))

    def score(self, omega: Float[Array, "K n"], y: Float[Array, "T T n"], variance: Scalar) -> Float[Array, "K n"]:
        """The gradient of log Z in ω."""
        Z, slope = row_maxima_probability(omega, jnp.argmax(y, axis=1), variance, self.points[:, :, None])
        return slope / jnp.maximum(Z, _smallest(Z))[None]

    @eqx.filter_jit
    def averages(self, q: Scalar, V: Scalar) -> PosteriorAverage:
        """Over all labels, those of one kind up to renumbering the tokens together."""
        T, dtype = self.head.tokens, self.normals.dtype
        if T > MOST_SUMMED_TOKENS:
            raise ValueError(f"target must have at most T = {MOST_SUMMED_TOKENS} tokens for these averages, got {T}")
        kinds, counts = kinds_of_columns(T)
        points, shifts = _uniform(T, _SHIFTED_POINTS // 2, dtype)[:, :, None], _uniform(T, _SHIFTS, dtype, seed=1).T
        variance = V + self.target.noise / 2

        def replica(normals):
            omega, own = normals.T[:-T], ndtr(normals.T[-T:])

            def kind(columns):
                columns = jnp.broadcast_to(columns[:, None], own.shape)

                def shifted(shift):
                    uniform = _with_mirrors((points + (own + shift[:, None])[:, None]) % 1)
                    return row_maxima_probability(jnp.sqrt(q) * omega, columns, variance, uniform)

                return jnp.mean(_of_label(*jax.lax.map(shifted, shifts)), axis=1)

            return jnp.sum(jnp.asarray(counts, dtype)[:, None] * jax.lax.map(kind, jnp.asarray(kinds)), axis=0)

        return PosteriorAverage(*jax.lax.map(replica, self.normals).T)


def _uniform(dimension: int, points: int, dtype, seed: int = 0) -> Float[Array, "D N"]:
    """Sobol points in (0, 1)^D."""
    return ndtr(jnp.asarray(gaussian_nodes(dimension, points, 1, seed)[0].T, dtype))


def _with_mirrors(points: Float[Array, "T N *n"]) -> Float[Array, "T M *n"]:
    """u and 1 − u, so that what a label leaves as it is has an average of exactly zero."""
    return jnp.concatenate([points, 1 - points], axis=1)


def _of_label(Z: Float[Array, "G n"], slope: Float[Array, "G K n"]) -> Float[Array, "2 n"]:
    """(|∇Z|²/Z, Z log Z) from G independent unbiased estimates of Z and ∇Z."""

    def estimate(G, Z, slope, squares):
        Z = jnp.maximum(Z / G, _smallest(Z))
        return jnp.stack([(jnp.sum(slope**2, axis=0) - squares) / (G * (G - 1)) / Z, Z * jnp.log(Z)])

    G, each = Z.shape[0], (Z, slope, jnp.sum(slope**2, axis=1))
    total = tuple(jnp.sum(part, axis=0) for part in each)
    without_one = jax.vmap(lambda *part: estimate(G - 1, *(a - b for a, b in zip(total, part, strict=True))))
    return G * estimate(G, *total) - (G - 1) * jnp.mean(without_one(*each), axis=0)
