"""Looks at input files of arrays, before they are read, for what NumPy's own messages explain badly."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from amp_attention._cli.parsing import UsageError

DAMAGE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def check_array(option: str, path: Path) -> None:
    """A .npy file with a header, and no Python objects in it."""
    with readable(option, path, ".npy", DAMAGE), path.open("rb") as file:
        dtype = _stored_dtype(file)
    _refuse_objects(option, path, "an array", dtype)


def check_archive(option: str, path: Path, names: Sequence[str]) -> None:
    """A .npz file, and no Python objects in those of its arrays that are named."""
    dtypes = {}
    with readable(option, path, ".npz", DAMAGE), zipfile.ZipFile(path) as archive:
        for name in names:
            if f"{name}.npy" in archive.namelist():
                with archive.open(f"{name}.npy") as file:
                    dtypes[name] = _stored_dtype(file)
    for name, dtype in dtypes.items():
        _refuse_objects(option, path, f"an array {name}", dtype)


@contextmanager
def readable(
    option: str, path: Path, kind: str, errors: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
) -> Iterator[None]:
    """Errors of a damaged file as one sentence."""
    try:
        yield
    except (*errors, zipfile.BadZipFile):
        raise UsageError(f"{option} must be a readable {kind} file, got {str(path)!r}.") from None


def _stored_dtype(file: IO[bytes]) -> np.dtype:
    version = np.lib.format.read_magic(file)
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)[2]


def _refuse_objects(option: str, path: Path, what: str, dtype: np.dtype) -> None:
    if dtype.hasobject:
        raise UsageError(f"{option} must hold real numbers, got {what} of Python objects in {str(path)!r}.")
