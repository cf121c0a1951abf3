"""What tells one run from another: digests of problems, data and options."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from amp_attention.checkpoints._trees import is_key

_BLOCK = 2**24  # bytes of an array hashed at once


def file_digest(path: str | os.PathLike) -> str:
    """What a file holds in 16 characters, read in blocks; neither its name nor its times count.

    Args:
        path: file.

    Raises:
        OSError: when it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def digest(tree: Any) -> str:
    """What a pytree is made of in 16 characters, the same in every process: to tell runs apart.

    Arrays count with shape, dtype and content, read in blocks and, where they are divided over devices, part by part;
    random keys with their bits; modules with their kind and all their fields. Functions count by name only. An object
    with a `path` that is a file, as tokens in a file have, counts with its path and the file's content.

    Args:
        tree: concrete; on several processes all must call it with the same.
    """
    total = hashlib.sha256()
    for part in _parts(tree):
        total.update(part)
    return total.hexdigest()[:16]


def _parts(value: Any) -> Iterator[bytes]:
    kind = type(value)
    yield f"<{kind.__module__}.{kind.__qualname__}>".encode()
    if isinstance(value, jax.Array) and is_key(value):
        yield str(jax.random.key_impl(value)).encode()
        yield from _array_parts(jax.random.key_data(value))
    elif isinstance(value, (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)):
        yield from _array_parts(value)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords))
    elif isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif isinstance(value, Mesh):
        yield repr(dict(value.shape)).encode()
    elif isinstance(value, Mapping):
        yield from _sequence_parts([entry for item in value.items() for entry in item])
    elif isinstance(value, (list, tuple)):
        yield from _sequence_parts(value)
    elif dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        yield from _sequence_parts([(name, getattr(value, name, None)) for name in fields])
        yield from _file_parts(getattr(value, "path", None))
    elif isinstance(value, (str, bytes, bool, int, float, complex, np.dtype)):
        yield repr(value).encode()
    elif not jax.tree_util.all_leaves([value]):
        yield from _sequence_parts(jax.tree.leaves(value))


def _sequence_parts(values: Sequence[Any]) -> Iterator[bytes]:
    yield b"%d:" % len(values)
    for value in values:
        yield from _parts(value)


def _file_parts(path: Any) -> Iterator[bytes]:
    if isinstance(path, (str, os.PathLike)) and os.path.isfile(path):
        yield f"{os.fspath(path)}:{file_digest(path)}".encode()


def _array_parts(array: Any) -> Iterator[bytes]:
    yield f"{array.dtype}{tuple(array.shape)}".encode()
    if isinstance(array, jax.Array) and len(array.sharding.device_set) > 1:
        yield _divided(array)
    elif not isinstance(array, jax.ShapeDtypeStruct):
        yield from _blocks(array)


def _blocks(array: Any) -> Iterator[bytes]:
    """The content, a few rows at a time."""
    if array.ndim == 0 or array.size == 0:
        yield np.asarray(array).tobytes()
        return
    rows = max(1, _BLOCK * len(array) // array.nbytes)
    elsewhere = isinstance(array, jax.Array) and array.nbytes > _BLOCK and next(iter(array.devices())).platform != "cpu"
    host = None if elsewhere else np.asarray(array)  # of an array in the CPU's memory not a copy
    for start in range(0, len(array), rows):
        size = min(rows, len(array) - start)
        part = host[start : start + size] if host is not None else _rows(array, np.int32(start), size)
        yield np.asarray(part).tobytes()


@functools.partial(jax.jit, static_argnums=2)
def _rows(array, start, size: int):
    return jax.lax.dynamic_slice_in_dim(array, start, size)


def _divided(array: jax.Array) -> bytes:
    """One checksum for each device that holds a part of its own, of all processes."""
    order = {device: i for i, device in enumerate(sorted(array.sharding.device_set, key=lambda device: device.id))}
    table = np.zeros((len(order), hashlib.sha256().digest_size), np.uint8)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            checksum = hashlib.sha256()
            for block in _blocks(shard.data):
                checksum.update(block)
            table[order[shard.device]] = np.frombuffer(checksum.digest(), np.uint8)
    if not array.is_fully_addressable:
        table = np.asarray(multihost_utils.process_allgather(table)).sum(axis=0).astype(np.uint8)
    return table.tobytes()


def run_fingerprint(engine: str, dtype: Any, **entries: Any) -> dict[str, Any]:
    """A fingerprint of a run: what computes it, and what from.

    Args:
        engine: name of what runs.
        dtype: of the computation.
        **entries: plain numbers and text are written as they are, of anything else its `digest`.
    """
    where = {"engine": engine, "jax": jax.__version__, "platform": jax.default_backend(), "dtype": str(np.dtype(dtype))}
    plain = (str, bool, int, float, type(None))
    return where | {name: value if isinstance(value, plain) else digest(value) for name, value in entries.items()}
