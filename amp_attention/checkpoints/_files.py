"""Checkpoint files: written whole or not at all, and refused where they do not belong to the run.

A file is a line `amp-attention checkpoint 1` (the format), a line of JSON that says what run it belongs to and how long
the rest is, and the rest.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

_NAME, _FORMAT = b"amp-attention checkpoint", 1
_LONGEST_HEADER = 2**20
_ABSENT = object()
_MOST_SHOWN = 3  # differences between two runs
_LONGEST_LIST = 6


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or is not what the run could go on from.

    A ValueError, like every argument that is refused: it is the path given that has to be another one.
    """


class CheckpointWriteError(CheckpointError):
    """A checkpoint cannot be written, for instance on a full disk."""


def write_checkpoint(path: str | os.PathLike, fingerprint: Mapping[str, Any], payload: bytes) -> None:
    """Write a file whole or not at all: on any failure what was there before is there still.

    Args:
        path: file; replaced if it exists.
        fingerprint: what run it belongs to, in JSON's types.
        payload: content.

    Raises:
        CheckpointWriteError: when it cannot be written, for instance on a full disk.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.part")
    try:
        with _removed_on_failure(temporary):
            with _written_alone(path, temporary) as file:
                file.write(b"%s %d\n" % (_NAME, _FORMAT))
                file.write(_header(fingerprint, payload) + b"\n")
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
    except OSError as error:
        raise CheckpointWriteError(f"{path} cannot be written: {error.strerror or error}") from None
    with contextlib.suppress(OSError):  # the file is in place; not every file system can make that last at once
        _sync_folder(target.parent)


@contextlib.contextmanager
def _written_alone(path: str | os.PathLike, temporary: Path) -> Iterator[IO[bytes]]:
    """The temporary file, locked where the system can: two processes must not mix what they write."""
    with open(temporary, "ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = os.fstat(file.fileno()).st_ino == os.stat(temporary).st_ino  # or it is in place by now
            except (BlockingIOError, FileNotFoundError):
                alone = False
            except OSError:  # a file system without locks
                alone = True
            if not alone:
                raise CheckpointWriteError(f"{path} is being written by another process")
        file.truncate(0)
        yield file


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointWriteError:  # the file is another process's
        raise
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
        fingerprint: of this run, as it was written. Entries of `files`, if there is one, are paths with digests of what
            the run reads from them.

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
    if stored == expected:
        return
    there, here = _kind(stored), _kind(expected)
    if there != here:
        raise CheckpointError(f"{path} is a checkpoint of another run: of {there} there and of {here} here")
    changed = _changed_files(stored.get("files"), expected.get("files"))
    if changed:
        have = "has" if len(changed) == 1 else "have"
        raise CheckpointError(f"{' and '.join(changed)} {have} changed since the checkpoint {path} was written")
    found = list(_differences("", stored, expected))
    more = [f"{len(found) - _MOST_SHOWN} more differ"] if len(found) > _MOST_SHOWN else []
    sentence = "; ".join(found[:_MOST_SHOWN] + more)
    raise CheckpointError(f"{path} is a checkpoint of another run: {sentence}")


def _kind(fingerprint: Mapping[str, Any]) -> str:
    """What ran: nothing else can be compared where this is another thing."""
    names = [name for name in ("command", "engine") if name in fingerprint]
    return f"the {names[0]} {fingerprint[names[0]]}" if names else "something else"


def _changed_files(stored: Any, expected: Any) -> list[str]:
    both = isinstance(stored, Mapping) and isinstance(expected, Mapping)
    return [name for name in expected if stored.get(name, expected[name]) != expected[name]] if both else []


def _differences(name: str, there: Any, here: Any) -> Iterator[str]:
    """One clause for each entry that is not the same, however deep it is."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for entry in [*here, *(entry for entry in there if entry not in here)]:
            yield from _differences(entry, there.get(entry, _ABSENT), here.get(entry, _ABSENT))
    elif _long(there) and _long(here) and len(there) == len(here):
        parts = (_differences(f"{name}[{i}]", *pair) for i, pair in enumerate(zip(there, here, strict=True)))
        yield from next((found for found in map(list, parts) if found), [])
    elif there != here:
        yield f"{name} is {_shown(there)} there and {_shown(here)} here"


def _long(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > _LONGEST_LIST


def _shown(value: Any) -> str:
    """A value as one would type it."""
    if value is _ABSENT or value is None:
        return "absent" if value is _ABSENT else "not given"
    if _long(value):
        return f"{_shown(value[0])},...,{_shown(value[-1])} ({len(value)} values)"
    return ",".join(map(_shown, value)) or "empty" if isinstance(value, list) else str(value)
