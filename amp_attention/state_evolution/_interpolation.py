"""The limit λ → 0⁺ below the interpolation threshold: the minimum-nuclear-norm interpolator.

Every sample is fitted exactly, so z* is the projection of ω on the label's fibre and a sample acts as C_T linear
measurements of its scores. Then η = β0/β and, with D₁ = ∂₁J/(4δ), (δ, ε) solve

    α C_T = D₁(δ, ε),      Q0 + Δ/2 = J − (δ/2) ∂₁J − ε ∂₂J,

the second of which reads ‖S/η − S0‖²/d + Δ/2 = 2 α C_T δ². At Δ = 0 and α ≥ α_perf they have no solution with δ > 0:
S = η S0.

Source: arXiv:2509.24914.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._solution import RESULTS, Solution
from amp_attention._typing import Array, Bool, Float, Scalar
from amp_attention.heads import SoftmaxHead
from amp_attention.numerics.implicit import implicit_root, trusted
from amp_attention.problem import AttentionProblem
from amp_attention.spectral_laws import Above, AbstractSpectralLaw, FreeConvolution
from amp_attention.state_evolution._equations import Nodes
from amp_attention.state_evolution._fixed_point import FixedPoint, standard_error

_REACH = 14.0  # log δ is searched this far around √(Q′/2αC_T)
# Halvings of the bisections in log δ and in arsinh(ε/δ), enough to start Newton's method: the last bits by bisection
# would cost ten times as much.
_OUTER, _INNER, _NEWTON = 18, 26, 8


class _Given(NamedTuple):
    """What the two equations depend on; measurements is α C_T."""

    law: AbstractSpectralLaw
    measurements: Scalar
    noise: Scalar


def _given(problem: AttentionProblem) -> _Given:
    return _Given(problem.target.law, problem.alpha * problem.target.head.constraints, problem.target.noise)


def _equations(y: Float[Array, "2"], given: _Given) -> Float[Array, "2"]:
    """Relative residuals of both equations at y = (log δ, ε/δ)."""
    delta = jnp.exp(y[0])
    above = FreeConvolution(given.law, delta).above(delta * y[1])
    error = (above.error + given.noise / 2) / (2 * given.measurements * delta**2)
    return jnp.stack([above.D1 / given.measurements, error]) - 1


def _roughly(given: _Given, middle: Scalar) -> Float[Array, "2"]:
    """(log δ, ε/δ) to a few digits, by a bisection within a bisection, in one flat loop for the sake of compilation."""
    end = jnp.maximum(given.law.components()[1][-1], 0)
    largest = lambda log_delta: jnp.arcsinh(end * jnp.exp(-log_delta) + 2)  # noqa: E731

    def step(k, state):
        left, right, low, high = state
        log_delta, t = (left + right) / 2, (low + high) / 2
        unfinished, too_small = _equations(jnp.stack([log_delta, jnp.sinh(t)]), given) > 0
        low, high = jnp.where(unfinished, t, low), jnp.where(unfinished, high, t)
        turn = k % _INNER == _INNER - 1
        left = jnp.where(turn & too_small, log_delta, left)
        right = jnp.where(turn & ~too_small, log_delta, right)
        restart = jnp.zeros_like(low), largest((left + right) / 2)
        return left, right, *(jnp.where(turn, new, old) for new, old in zip(restart, (low, high), strict=True))

    start = middle - _REACH, middle + _REACH, jnp.zeros_like(middle), largest(middle)
    left, right, low, high = jax.lax.fori_loop(0, (_OUTER + 1) * _INNER - 1, step, start)
    return jnp.stack([(left + right) / 2, jnp.sinh((low + high) / 2)])


def _polish(y: Float[Array, "2"], given: _Given) -> tuple[Float[Array, "2"], Scalar]:
    """Newton steps as long as they lower the largest residual; y and that residual."""

    def pair(y):
        value = _equations(y, given)
        return value, value

    def step(_, state):
        best, smallest, y = state
        slope, value = jax.jacfwd(pair, has_aux=True)(y)
        size = jnp.max(jnp.abs(value))
        better = (y - jnp.linalg.solve(slope, value), y, size)
        next_y, best, smallest = (
            jnp.where(size < smallest, new, old) for new, old in zip(better, (best, best, smallest), strict=True)
        )
        return best, smallest, next_y

    best, smallest, _ = jax.lax.fori_loop(0, _NEWTON, step, (y, jnp.full_like(y[0], jnp.inf), y))
    return best, smallest


class _Root(NamedTuple):
    """(log δ, ε/δ), its residual, whether it solves the equations, and whether S = η S0 does instead."""

    y: Float[Array, "2"]
    residual: Scalar
    solved: Bool[Array, ""]
    recovered: Bool[Array, ""]


def _root(given: _Given) -> _Root:
    """Carries no derivative."""
    given = jax.lax.stop_gradient(given)
    middle = jnp.log((given.law.moment(2) + given.noise / 2) / (2 * given.measurements)) / 2
    rough = _roughly(given, middle)
    y, residual = _polish(rough, given)
    recovered = (given.noise == 0) & (rough[0] < middle - 0.999 * _REACH)
    # Above the threshold the equations can still have a root, of ε < 0.
    solved = (residual <= 1e3 * jnp.finfo(residual.dtype).eps ** 0.75) & (y[1] >= 0) & ~recovered
    elsewhere = jnp.stack([middle, jnp.ones_like(middle)])  # anywhere regular; what follows from it is discarded
    y, residual = jnp.where(recovered, elsewhere, y), jnp.where(recovered, jnp.zeros_like(residual), residual)
    return _Root(jax.lax.stop_gradient(y), jax.lax.stop_gradient(residual), solved, recovered)


def _target_itself(law: AbstractSpectralLaw) -> Above:
    """The integrals of X = S0; D₁, which is none of them, is zero."""
    mean, second, atom = law.moment(1), law.moment(2), law.atom()
    zero = jnp.zeros_like(second)
    return Above(second, zero, mean, 1 - atom, second, mean, atom, zero)


@eqx.filter_jit
def solve_interpolator(problem: AttentionProblem, nodes: Nodes) -> Solution[FixedPoint]:
    """The fixed point at λ → 0⁺ below the interpolation threshold, in closed form up to two numbers.

    Every field is differentiable in every mode in α, Δ, the law and both temperatures; derivatives are NaN where the
    result is not `successful`. That in λ̃ is NaN always, since the limit is approached as a fractional power of λ̃: in
    forward mode differentiate in λ̃ alone, or not at all.

    Args:
        problem: with α < α_interp, or any α at Δ = 0; its λ̃ is not read.
        nodes: for the test error, the one Gaussian average left.

    Returns:
        Solution with value `FixedPoint`: Σ = ∞, Σ̂ = m̂ = q̂ = 0 and a fitted training set, everything else finite. The
        standard error is zero except for the test error, and carries no derivative. At Δ = 0 and α ≥ α_perf
        δ = ε = 0 and S = (β0/β) S0; the replicon, which depends on how λ̃ vanishes, is then NaN, and so is every
        derivative in Δ. Result `left_domain` at or above the threshold.
    """
    root = _root(_given(problem))
    ok = root.solved | root.recovered
    unknown = _unknown_slopes(problem, ok, ~root.recovered)
    problem = trusted(problem, ok)
    point, errors = _report(problem, implicit_root(_equations, root.y, _given(problem)), root.recovered, nodes)
    point = jax.tree.map(lambda x: x + unknown, point)
    point = eqx.tree_at(lambda p: p.standard_error, point, errors, is_leaf=lambda x: x is None)
    result = RESULTS.where(ok, RESULTS.successful, RESULTS.left_domain)
    return Solution(point, result, {"iterations": jnp.int32(1), "residual": root.residual})


def _unknown_slopes(problem: AttentionProblem, ok: Bool[Array, ""], noisy: Bool[Array, ""]) -> Scalar:
    """Zero, whose derivatives in λ̃, in Δ unless `noisy`, and in α unless `ok`, are NaN."""
    denoiser = trusted(problem.denoiser, jnp.zeros_like(ok))
    slopes = [trusted(problem.alpha, ok), trusted(problem.target.noise, ok & noisy)]
    return sum((0 * x for x in slopes + jax.tree.leaves(denoiser)), jnp.zeros_like(problem.alpha))


def _report(
    problem: AttentionProblem, y: Float[Array, "2"], recovered: Bool[Array, ""], nodes: Nodes
) -> tuple[FixedPoint, FixedPoint]:
    """Every observable and its standard error, at (log δ, ε/δ), or at S = η S0 where `recovered`."""
    target, scale = problem.target, _temperature_ratio(problem)
    pick = lambda exact, general: jnp.where(recovered, exact, general)  # noqa: E731
    delta, epsilon = jnp.exp(y[0]), jnp.exp(y[0]) * y[1]
    convolution = FreeConvolution(target.law, delta)
    above = jax.tree.map(pick, _target_itself(target.law), convolution.above(epsilon))
    replicon = convolution.tangent_overlap(epsilon) / (2 * _given(problem).measurements)
    m, q = scale * above.m, scale**2 * above.J
    zero = jnp.zeros_like(q)
    test_errors = problem.channel.average(target, zero, m, q, nodes).test_error
    point = FixedPoint(
        Sigma=jnp.full_like(q, jnp.inf),
        m=m,
        q=q,
        Sigma_hat=zero,
        m_hat=zero,
        q_hat=zero,
        delta=pick(zero, delta),
        epsilon=pick(zero, epsilon),
        eta=scale,
        test_error=jnp.mean(test_errors),
        train_objective=zero,
        train_error=zero,
        free_entropy=zero,
        squared_error=above.squared_error(scale),
        trace=scale * above.trace,
        zero_fraction=above.zero_fraction,
        rank_fraction=above.rank_fraction,
        replicon=pick(jnp.full_like(zero, jnp.nan), replicon),
        integration_gap=zero,
    )
    errors = jax.tree.map(jnp.zeros_like, point)
    error = standard_error(jax.lax.stop_gradient(test_errors))
    return point, eqx.tree_at(lambda p: p.test_error, errors, error)


def _temperature_ratio(problem: AttentionProblem) -> Array:
    """β0/β, the factor between what a student of another temperature learns and S0."""
    head, head0 = problem.channel.loss.head, problem.target.head  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(head, SoftmaxHead) and isinstance(head0, SoftmaxHead):
        return head0.beta / head.beta
    return jnp.ones_like(problem.alpha)
