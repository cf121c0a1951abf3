"""Data that a user has in files."""

import os
import zipfile

import jax.numpy as jnp
import numpy as np

from amp_attention.data._data import Data
from amp_attention.data._memory import check_memory
from amp_attention.data._tokens import MappedTokens
from amp_attention.numerics.validation import file_path


def load_npz(path: str | os.PathLike, dtype=None) -> Data:
    """Read and check data stored as `np.savez(path, X=..., y=...)`.

    Args:
        path: file with arrays X (n, T, d) and y (n, T, T), or X (n, 1, d) and y (n,).
        dtype: floating type of the result; JAX's default float by default.

    Raises:
        ValueError: when `path` is no path, the file is no such archive, an array is missing, not numeric or of the
            wrong shape, values fail `Data.check`, or the data do not fit in memory.
    """
    file_path("path", path)
    dtype = jnp.result_type(float) if dtype is None else dtype
    try:
        archive = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as an .npz archive: {error}") from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{path} must be an .npz archive with arrays X and y, got a single array")
    with archive:
        missing = [name for name in ("X", "y") if name not in archive.files]
        if missing:
            raise ValueError(
                f"{path} must hold arrays X and y, {' and '.join(missing)} missing; it holds {archive.files}"
            )
        shape = _stored_shape(archive, "X")
        if len(shape) == 3:
            check_memory(*shape, dtype)
        X, y = (_numeric(name, archive[name]) for name in ("X", "y"))
    data = Data(jnp.asarray(X, dtype), jnp.asarray(y, dtype))
    data.check()
    return data


def _stored_shape(archive, name: str) -> tuple[int, ...]:
    """Shape in the header of a stored array, read without its contents."""
    with archive.zip.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(file)[0]


def _numeric(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be an array of real numbers, got dtype {array.dtype}")
    return array


def load_npy(tokens: str | os.PathLike, labels: str | os.PathLike, dtype=None) -> Data:
    """Data whose tokens stay in their file, read chunk by chunk at every pass: they need not fit in memory.

    Args:
        tokens: .npy file of shape (n, T, d), see `MappedTokens`.
        labels: .npy file of shape (n, T, T), or (n,) for T = 1; read into memory.
        dtype: floating type of the computation; JAX's default float by default.

    Raises:
        ValueError: when a file cannot be read, the shapes do not belong together, values fail `Data.check`, or what
            is beside the tokens does not fit in memory.
    """
    file_path("tokens", tokens)
    file_path("labels", labels)
    X = MappedTokens(tokens, dtype)
    check_memory(*X.shape, X.dtype, stored=False)
    try:
        y = np.load(labels, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{labels} cannot be read as a .npy array: {error}") from None
    if not isinstance(y, np.ndarray):
        raise ValueError(f"{labels} must be a single .npy array, got an archive")
    data = Data(X, jnp.asarray(_numeric("y", y), X.dtype))
    data.check()
    return data
