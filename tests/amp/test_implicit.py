"""Derivatives of what AMP finds, against problems solved again and identities of the minimum."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.amp import differentiable_estimate, objective_gradient, solve_amp
from amp_attention.amp._implicit import _krylov
from amp_attention.channels import AbstractChannel, ERMChannel, SquaredLoss
from amp_attention.data import Data, generate_data
from amp_attention.denoisers import NuclearNorm
from amp_attention.denoisers._denoiser import DenoiserStep
from amp_attention.denoisers._spectral_map import soft_threshold_spectrum
from amp_attention.heads import LinearHead
from amp_attention.problem import AttentionProblem, attention_problem

D, TIGHT = 30, 1e-11
NAMES = ("objective", "train_error", "q", "m", "trace", "squared_error", "along_C")
C = jax.random.normal(jax.random.key(9), (D, D))  # a direction that is not symmetric
LAM, BETA = (lambda p: p.denoiser.lam), (lambda p: p.channel.loss.head.beta)


def observables(value):
    """What has a derivative, in the order of NAMES."""
    return jnp.stack(
        [*(getattr(value, name) for name in NAMES[:-1]), jnp.vdot(C[: len(value.S), : len(value.S)], value.S)]
    )


def attached(problem, data, found, S0):
    return observables(differentiable_estimate(problem, data, found, S0=S0).value)


@eqx.filter_jit
def forward(problem, data, found, S0, d_problem, d_data):
    """Change of the observables along a tangent."""
    at = lambda problem, data: attached(problem, data, found, S0)  # noqa: E731
    return eqx.filter_jvp(at, (problem, data), (d_problem, d_data))[1]


@eqx.filter_jit
def reverse(problem, data, found, S0, weights):
    """Gradient of a weighted sum of the observables in every number of problem and data."""
    return eqx.filter_grad(lambda pair: jnp.vdot(weights, attached(*pair, found, S0)))((problem, data))


class Case:
    """One instance, solved tightly, with tangents along single numbers."""

    def __init__(self, problem, data, S0):
        self.problem, self.data, self.S0 = problem, data, S0
        self.found = self.solve(problem, data)
        assert self.found.successful

    def solve(self, problem, data):
        return solve_amp(problem, data, S0=self.S0, tolerance=TIGHT)

    def tangent(self, where=None, d_data=None):
        zero = jax.tree.map(jnp.zeros_like, (self.problem, self.data))
        d_problem = zero[0] if where is None else eqx.tree_at(where, zero[0], replace_fn=jnp.ones_like)
        return d_problem, zero[1] if d_data is None else d_data

    def along(self, tangent):
        return forward(self.problem, self.data, self.found, self.S0, *tangent)

    def difference(self, tangent, step=1e-5):
        """Central difference of the observables of AMP solved again."""

        def at(s):
            moved = jax.tree.map(lambda x, t: x + s * t, (self.problem, self.data), tangent)
            solution = self.solve(*moved)
            assert solution.successful
            return observables(solution.value)

        return (at(step) - at(-step)) / (2 * step)


@pytest.fixture(scope="module")
def two():
    problem = attention_problem(0.5, 0.05)
    return Case(problem, *generate_data(jax.random.key(0), problem, D))


@pytest.fixture(scope="module", params=[2, 1, pytest.param(3, marks=pytest.mark.slow)])
def case(request, two):
    """T = 1, 2, 3 tokens."""
    if request.param == 2:
        return two
    problem = attention_problem(0.5, 0.05, tokens=request.param)
    return Case(problem, *generate_data(jax.random.key(0), problem, D))


def numbers(case):
    """The numbers of the standard problem that AMP reads; the linear head has no β."""
    return [LAM] if isinstance(case.problem.channel.loss.head, LinearHead) else [LAM, BETA]


def test_derivatives_are_those_of_amp_solved_again(case):
    for where in numbers(case):
        tangent = case.tangent(where)
        found = case.along(tangent)
        assert np.all(np.abs(found) > 1e-3)
        np.testing.assert_allclose(found, case.difference(tangent), rtol=1e-6)


def test_derivatives_along_a_label_and_a_token_are_those_of_amp_solved_again(two):
    zero = jax.tree.map(jnp.zeros_like, two.data)
    label = eqx.tree_at(lambda data: data.y, zero, zero.y.at[7].set(jnp.asarray([[0.6, -0.6], [-0.3, 0.3]])))
    token = eqx.tree_at(lambda data: data.X, zero, zero.X.at[11, 1].set(C[0]))
    for d_data in (label, token):
        tangent = two.tangent(d_data=d_data)
        np.testing.assert_allclose(two.along(tangent), two.difference(tangent, 1e-4), rtol=1e-5, atol=1e-8)


def test_forward_and_reverse_agree(case):
    """One reverse sweep against forward tangents in every number, the labels and the tokens at once."""
    weights = jnp.linspace(-1.0, 1.5, len(NAMES))
    gradient = reverse(case.problem, case.data, case.found, case.S0, weights)
    keys = jax.random.split(jax.random.key(1), 2)
    d_data = Data(*(jax.random.normal(key, x.shape) for key, x in zip(keys, (case.data.X, case.data.y), strict=True)))
    for tangent in [*(case.tangent(where) for where in numbers(case)), case.tangent(d_data=d_data)]:
        inner = sum(jnp.vdot(g, t) for g, t in zip(*map(jax.tree.leaves, (gradient, tangent)), strict=True))
        np.testing.assert_allclose(inner, jnp.vdot(weights, case.along(tangent)), rtol=1e-8)


def test_objective_obeys_the_envelope_theorem(case):
    """At the minimum only the explicit dependence counts: Tr S/d for λ̃."""
    explicit = objective_gradient(case.problem, case.found.value.S, case.data)
    np.testing.assert_allclose(explicit.denoiser.lam, case.found.value.trace, rtol=1e-13)
    for where in numbers(case):
        np.testing.assert_allclose(case.along(case.tangent(where))[0], where(explicit), rtol=1e-8)
    assert explicit.alpha == 0 and all(leaf == 0 for leaf in jax.tree.leaves(explicit.target))


def test_attached_numbers_are_those_of_the_solver(two):
    again = differentiable_estimate(two.problem, two.data, two.found, S0=two.S0)
    assert again.successful and again.stats["iterations"] == two.found.stats["iterations"]
    for one, other in zip(jax.tree.leaves(again.value), jax.tree.leaves(two.found.value), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_solver_itself_is_differentiable_under_jit_and_vmap(two):
    """Lanes on both sides of the collapse, where S = 0 and all derivatives vanish."""

    def weighted(lam):
        solution = solve_amp(eqx.tree_at(LAM, two.problem, lam), two.data, S0=two.S0, tolerance=TIGHT)
        return jnp.sum(observables(solution.value))

    slopes = jax.jit(jax.vmap(jax.grad(weighted)))(jnp.asarray([0.05, 3.0]))
    np.testing.assert_allclose(slopes, [jnp.sum(two.along(two.tangent(LAM))), 0.0], rtol=1e-8)
    assert slopes[1] == 0


def test_collapsed_estimate_has_derivative_zero(two):
    problem = eqx.tree_at(LAM, two.problem, 3 * jnp.ones(()))
    collapsed = Case(problem, two.data, two.S0)
    np.testing.assert_array_equal(collapsed.found.value.S, 0)
    for where in (LAM, BETA):
        np.testing.assert_array_equal(collapsed.along(collapsed.tangent(where)), 0)
    gradient = reverse(problem, two.data, collapsed.found, two.S0, jnp.ones(len(NAMES)).at[:2].set(0))
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient))


def test_derivatives_of_what_did_not_converge_are_nan(two):
    """The values stay."""
    unsolved = solve_amp(two.problem, two.data, S0=two.S0, tolerance=1e-30)
    assert result_name(unsolved.result) == "max_steps_reached"
    assert np.all(np.isfinite(attached(two.problem, two.data, unsolved, two.S0)))
    derivative = forward(two.problem, two.data, unsolved, two.S0, *two.tangent(LAM))
    assert np.all(np.isnan(derivative))
    d_problem, d_data = reverse(two.problem, two.data, unsolved, two.S0, jnp.ones(len(NAMES)))
    assert np.isnan(LAM(d_problem)) and np.isnan(BETA(d_problem)) and np.all(np.isnan(d_data.y))


def test_derivatives_at_another_problem_than_the_one_solved_are_nan(two):
    problem = eqx.tree_at(LAM, two.problem, 0.0501 * jnp.ones(()))
    assert np.all(np.isfinite(attached(problem, two.data, two.found, two.S0)))
    assert np.all(np.isnan(forward(problem, two.data, two.found, two.S0, *two.tangent(LAM))))


def test_repeated_eigenvalues():
    """Data with the symmetry of the cube: S = cI, where c minimises Σ(y − c u)² + λ̃ d² c, u = (‖x‖² − d)/√d."""
    d, lam = 4, 0.1
    pairs = [(i, j, sign) for i, j in itertools.combinations(range(d), 2) for sign in (1, -1)]
    directions = np.concatenate([np.eye(d), [np.eye(d)[i] + s * np.eye(d)[j] for i, j, s in pairs]])
    lengths = np.repeat([0.5, 1.5, 2.5], len(directions))
    X = lengths[:, None] * np.tile(directions, (3, 1))
    u = (np.sum(X**2, axis=1) - d) / np.sqrt(d)
    y = u + np.sin(lengths * np.sum(X**2, axis=1))
    problem = attention_problem(1.0, lam, tokens=1)
    case = Case(problem, Data(jnp.asarray(X[:, None]), jnp.asarray(y)), jnp.eye(d))

    c, slope = (u @ y - lam * d**2 / 2) / (u @ u), -(d**2) / (2 * (u @ u))
    np.testing.assert_allclose(case.found.value.S, c * np.eye(d), atol=1e-10)
    wanted = {"q": 2 * c * slope, "m": slope, "trace": slope, "squared_error": 2 * (c - 1) * slope}
    found = dict(zip(NAMES, case.along(case.tangent(LAM)), strict=True))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9)
    np.testing.assert_allclose(found["along_C"], slope * np.trace(C[:d, :d]), rtol=1e-9)


class WeightedLoss(SquaredLoss):
    """w times the squared loss."""

    weight: jax.Array

    def values(self, z, y):
        return self.weight * super().values(z, y)

    def __call__(self, z, y):
        return self.weight * super().__call__(z, y)


class ElasticNorm(NuclearNorm):
    """d λ̃ Tr S + d ρ Tr S²/2."""

    ridge: jax.Array

    def __init__(self, lam, ridge):
        super().__init__(lam)
        self.ridge = jnp.asarray(ridge)

    def apply(self, B, Gamma):
        S, V, eigenvalues = soft_threshold_spectrum(B, self.lam, Gamma + self.ridge)
        return DenoiserStep(S, V, eigenvalues)

    def objective(self, S):
        return super().objective(S) + self.ridge * jnp.sum(S**2) / (2 * S.shape[0])


def test_numbers_of_other_losses_and_denoisers_are_not_dropped(two):
    """S depends on the ratios of w, λ̃ and ρ only: w ∂_w + λ̃ ∂_λ̃ + ρ ∂_ρ = 0; and dL/dρ = q/2, dL/dw = d⁻²Σℓ/w."""
    loss = WeightedLoss(two.problem.channel.loss.head, jnp.asarray(2.0))
    problem = AttentionProblem(two.problem.target, ERMChannel(loss), ElasticNorm(0.08, 0.05), 0.5)
    case = Case(problem, two.data, two.S0)
    rho, weight = (lambda p: p.denoiser.ridge), (lambda p: p.channel.loss.weight)
    slopes = [where(problem) * case.along(case.tangent(where)) for where in (weight, LAM, rho)]
    np.testing.assert_allclose(sum(slopes)[2:], 0, atol=1e-8)
    value = case.found.value
    wanted = [value.train_error, problem.denoiser.lam * value.trace, problem.denoiser.ridge * value.q / 2]
    np.testing.assert_allclose([slope[0] for slope in slopes], wanted, rtol=1e-8)


@pytest.mark.slow
def test_second_derivative_of_the_objective_is_the_first_of_the_trace(two):
    @jax.jit
    def second(lam):
        at = lambda lam: attached(eqx.tree_at(LAM, two.problem, lam), two.data, two.found, two.S0)[0]  # noqa: E731
        return jax.jacfwd(jax.grad(at))(lam)

    trace = two.along(two.tangent(LAM))[NAMES.index("trace")]
    np.testing.assert_allclose(second(two.problem.denoiser.lam), trace, rtol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1e-200, 1.0])
def test_linear_system_is_solved_or_refused(scale):
    """A projector's range is solved in, whatever the scale; outside of it there is nothing to find."""
    inside, outside = scale * jnp.asarray([1.0, 2.0, 0.0]), jnp.asarray([1.0, 2.0, 1e-3])
    matrix = jnp.diag(jnp.asarray([2.0, 1.0, 0.0]))
    np.testing.assert_allclose(_krylov(lambda v: matrix @ v, inside), inside / jnp.asarray([2.0, 1.0, 1.0]), rtol=1e-9)
    assert np.all(np.isnan(_krylov(lambda v: matrix @ v, outside)))


class Constant(AbstractChannel):
    """A channel that minimises nothing."""

    number: jax.Array
    head = None

    def apply(self, omega, y, variance, guess=None): ...
    def nodes(self, target, nodes, replicas, seed=0): ...
    def gradient(self, target, Sigma, m, q, nodes): ...
    def average(self, target, Sigma, m, q, nodes): ...


def test_channels_that_minimise_nothing_have_no_derivatives(two):
    problem = eqx.tree_at(lambda p: p.channel, two.problem, Constant(jnp.asarray(1.0)))
    assert np.isnan(attached(problem, two.data, two.found, two.S0)[0])
    with pytest.raises(TypeError, match="ERMChannel"):
        forward(problem, two.data, two.found, two.S0, jax.tree.map(jnp.ones_like, problem), two.tangent()[1])
