"""The Gaussian average of the proximal channel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.channels import ERMChannel, SquaredLoss
from amp_attention.heads import LinearHead, SoftmaxHead
from amp_attention.spectral_laws import MarchenkoPastur
from amp_attention.targets import Target


def setting(tokens=2, noise=0.5, nodes=512, beta=1.0, beta0=1.0):
    """A target and channel with few nodes, and overlaps in the typical range."""
    head = LinearHead() if tokens == 1 else SoftmaxHead(tokens, beta)
    head0 = LinearHead() if tokens == 1 else SoftmaxHead(tokens, beta0)
    target, channel = Target(MarchenkoPastur(0.5), head0, noise), ERMChannel(SquaredLoss(head))
    return target, channel, jnp.asarray(channel.nodes(target, nodes, 4)), jnp.array([1.2, 1.0, 0.9])


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_envelope_derivatives_are_the_gradient_of_the_potential(tokens, beta):
    target, channel, nodes, x = setting(tokens, beta=beta)

    def potential(x):
        return jnp.mean(channel.average(target, *x, nodes).potential)

    envelope = jnp.stack([jnp.mean(d) for d in channel.gradient(target, *x, nodes)[:3]])
    np.testing.assert_allclose(jax.jit(jax.grad(potential))(x), envelope, rtol=1e-11, atol=1e-13)


def test_hessian_of_the_potential_is_symmetric_and_right():
    target, channel, nodes, x = setting()

    @jax.jit
    def gradient(x):
        return jnp.stack([jnp.mean(d) for d in channel.gradient(target, *x, nodes)[:3]])

    hessian = jax.jit(jax.jacfwd(gradient))(x)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-13)
    for i in range(3):
        step = jnp.zeros(3).at[i].set(1e-5)
        numeric = (gradient(x + step) - gradient(x - step)) / 2e-5
        np.testing.assert_allclose(hessian[:, i], numeric, rtol=1e-6, atol=1e-9)


def test_average_and_gradient_are_one_computation():
    target, channel, nodes, x = setting()
    average = channel.average(target, *x, nodes)
    for a, b in zip((average.d_Sigma, average.d_m, average.d_q), channel.gradient(target, *x, nodes)[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_linear_head_has_the_closed_form():
    # M = (Q′ − 2m + q)/(2Σ + 1/2), and four nodes are enough for it.
    target, channel, nodes, x = setting(tokens=1)
    assert nodes.shape == (4, 4, 2)
    Sigma, m, q = x
    gap = float(target.score_variance - 2 * m + q)
    average = channel.average(target, *x, nodes)
    np.testing.assert_allclose(jnp.mean(average.potential), gap / (2 * Sigma + 0.5), rtol=1e-12)
    np.testing.assert_allclose(jnp.mean(average.d_q), 1 / (2 * Sigma + 0.5), rtol=1e-12)
    np.testing.assert_allclose(average.divergence, -1 / (Sigma + 0.25), rtol=1e-12)
    np.testing.assert_allclose(jnp.mean(average.test_error), 2 * gap, rtol=1e-12)


@pytest.mark.parametrize("residual", [0.0, 1e-13, 1e-9, 1e-5])
def test_regular_where_the_student_knows_the_labels(residual):
    # q = m²/Q′ at Δ = 0 is perfect recovery: ∂M/∂q is 0/0 there and must join on to its limit, −E tr ∂g/2.
    target, channel, nodes, _ = setting(noise=0.0, nodes=2048)
    m = 0.9 * target.score_variance
    average = channel.average(target, jnp.asarray(0.5), m, m**2 / target.score_variance + residual, nodes)
    np.testing.assert_allclose(jnp.mean(average.d_q), -jnp.mean(average.divergence) / 2, rtol=2e-2)
    jacobian = jax.jacfwd(lambda S: channel.gradient(target, S, m, m**2 / target.score_variance + residual, nodes))
    assert all(jnp.all(jnp.isfinite(row)) for row in jacobian(jnp.asarray(0.5)))


def test_nothing_known_at_the_default_start():
    # Σ = m = q = 0: the prox is the identity and g = −∇ℓ(0).
    target, channel, nodes, _ = setting()
    zero = jnp.asarray(0.0)
    average = channel.average(target, zero, zero, zero, nodes)
    assert all(jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(average))
    np.testing.assert_allclose(average.potential, average.train_loss, rtol=1e-14)
    np.testing.assert_allclose(average.test_error, average.train_loss, rtol=1e-14)
    np.testing.assert_allclose(average.d_q, -average.divergence / 2, rtol=1e-14)


def test_fewer_directions_change_nothing_but_the_error():
    """The shift direction of the softmax carries no information: integrating over it gives the same average."""
    target, channel, nodes, x = setting(nodes=1 << 13)
    full = ERMChannel(_AllDirections(SoftmaxHead(2, 1.0)))
    wide = jnp.asarray(full.nodes(target, 1 << 13, 4))
    assert wide.shape[-1] == nodes.shape[-1] + 2
    a, b = channel.average(target, *x, nodes), full.average(target, *x, wide)
    for name in ("potential", "d_m", "test_error", "squared_jacobian"):
        mine, other = getattr(a, name), getattr(b, name)
        error = np.hypot(np.std(mine, ddof=1), np.std(other, ddof=1)) / 2
        # Fixed seed; 8 standard errors on 6 degrees of freedom is a false alarm in 5000.
        assert abs(np.mean(mine) - np.mean(other)) < 8 * error


class _AllDirections(SquaredLoss):
    @property
    def directions(self):
        return np.eye(self.head.scores)
