"""Posterior channels: g is the derivative of log Z_out, and keeps the identity of all posterior means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from amp_attention.channels import GaussianPosterior, HardmaxPosterior, SampledHardmaxPosterior
from amp_attention.channels._posterior import bivariate_normal
from amp_attention.heads import HardmaxHead, LinearHead, SoftmaxHead
from amp_attention.spectral_laws import MarchenkoPastur
from amp_attention.targets import Target


def target(head, noise=0.0):
    """Of Q0 = 1.5."""
    return Target(MarchenkoPastur(0.5), head, noise)


CHANNELS = {
    "softmax": GaussianPosterior(target(SoftmaxHead(2, 1.5), 0.3)),
    "softmax-three": GaussianPosterior(target(SoftmaxHead(3))),
    "linear": GaussianPosterior(target(LinearHead(), 0.5)),
    "hardmax": HardmaxPosterior(target(HardmaxHead(2))),
    "hardmax-noise": HardmaxPosterior(target(HardmaxHead(2), 0.4), "empirical"),
    "hardmax-three": SampledHardmaxPosterior(target(HardmaxHead(3)), nodes=1024, points=256),
}
Q, V, N = jnp.asarray(0.9), jnp.asarray(0.6), 100_000


def sampled(channel, n=N):
    """ω, z and labels of the model."""
    keys = jax.random.split(jax.random.key(0), 3)
    shape = (channel.head.scores, n)
    omega, z, noise = (jax.random.normal(key, shape) for key in keys)
    omega = jnp.sqrt(Q) * omega
    z = omega + jnp.sqrt(V) * z
    return omega, z, channel.head(z + jnp.sqrt(channel.target.noise / 2) * noise)


@pytest.mark.parametrize("name", CHANNELS)
def test_identity_of_posterior_means(name):
    """E Σ g(z − ω) = V E Σ g², and E Σ g² = −E tr ∂g is the information: each within 6σ, false alarm below 1e-8."""
    channel = CHANNELS[name]
    n = N // 5 if isinstance(channel, SampledHardmaxPosterior) else N
    omega, z, y = sampled(channel, n)
    step = channel.apply(omega, y, V)
    squares = jnp.sum(step.g**2, axis=0)
    information = channel.averages(Q, V).information
    spread = jnp.std(information) / max(information.size - 1, 1) ** 0.5
    for sample in (
        jnp.sum(step.g * (z - omega), axis=0) - V * squares,
        squares + step.divergence,
        squares - jnp.mean(information),
    ):
        assert jnp.abs(jnp.mean(sample)) <= 6 * jnp.hypot(jnp.std(sample) / np.sqrt(n), spread) + 1e-12
    np.testing.assert_allclose(step.z, omega + V * step.g, rtol=1e-14)


@pytest.mark.parametrize("name", ["softmax", "linear", "hardmax", "hardmax-three"])
def test_prediction_is_the_mean_label(name):
    """No function of the scores correlates with its error: each within 6σ and 1e-3, as accurate as its points are."""
    channel = CHANNELS[name]
    n = N // 5
    omega, z, _ = sampled(channel, n)
    y = channel.head(z)
    guess = channel.predict(omega, V - channel.target.noise / 2)
    for function in (jnp.ones(n), omega[0], guess.reshape(-1, n)[0] ** 2):
        sample = (y - guess).reshape(-1, n) * function[None]
        assert jnp.all(jnp.abs(jnp.mean(sample, axis=1)) <= 6 * jnp.std(sample, axis=1) / np.sqrt(n) + 1e-3)


@pytest.mark.parametrize("name", ["softmax", "softmax-three", "linear"])
def test_precision_of_a_plane_is_the_trace_of_its_jacobian(name):
    channel = CHANNELS[name]
    omega, _, y = (array[..., :50] for array in sampled(channel))
    basis = [jnp.zeros_like(omega).at[k].set(1) for k in range(omega.shape[0])]
    g = lambda omega: channel.apply(omega, y, V).g  # noqa: E731
    trace = sum(jax.jvp(g, (omega,), (direction,))[1][k] for k, direction in enumerate(basis))
    np.testing.assert_allclose(channel.apply(omega, y, V).divergence, trace, rtol=1e-10)


def test_g_of_the_hardmax_is_the_derivative_of_the_probability_of_its_label():
    channel = CHANNELS["hardmax-noise"]
    omega, _, y = (array[..., :200] for array in sampled(channel))
    signs = 2 * jnp.stack([y[0, 0], y[1, 1]]) - 1

    def log(omega):
        w = jnp.stack([2**0.5 * omega[0] - omega[1], 2**0.5 * omega[2] - omega[1]])
        k = signs * w / jnp.sqrt(3 * (V + channel.target.noise / 2))
        return jnp.sum(jnp.log(bivariate_normal(k[0], k[1], signs[0] * signs[1] / 3)))

    np.testing.assert_allclose(channel.apply(omega, y, V).g, jax.grad(log)(omega), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "hardmax"])
def test_schedules(name):
    """One is the average of state evolution at q = Q0 − V, the other that of the samples: equal within 6σ."""
    theory = CHANNELS[name]
    measured = type(theory)(theory.target, "empirical")
    omega, _, y = sampled(theory)
    expected, sample = (channel.apply(omega, y, V).divergence for channel in (theory, measured))
    assert jnp.all(expected == expected[0])
    assert jnp.abs(jnp.mean(sample) - expected[0]) <= 6 * jnp.std(sample) / np.sqrt(N)


def test_heads_that_a_channel_is_not_for_are_refused():
    with pytest.raises(ValueError, match=r"target\.head must be a softmax or linear head, got HardmaxHead"):
        GaussianPosterior(target(HardmaxHead(2)))
    for head in (HardmaxHead(3), SoftmaxHead(2)):
        with pytest.raises(ValueError, match="target must have a hardmax of T = 2 tokens, got"):
            HardmaxPosterior(target(head))
    with pytest.raises(ValueError, match=r"target\.head must be a hardmax head, got SoftmaxHead"):
        SampledHardmaxPosterior(target(SoftmaxHead(2)))
    with pytest.raises(ValueError, match="target must have at most T = 6 tokens for these averages, got 7"):
        SampledHardmaxPosterior(target(HardmaxHead(7)), nodes=1, replicas=1).averages(Q, V)


@pytest.mark.parametrize(("q", "variance"), [(0.9, 0.6), (1.4, 0.1)])
def test_two_tokens_sampled_are_two_tokens_exactly(q, variance):
    """Within 5 standard errors, which are below 3 %; also the derivative in V."""
    q, variance = jnp.asarray(q), jnp.asarray(variance)
    sampled = SampledHardmaxPosterior(target(HardmaxHead(2)), nodes=4096)

    def both(channel):
        return jax.jvp(lambda V: channel.averages(q, V), (variance,), (jnp.ones(()),))

    for found, expected in zip(both(sampled), both(CHANNELS["hardmax"]), strict=True):
        for name in ("information", "log_partition"):
            values, (exact,) = getattr(found, name), getattr(expected, name)
            error = jnp.std(values, ddof=1) / np.sqrt(values.size)
            assert jnp.abs(jnp.mean(values) - exact) <= 5 * error
            assert error < 0.03 * jnp.abs(exact)


@pytest.mark.parametrize(
    ("q", "variance", "independent", "error"), [(1e-12, 1.0, 2.848, 0.002), (1.0, 0.5, 3.52, 0.04)]
)
def test_information_of_three_tokens(q, variance, independent, error):
    """Independent values by plain Monte Carlo with their errors; together with ours within 4σ."""
    values = CHANNELS["hardmax-three"].averages(jnp.asarray(q), jnp.asarray(variance)).information
    ours = jnp.std(values, ddof=1) / np.sqrt(values.size)
    assert jnp.abs(jnp.mean(values) - independent) <= 4 * np.hypot(error, ours)


def test_another_schedule_is_refused():
    with pytest.raises(ValueError, match="schedule must be one of se, empirical, got 'both'"):
        HardmaxPosterior(target(HardmaxHead(2)), "both")


def test_log_partition_of_the_hardmax_is_the_entropy_of_its_labels():
    """Mean of log Z over labels drawn from the model; 6σ."""
    channel = CHANNELS["hardmax"]
    omega, _, y = sampled(channel)
    signs = 2 * jnp.stack([y[0, 0], y[1, 1]]) - 1
    k = signs * jnp.stack([jnp.sqrt(2) * omega[0] - omega[1], jnp.sqrt(2) * omega[2] - omega[1]]) / jnp.sqrt(3 * V)
    log = jnp.log(bivariate_normal(k[0], k[1], signs[0] * signs[1] / 3))
    averages = channel.averages(Q, V)
    assert jnp.abs(jnp.mean(log) - averages.log_partition[0]) <= 6 * jnp.std(log) / np.sqrt(N)


def test_information_of_the_hardmax_before_any_data():
    """(2/3π)/P₊ + (1/3π)/P₋ with P± = 1/4 ± asin(1/3)/2π, at q = 0 and V = 1."""
    angle = np.arcsin(1 / 3) / (2 * np.pi)
    exact = 2 / (3 * np.pi) / (0.25 + angle) + 1 / (3 * np.pi) / (0.25 - angle)
    (found,) = CHANNELS["hardmax"].averages(jnp.asarray(1e-12), jnp.asarray(1.0)).information
    np.testing.assert_allclose(found, exact, rtol=1e-10)


@pytest.mark.parametrize(
    ("h", "k", "r"), [(0.0, 0.0, 1 / 3), (1.2, -0.7, -1 / 3), (-2.0, -1.0, 1 / 3), (3.0, 8.0, 0.5)]
)
def test_bivariate_normal(h, k, r):
    expected = multivariate_normal.cdf([h, k], [0, 0], [[1, r], [r, 1]], abseps=1e-12)
    np.testing.assert_allclose(bivariate_normal(*(jnp.asarray(x) for x in (h, k, r))), expected, atol=1e-10)


@pytest.mark.parametrize("tokens", [2, 3, 5])
def test_hardmax_is_the_limit_of_the_softmax(tokens):
    z = jax.random.normal(jax.random.key(1), (tokens * (tokens + 1) // 2, 100))
    np.testing.assert_allclose(HardmaxHead(tokens)(z), SoftmaxHead(tokens, 1e6)(z), atol=1e-12)


def test_a_hardmax_has_no_fibres():
    with pytest.raises(TypeError, match="HardmaxHead has no fibres"):
        HardmaxHead(2).project(jnp.zeros((3, 1)), jnp.zeros((2, 2, 1)))
