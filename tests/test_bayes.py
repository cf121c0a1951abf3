"""The Bayes-optimal state evolution against published and independent values, and its derivatives."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.bayes import (
    bayes_alpha,
    bayes_nodes,
    bayes_point,
    bayes_problem,
    bayes_test_errors,
    posterior_channel,
    solve_bayes,
)
from amp_attention.channels import HardmaxPosterior, PosteriorAverage, SampledHardmaxPosterior
from amp_attention.channels._posterior import bivariate_normal
from amp_attention.heads import HardmaxHead, LinearHead, SoftmaxHead
from amp_attention.spectral_laws import FiniteLaw, MarchenkoPastur
from amp_attention.state_evolution import solve_state_evolution, state_evolution_nodes
from amp_attention.targets import Target
from amp_attention.thresholds import bayes_recovery_threshold


def softmax(kappa0=0.5, tokens=2, noise=0.0):
    return Target(MarchenkoPastur(kappa0), SoftmaxHead(tokens), noise)


def hardmax(kappa0=0.5, noise=0.0):
    return Target(MarchenkoPastur(kappa0), HardmaxHead(2), noise)


def error(target, alpha):
    return solve_bayes(target, alpha).value.squared_error


@pytest.mark.parametrize(
    ("kappa0", "tokens", "noise", "alpha", "independent", "published"),
    [
        (0.1, 2, 0.0, 0.0219911373, 0.773754884, 0.7737906),
        (0.3, 2, 0.0, 0.0495122353, 0.663336384, 0.6633667),
        (0.5, 2, 0.0, 0.0441252941, 0.762247611, 0.7622707),
        (0.5, 2, 0.0, 0.0867700784, 0.476788522, 0.4768328),
        (1.0, 2, 0.0, 0.1352987059, 0.326472796, 0.3265331),
        (2.0, 2, 0.0, 0.0970649412, 0.564490923, 0.5645317),
        (0.5, 2, 0.5, 0.1, 0.587745071, None),
        (1.0, 3, 0.5, 0.05, 0.568948581, None),
    ],
)
def test_softmax(kappa0, tokens, noise, alpha, independent, published):
    """1e-8 of an independent computation; 3e-4 of published values, which have the tolerance 1e-5 of a slow loop."""
    solution = solve_bayes(softmax(kappa0, tokens, noise), alpha)
    assert solution.successful
    np.testing.assert_allclose(solution.value.squared_error, independent, atol=1e-8)
    if published is not None:
        np.testing.assert_allclose(solution.value.squared_error, published, atol=3e-4)


@pytest.mark.parametrize(
    ("kappa0", "alpha", "noise", "independent"),
    [(0.5, 0.1, 0.0, 0.7451104), (0.5, 0.5, 0.0, 0.2130619), (1.0, 0.3, 0.0, 0.4894838), (0.5, 0.5, 0.5, 0.3277495)],
)
def test_hardmax(kappa0, alpha, noise, independent):
    np.testing.assert_allclose(error(hardmax(kappa0, noise), alpha), independent, atol=2e-7)


def test_tokens_count_by_their_constraints():
    """(T = 2, α) and (T = 3, 0.4 α) have the same number of equations."""
    two, three = solve_bayes(softmax(), 0.1).value, solve_bayes(softmax(tokens=3), 0.04).value
    for name in ("squared_error", "q", "q_hat", "D", "free_entropy"):
        np.testing.assert_allclose(getattr(two, name), getattr(three, name), rtol=1e-12)


def test_a_single_token_is_one_equation():
    one = solve_bayes(Target(MarchenkoPastur(0.5), LinearHead(), 0.5), 0.2).value
    np.testing.assert_allclose(one.squared_error, error(softmax(noise=0.5), 0.1), rtol=1e-12)


@pytest.mark.parametrize("target", [softmax(noise=0.5), hardmax()], ids=["softmax", "hardmax"])
def test_the_curve_and_its_solution_are_inverse(target):
    point = bayes_point(target, 0.7)
    np.testing.assert_allclose(point.alpha, bayes_alpha(target, 0.7), rtol=1e-14)
    found = solve_bayes(target, point.alpha).value
    for name in ("D", "q", "q_hat", "squared_error", "free_entropy"):
        np.testing.assert_allclose(getattr(found, name), getattr(point, name), rtol=1e-10)
    np.testing.assert_allclose(found.q + found.squared_error, target.Q0, rtol=1e-14)


@pytest.mark.parametrize("kappa0", [0.5, 1.0, 2.0])
def test_without_noise_the_target_is_found_exactly_from_the_threshold_on(kappa0):
    target = softmax(kappa0)
    threshold = bayes_recovery_threshold(target.law, target.head.constraints)
    above, below = solve_bayes(target, 1.001 * threshold), solve_bayes(target, 0.99 * threshold)
    assert above.successful and below.successful
    assert above.value.squared_error == above.value.D == 0 and above.value.q == target.Q0
    assert 0 < below.value.squared_error < 0.05


def test_derivatives_are_differences_of_solved_points():
    def function(x):
        alpha, kappa0, noise = x
        return error(softmax(kappa0, noise=noise), alpha)

    x = jnp.asarray([0.1, 0.5, 0.5])
    reverse, forward = jax.grad(function)(x), jax.jacfwd(function)(x)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    solve = jax.jit(function)
    for i in range(3):
        step = jnp.zeros(3).at[i].set(1e-4)
        difference = (8 * (solve(x + step) - solve(x - step)) - solve(x + 2 * step) + solve(x - 2 * step)) / 12e-4
        np.testing.assert_allclose(reverse[i], difference, rtol=1e-6)  # nodes stand still while band edges move


@pytest.mark.parametrize(
    "target",
    [pytest.param(softmax(noise=0.5), id="softmax"), pytest.param(hardmax(), id="hardmax", marks=pytest.mark.slow)],
)
def test_the_free_entropy_is_stationary(target):
    """dφ/dα is the partial derivative E log Z_out, which the free entropy without its prior part shows."""
    alpha = jnp.asarray(0.1)
    point = solve_bayes(target, alpha).value
    total = jax.grad(lambda alpha: solve_bayes(target, alpha).value.free_entropy)(alpha)
    # φ(α) at fixed D is linear in α.
    held = jax.grad(lambda a: _free_entropy_at_fixed_noise(target, point, a))(alpha)
    np.testing.assert_allclose(total, held, rtol=1e-6)


def _free_entropy_at_fixed_noise(target, point, alpha):
    (log_partition,) = posterior_channel(target).averages(point.q, point.squared_error).log_partition
    return point.free_entropy + (alpha - point.alpha) * log_partition


@pytest.mark.parametrize(
    ("noise", "alpha", "optimal", "plug_in"),
    [(0.5, 0.1, 0.2279993, 0.2413905), (0.0, 0.1, 0.120853, 0.125124), (0.0, 0.15, 0.041408, 0.041995)],
)
def test_test_errors_of_the_softmax(noise, alpha, optimal, plug_in):
    """Against one-dimensional quadratures; within 5 standard errors, which are below 1e-4."""
    target = softmax(noise=noise)
    found = bayes_test_errors(target, solve_bayes(target, alpha).value, bayes_nodes(target))
    for values, expected in ((found.optimal, optimal), (found.plug_in, plug_in)):
        error = jnp.std(values, ddof=1) / np.sqrt(8)
        assert error < 1e-4
        np.testing.assert_allclose(jnp.mean(values), expected, atol=5 * error + 1e-6)


@pytest.mark.parametrize("head", [HardmaxHead(2), LinearHead()])
def test_test_errors_in_closed_form(head):
    """Against labels drawn from the model; 6σ."""
    target = Target(MarchenkoPastur(0.5), head, 0.3)
    point = bayes_point(target, 0.7)
    keys = jax.random.split(jax.random.key(0), 3)
    omega, *rest = (jax.random.normal(key, (head.scores, 200_000)) for key in keys)
    omega = jnp.sqrt(point.q) * omega
    label, other = (head(omega + jnp.sqrt(point.squared_error + 0.15) * xi) for xi in rest)
    found = bayes_test_errors(target, point, bayes_nodes(target, 2, 2))
    for difference, value in (((label - other) / np.sqrt(2), found.optimal), (label - head(omega), found.plug_in)):
        sample = jnp.sum((difference**2).reshape(-1, omega.shape[1]), axis=0)
        np.testing.assert_allclose(value[0], jnp.mean(sample), atol=6 * jnp.std(sample) / np.sqrt(sample.size))


def sampled(seed, tokens=2, nodes=256):
    """The target of `hardmax`, with its channel as a sum over labels."""
    target = Target(MarchenkoPastur(0.5), HardmaxHead(tokens), 0.0)
    return target, SampledHardmaxPosterior(target, nodes=nodes, seed=seed)


def test_standard_errors_of_a_sampled_channel():
    """Two tokens by sums over labels: within 5 of them of the closed form; their size is that of the scatter."""
    exact = solve_bayes(hardmax(), 0.5).value
    found = [solve_bayes(hardmax(), 0.5, sampled(seed)[1]).value for seed in range(4)]
    for name in ("D", "q", "q_hat", "squared_error", "free_entropy"):
        values, errors = (np.array([getattr(p, name) for p in part]) for part in (found, errors_of(found)))
        assert np.all(np.abs(values - getattr(exact, name)) <= 5 * errors)
        assert 0.1 < np.std(values, ddof=1) / np.mean(errors) < 4  # a ratio of χ with 3 and many degrees of freedom
        assert getattr(exact.standard_error, name) == 0
    on_curve = [bayes_point(hardmax(), exact.D, sampled(seed)[1]) for seed in range(2)]
    alphas, errors = (np.array([p.alpha for p in part]) for part in (on_curve, errors_of(on_curve)))
    assert np.all(np.abs(alphas - 0.5) <= 5 * errors)
    assert on_curve[0].standard_error.squared_error == 0 == found[0].standard_error.alpha


def errors_of(points):
    return [point.standard_error for point in points]


def test_three_tokens_of_a_hardmax():
    """The curve and its solution are inverse."""
    target, channel = sampled(0, tokens=3)
    point = bayes_point(target, 0.6, channel)
    found = solve_bayes(target, point.alpha, channel)
    assert found.successful
    np.testing.assert_allclose(found.value.squared_error, point.squared_error, rtol=1e-10)
    assert isinstance(posterior_channel(target), SampledHardmaxPosterior)


@pytest.mark.slow
def test_derivative_of_a_sampled_channel():
    target, channel = sampled(0, tokens=3)
    solve = jax.jit(lambda alpha: solve_bayes(target, alpha, channel).value.squared_error)
    alpha = jnp.asarray(0.2)
    step = 1e-4 * alpha
    difference = (solve(alpha + step) - solve(alpha - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(solve)(alpha), difference, rtol=1e-4)


class DensityHardmax(HardmaxPosterior):
    """The formula behind published hardmax curves: the density of (X, Y) for the derivative of their distribution."""

    def averages(self, q, V):
        x = jnp.linspace(-8, 8, 401)
        x, y = x[:, None], x[None, :]
        weight = 3 / (4 * 2**0.5 * jnp.pi) * jnp.exp(-9 / 16 * (x**2 - 2 / 3 * x * y + y**2)) * (16 / 400) ** 2
        total = jnp.zeros(2)
        for product in (1, -1):
            r, (k1, k2) = product / 3, jnp.broadcast_arrays(jnp.sqrt(q / V) * x, jnp.sqrt(q / V) * product * y)
            Z = jnp.maximum(bivariate_normal(k1, k2, jnp.asarray(r)), 1e-15)
            density = jnp.exp(-(k1**2 - 2 * r * k1 * k2 + k2**2) / (2 * (1 - r**2)))
            g = density / (2 * jnp.pi * jnp.sqrt(1 - r**2)) / Z
            squares = g**2 * (4 + (1 + product) ** 2) / (3 * V)
            total += 2 * jnp.stack([jnp.sum(weight * Z * squares), jnp.sum(weight * Z * jnp.log(Z))])
        return PosteriorAverage(*total[:, None])


@pytest.mark.parametrize(
    ("alpha", "published", "density", "exact"), [(0.5054, 0.486380, 0.485509, 0.210207), (5.04, 0.0868, None, 0.00397)]
)
def test_the_published_hardmax_curve_is_that_of_a_density(alpha, published, density, exact):
    """Within the noise of the published points; the exact error is far below them, as AMP confirms.

    Density and exact value from an independent computation, whose loop stops at 1e-5.
    """
    wrong = solve_bayes(hardmax(), alpha, DensityHardmax(hardmax())).value.squared_error
    np.testing.assert_allclose(wrong, published, atol=1.2e-3)
    if density is not None:
        np.testing.assert_allclose(wrong, density, atol=1e-5)
    np.testing.assert_allclose(error(hardmax(), alpha), exact, atol=1e-5)
    assert exact < published / 2


def test_another_channel_must_be_one():
    with pytest.raises(ValueError, match="channel must be a posterior channel, such as GaussianPosterior, got"):
        solve_bayes(softmax(), 0.1, HardmaxHead(2))


def test_derivatives_beyond_the_threshold():
    """Zero in α and κ0; in Δ the slope from above, E ≈ νΔ/2/(2αC − ν) with ν = 2κ0 − κ0²."""

    def function(x):
        return error(softmax(x[1], noise=x[2]), x[0])

    ratio = 0.75
    expected = [0, 0, ratio / 2 / (2 * 0.4 * 2 - ratio)]
    np.testing.assert_allclose(jax.grad(function)(jnp.asarray([0.4, 0.5, 0.0])), expected, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(function(jnp.asarray([0.4, 0.5, 1e-6])) / 1e-6, expected[2], rtol=1e-5)


def test_little_noise_is_not_none():
    """Δ of 1e-16 of the largest eigenvalue squared: D (2αC − ν) = Δ/2, ν = 1/2 for one eigenvalue of two."""
    target = Target(FiniteLaw(jnp.asarray([1e8, 1.0])), SoftmaxHead(2), 0.5)
    point = solve_bayes(target, 0.3).value
    np.testing.assert_allclose([point.D, point.squared_error], [0.25 / 0.7, 0.125 / 0.7], rtol=1e-3)


@pytest.mark.parametrize(("head", "D"), [(SoftmaxHead(6), 0.02), (SoftmaxHead(2), 1e-6), (HardmaxHead(3), 0.5)])
def test_the_plug_in_predictor_is_never_the_better_one(head, D):
    """Also where their errors hardly differ: both are sampled together."""
    target = Target(MarchenkoPastur(0.5), head, 0.01)
    point = bayes_point(softmax(), D)
    found = bayes_test_errors(target, point, bayes_nodes(target, 4096))
    assert jnp.mean(found.optimal) < jnp.mean(found.plug_in)


def test_a_law_without_variance_has_no_error():
    target = Target(FiniteLaw(jnp.ones(50)), SoftmaxHead(2), 0.5)
    assert 0 <= error(target, 0.1) < 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: solve_bayes(softmax(tokens=3), 0.1, posterior_channel(softmax())),
            "of the T = 3 tokens of the target",
        ),
        (lambda: bayes_test_errors(softmax(), solve_bayes(softmax(), 0.1), None), "point must be a BayesPoint"),
        (lambda: bayes_test_errors(softmax(), bayes_point(softmax(), 1.0), jnp.ones((2, 3, 1))), "points, 3), got"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_what_has_no_state_evolution_of_minimisation_says_so():
    problem = bayes_problem(softmax(), 0.1)
    for call in (lambda: state_evolution_nodes(problem), lambda: solve_state_evolution(problem, jnp.zeros((2, 4, 4)))):
        with pytest.raises(TypeError, match="channel must minimise a loss, as ERMChannel does, got GaussianPosterior"):
            call()
