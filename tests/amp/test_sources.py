"""AMP and training on stored, redrawn and mapped tokens, on one device and on four."""

import jax
import numpy as np
import pytest

from amp_attention.amp import solve_amp
from amp_attention.data import device_mesh, generate_data, load_npy, shard
from amp_attention.erm import train
from amp_attention.problem import attention_problem

PROBLEM, KEY, D, N = attention_problem(), jax.random.key(1), 16, 301


@pytest.fixture(scope="module")
def one():
    data, S0 = generate_data(KEY, PROBLEM, D, N)
    return data, S0, solve_amp(PROBLEM, data, S0=S0)


def close(found, expected, n):
    """The same run to rounding: as many steps, the same numbers."""
    assert bool(found.successful) and found.stats["iterations"] == expected.stats["iterations"]
    for name in ("S", "V", "Gamma", "objective", "train_error", "q", "m", "zero_fraction"):
        np.testing.assert_allclose(getattr(found.value, name), getattr(expected.value, name), atol=1e-10)
    np.testing.assert_allclose(found.value.state.g[:, :n], expected.value.state.g, atol=1e-10)


def test_sources_on_one_device(one, tmp_path):
    data, S0, expected = one
    np.save(tmp_path / "X.npy", data.X)
    np.save(tmp_path / "y.npy", data.y)
    drawn, _ = generate_data(KEY, PROBLEM, D, N, stored=False)
    for other in (drawn, load_npy(tmp_path / "X.npy", tmp_path / "y.npy")):
        close(solve_amp(PROBLEM, other, S0=S0), expected, N)


@pytest.mark.parametrize("stored", [True, False])
def test_four_devices(one, stored):
    _, S0, expected = one
    four, _ = generate_data(KEY, PROBLEM, D, N, stored=stored, mesh=device_mesh(4))
    close(solve_amp(PROBLEM, four, S0=S0), expected, N)


def test_derivatives_on_four_devices(one):
    data, _, _ = one
    four = shard(data, device_mesh(4))
    error = lambda lam, data: solve_amp(attention_problem(lam=lam), data).value.train_error  # noqa: E731
    expected = jax.grad(error)(0.05, data)
    np.testing.assert_allclose(jax.grad(error)(0.05, four), expected, rtol=1e-8)
    np.testing.assert_allclose(jax.jvp(lambda lam: error(lam, four), (0.05,), (1.0,))[1], expected, rtol=1e-8)


def test_many_tokens_on_as_many_devices_as_there_are():
    """T = 5, whose systems of K = 15 are solved by LAPACK, on every device at once."""
    problem = attention_problem(lam=0.3, tokens=5)
    data, _ = generate_data(KEY, problem, 8, 40)
    expected, found = solve_amp(problem, data), solve_amp(problem, shard(data, device_mesh(4)))
    assert bool(found.successful)
    np.testing.assert_allclose(found.value.S, expected.value.S, atol=1e-9)


def test_training_on_four_devices(one):
    data, _, _ = one
    four, expected = shard(data, device_mesh(4)), train(PROBLEM, data, key=KEY)
    found = train(PROBLEM, four, key=KEY)
    assert bool(found.successful)
    np.testing.assert_allclose(found.value.objective, expected.value.objective, rtol=1e-10)
