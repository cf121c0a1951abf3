"""The loop over chunks of samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.data import fold_chunks


@pytest.mark.parametrize("n", [1, 6, 7, 8, 13, 14, 15, 20])
def test_every_sample_is_counted_once(n):
    x = jnp.arange(n, dtype=float) + 1

    def body(total, chunk):
        part = chunk.take(x)
        return total + jnp.sum(chunk.masked(part)), {"double": 2 * part, "row": part[None]}

    total, outputs = fold_chunks(body, jnp.zeros(()), n, chunk=7)
    assert total == n * (n + 1) / 2
    np.testing.assert_array_equal(outputs["double"], 2 * x)
    np.testing.assert_array_equal(outputs["row"], x[None])


def test_masked_drops_whatever_is_stored_there():
    """Samples met twice contribute nothing the second time, even a NaN."""
    x = jnp.ones(10).at[3].set(jnp.nan)
    body = lambda total, chunk: (total + jnp.isnan(chunk.masked(chunk.take(x))).sum(), None)  # noqa: E731
    assert fold_chunks(body, jnp.int64(0), 10, chunk=7)[0] == 1


def test_no_array_is_larger_than_its_inputs_or_a_chunk():
    x = jnp.ones((1000, 3))

    def total(x):
        body = lambda s, chunk: (s + jnp.sum(chunk.masked(jnp.sum(jnp.exp(chunk.take(x)), axis=1))), None)  # noqa: E731
        return fold_chunks(body, jnp.zeros(()), 1000, chunk=90)[0]

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            for out in equation.outvars:
                yield out.aval.size
            for parameter in equation.params.values():
                for sub in jax.tree.leaves(parameter, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
                    inner = getattr(sub, "jaxpr", sub)
                    if hasattr(inner, "eqns"):
                        yield from sizes(inner)

    assert max(sizes(jax.make_jaxpr(total)(x).jaxpr)) <= 84 * 3


def test_derivatives_pass_through():
    x = jnp.linspace(0, 1, 11)

    def f(s):
        body = lambda total, chunk: (total + jnp.sum(chunk.masked(jnp.sin(s * chunk.take(x)))), None)  # noqa: E731
        return fold_chunks(body, jnp.zeros(()), 11, chunk=4)[0]

    expected = jnp.sum(x * jnp.cos(0.7 * x))
    np.testing.assert_allclose(jax.grad(f)(0.7), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jvp(f, (0.7,), (1.0,))[1], expected, rtol=1e-12)
