"""What a run has computed as bytes: states, which are pytrees, and documents of names, numbers and arrays."""

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from amp_attention.checkpoints._files import CheckpointError

Tree = TypeVar("Tree")


def is_key(leaf: Any) -> bool:
    """Whether this is an array of random keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _gathered(array: jax.Array) -> np.ndarray:
    """All of an array that may be divided over the devices of several processes."""
    whole = array.is_fully_addressable
    return np.asarray(array if whole else multihost_utils.process_allgather(array, tiled=True))


def _serialise(file, leaf: Any) -> None:
    if isinstance(leaf, jax.Array):
        array = _gathered(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        np.save(file, array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array)  # bfloat16
    else:
        eqx.default_serialise_filter_spec(file, leaf)


def _deserialise(file, like: Any) -> Any:
    if not isinstance(like, jax.Array):
        return eqx.default_deserialise_filter_spec(file, like)
    data = jax.random.key_data(like) if is_key(like) else like
    array = np.load(file, allow_pickle=False)
    array = array.view(data.dtype) if data.dtype.kind == "V" else array
    if (array.shape, array.dtype) != (data.shape, data.dtype):
        raise ValueError(f"expected {data.dtype} of shape {data.shape}, found {array.dtype} of shape {array.shape}")
    placed = _placed(array, data)
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(like)) if is_key(like) else placed


def _placed(array: np.ndarray, like: jax.Array) -> jax.Array:
    """On the devices where `like` is, divided as it is."""
    if not like.committed:
        return jnp.array(array)  # a copy: the CPU's arrays may otherwise share the memory of a NumPy array
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: array[index])


def tree_to_bytes(tree: Any) -> bytes:
    """The arrays, numbers and random keys of a pytree, bit by bit.

    Arrays divided over the devices of several processes are gathered; all of these processes must call it.

    Args:
        tree: a pytree of concrete arrays; leaves that are neither arrays nor numbers are left out.
    """
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, tree, filter_spec=_serialise)
    return file.getvalue()


def tree_from_bytes(data: bytes, like: Tree) -> Tree:
    """The pytree that `tree_to_bytes` made the bytes of.

    Args:
        data: the bytes.
        like: a pytree of the same structure, shapes and dtypes, whose arrays lie where those of the result shall.

    Raises:
        CheckpointError: when the bytes are of another kind of pytree.
    """
    file = io.BytesIO(data)
    try:
        tree = eqx.tree_deserialise_leaves(file, like, filter_spec=_deserialise)
    except (RuntimeError, ValueError, EOFError) as error:  # Equinox raises the first, from the others
        reason = " ".join(str(error.__cause__ or error).split())
        raise CheckpointError(f"the state in the checkpoint is not one of this run: {reason}") from None
    if file.read(1):
        raise CheckpointError("the state in the checkpoint is not one of this run: there is more than expected")
    return tree


def document_to_bytes(document: Any) -> bytes:
    """A record of names, numbers (NaN included), text, lists and arrays, bit by bit; tuples become lists.

    Args:
        document: dictionaries with text keys, lists, tuples, Python's scalars, NumPy's and JAX's arrays and scalars.

    Returns:
        One line, without its end.

    Raises:
        TypeError: for anything else.
    """

    def encode(value: Any) -> Any:
        if isinstance(value, jax.Array):
            return {"jax": _array_to_json(np.asarray(value))}
        if isinstance(value, (np.ndarray, np.generic)):
            return {"array": _array_to_json(np.asarray(value))}
        if isinstance(value, Mapping):
            return {"entries": [[key, encode(entry)] for key, entry in value.items()]}
        return [encode(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    return json.dumps(encode(document), ensure_ascii=False).encode()


def document_from_bytes(data: bytes) -> Any:
    """The record that `document_to_bytes` made the bytes of; NumPy's arrays of no dimension become scalars."""

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "entries":
            return {key: decode(entry) for key, entry in content}
        array = _array_from_json(content)
        return jnp.array(array) if kind == "jax" else array

    return decode(json.loads(data))


def _array_to_json(array: np.ndarray) -> str | list:
    """A finite number as itself beside its dtype, which is much shorter; anything else as a .npy file."""
    if array.ndim == 0 and array.dtype.kind in "biuf" and array.itemsize <= 8 and np.isfinite(array):
        return [array.dtype.name, array.item()]
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return b64encode(file.getvalue()).decode()


def _array_from_json(content: str | list) -> Any:
    if isinstance(content, list):
        name, value = content
        return np.dtype(name).type(value)
    return np.load(io.BytesIO(b64decode(content)), allow_pickle=False)[()]
