"""Samples divided over the four devices that every test process has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.data import device_mesh, generate_data, replicated, scores, shard, sum_over_samples
from amp_attention.problem import attention_problem

N, D = 1203, 7  # no multiple of four
PROBLEM, KEY = attention_problem(), jax.random.key(4)
MESH = device_mesh(4)


@pytest.fixture(scope="module")
def one():
    return generate_data(KEY, PROBLEM, D, N)


def test_more_devices_than_there_are():
    assert device_mesh().size == len(jax.devices()) == 4
    with pytest.raises(ValueError, match="devices must be at most 4, the number of cpu devices, got 5"):
        device_mesh(5)
    with pytest.raises(ValueError, match="devices must be a whole number >= 1, got 0"):
        device_mesh(0)


def test_the_same_data_on_any_number_of_devices(one):
    data, S0 = one
    drawn, drawn_S0 = generate_data(KEY, PROBLEM, D, N, mesh=MESH)
    np.testing.assert_array_equal(drawn_S0, S0)
    for four in (drawn, shard(data, MESH)):
        assert four.n == N and four.y.shape[0] == 1204 and four.alpha == data.alpha
        assert {shard.data.shape[0] for shard in four.X.addressable_shards} == {301}
        np.testing.assert_array_equal(four.X[:N], data.X)
        np.testing.assert_allclose(four.y[:N], data.y, rtol=1e-13)  # the products behind scores may round otherwise


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("chunk", [None, 100])
def test_sums_and_outputs_are_those_of_one_device(one, stored, chunk):
    data, S0 = one
    four, _ = generate_data(KEY, PROBLEM, D, N, mesh=MESH, stored=stored)

    def body(S, samples):
        z = scores(S, samples.X)
        return (jnp.sum(samples.masked(z**2)), jnp.sum(samples.masked(jnp.ones_like(z)))), z

    (squares, count), z = sum_over_samples(body, S0, data, chunk=chunk)
    (squares4, count4), z4 = sum_over_samples(body, replicated(S0, MESH), four, chunk=chunk)
    assert count == count4 == 3 * N
    np.testing.assert_allclose(squares4, squares, rtol=1e-13)
    np.testing.assert_allclose(z4[:, :N], z, rtol=1e-12, atol=1e-13)


def test_derivatives_are_those_of_one_device(one):
    data, S0 = one
    four = shard(data, MESH)

    def energy(S, data):
        body = lambda S, samples: (jnp.sum(samples.masked(jnp.sin(scores(S, samples.X)))), ())  # noqa: E731
        return sum_over_samples(body, S, data)[0]

    S4 = replicated(S0, MESH)
    np.testing.assert_allclose(jax.grad(energy)(S4, four), jax.grad(energy)(S0, data), rtol=1e-10, atol=1e-12)
    forward = jax.jvp(lambda S: energy(S, four), (S4,), (S4,))[1]
    np.testing.assert_allclose(forward, jax.jvp(lambda S: energy(S, data), (S0,), (S0,))[1], rtol=1e-12)


def test_lanes_lie_where_their_samples_do():
    four, _ = generate_data(KEY, PROBLEM, D, N, mesh=MESH, stored=False)
    lanes = four.lanes(3)
    assert lanes.shape == (3, 1204) and {shard.data.shape for shard in lanes.addressable_shards} == {(3, 301)}
