"""Implicit derivatives against a root in closed form, in every mode, to second order; NaN where not to be had."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.numerics.implicit import implicit_root, trusted


def equations(y, args):
    """y0² = a and y0 y1 = b, whose root is (√a, b/√a)."""
    a, b = args
    return jnp.stack([y[0] ** 2 - a, y[0] * y[1] - b])


def root(a, b):
    solution = jax.lax.stop_gradient(jnp.stack([jnp.sqrt(a), b / jnp.sqrt(a)]))
    return implicit_root(equations, solution, (a, b))


def closed_form(a, b):
    return jnp.stack([jnp.sqrt(a), b / jnp.sqrt(a)])


ARGUMENTS = (jnp.asarray(2.5), jnp.asarray(-0.7))


@pytest.mark.parametrize(
    "transform", [jax.jacfwd, jax.jacrev, jax.hessian, lambda f, n: jax.jacrev(jax.jacfwd(f, n), n)]
)
def test_derivatives_are_those_of_the_root(transform):
    both = (0, 1)
    found, wanted = transform(root, both)(*ARGUMENTS), transform(closed_form, both)(*ARGUMENTS)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-14)


def test_batches_and_jit():
    a = jnp.linspace(1.0, 3.0, 4)
    found = jax.jit(jax.vmap(jax.grad(lambda a: root(a, ARGUMENTS[1])[1])))(a)
    np.testing.assert_allclose(found, -ARGUMENTS[1] / 2 / a**1.5, rtol=1e-13)


@pytest.mark.parametrize("valid", [True, False])
def test_untrusted_numbers_keep_their_value_and_lose_their_derivative(valid):
    def value(x, weight):
        tree = trusted({"x": x, "scale": weight}, jnp.asarray(valid))
        return jnp.sum(tree["x"] ** 2) * jax.lax.stop_gradient(tree["scale"])

    x, weight = jnp.asarray([1.0, 2.0]), jnp.asarray(3.0)
    assert value(x, weight) == 15
    backward, forward = jax.grad(value)(x, weight), jax.jacfwd(value)(x, weight)
    second = jax.hessian(value)(x, weight)
    for derivative, wanted in ((backward, 6 * x), (forward, 6 * x), (second, 6 * jnp.eye(2))):
        np.testing.assert_allclose(derivative, wanted if valid else jnp.full_like(wanted, jnp.nan))


def test_a_number_that_does_not_enter_has_no_plausible_zero_derivative():
    def value(x, other):
        tree = trusted((x, other), jnp.asarray(False))
        return tree[0] + 0 * tree[1]

    gradient = eqx.filter_grad(lambda pair: value(*pair))((jnp.asarray(1.0), jnp.asarray(2.0)))
    assert all(np.isnan(gradient))
