"""Test error on fresh samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from amp_attention.bayes import bayes_problem
from amp_attention.data import DrawnTokens, scores
from amp_attention.generalisation import measure_test_error
from amp_attention.heads import LinearHead, SoftmaxHead
from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import MarchenkoPastur
from amp_attention.targets import Target

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


@pytest.mark.parametrize(("exact", "rtol"), [(False, 1e-3), (True, 0.03)])
def test_the_posterior_mean_of_the_label(matrices, exact, rtol):
    """Against Gauss-Hermite nodes in the one direction that a row of two tokens depends on; same samples, no noise.

    Given an estimate with V = 0.3, h_aa − h_12 is N(·, 3V). At S = S0 all of the error is the shift of the label, 0.03,
    which the channel's nodes have to 1e-4.
    """
    S, S0 = (matrices[1] if exact else matrices[0]), matrices[1]
    problem, key = bayes_problem(Target(MarchenkoPastur(0.5), SoftmaxHead(2), 0.0), 0.5), jax.random.key(1)
    means, errors = measure_test_error(problem, S, S0, key, 2000, variance=0.3)
    assert (means[1] < 1e-25) == exact

    X = DrawnTokens(jax.random.split(key)[0], 2000, 2, D, jnp.float64).take(0, 2000)
    true, found = (np.sqrt(2) * z[::2] - z[1] for z in (np.asarray(scores(S0, X)), np.asarray(scores(S, X))))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    guess = expit(found[..., None] + np.sqrt(3 * 0.3) * nodes) @ weights / weights.sum()
    expected = 2 * np.sum((expit(true) - guess) ** 2, axis=0)  # both entries of each row
    np.testing.assert_allclose(means[0], expected.mean(), rtol=rtol)
    np.testing.assert_allclose(errors[0], expected.std(ddof=1) / np.sqrt(2000), rtol=rtol)


def test_the_channel_of_a_linear_head_predicts_the_label_of_the_estimate(matrices):
    problem = bayes_problem(Target(MarchenkoPastur(0.5), LinearHead(), 0.5), 0.5)
    means, errors = measure_test_error(problem, *matrices, jax.random.key(1), 2000, variance=0.4)
    np.testing.assert_allclose([means[0], errors[0]], [means[1], errors[1]], rtol=1e-10)
    alone = measure_test_error(problem, *matrices, jax.random.key(1), 2000)
    np.testing.assert_allclose(alone, [means[1], errors[1]], rtol=1e-12)


def test_minimisers_predict_the_label_of_the_estimate(matrices):
    means, _ = measure_test_error(attention_problem(), *matrices, jax.random.key(1), 1000, variance=0.4)
    assert means[0] == means[1]


def test_refusals(matrices):
    with pytest.raises(ValueError, match="variance must be a finite number >= 0"):
        measure_test_error(attention_problem(), *matrices, jax.random.key(0), 10, variance=-1.0)
    with pytest.raises(ValueError, match="samples must be a whole number"):
        measure_test_error(attention_problem(), *matrices, jax.random.key(0), samples=0)
    with pytest.raises(ValueError, match="S0 must have shape"):
        measure_test_error(attention_problem(), matrices[0], jnp.eye(3), jax.random.key(0))
