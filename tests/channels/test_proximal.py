"""The proximal step of a sample."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

from amp_attention.channels import AbstractLoss, ERMChannel, Guess, SquaredLoss, proximal_point
from amp_attention.heads import LinearHead, SoftmaxHead


class CrossEntropy(AbstractLoss):
    """What a user writes: one small class."""

    head: SoftmaxHead

    def __call__(self, z, y):
        return -jnp.sum(y * jnp.log(self.head(z)))


def batch(tokens, n=24, beta=1.0, seed=0):
    """Centres, labels and the loss of n samples at a typical scale."""
    loss = SquaredLoss(SoftmaxHead(tokens, beta))
    keys = jax.random.split(jax.random.key(seed))
    omega = jax.random.normal(keys[0], (loss.head.scores, n))
    return loss, omega, loss.head(1.5 * jax.random.normal(keys[1], omega.shape))


def objective(loss, z, omega, y, variance):
    return jnp.sum((z - omega) ** 2, axis=0) / 2 + variance * loss.values(z, y)


@pytest.mark.parametrize("tokens", [2, 3])
@pytest.mark.parametrize("variance", [0.0, 1e-3, 1.0, 50.0])
def test_stationary_and_consistent(tokens, variance):
    loss, omega, y = batch(tokens)
    step = ERMChannel(loss).apply(omega, y, jnp.asarray(variance))
    np.testing.assert_allclose(step.z - omega - variance * step.g, 0, atol=1e-12 * (1 + variance))
    np.testing.assert_allclose(step.g, -loss.gradient(step.z, y), atol=1e-14)


@pytest.mark.parametrize("variance", [0.3, 10.0, 300.0])
def test_at_least_as_low_as_scipy_from_many_starts(variance):
    loss, omega, y = batch(2, n=6, seed=3)
    z = ERMChannel(loss).apply(omega, y, jnp.asarray(variance)).z
    reached = np.array(objective(loss, z, omega, y, variance))
    value = jax.jit(
        jax.value_and_grad(lambda z, o, y: objective(loss, z[:, None], o[:, None], y[..., None], variance)[0])
    )
    rng = np.random.default_rng(0)
    for lane in range(6):
        o, label = omega[:, lane], y[..., lane]
        best = min(
            minimize(lambda z: value(jnp.asarray(z), o, label), start, jac=True, tol=1e-12).fun  # noqa: B023
            for start in rng.normal(size=(20, 3)) * 3
        )
        assert reached[lane] <= best + 1e-9


def test_two_starts_find_the_lower_of_two_minima():
    # Far from the label's fibre and with a large variance the minimum reached from omega is a local one.
    loss = SquaredLoss(SoftmaxHead(2, 4.0))
    omega = jnp.array([[4.0], [0.0], [4.0]])
    y = loss.head(-omega)
    variance = jnp.asarray(60.0)
    both = ERMChannel(loss).apply(omega, y, variance).z
    lazy, _ = proximal_point(loss, omega, y, variance, starts=omega[None])
    assert objective(loss, both, omega, y, variance)[0] < objective(loss, lazy, omega, y, variance)[0] - 1e-3


@pytest.mark.parametrize("tokens", [2, 3])
def test_implicit_derivative_in_omega_and_variance(tokens):
    loss, omega, y = batch(tokens, n=3)
    variance = jnp.asarray(2.0)

    def point(omega, variance):
        return ERMChannel(loss).apply(omega, y, variance).z

    direction = jax.random.normal(jax.random.key(7), omega.shape)
    for tangent in ((direction, jnp.asarray(0.0)), (jnp.zeros_like(omega), jnp.asarray(1.0))):
        exact = jax.jvp(point, (omega, variance), tangent)[1]
        step = 1e-5
        plus = point(omega + step * tangent[0], variance + step * tangent[1])
        minus = point(omega - step * tangent[0], variance - step * tangent[1])
        np.testing.assert_allclose(exact, (plus - minus) / (2 * step), rtol=1e-6, atol=1e-8)


def test_forward_and_reverse_and_second_derivatives_agree():
    loss, omega, y = batch(2, n=2)

    def total(variance):
        return jnp.sum(ERMChannel(loss).apply(omega, y, variance).z ** 3)

    x = jnp.asarray(1.3)
    np.testing.assert_allclose(jax.jacfwd(total)(x), jax.grad(total)(x), rtol=1e-10)
    second = (jax.grad(total)(x + 1e-5) - jax.grad(total)(x - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.hessian(total)(x), second, rtol=1e-6)


def test_divergence_is_the_trace_of_the_jacobian_of_g():
    loss, omega, y = batch(3, n=2)
    channel, variance = ERMChannel(loss), jnp.asarray(1.7)
    jacobian = jax.jacfwd(lambda o: channel.apply(o, y, variance).g)(omega)
    expected = jnp.stack([jnp.trace(jacobian[:, lane, :, lane]) for lane in range(2)])
    np.testing.assert_allclose(channel.apply(omega, y, variance).divergence, expected, rtol=1e-10)


def test_derivative_in_beta_by_finite_differences():
    _, omega, y = batch(2, n=4)

    def total(beta):
        return jnp.sum(ERMChannel(SquaredLoss(SoftmaxHead(2, beta))).apply(omega, y, jnp.asarray(1.0)).z ** 2)

    x, step = jnp.asarray(1.2), 1e-5
    np.testing.assert_allclose(jax.grad(total)(x), (total(x + step) - total(x - step)) / (2 * step), rtol=1e-7)


@pytest.mark.parametrize("optimizer", [optax.lbfgs(), optax.adam(3e-2)], ids=["lbfgs", "adam"])
def test_any_optax_optimiser_reaches_the_same_point(optimizer):
    loss, omega, y = batch(2, n=8)
    default = ERMChannel(loss).apply(omega, y, jnp.asarray(0.7))
    other = ERMChannel(loss, optimizer).apply(omega, y, jnp.asarray(0.7))
    np.testing.assert_allclose(other.z, default.z, atol=1e-6)


def test_linear_head_has_the_closed_form():
    # argmin (z−ω)²/2 + 2Σ(z−z0)² = (ω + 4Σ z0)/(1 + 4Σ).
    loss = SquaredLoss(LinearHead())
    omega, z0 = jnp.array([[0.3, -1.0]]), jnp.array([[2.0, 0.5]])
    step = ERMChannel(loss).apply(omega, loss.head(z0), jnp.asarray(0.8))
    np.testing.assert_allclose(step.z, (omega + 3.2 * z0) / 4.2, rtol=1e-13)
    np.testing.assert_allclose(step.divergence, -4 / 4.2, rtol=1e-13)


def test_a_users_loss_is_one_class():
    head = SoftmaxHead(2, 1.0)
    _, omega, y = batch(2)
    step = ERMChannel(CrossEntropy(head)).apply(omega, y, jnp.asarray(3.0))
    np.testing.assert_allclose(step.z - omega - 3.0 * step.g, 0, atol=1e-11)


@pytest.mark.parametrize("beta", [1e-3, 50.0, 1e3])
@pytest.mark.parametrize("variance", [1e-6, 1.0, 1e4])
def test_finite_at_extreme_temperatures(beta, variance):
    loss, omega, y = batch(2, n=64, beta=beta)
    step = ERMChannel(loss).apply(omega, y, jnp.asarray(variance))
    assert jnp.all(jnp.isfinite(step.z)) and jnp.all(jnp.isfinite(step.g)) and jnp.all(jnp.isfinite(step.divergence))
    start = jnp.minimum(
        objective(loss, omega, omega, y, variance),
        objective(loss, loss.head.project(omega, y), omega, y, variance),
    )
    assert jnp.all(objective(loss, step.z, omega, y, variance) <= start * (1 + 1e-9))


def test_float32_agrees_with_float64():
    loss, omega, y = batch(2, n=256)
    low = jax.tree.map(lambda x: x.astype(jnp.float32), (loss, omega, y))
    exact = ERMChannel(loss).apply(omega, y, jnp.asarray(1.5))
    single = ERMChannel(low[0]).apply(low[1], low[2], jnp.float32(1.5))
    assert single.z.dtype == jnp.float32
    np.testing.assert_allclose(single.z, exact.z, atol=2e-5)


def test_under_jit_and_vmap():
    loss, omega, y = batch(2, n=5)
    channel = ERMChannel(loss)
    variances = jnp.array([0.1, 1.0, 5.0])
    together = eqx.filter_jit(jax.vmap(lambda v: channel.apply(omega, y, v).z))(variances)
    alone = jnp.stack([channel.apply(omega, y, v).z for v in variances])
    np.testing.assert_allclose(together, alone, atol=1e-12)


@pytest.mark.parametrize("beta", [1e3, 1e6])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_ties_and_large_gaps_at_low_temperature(beta, dtype):
    loss = SquaredLoss(SoftmaxHead(2, jnp.asarray(beta, dtype)))
    omega = jnp.asarray([[0.0, 1e3, -1e3, 1e-9], [0.0, 0.0, 0.0, 0.0], [0.0, 1e3, 1e3, 0.0]], dtype)
    y = loss.head(jnp.flip(omega, axis=1))
    for variance in (0.0, 1e-3, 1.0, 1e3):
        step = ERMChannel(loss).apply(omega, y, jnp.asarray(variance, dtype))
        for part in (step.z, step.g, step.divergence):
            assert jnp.all(jnp.isfinite(part))


def test_a_quick_step_is_exact_to_second_order():
    """From a start a distance ε away, without looking further: an error of order ε²."""
    loss, omega, y = batch(2, n=2000)
    channel, variance = ERMChannel(loss), jnp.asarray(0.5)
    exact = channel.apply(omega, y, variance)
    for size in (1e-3, 1e-4, 1e-5):
        warm = exact.z + size * jax.random.normal(jax.random.key(2), omega.shape)
        quick = channel.apply(omega, y, variance, Guess(warm, False))
        assert float(jnp.max(jnp.abs(quick.z - exact.z))) < 50 * size**2
    again = channel.apply(omega, y, variance, Guess(exact.z, False))
    np.testing.assert_allclose(again.z, exact.z, atol=1e-12)


def test_many_lanes_end_where_few_do():
    """Lanes that need many steps are finished apart from the rest."""
    loss, omega, y = batch(2, n=1024, seed=5)
    channel, variance = ERMChannel(loss), jnp.asarray(30.0)
    together = channel.apply(3 * omega, y, variance)
    parts = [channel.apply(3 * omega[:, i : i + 32], y[..., i : i + 32], variance).z for i in range(0, 1024, 32)]
    np.testing.assert_allclose(together.z, jnp.concatenate(parts, axis=1), atol=1e-9)
