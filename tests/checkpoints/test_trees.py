"""States and documents as bytes, and back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import RESULTS
from amp_attention.checkpoints import (
    CheckpointError,
    document_from_bytes,
    document_to_bytes,
    tree_from_bytes,
    tree_to_bytes,
)
from amp_attention.data import device_mesh, generate_data, replicated
from amp_attention.problem import attention_problem


class State(eqx.Module):
    array: jax.Array
    key: jax.Array
    legacy: jax.Array
    result: RESULTS
    half: jax.Array
    host: np.ndarray
    count: int
    name: str = eqx.field(static=True)


def a_state(seed):
    """One of every kind of leaf; NaN with a payload, infinities and signed zeros among the numbers."""
    special = np.array([np.nan, -np.inf, -0.0, 5e-324, 1 + seed], np.float64)
    special.view(np.int64)[0] += seed
    result = RESULTS.where(jnp.asarray(seed == 1), RESULTS.diverged, RESULTS.successful)
    key = jax.random.split(jax.random.key(seed, impl="rbg"), 3)
    half = jnp.asarray(seed / 3, jnp.bfloat16)
    return State(jnp.array(special), key, jax.random.PRNGKey(seed), result, half, special, seed, "fixed")


def test_every_kind_of_leaf_survives(same_bits):
    state = a_state(1)
    back = tree_from_bytes(tree_to_bytes(state), a_state(0))
    arrays = lambda s: (s.array, s.key, s.legacy, s.half, s.host)  # noqa: E731
    assert same_bits(arrays(back), arrays(state)) and not same_bits(arrays(back), arrays(a_state(0)))
    assert (back.result == RESULTS.diverged) and (back.count, back.name) == (1, "fixed")
    assert jax.random.key_impl(back.key) == jax.random.key_impl(state.key)
    np.testing.assert_array_equal(jax.random.bits(back.key[2]), jax.random.bits(state.key[2]))


def test_arrays_divided_over_devices_come_back_where_they_were(same_bits):
    data, _ = generate_data(jax.random.key(0), attention_problem(), 5, 10, mesh=device_mesh(4))
    tree = (data.lanes(3) + 1, data.X, replicated(jnp.arange(3.0), data.mesh))
    back = tree_from_bytes(tree_to_bytes(tree), jax.tree.map(jnp.zeros_like, tree))
    assert same_bits(back, tree)
    like = jax.tree.map(jnp.zeros_like, tree)
    assert [x.sharding for x in back] == [x.sharding for x in like]


@pytest.mark.parametrize(
    "like", [(jnp.zeros(4),), (jnp.zeros(3, jnp.float32),), (jnp.zeros(3), jnp.zeros(3)), (), (jax.random.key(0),)]
)
def test_a_state_of_another_kind_is_refused(like):
    with pytest.raises(CheckpointError, match="the state in the checkpoint is not one of this run"):
        tree_from_bytes(tree_to_bytes((jnp.zeros(3),)), like)


NUMBERS = [0.1 + 0.2, -0.0, 5e-324, np.inf, -np.nan, True, 2**53 + 1]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_single_numbers_survive(same_bits, number, kind):
    value = kind(number)
    back = document_from_bytes(document_to_bytes([value, np.float32(number)]))
    assert same_bits(back, [value, np.float32(number)]) and isinstance(back[0], jax.Array) == (kind is jnp.asarray)


def test_records_survive():
    record = {
        "q": 0.1 + 0.2,
        "unknown": float("nan"),
        "repeats": [{"result": "diverged", "message": "Γ ≤ 0", "stable": None, "n": 3}, (1, True)],
        "array": {"S": np.arange(6.0).reshape(2, 3)[:, ::-1], "single": np.float32(0.1), "jax": jnp.arange(3)},
    }
    back = document_from_bytes(document_to_bytes(record))
    assert back["q"] == record["q"] and np.isnan(back["unknown"])
    assert back["repeats"] == [record["repeats"][0], [1, True]]
    np.testing.assert_array_equal(back["array"]["S"], record["array"]["S"])
    assert back["array"]["single"] == np.float32(0.1) and back["array"]["single"].dtype == np.float32
    np.testing.assert_array_equal(back["array"]["jax"], [0, 1, 2])
    assert [isinstance(entry, jax.Array) for entry in back["array"].values()] == [False, False, True]
    with pytest.raises(TypeError):
        document_to_bytes({"function": len})
