"""Checkpoint files: written whole or not at all, and refused where they do not belong to the run.

A file is a line `amp-attention checkpoint 1` (the format), a line of JSON that says what run it belongs to and how long
the rest is, and the rest.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_NAME, _FORMAT = b"amp-attention checkpoint", 1
_LONGEST_HEADER = 2**20
_ABSENT = "nothing"


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or is not what the run could go on from.

    A ValueError, like every argument that is refused: it is the path given that has to be another one.
    """


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
