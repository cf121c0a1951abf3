"""Test error on fresh samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.generalisation import measure_test_error
from amp_attention.problem import attention_problem

D = 15


@pytest.fixture(scope="module")
def matrices():
    problem = attention_problem()
    keys = jax.random.split(jax.random.key(0), 2)
    return tuple(problem.target.law.sample(key, D) for key in keys)


def test_single_token_has_a_closed_form(matrices):
    """E(h − h0)² = 2‖S − S0‖²/d + Δ exactly, for Gaussian tokens; 5 standard errors, false alarm 6e-7."""
    S, S0 = matrices
    problem = attention_problem(tokens=1, noise=0.5)
    mean, error = measure_test_error(problem, S, S0, jax.random.key(1), 20_500)
    assert abs(mean - (2 * jnp.sum((S - S0) ** 2) / D + 0.5)) < 5 * error
    assert 0 < error < 0.05 * mean


def test_error_of_the_target_is_that_of_the_noise(matrices):
    S0 = matrices[1]
    quiet, noisy = attention_problem(noise=0.0), attention_problem(noise=0.5)
    assert measure_test_error(quiet, S0, S0, jax.random.key(1), 1000)[0] < 1e-25
    assert measure_test_error(noisy, S0, S0, jax.random.key(1), 1000)[0] > 0.01


def test_standard_error_is_that_of_the_samples(matrices):
    """Two independent sets differ by their standard errors: 5σ, false alarm 6e-7."""
    S, S0 = matrices
    problem = attention_problem()
    many, error = measure_test_error(problem, S, S0, jax.random.key(1), 10_000)
    few, large_error = measure_test_error(problem, S, S0, jax.random.key(2), 1000)
    assert abs(many - few) < 5 * jnp.sqrt(error**2 + large_error**2)
    np.testing.assert_allclose(large_error / error, np.sqrt(10), rtol=0.3)


def test_refusals(matrices):
    with pytest.raises(ValueError, match="samples must be a whole number"):
        measure_test_error(attention_problem(), *matrices, jax.random.key(0), samples=0)
    with pytest.raises(ValueError, match="S0 must have shape"):
        measure_test_error(attention_problem(), matrices[0], jnp.eye(3), jax.random.key(0))
