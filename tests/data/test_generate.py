"""Tokens and labels drawn from a target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.data import generate_data, sample_size, scores
from amp_attention.problem import attention_problem


def test_sample_size_is_rounded():
    assert sample_size(0.29, 10) == 29  # int(0.29 * 100) is 28
    assert sample_size(1e-9, 10) == 1
    with pytest.raises(ValueError, match="alpha must be"):
        sample_size(-1.0, 10)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_noiseless_labels_are_the_head_of_the_scores(tokens):
    problem = attention_problem(0.3, tokens=tokens, noise=0.0, beta=2.0)
    data, S0 = generate_data(jax.random.key(0), problem, 70)
    data.check()
    assert data.n == sample_size(0.3, 70) > 1000  # more than one chunk
    expected = problem.target.head(scores(S0, data.X))
    np.testing.assert_allclose(jnp.moveaxis(data.y, 0, -1), expected, atol=1e-14)


def test_noise_has_variance_delta_over_two_in_each_score():
    """T = 1: h − h0 has variance Δ; 7σ on 4900 squares, false alarm below 1e-9."""
    problem = attention_problem(1.0, tokens=1, noise=0.5)
    data, S0 = generate_data(jax.random.key(1), problem, 70)
    residual = data.y - problem.target.head(scores(S0, data.X))
    np.testing.assert_allclose(jnp.mean(residual**2), 0.5, rtol=7 * np.sqrt(2 / data.n))


def test_target_does_not_depend_on_the_number_of_samples():
    problem = attention_problem()
    key = jax.random.key(2)
    (few, S0), (many, S0_again) = (generate_data(key, problem, 12, n) for n in (5, 9))
    np.testing.assert_array_equal(S0, S0_again)
    assert (few.n, many.n) == (5, 9)
    other, _ = generate_data(jax.random.key(3), problem, 12, 5)
    assert not np.any(np.isclose(few.X, other.X))


def test_dtype_follows_the_problem():
    data, S0 = generate_data(jax.random.key(0), attention_problem(dtype=jnp.float32), 12)
    assert data.X.dtype == data.y.dtype == S0.dtype == jnp.float32


def test_refusals():
    problem = attention_problem()
    with pytest.raises(ValueError, match="n must be given"):
        generate_data(jax.random.key(0), problem.target, 12)
    with pytest.raises(ValueError, match="d must be a whole number"):
        generate_data(jax.random.key(0), problem, 0)
    with pytest.raises(ValueError, match="refused before allocating"):
        generate_data(jax.random.key(0), problem, 10**6, n=2**30)
