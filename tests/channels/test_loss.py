"""Derivatives of the losses in the scores."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.channels import AbstractLoss, SquaredLoss
from amp_attention.heads import SoftmaxHead


class Doubled(SquaredLoss):
    """A subclass whose value is another one."""

    def __call__(self, z, y):
        return 2 * super().__call__(z, y)

    def values(self, z, y):
        return 2 * super().values(z, y)


@pytest.mark.parametrize("tokens", [2, 3, 5])
def test_closed_form_is_the_derivative(tokens):
    loss = SquaredLoss(SoftmaxHead(tokens, 1.7))
    keys = jax.random.split(jax.random.key(0))
    z, w = jax.random.normal(keys[0], (2, loss.head.scores, 6))
    y = loss.head(w)
    closed = loss.derivatives(z, y)
    plain = eqx.filter_jit(AbstractLoss.derivatives)(loss, z, y)
    np.testing.assert_allclose(closed.values, plain.values, rtol=1e-13)
    np.testing.assert_allclose(closed.gradient, plain.gradient, atol=1e-14)
    np.testing.assert_allclose(closed.hessian, plain.hessian, atol=1e-14)


def test_a_subclass_has_its_own_derivatives():
    head = SoftmaxHead(2, 1.0)
    z = jax.random.normal(jax.random.key(1), (3, 4))
    y = head(-z)
    one, two = SquaredLoss(head).derivatives(z, y), Doubled(head).derivatives(z, y)
    np.testing.assert_allclose(two.gradient, 2 * one.gradient, rtol=1e-12)
    np.testing.assert_allclose(two.hessian, 2 * one.hessian, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("beta", [1e3, 1e6])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_finite_and_hard_at_low_temperature(beta, dtype):
    """Ties, gaps of 1e3 between scores, and labels at either corner: nothing overflows, and the hard limit is right."""
    head = SoftmaxHead(2, jnp.asarray(beta, dtype))
    z = jnp.asarray([[0.0, 1e3, -1e3, 1e-9, 1.0], [0.0, 0.0, 0.0, 0.0, 2.0], [0.0, 1e3, 1e3, 0.0, 5.0]], dtype)
    y = head(jnp.flip(z, axis=1))
    found = SquaredLoss(head).derivatives(z, y)
    for part in jax.tree.leaves(found):
        assert part.dtype == dtype and jnp.all(jnp.isfinite(part))
    h = 2**0.5 * z[0] - z[1]  # of the first row: h_11 − h_12
    hard = np.where(np.abs(h) * beta > 1e3, h > 0, np.nan)
    known = ~np.isnan(hard)
    np.testing.assert_array_equal(np.asarray(head(z))[0, 0][known], hard[known])
    np.testing.assert_allclose(head(z)[0, 0, 0], 0.5)  # a tie
    project = head.project(z, y)
    assert jnp.all(jnp.isfinite(project))
