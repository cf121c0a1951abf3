r"""Stability of a fixed point: the replicon by two replicas, its counterpart at finite d, and plain convergence of AMP.

The replicon R measures how the distance of two copies of AMP on the same data changes in one step when it is small and
without direction: R < 1 is what the theory needs. `FixedPoint.replicon` has it in closed form; here it is the
derivative of the map of the overlap of the two copies, or the mean growth of random perturbations of one instance. The
few directions that grow fastest say something else, whether the undamped iteration converges.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

from amp_attention._typing import Array, Float, PRNGKeyArray, Scalar
from amp_attention.amp import AMP, AMPState
from amp_attention.amp._amp import channel_pass
from amp_attention.channels import ERMChannel
from amp_attention.data import Data
from amp_attention.denoisers import NuclearNorm
from amp_attention.numerics.validation import whole_number
from amp_attention.objective import check_fits
from amp_attention.problem import AttentionProblem
from amp_attention.spectral_laws import FreeConvolution
from amp_attention.state_evolution import FixedPoint
from amp_attention.state_evolution._equations import Nodes
from amp_attention.state_evolution._fixed_point import standard_error


def _channel(problem: AttentionProblem) -> ERMChannel:
    """The channel, once parts with other two-replica maps are refused."""
    if not isinstance(problem.channel, ERMChannel):
        raise TypeError(f"channel must be ERMChannel, got {type(problem.channel).__name__}")
    if not isinstance(problem.denoiser, NuclearNorm):
        raise TypeError(f"denoiser must be NuclearNorm, got {type(problem.denoiser).__name__}")
    return problem.channel


# Two replicas at d → ∞


def conjugate_gap(problem: AttentionProblem, point: FixedPoint, nodes: Nodes, s: Scalar) -> Scalar:
    r"""q̂ − q̂12 of two replicas whose overlap is q − s²: α E |g(ω₊) − g(ω₋)|².

    The fields are ω± = ω ± (s/√2) η, around the nodes' ω. η is √C times each of the C orthonormal directions of the
    scores that g depends on, in turn: E ηηᵀ is the projector on them exactly, so that the first order in s² is exact at
    every node; higher orders are those of this cubature.

    An even function of s, analytic as long as the proximal points are: unlike √(q − q12) it can be differentiated where
    the replicas coincide. There (q̂ − q̂12)/(q − q12) → half the second derivative along s, 2α E‖∂g‖²_F.
    """
    target, channel = problem.target, _channel(problem)
    width = jnp.sqrt(target.score_variance)
    residual = jnp.sqrt(jnp.maximum(point.q - point.m**2 / target.score_variance, 0))
    directions = jnp.asarray(channel.directions(target), s.dtype)
    shifts = jnp.sqrt(directions.shape[1] / jnp.asarray(2, s.dtype)) * s * directions

    def terms(u, xi, _):
        omega, y = point.m / width * u + residual * xi, target.head(width * u)

        def squared_distance(shift):
            # Both replicas as lanes of one call: half the compilation of two.
            pair = jnp.concatenate([omega + shift[:, None], omega - shift[:, None]], axis=1)
            g = channel.apply(pair, jnp.concatenate([y, y], axis=-1), point.Sigma).g
            one, two = jnp.split(g, 2, axis=1)
            return jnp.sum((one - two) ** 2, axis=0)

        return jnp.mean(jax.lax.map(squared_distance, shifts.T), axis=0), None

    return problem.alpha * jnp.mean(channel.mean_over_nodes(terms, target, nodes)[0])


def overlap_gap(problem: AttentionProblem, point: FixedPoint, nodes: Nodes, s: Scalar) -> Scalar:
    """q − q12 after one step of two replicas at q − q12 = s² before it.

    q̂12 is the overlap of the noises of the two spectral problems, in units of m̂²: q12 = η² Tr f(X1) f(X2)/d with
    X_i = S0 + δ Z_i and f = ReLU(· − ε), where δ² less the overlap of the noises is (q̂ − q̂12)/m̂².
    """
    gap = conjugate_gap(problem, point, nodes, s) / point.m_hat**2
    convolution = FreeConvolution(problem.target.law, point.delta)
    return point.q - point.eta**2 * convolution.replica_overlap(point.epsilon, gap)


@eqx.filter_jit
def replicon_by_replicas(problem: AttentionProblem, point: FixedPoint, nodes: Nodes) -> Scalar:
    """R = ∂q12′/∂q12 at q12 = q by automatic differentiation of `overlap_gap`, equal to `point.replicon`.

    With q − q12 = s² it is half the second derivative along s at 0, where the first vanishes. Nothing of the closed
    form is used, neither ∂g/∂ω nor the kernel integral R2: derivatives are those of the replicas' own proximal points
    and of the overlap of two soft-thresholded matrices.

    Args:
        problem: with an `ERMChannel` and the nuclear norm.
        point: fixed point of the problem.
        nodes: those it was solved with, for the two numbers to agree to rounding instead of the integration error.

    Returns:
        R ≥ 0.

    Source: arXiv:2509.24914.
    """
    zero, one = jnp.zeros_like(point.q), jnp.ones_like(point.q)
    slope = lambda s: jax.jvp(lambda s: overlap_gap(problem, point, nodes, s), (s,), (one,))[1]  # noqa: E731
    return jax.jvp(slope, (zero,), (one,))[1] / 2


# One instance


class RepliconGrowth(eqx.Module):
    """Mean growth of random perturbations.

    Attributes:
        mean: over the directions; tends to R at d → ∞.
        standard_error: of the mean, from the scatter over the directions of this instance; NaN for a single one.
        values: one per direction.
    """

    mean: Scalar
    standard_error: Scalar
    values: Float[Array, " directions"]


def goe(key: PRNGKeyArray, d: int, dtype=None) -> Float[Array, "d d"]:
    """Symmetric Gaussian matrix, entries of variance 1/d off the diagonal and 2/d on it."""
    matrix = jax.random.normal(key, (d, d), dtype)
    return (matrix + matrix.T) / (2 * d) ** 0.5


def _next_estimate(problem: AttentionProblem, data: Data, state: AMPState, S: Float[Array, "d d"]):
    """S after one undamped step from (S, V, g), with Γ a number that does not depend on S."""
    done = channel_pass(problem, data, eqx.tree_at(lambda state: state.S, state, S))
    Gamma = jax.lax.stop_gradient(done.Gamma)
    return problem.denoiser.apply(done.field / data.d + Gamma * S, Gamma).S


@eqx.filter_jit
def replicon_growth(
    problem: AttentionProblem, data: Data, state: AMPState, key: PRNGKeyArray, directions: int = 16
) -> RepliconGrowth:
    """Mean of ‖dS_{t+1}[v]‖²_F/‖v‖²_F over random symmetric Gaussian directions v.

    dS_{t+1}[v] is the derivative of one undamped AMP step along dS = v, dg = 0, with V and Γ fixed: what two copies
    that differ by something small and independent of the data do to their distance. Each direction costs about one AMP
    step, one after the other.

    Args:
        problem: channel and denoiser are read.
        data: the samples.
        state: `AMPEstimate.state` of a converged run on these data.
        key: draws the directions.
        directions: how many, ≥ 1; 16 give an error of 2 % at d = 50, of 0.5 % at d = 200.

    Returns:
        Growth, to be compared with R of state evolution up to O(1/d).

    Source: arXiv:2509.24914.
    """
    check_fits(problem, data, state=state.S)

    def growth(key):
        v = goe(key, data.d, state.S.dtype)
        _, change = jax.jvp(lambda S: _next_estimate(problem, data, state, S), (state.S,), (v,))
        return jnp.sum(change**2) / jnp.sum(v**2)

    values = jax.lax.map(growth, jax.random.split(key, whole_number("directions", directions, 1)))
    return RepliconGrowth(jnp.mean(values), standard_error(values), values)


@eqx.filter_jit
def _linearised_step(problem: AttentionProblem, data: Data, state: AMPState, vector: Float[Array, " N"]):
    """Jacobian of the undamped step in (S, V, g) times a vector (dS, dV, dg), of which dS is symmetrised."""
    solver = AMP(damping=0.0)
    state = solver.init(problem, data, state)

    def step(S, V, g):
        moved = eqx.tree_at(lambda state: (state.S, state.V, state.g), state, (S, V, g))
        new, _ = solver.step(problem, data, moved)
        return new.S, new.V, new.g

    size, d = state.S.size, data.d
    dS, dV, dg = vector[:size].reshape(d, d), vector[size], vector[size + 1 :].reshape(state.g.shape)
    _, (S, V, g) = jax.jvp(step, (state.S, state.V, state.g), ((dS + dS.T) / 2, dV, dg))
    return jnp.concatenate([S.ravel(), V[None], g.ravel()])


class _Operator(LinearOperator):
    """A product with vectors of JAX, for SciPy."""

    def __init__(self, product: Callable, size: int):
        super().__init__(np.dtype(float), (size, size))
        self._product = product

    def _matvec(self, x):
        return np.asarray(self._product(np.ravel(x)), float)


def linearised_spectral_radius(
    problem: AttentionProblem,
    data: Data,
    state: AMPState,
    key: PRNGKeyArray,
    *,
    tolerance: float = 1e-3,
    max_restarts: int = 50,
) -> Scalar:
    """Spectral radius of the Jacobian of the undamped AMP step in (S, V, g), at a fixed point.

    Below 1 the undamped iteration converges from nearby, at this rate; above 1 it needs damping. It belongs to single
    directions and varies much between instances (the derivative of V is large where two eigenvalues lie close to each
    other on either side of the threshold): it is no estimate of the replicon, a mean square over all directions.

    Host side, by ARPACK on Jacobian-vector products that cost about one AMP step each; not under `jit`.

    Args:
        problem, data, state: as in `replicon_growth`.
        key: draws the starting vector.
        tolerance: relative accuracy.
        max_restarts: of ARPACK, of about 20 products each.

    Returns:
        The radius; NaN if ARPACK does not converge.
    """
    check_fits(problem, data, state=state.S)
    dtype = state.S.dtype
    size = state.S.size + 1 + state.g.size
    product = lambda vector: _linearised_step(problem, data, state, jnp.asarray(vector, dtype))  # noqa: E731
    operator = _Operator(product, size)
    start = np.asarray(jax.random.normal(key, (size,), dtype), float)
    options: dict[str, Any] = {"tol": tolerance, "maxiter": max_restarts, "return_eigenvectors": False}
    try:
        values = eigs(operator, 1, v0=start, **options)
    except ArpackError:
        return jnp.full((), jnp.nan, dtype)
    return jnp.asarray(np.max(np.abs(values)), dtype)
