"""The training objective, its derivatives and its stationarity certificate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.data import Data, generate_data
from amp_attention.objective import check_fits, curvature, loss_and_gradient, stationarity, training_objective
from amp_attention.problem import attention_problem

PROBLEM = attention_problem(0.8, 0.1, tokens=2, beta=1.5)
D = 6


def symmetric(seed):
    M = jax.random.normal(jax.random.key(seed), (D, D))
    return (M + M.T) / 2


@pytest.fixture(scope="module")
def data():
    return generate_data(jax.random.key(0), PROBLEM, D)[0]


@eqx.filter_jit
def objective(problem, S, data):
    return training_objective(problem, S, data)


LOSS_AND_GRADIENT = eqx.filter_jit(loss_and_gradient)


def explicit(problem, S, data):
    """L/d² with dense attention scores, sample by sample."""
    total = 0.0
    for x, y in zip(np.asarray(data.X), np.asarray(data.y), strict=True):
        h = (x @ S @ x.T - np.trace(S) * np.eye(data.T)) / np.sqrt(data.d)
        weights = np.exp(float(problem.channel.loss.head.beta) * h)
        total += np.sum((y - weights / weights.sum(axis=1, keepdims=True)) ** 2)
    return (total + data.d * float(problem.denoiser.lam) * np.trace(S)) / data.d**2


def test_value_is_the_sum_over_samples(data):
    S = symmetric(1)
    np.testing.assert_allclose(objective(PROBLEM, S, data), explicit(PROBLEM, np.asarray(S), data), rtol=1e-13)


def test_value_does_not_depend_on_the_chunks():
    data, S0 = generate_data(jax.random.key(1), PROBLEM, D, 2345)
    parts = [Data(data.X[i : i + 469], data.y[i : i + 469]) for i in range(0, 2345, 469)]
    loss = PROBLEM.channel.loss
    value, gradient = LOSS_AND_GRADIENT(loss, S0, data)
    values, gradients = zip(*(LOSS_AND_GRADIENT(loss, S0, part) for part in parts), strict=True)
    np.testing.assert_allclose(value, sum(values), rtol=1e-13)
    np.testing.assert_allclose(gradient, sum(gradients), rtol=1e-11, atol=1e-13)


def test_derivative_in_S_forward_reverse_and_differences(data):
    S, dS, h = symmetric(1), symmetric(2), 1e-6
    f = lambda S: objective(PROBLEM, S, data)  # noqa: E731
    gradient = jax.grad(f)(S)
    np.testing.assert_allclose(gradient, gradient.T, atol=1e-15)
    forward = jax.jvp(f, (S,), (dS,))[1]
    np.testing.assert_allclose(forward, jnp.sum(gradient * dS), rtol=1e-12)
    np.testing.assert_allclose(forward, (f(S + h * dS) - f(S - h * dS)) / (2 * h), rtol=1e-7, atol=1e-9)


def test_hessian_vector_product_matches_differences(data):
    S, dS, h = symmetric(1), symmetric(2), 1e-5
    gradient = jax.grad(lambda S: objective(PROBLEM, S, data))
    product = jax.jvp(gradient, (S,), (dS,))[1]
    np.testing.assert_allclose(product, (gradient(S + h * dS) - gradient(S - h * dS)) / (2 * h), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("which", ["beta", "lam", "labels"])
def test_derivatives_in_the_numbers_of_the_problem_are_not_dropped(data, which):
    S, h = symmetric(1), 1e-6

    def f(shift):
        problem, moved = PROBLEM, data
        if which == "beta":
            problem = eqx.tree_at(lambda p: p.channel.loss.head.beta, PROBLEM, PROBLEM.channel.loss.head.beta + shift)
        elif which == "lam":
            problem = eqx.tree_at(lambda p: p.denoiser.lam, PROBLEM, PROBLEM.denoiser.lam + shift)
        else:
            moved = eqx.tree_at(lambda d: d.y, data, data.y * (1 + shift))
        return objective(problem, S, moved)

    expected = (f(jnp.array(h)) - f(jnp.array(-h))) / (2 * h)
    np.testing.assert_allclose(jax.grad(f)(jnp.array(0.0)), expected, rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(f, (jnp.array(0.0),), (jnp.array(1.0),))[1], expected, rtol=1e-7)


def test_stationarity_is_the_residual_of_the_proximal_step(data):
    S = symmetric(1) @ symmetric(1)
    _, gradient = LOSS_AND_GRADIENT(PROBLEM.channel.loss, S, data)
    Gamma = eqx.filter_jit(curvature)(PROBLEM.channel.loss, S, data)
    b, O = np.linalg.eigh(np.asarray(S - (gradient + PROBLEM.denoiser.lam * jnp.eye(D)) / Gamma))
    expected = np.linalg.norm(S - O @ np.diag(np.maximum(b, 0)) @ O.T) / np.sqrt(D)
    certificate = stationarity(PROBLEM.denoiser, S, gradient, Gamma)
    np.testing.assert_allclose(certificate.gradient_norm, expected, rtol=1e-10)
    np.testing.assert_allclose(certificate.zero_fraction, np.mean(b <= 0))


def test_zero_is_certified_only_where_it_is_the_minimum(data):
    """At S = 0 the gradient in W vanishes whatever λ̃; the KKT residual does so only for large λ̃."""
    zero = jnp.zeros((D, D))
    _, gradient = LOSS_AND_GRADIENT(PROBLEM.channel.loss, zero, data)
    needed = -jnp.min(jnp.linalg.eigvalsh(gradient))
    for factor, stationary in ((0.9, False), (1.1, True)):
        denoiser = eqx.tree_at(lambda d: d.lam, PROBLEM.denoiser, factor * needed)
        assert (stationarity(denoiser, zero, gradient, jnp.array(1.0)).gradient_norm == 0) == stationary


def test_misfits_are_refused(data):
    with pytest.raises(ValueError, match="data must have T = 3 tokens"):
        check_fits(attention_problem(tokens=3), data)
    with pytest.raises(ValueError, match=r"S0 must have shape \(6, 6\), got \(5, 5\)"):
        check_fits(PROBLEM, data, S0=jnp.zeros((5, 5)))
