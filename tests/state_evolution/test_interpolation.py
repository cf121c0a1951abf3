"""The limit λ → 0⁺ below the interpolation threshold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import FiniteLaw, FreeConvolution
from amp_attention.state_evolution import solve_interpolator, solve_state_evolution, state_evolution_nodes
from amp_attention.thresholds import recovery_threshold


@pytest.mark.slow
@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_is_the_limit_of_small_regularisation(beta):
    # Approached slowly, as a power of λ̃: the gap must shrink steadily and be small at the end.
    options = {"alpha": 0.1, "beta": beta, "beta0": 1.0}
    problem = attention_problem(lam=0.0, **options)
    nodes = state_evolution_nodes(problem)
    limit = solve_interpolator(problem, nodes)
    assert result_name(limit.result) == "successful"

    def gap(point, name):
        return float(abs(getattr(point, name) / getattr(limit.value, name) - 1))

    gaps, point = [], None
    for lam in (1e-3, 1e-4, 1e-5):
        solution = solve_state_evolution(attention_problem(lam=lam, **options), nodes, start=point)
        assert solution.successful
        point = solution.value
        gaps.append([gap(point, name) for name in ("m", "q", "epsilon")])
    gaps = np.array(gaps)
    assert np.all(gaps[1:] < 0.6 * gaps[:-1])
    assert np.all(gaps[-1] < 0.05)
    assert gap(point, "delta") < 0.02  # that of the nodes: the limit itself is free of integration error
    np.testing.assert_allclose(
        limit.value.squared_error, problem.target.Q0 - 2 * limit.value.m + limit.value.q, rtol=1e-6
    )


def solve(nodes=None, **options):
    problem = attention_problem(lam=0.0, **options)
    return solve_interpolator(problem, state_evolution_nodes(problem) if nodes is None else nodes)


def test_above_the_threshold_there_is_none():
    # α_interp = .15348210; δ̄ = 2.29289.
    assert solve(alpha=0.1534820).successful
    for alpha in (0.1534822, 0.5):
        assert result_name(solve(alpha=alpha).result) == "left_domain"


def test_linear_head_has_published_targets():
    # Power law γ = 1.5, d = 1000, n = d^1.5, ridgeless: E, δ, ε.
    law = FiniteLaw.power_law(1.5, 1000)
    point = solve(alpha=1000**-0.5, tokens=1, noise=0.5, law=law).value
    np.testing.assert_allclose(
        [point.squared_error, point.delta, point.epsilon], [0.1654052, 2.562837, 3.338458], rtol=1e-5
    )


@pytest.mark.parametrize("alpha", [1e-5, 1e-3, 0.25])
def test_equations_hold_on_an_outlier_spectrum(alpha):
    law = FiniteLaw.power_law(1.5, 1000)
    solution = solve(alpha=alpha, tokens=1, noise=0.5, law=law)
    point = solution.value
    assert solution.successful
    np.testing.assert_allclose(point.squared_error + 0.25, 2 * alpha * point.delta**2, rtol=1e-10)
    above = FreeConvolution(law, point.delta).above(point.epsilon)
    np.testing.assert_allclose(above.D1, alpha, rtol=1e-10)


def test_squared_error_vanishes_at_noiseless_recovery():
    # κ0 = .5, from below on this branch, linearly in α_perf − α; there and above S = S0.
    threshold = float(recovery_threshold(0.5, 2))
    gaps = np.array([1e-2, 1e-3, 1e-4])
    errors = np.array([solve(alpha=threshold - gap, noise=0.0).value.squared_error for gap in gaps])
    assert np.all(errors > 0) and errors[-1] < 1e-6
    # E = 2αC_T δ² and δ ∝ α_perf − α.
    np.testing.assert_allclose(errors[1:] / errors[:-1], 1e-2, rtol=0.25)
    for alpha in (threshold + 1e-6, 0.22, 3.0):
        solution = solve(alpha=alpha, noise=0.0)
        assert solution.successful
        point = solution.value
        np.testing.assert_allclose([point.m, point.q, point.trace], [1.5, 1.5, 0.5**0.5], rtol=1e-14)
        np.testing.assert_array_equal([point.squared_error, point.delta, point.epsilon], 0)
        np.testing.assert_allclose([point.zero_fraction, point.test_error], [0.5, 0], atol=1e-15)


def test_recovery_of_another_temperature_is_rescaled():
    point = solve(alpha=0.3, noise=0.0, beta=1.3, beta0=0.9).value
    eta = 0.9 / 1.3
    np.testing.assert_allclose([point.eta, point.squared_error], [eta, 1.5 * (1 - eta) ** 2], rtol=1e-12)
    np.testing.assert_allclose(point.test_error, 0, atol=1e-12)


def test_noiseless_recovery_is_where_small_regularisation_leads():
    # Just above α_perf = .211087 at κ0 = .5.
    errors, point = [], None
    for lam in (1e-3, 1e-4, 1e-5):
        problem = attention_problem(alpha=0.22, lam=lam, noise=0.0)
        solution = solve_state_evolution(problem, state_evolution_nodes(problem), start=point)
        assert solution.successful
        point = solution.value
        errors.append(float(point.squared_error))
    assert errors[1] < 0.2 * errors[0] and errors[2] < 0.1 * errors[1] and errors[2] < 1e-3


# Derivatives.

FIELDS = ("m", "q", "test_error", "squared_error", "trace", "zero_fraction", "replicon", "delta", "epsilon", "eta")


def fields(numbers, lam):
    """`FIELDS` and the standard error, of (α, Δ, κ0, β, β0) and λ̃."""
    alpha, noise, kappa0, beta, beta0 = numbers
    problem = attention_problem(alpha, lam, noise=noise, kappa0=kappa0, beta=beta, beta0=beta0)
    point = solve_interpolator(problem, NODES).value
    return jnp.stack([*(getattr(point, name) for name in FIELDS), point.errors.test_error])


NODES = state_evolution_nodes(attention_problem(), 64, 2)
LAM = jnp.asarray(0.0)
VALUES, REVERSE = jax.jit(fields), jax.jit(jax.jacrev(fields, (0, 1)))


def difference(numbers, i):
    """Fourth order: central, or to the right of zero."""
    step = jnp.zeros(5).at[i].set(2e-4 * max(float(numbers[i]), 0.1))
    value = lambda k: np.array(VALUES(numbers + k * step, LAM))  # noqa: E731
    if numbers[i] > 0:
        combination = 8 * (value(1) - value(-1)) - (value(2) - value(-2))
    else:
        combination = -25 * value(0) + 48 * value(1) - 36 * value(2) + 16 * value(3) - 3 * value(4)
    return combination / (12 * float(step[i]))


@pytest.mark.parametrize("numbers", [(0.1, 0.5, 0.5, 1.3, 0.9), (0.15, 0.0, 0.5, 1.3, 0.9), (0.2, 0.3, 2.0, 0.8, 1.0)])
def test_derivatives(numbers):
    numbers = jnp.asarray(numbers)
    slopes, in_lam = (np.array(value) for value in REVERSE(numbers, LAM))
    numerical = np.stack([difference(numbers, i) for i in range(5)], axis=1)
    np.testing.assert_allclose(slopes[:-1], numerical[:-1], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(slopes[-1], 0)  # a standard error has none
    assert np.all(np.isnan(in_lam[:-1]))  # 1 − η ~ λ̃^.4: none on this branch


def test_no_derivative_without_a_solution():
    backward, in_lam = REVERSE(jnp.asarray([0.3, 0.5, 0.5, 1.3, 0.9]), LAM)
    assert np.all(np.isnan(backward[:-1])) and np.all(np.isnan(in_lam[:-1]))


@pytest.mark.slow
def test_forward_is_reverse():
    forward = jax.jit(jax.jacfwd(fields))
    for numbers in ([0.1, 0.5, 0.5, 1.3, 0.9], [0.15, 0.0, 0.5, 1.3, 0.9], [0.3, 0.5, 0.5, 1.3, 0.9]):
        one, other = forward(jnp.asarray(numbers), LAM), REVERSE(jnp.asarray(numbers), LAM)[0]
        np.testing.assert_allclose(one[:-1], other[:-1], rtol=1e-9, atol=1e-11)
    in_lam = jax.jit(jax.jacfwd(fields, 1))(jnp.asarray([0.1, 0.5, 0.5, 1.3, 0.9]), LAM)
    assert np.all(np.isnan(in_lam[:-1]))


def test_derivatives_at_perfect_recovery():
    # S = η S0: nothing depends on α, everything on Δ as noise does, which this branch does not know.
    backward, _ = REVERSE(jnp.asarray([0.25, 0.0, 0.5, 1.3, 0.9]), LAM)
    by_name = dict(zip(FIELDS, np.array(backward), strict=False))
    eta = 0.9 / 1.3
    np.testing.assert_allclose(by_name["q"][[0, 2]], [0, eta**2], rtol=1e-12)
    np.testing.assert_allclose(by_name["trace"][[0, 2]], [0, eta / 2 / 0.5**0.5], rtol=1e-12)
    assert all(np.isnan(slopes[1]) for slopes in by_name.values())


def test_derivatives_in_eigenvalues_and_batches():
    eigenvalues = np.array([0.0, 0.0, 0.5, 1.2, 1.2, 3.0])

    def error(eigenvalues, alpha=0.1):
        problem = attention_problem(alpha, 0.0, law=FiniteLaw(eigenvalues), noise=0.3)
        return solve_interpolator(problem, NODES).value.squared_error

    slopes = np.asarray(jax.jit(jax.grad(error))(jnp.asarray(eigenvalues)))
    shifted = np.concatenate([eigenvalues + k * 1e-3 * np.eye(6) for k in (-2, -1, 1, 2)])
    values = jax.jit(jax.vmap(error))(jnp.asarray(shifted)).reshape(4, 6)
    numerical = np.array([1, -8, 8, -1]) @ np.asarray(values) / 12e-3
    np.testing.assert_allclose(slopes, numerical, rtol=1e-6)
