"""Bayes-optimal AMP: the same loop with another channel and another denoiser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.amp import solve_amp
from amp_attention.bayes import bayes_problem, solve_bayes
from amp_attention.data import generate_data
from amp_attention.heads import HardmaxHead, LinearHead, SoftmaxHead
from amp_attention.spectral_laws import MarchenkoPastur
from amp_attention.targets import Target


def errors(target, alpha, d, seeds, schedule=None):
    """Squared errors of AMP on independent instances, all of which must converge."""
    problem = bayes_problem(target, alpha, schedule)
    found = []
    for seed in range(seeds):
        data, S0 = generate_data(jax.random.key(seed), problem, d)
        solution = solve_amp(problem, data, S0=S0, tolerance=1e-5)
        assert solution.successful
        found.append(float(solution.value.squared_error))
    return np.array(found)


@pytest.mark.parametrize(
    ("head", "noise", "alpha"), [(SoftmaxHead(2), 0.0, 0.13), (SoftmaxHead(2), 0.5, 0.2), (HardmaxHead(2), 0.0, 0.5)]
)
def test_reaches_what_state_evolution_says(head, noise, alpha):
    """|AMP − SE| ≤ 0.02 + 3 standard errors; the bias of 2 to 8 % at these sizes is what the 0.02 is for."""
    target = Target(MarchenkoPastur(0.5), head, noise)
    found = errors(target, alpha, 60, 3)
    expected = float(solve_bayes(target, alpha).value.squared_error)
    assert abs(found.mean() - expected) <= 0.02 + 3 * found.std(ddof=1) / np.sqrt(3)


def test_three_tokens_of_a_hardmax():
    """Against state evolution at 2048 nodes, E = 0.2402(18): within 0.02, its error and 3 of the mean of two."""
    target = Target(MarchenkoPastur(0.5), HardmaxHead(3), 0.0)
    found = errors(target, 0.2, 50, 2)
    assert abs(found.mean() - 0.2402) <= 0.02 + 0.0018 + 3 * 0.025 / np.sqrt(2)


@pytest.mark.parametrize("head", [SoftmaxHead(2), HardmaxHead(2)])
def test_the_precision_of_the_samples_at_hand(head):
    """Ends near where that of state evolution ends, on the same instance."""
    target = Target(MarchenkoPastur(0.5), head, 0.5)
    theory, measured = (errors(target, 0.3, 50, 1, schedule) for schedule in ("se", "empirical"))
    np.testing.assert_allclose(measured, theory, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "alpha"),
    [
        (SoftmaxHead(2), 0.13001),
        (SoftmaxHead(3), 0.04),
        (SoftmaxHead(2), 0.09086),
        (HardmaxHead(2), 0.10054),
        (HardmaxHead(2), 0.29504),
        (HardmaxHead(2), 0.50541),
    ],
)
def test_reaches_what_state_evolution_says_at_larger_size(head, alpha):
    target = Target(MarchenkoPastur(0.5), head, 0.0)
    found = errors(target, alpha, 100, 6)
    expected = float(solve_bayes(target, alpha).value.squared_error)
    assert abs(found.mean() - expected) <= 0.02 + 3 * found.std(ddof=1) / np.sqrt(6)


@pytest.mark.parametrize("head", [SoftmaxHead(2), LinearHead()])
def test_finds_the_target_exactly_beyond_the_threshold(head):
    """V falls to zero with the error, and neither g ∝ 1/V nor the residual overflows on the way."""
    target = Target(MarchenkoPastur(0.5), head, 0.0)
    assert errors(target, 1.0, 20, 1) < 1e-9


def test_starts_at_the_mean_of_the_prior_and_is_no_minimiser():
    target = Target(MarchenkoPastur(0.5), SoftmaxHead(2), 0.5)
    problem = bayes_problem(target, 0.2)
    data, S0 = generate_data(jax.random.key(0), problem, 20)
    found = solve_amp(problem, data, S0=S0, max_steps=1, damping=0.0).value
    np.testing.assert_allclose(found.history.V[0], problem.denoiser.mmse(1 / (2 * found.Gamma)), rtol=1e-12)
    assert np.isnan(found.objective) and np.isnan(found.train_error)
    np.testing.assert_allclose(found.Gamma, data.n / data.d**2 * 2 / (1 + 0.25), rtol=1e-12)  # α C_T/(V + Δ/2), V = 1
    with pytest.raises(TypeError, match="channel must be an ERMChannel for derivatives of S"):
        jax.grad(lambda alpha: solve_amp(bayes_problem(target, alpha), data).value.trace)(jnp.asarray(0.2))
