"""The limit λ → 0⁺ below the interpolation threshold."""

import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.state_evolution import (
    interpolates,
    interpolation_threshold,
    solve_interpolator,
    solve_state_evolution,
    state_evolution_nodes,
)


@pytest.mark.parametrize(("noise", "expected"), [(0.1, 0.17249990), (0.5, 0.15348210), (1.0, 0.14555053)])
def test_threshold(noise, expected):
    np.testing.assert_allclose(interpolation_threshold(attention_problem(noise=noise)), expected, atol=1e-7)


def test_threshold_counts_constraints():
    two, three = (interpolation_threshold(attention_problem(tokens=T)) for T in (2, 3))
    np.testing.assert_allclose(two * 4, three * 10, rtol=1e-9)  # α_interp (T² + T − 2) is the same number


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_is_the_limit_of_small_regularisation(beta):
    # Approached slowly, as a power of λ̃: the gap must shrink steadily and be small at the end.
    options = {"alpha": 0.1, "beta": beta, "beta0": 1.0}
    problem = attention_problem(lam=0.0, **options)
    nodes = state_evolution_nodes(problem)
    assert interpolates(problem)
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


def test_not_the_branch_above_the_threshold_or_for_positive_lam():
    assert not interpolates(attention_problem(alpha=0.5, lam=0.0))
    assert not interpolates(attention_problem(alpha=0.1, lam=1e-3))
    problem = attention_problem(alpha=0.5, lam=0.0)
    assert not solve_interpolator(problem, state_evolution_nodes(problem)).successful


def test_linear_head_has_published_targets():
    # Power law γ = 1.5, d = 1000, n = d^1.5, ridgeless: E, δ, ε.
    law = FiniteLaw.power_law(1.5, 1000)
    problem = attention_problem(alpha=1000**-0.5, lam=0.0, tokens=1, noise=0.5, law=law)
    point = solve_interpolator(problem, state_evolution_nodes(problem)).value
    np.testing.assert_allclose(
        [point.squared_error, point.delta, point.epsilon], [0.1654052, 2.562837, 3.338458], rtol=1e-5
    )


def test_noiseless_recovery_above_its_threshold():
    # κ0 = .5: α_perf = 0.211087.
    errors = []
    for alpha in (0.2, 0.22):
        problem = attention_problem(alpha=alpha, lam=0.0, noise=0.0)
        assert jnp.isfinite(interpolation_threshold(problem))
        errors.append(float(solve_interpolator(problem, state_evolution_nodes(problem)).value.squared_error))
    assert errors[0] > 1e-3 and errors[1] < 1e-6
