"""Result folders: what was computed, by which command and which versions; nobody else's file is replaced."""

import contextlib
import csv
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST = ".amp-attention.json"
PACKAGES = ("amp-attention", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "xarray", "matplotlib")


class ForeignFileError(ValueError):
    """A file that would be replaced is not one that was written here, or was changed since."""


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what it computes with."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command as one can paste it into a shell."""
    return shlex.join(["amp-attention", *(sys.argv[1:] if arguments is None else arguments)])


def plain(value: Any) -> Any:
    """JSON types only: NaN and infinities are null, arrays lists, paths text."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray) or (hasattr(value, "shape") and hasattr(value, "tolist")):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, os.PathLike) else value


def to_json(document: Any) -> str:
    """One JSON document at full precision, without NaN."""
    return json.dumps(plain(document), allow_nan=False, ensure_ascii=False)


def to_csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """A table with a header line; unknown entries are empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if plain(row.get(name)) is None else plain(row[name]) for name in names])
    return stream.getvalue()


class ResultFolder:
    """A folder of results with a manifest of the files written into it.

    Args:
        path: created if needed.
        overwrite: replace files even if they are not ours.

    Raises:
        ForeignFileError: by `claim` and `write`.
    """

    def __init__(self, path: str | os.PathLike, overwrite: bool = False):
        self.path, self.overwrite = Path(path), overwrite
        self.path.mkdir(parents=True, exist_ok=True)
        self._hashes: dict[str, str] = self._manifest()

    def _manifest(self) -> dict[str, str]:
        try:
            hashes = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))["files"]
            return dict(hashes)
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def claim(self, names: Iterable[str]) -> None:
        """Check before computing that every file may be written."""
        for name in names:
            file = self.path / name
            if self.overwrite or not file.exists():
                continue
            if file.is_dir() or self._hashes.get(name) != _digest(file.read_bytes()):
                raise ForeignFileError(f"{file} exists and was not written by amp-attention, or was changed since")

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one file whole or not at all, and remember it as ours."""
        self.claim([name])
        data = content.encode() if isinstance(content, str) else content
        self._replace(name, data)
        self._hashes[name] = _digest(data)
        self._replace(MANIFEST, json.dumps({"files": self._hashes}, indent=1).encode())
        return self.path / name

    def _replace(self, name: str, data: bytes) -> None:
        temporary = self.path / f".{name}.part"
        try:
            temporary.write_bytes(data)
            temporary.replace(self.path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def to_netcdf(result: Any) -> bytes:
    """An xarray Dataset as a netCDF4 (HDF5) file."""
    buffer = io.BytesIO()
    result.to_netcdf(buffer, engine="h5netcdf")
    return buffer.getvalue()
