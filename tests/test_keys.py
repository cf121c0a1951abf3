"""Random keys: none is used twice, and what they draw does not depend on where."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.amp import solve_amp
from amp_attention.data import device_mesh, generate_data
from amp_attention.erm import train
from amp_attention.generalisation import measure_test_error
from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import FiniteLaw, Semicircle

PROBLEM, D, N = attention_problem(0.5, 0.1), 7, 30


def test_no_key_is_used_twice():
    """Data, AMP, training and the test error of one instance, each with a key of its own."""
    with jax.debug_key_reuse(True):
        keys = jax.random.split(jax.random.key(0), 3)
        data, S0 = generate_data(keys[0], PROBLEM, D, N)
        found = solve_amp(PROBLEM, data, S0=S0, max_steps=50)
        trained = train(PROBLEM, data, key=keys[1], S0=S0, max_steps=5)
        error, _ = measure_test_error(PROBLEM, found.value.S, S0, keys[2], samples=100)
    assert np.all(np.isfinite(found.value.S)) and np.all(np.isfinite(trained.value.S)) and np.isfinite(error)


def test_the_check_of_keys_sees_one_that_is():
    """What makes the test above one of the package."""
    with jax.debug_key_reuse(True):
        key = jax.random.key(0)
        generate_data(key, PROBLEM, D, N)
        with pytest.raises(jax.errors.KeyReuseError):
            generate_data(key, PROBLEM, D, N)


@pytest.mark.parametrize("law", [None, Semicircle(1.0), FiniteLaw([0.1, 1.0, 2.0])], ids=["wishart", "goe", "list"])
def test_data_do_not_depend_on_jit_or_devices(law):
    problem = attention_problem(law=law)
    draw = lambda key: generate_data(key, problem, D, N)  # noqa: E731
    (data, S0), (traced, S0_traced) = draw(jax.random.key(3)), eqx.filter_jit(draw)(jax.random.key(3))
    four, S0_four = generate_data(jax.random.key(3), problem, D, N, mesh=device_mesh(4))
    for other, S0_other in ((traced, S0_traced), (four, S0_four)):
        np.testing.assert_array_equal(other.X[:N], data.X)
        np.testing.assert_allclose(S0_other, S0, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(other.y[:N], data.y, rtol=1e-12)  # the products behind scores may round otherwise


def test_a_test_error_does_not_depend_on_jit_or_on_the_number_of_chunks():
    _, S0 = generate_data(jax.random.key(3), PROBLEM, D, N)
    measure = lambda chunk: measure_test_error(PROBLEM, S0 / 2, S0, jax.random.key(4), 120, chunk)  # noqa: E731
    whole = measure(120)
    for other in (measure(40), jax.jit(lambda: measure(120))()):
        np.testing.assert_allclose(jnp.stack(other), jnp.stack(whole), rtol=1e-10)
