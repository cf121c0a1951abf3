"""Checkpoints: what a run has computed so far in a file, and how another process goes on from it.

A file is a line `amp-attention checkpoint 1` (the format), a line of JSON that says what run it belongs to and how long
the rest is, and the rest. It is written whole or not at all, and replaced by the run it belongs to only.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import json
import math
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import Mesh

_NAME, _FORMAT = b"amp-attention checkpoint", 1
_LONGEST_HEADER = 2**20
_BLOCK = 2**24  # bytes of an array hashed at once
_FASTEST_GROWTH = 2  # of the iterations between two looks at the clock
_ABSENT = "nothing"

Tree = TypeVar("Tree")


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or is not what the run could go on from.

    A ValueError, like every argument that is refused: it is the path given that has to be another one.
    """


# --- files ------------------------------------------------------------------------------------------------------------


def write_checkpoint(path: str | os.PathLike, fingerprint: Mapping[str, Any], payload: bytes) -> None:
    """Write a file whole or not at all: on any failure what was there before is there still.

    Args:
        path: file; replaced if it exists.
        fingerprint: what run it belongs to, in JSON's types.
        payload: content.

    Raises:
        CheckpointError: when it cannot be written, for instance on a full disk.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.part")
    try:
        with _removed_on_failure(temporary):
            with open(temporary, "wb") as file:
                file.write(b"%s %d\n" % (_NAME, _FORMAT))
                file.write(_header(fingerprint, payload) + b"\n")
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from None
    with contextlib.suppress(OSError):  # the file is in place; not every file system can make that last at once
        _sync_folder(target.parent)


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _version() -> str:
    try:
        return importlib.metadata.version("amp-attention")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _header(fingerprint: Mapping[str, Any], payload: bytes) -> bytes:
    header = {"fingerprint": dict(fingerprint), "version": _version(), "bytes": len(payload)}
    return _json(header | {"sha256": _checksum(header, payload)})


def _checksum(header: Mapping[str, Any], payload: bytes) -> str:
    """Over the payload and everything else that the header says."""
    checksum = hashlib.sha256(_json(header))
    checksum.update(payload)
    return checksum.hexdigest()


def read_checkpoint(path: str | os.PathLike, fingerprint: Mapping[str, Any]) -> bytes:
    """The payload of a file that belongs to this run; nothing is ever written.

    Args:
        path: file.
        fingerprint: of this run, as it was written.

    Raises:
        CheckpointError: when there is no such file, or it is no checkpoint, of another format or version, truncated,
            damaged, or of another run; says which.
    """
    try:
        with open(path, "rb") as file:
            _check_format(path, file.readline(64))
            line = file.readline(_LONGEST_HEADER)
            payload = file.read()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    if not line.endswith(b"\n"):
        raise CheckpointError(f"{path} is a truncated checkpoint: it ends in its header")
    header = _checked_header(path, line, payload)
    if header["version"] != _version():
        raise CheckpointError(
            f"{path} was written by version {header['version']} of amp-attention, this is version {_version()}"
        )
    _check_belongs(path, header["fingerprint"], json.loads(_json(dict(fingerprint))))
    return payload


def _check_format(path, line: bytes) -> None:
    name, _, number = line.rstrip(b"\n").rpartition(b" ")
    if name != _NAME or not line.endswith(b"\n") or not number.isdigit():
        raise CheckpointError(f"{path} is not a checkpoint of amp-attention")
    if int(number) != _FORMAT:
        raise CheckpointError(f"{path} is a checkpoint of format {int(number)}, this version reads format {_FORMAT}")


def _parsed(line: bytes) -> dict[str, Any] | None:
    """What the header says; None if it is not one."""
    try:
        header = json.loads(line)
    except ValueError:
        return None
    kinds = {"fingerprint": dict, "version": str, "bytes": int, "sha256": str}
    complete = isinstance(header, dict) and set(header) == set(kinds)
    return header if complete and all(isinstance(header[name], kind) for name, kind in kinds.items()) else None


def _checked_header(path, line: bytes, payload: bytes) -> dict[str, Any]:
    """The header of an undamaged checkpoint."""
    header = _parsed(line)
    if header is None:
        raise CheckpointError(f"{path} is a damaged checkpoint: its header cannot be read")
    expected, size = header.pop("sha256"), header["bytes"]
    if len(payload) < size:
        raise CheckpointError(f"{path} is a truncated checkpoint: {len(payload)} of {size} bytes are there")
    if len(payload) > size or _checksum(header, payload) != expected:
        raise CheckpointError(f"{path} is a damaged checkpoint: its content does not fit its checksum")
    return header


def _check_belongs(path, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name in [*expected, *(name for name in stored if name not in expected)]:
        there, here = stored.get(name, _ABSENT), expected.get(name, _ABSENT)
        if there != here:
            raise CheckpointError(f"{path} is a checkpoint of another run: {name} is {there} there and {here} here")


# --- states as bytes --------------------------------------------------------------------------------------------------


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _gathered(array: jax.Array) -> np.ndarray:
    """All of an array that may be divided over the devices of several processes."""
    whole = array.is_fully_addressable
    return np.asarray(array if whole else multihost_utils.process_allgather(array, tiled=True))


def _serialise(file, leaf: Any) -> None:
    if isinstance(leaf, jax.Array):
        array = _gathered(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        np.save(file, array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array)  # bfloat16
    else:
        eqx.default_serialise_filter_spec(file, leaf)


def _deserialise(file, like: Any) -> Any:
    if not isinstance(like, jax.Array):
        return eqx.default_deserialise_filter_spec(file, like)
    data = jax.random.key_data(like) if _is_key(like) else like
    array = np.load(file, allow_pickle=False)
    array = array.view(data.dtype) if data.dtype.kind == "V" else array
    if (array.shape, array.dtype) != (data.shape, data.dtype):
        raise ValueError(f"expected {data.dtype} of shape {data.shape}, found {array.dtype} of shape {array.shape}")
    placed = _placed(array, data)
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(like)) if _is_key(like) else placed


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

    Raises:
        TypeError: for anything else.
    """

    def encode(value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            file = io.BytesIO()
            np.save(file, np.asarray(value), allow_pickle=False)
            return {"array": b64encode(file.getvalue()).decode()}
        if isinstance(value, Mapping):
            return {"entries": [[key, encode(entry)] for key, entry in value.items()]}
        return [encode(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    return _json(encode(document))


def document_from_bytes(data: bytes) -> Any:
    """The record that `document_to_bytes` made the bytes of, with NumPy arrays."""

    def decode(value: Any) -> Any:
        if isinstance(value, dict) and "array" in value:
            return np.load(io.BytesIO(b64decode(value["array"])), allow_pickle=False)[()]
        if isinstance(value, dict):
            return {key: decode(entry) for key, entry in value["entries"]}
        return [decode(entry) for entry in value] if isinstance(value, list) else value

    return decode(json.loads(data))


# --- fingerprints -----------------------------------------------------------------------------------------------------


def digest(tree: Any) -> str:
    """What a pytree is made of in 16 characters, the same in every process: to tell runs apart.

    Arrays count with shape, dtype and content, read in blocks and, where they are divided over devices, part by part;
    random keys with their bits; modules with their kind and all their fields. Functions count by name only. An object
    with a `path` that is a file, as tokens in a file have, counts with its path, size and time of modification.

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
    if isinstance(value, jax.Array) and _is_key(value):
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
        facts = os.stat(path)
        yield f"{os.fspath(path)}:{facts.st_size}:{facts.st_mtime_ns}".encode()


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


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run writes what it has computed, and whether it goes on from what is there.

    Written at the start, so that a path that cannot be written is known at once, then regularly, and at the end. A
    run that goes on where one was interrupted ends with the same numbers, bit by bit, on the same kind of machine with
    the same number of devices; one that had ended returns at once.

    Without `resume` a file that exists is refused before anything is computed. With it a checkpoint of this very run
    (the same problem, data and options) is continued, no file means to start, and any other file is refused and left
    as it is. With several processes the first one reads and writes.

    Args:
        path: file; its folder must exist.
        every: seconds between two writes, > 0; a single iteration is never interrupted.
        steps: iterations between two writes, ≥ 1, in place of `every`.
        resume: go on from the file.

    Raises:
        ValueError: for numbers out of range.
    """

    path: str | os.PathLike
    every: float = 60.0
    steps: int | None = None
    resume: bool = False

    def __post_init__(self):
        number = isinstance(self.every, (int, float, np.number)) and not isinstance(self.every, bool)
        if not number or not math.isfinite(self.every) or self.every <= 0:
            raise ValueError(f"every must be a finite number of seconds > 0, got {self.every!r}")
        whole = isinstance(self.steps, (int, np.integer)) and not isinstance(self.steps, bool)
        if self.steps is not None and (not whole or self.steps < 1):
            raise ValueError(f"steps must be a whole number >= 1, got {self.steps!r}")


def refuse_traced(checkpoint: Checkpoint | None, tree: Any) -> None:
    """A checkpoint needs numbers: under `jit`, `grad` or `vmap` there are none.

    Raises:
        ValueError: naming the argument.
    """
    if checkpoint is not None and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise ValueError("checkpoint must be None under jit, grad or vmap, where there are no numbers to write")


def run_in_bursts(
    checkpoint: Checkpoint,
    fingerprint: Mapping[str, Any],
    start: Callable[[], Tree],
    advance: Callable[[Tree, int], Tree],
    progress: Callable[[Tree], tuple[int, bool]],
) -> Tree:
    """Run an iteration to its end, writing its state on the way.

    Args:
        checkpoint: where and when.
        fingerprint: of the run.
        start: the state before the first iteration.
        advance: (state, k) ↦ the state after k iterations in all, or at the end if that comes first; it must not
            matter in how many calls it gets there.
        progress: state ↦ (iterations so far, whether this is the end).

    Returns:
        The last state.

    Raises:
        CheckpointError: when the file cannot be used or written.
    """
    found = _by_first_process(lambda: _found(checkpoint, fingerprint))
    first = start()
    state = tree_from_bytes(found, first) if found else first
    if not found:
        _save(checkpoint, fingerprint, state)
    taken, ended = progress(state)
    pace = _Pace(checkpoint)
    while not ended:
        state = _where(advance(state, pace.next_look(taken)), first)
        taken, ended = progress(state)
        if pace.due() or ended:
            _save(checkpoint, fingerprint, state)
            pace.written()
    return state


def _where(tree: Tree, like: Tree) -> Tree:
    """The same arrays on the devices of others, which are the same already unless the compiler chose to move them."""

    def place(leaf, other):
        moved = isinstance(leaf, jax.Array) and other.committed and leaf.sharding != other.sharding
        return jax.device_put(leaf, other.sharding) if moved else leaf

    return jax.tree.map(place, tree, like)


def _found(checkpoint: Checkpoint, fingerprint: Mapping[str, Any]) -> bytes:
    """The state to go on from; empty if there is none."""
    if not os.path.lexists(checkpoint.path):
        return b""
    if not checkpoint.resume:
        raise CheckpointError(f"{checkpoint.path} exists; to go on from it, ask to resume, else give another path")
    return read_checkpoint(checkpoint.path, fingerprint)


def _save(checkpoint: Checkpoint, fingerprint: Mapping[str, Any], state: Any) -> None:
    payload = tree_to_bytes(state)
    _by_first_process(lambda: write_checkpoint(checkpoint.path, fingerprint, payload))


class _Pace:
    """When to write, and how many iterations to do before the next look at the clock.

    The first burst is a single iteration and compiles; the time of the later ones is that of iterations, and bursts
    grow until one fills what is left of the interval. All processes do as the first one does.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.every, self.steps = float(checkpoint.every), checkpoint.steps
        self.burst = 1 if checkpoint.steps is None else int(checkpoint.steps)
        self.bursts, self.rate = 0, None
        self.began = self.wrote = time.monotonic()

    def next_look(self, taken: int) -> int:
        """The number of iterations in all after which to look again."""
        self.began = time.monotonic()
        if self.steps is None and self.rate is not None:
            affordable = (self.every - (self.began - self.wrote)) * self.rate
            self.burst = max(1, int(min(affordable, _FASTEST_GROWTH * self.burst)))
        return taken + _agreed(self.burst)

    def due(self) -> bool:
        """Whether to write now, after a burst."""
        now = time.monotonic()
        self.rate = self.burst / max(now - self.began, 1e-9) if self.bursts else None
        self.bursts += 1
        return bool(_agreed(int(self.steps is not None or now - self.wrote >= self.every)))

    def written(self) -> None:
        """Start the next interval."""
        self.wrote = time.monotonic()


class PointStore:
    """The finished points of a sweep in a folder, one file each: an interrupted sweep goes on with the next one.

    ```python
    store = PointStore("sweep", {"d": 100, "seed": 0}, resume=True)
    for name, problem in problems.items():
        stored = store.get(name)
        record = compute(problem) if stored is None else document_from_bytes(stored)
        if stored is None:
            store.put(name, document_to_bytes(record))
    ```

    The folder is claimed before anything is computed, by a file with the fingerprint of the sweep. As for `Checkpoint`,
    without `resume` a folder that holds a sweep is refused, and with it that of another sweep.

    Args:
        folder: created if needed.
        fingerprint: of the sweep, in JSON's types: whatever its points depend on besides their names.
        resume: go on from what is there.

    Raises:
        CheckpointError: when the folder belongs to another sweep or cannot be written.
    """

    def __init__(self, folder: str | os.PathLike, fingerprint: Mapping[str, Any], resume: bool = False):
        self.folder, self.fingerprint = Path(folder), dict(fingerprint)
        checkpoint = Checkpoint(self.folder / "sweep.checkpoint", resume=resume)
        _by_first_process(lambda: self._claim(checkpoint))

    def _claim(self, checkpoint: Checkpoint) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written: {error.strerror or error}") from None
        _found(checkpoint, self.fingerprint)
        write_checkpoint(checkpoint.path, self.fingerprint, b"")

    def _file(self, name: str) -> Path:
        return self.folder / f"{digest(name)}.point"

    def _belongs(self, name: str) -> dict[str, Any]:
        return self.fingerprint | {"point": name}

    def _read(self, name: str) -> bytes | None:
        file = self._file(name)
        return read_checkpoint(file, self._belongs(name)) if os.path.lexists(file) else None

    def get(self, name: str) -> bytes | None:
        """What was put under this name; None if nothing was.

        Raises:
            CheckpointError: when its file is damaged or another's.
        """
        stored = _by_first_process(lambda: _marked(self._read(name)))
        return stored[1:] if stored else None

    def put(self, name: str, payload: bytes) -> None:
        """Store one point; another one of the same name is replaced.

        Raises:
            CheckpointError: when the file cannot be written, or is not one of this sweep.
        """

        def write() -> None:
            self._read(name)  # raises where the file is not ours
            write_checkpoint(self._file(name), self._belongs(name), payload)

        _by_first_process(write)


def _marked(payload: bytes | None) -> bytes:
    """Bytes that tell an empty payload from none."""
    return b"" if payload is None else b"+" + payload


# --- several processes ------------------------------------------------------------------------------------------------


def _agreed(number: int) -> int:
    """The first process's number, in all of them."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def _from_first_process(data: bytes) -> bytes:
    size = _agreed(len(data))
    if size == 0:
        return b""
    mine = np.frombuffer(data, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine)).astype(np.uint8).tobytes()


def _by_first_process(action: Callable[[], bytes | None]) -> bytes:
    """What an action gives in the first process, the only one that does it; its failure is one of all processes."""
    if jax.process_count() == 1:
        return action() or b""
    answer, failure = b"", ""
    if jax.process_index() == 0:
        try:
            answer = action() or b""
        except CheckpointError as error:
            failure = str(error)
    failure = _from_first_process(failure.encode()).decode()
    if failure:
        raise CheckpointError(failure)
    return _from_first_process(answer)
