"""Tokens that are not an array in memory: redrawn from their key, or read from a file, a chunk at a time."""

import abc
import os
from functools import lru_cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, Int, PRNGKeyArray
from amp_attention.numerics.validation import file_path, whole_number


class AbstractTokens(eqx.Module):
    """A source of n samples of T tokens in d dimensions, in place of an array of shape (n, T, d).

    A source has the shape and dtype of that array, and gives consecutive samples of it. Whatever passes over the data
    takes a source where it takes an array, with the same result.
    """

    shape: eqx.AbstractVar[tuple[int, int, int]]
    dtype: eqx.AbstractVar[np.dtype]

    @property
    def ndim(self) -> int:
        """3, as of the array."""
        return 3

    @abc.abstractmethod
    def take(self, start: Int[Array, ""], size: int) -> Float[Array, "c T d"]:
        """Samples `start`, ..., `start + size − 1`; finite numbers of any kind beyond the last one."""


def sample_normals(key: PRNGKeyArray, start: Int[Array, ""] | int, size: int, shape: tuple[int, ...], dtype) -> Array:
    """N(0, 1) numbers of samples `start`, ..., each from its own key: the same in whatever chunks they are drawn.

    Args:
        key: of all samples; sample i has the key `fold_in(key, i)`.
        start: index of the first sample.
        size: number of samples.
        shape: of one sample.
        dtype: floating type.

    Returns:
        Array of shape (size, *shape).
    """
    indices = jnp.asarray(start, jnp.uint32) + jnp.arange(size, dtype=jnp.uint32)
    return jax.vmap(lambda index: jax.random.normal(jax.random.fold_in(key, index), shape, dtype))(indices)


class DrawnTokens(AbstractTokens):
    """White tokens x_a ~ N(0, I_d), redrawn from their key wherever they are needed and never stored.

    A pass over the data costs about twice the time of one over stored tokens, and no memory. Sample i depends on the
    key and on i, T and d only, not on n.

    Args:
        key: random key.
        n: samples.
        tokens: T.
        d: embedding dimension.
        dtype: JAX's default float by default.
    """

    key: PRNGKeyArray
    shape: tuple[int, int, int] = eqx.field(static=True)
    dtype: np.dtype = eqx.field(static=True)

    def __init__(self, key: PRNGKeyArray, n: int, tokens: int, d: int, dtype=None):
        self.key = key
        self.shape = (whole_number("n", n, 1), whole_number("tokens", tokens, 1), whole_number("d", d, 1))
        self.dtype = np.dtype(jnp.result_type(float) if dtype is None else dtype)

    def take(self, start: Int[Array, ""], size: int) -> Float[Array, "c T d"]:
        """Draw the samples."""
        return sample_normals(self.key, start, size, self.shape[1:], self.dtype)


@lru_cache(maxsize=16)
def _mapped(path: str) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)


class MappedTokens(AbstractTokens):
    """Tokens in a .npy file, read chunk by chunk as they are needed; the file may be larger than the memory.

    Args:
        path: file with an array of shape (n, T, d) of real numbers, in C order; it must not change while it is in use.
        dtype: what the tokens are converted to; JAX's default float by default.

    Raises:
        ValueError: when the file cannot be read as such an array.
    """

    path: str = eqx.field(static=True)
    shape: tuple[int, int, int] = eqx.field(static=True)
    dtype: np.dtype = eqx.field(static=True)

    def __init__(self, path: str | os.PathLike, dtype=None):
        file_path("path", path)
        self.path = str(Path(path).resolve())
        _mapped.cache_clear()  # the file may be another one than the last time
        try:
            array = _mapped(self.path)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{path} cannot be read as a .npy array: {error}") from None
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{path} must be a single .npy array, got an archive")
        if array.ndim != 3 or 0 in array.shape or array.dtype.kind not in "fiu" or not array.flags.c_contiguous:
            order, remedy = ("C", "") if array.flags.c_contiguous else ("Fortran", "; save np.ascontiguousarray of it")
            raise ValueError(
                f"{path} must hold real numbers of shape (n, T, d) with n, T, d >= 1 in C order, got {array.dtype} of "
                f"shape {array.shape} in {order} order{remedy}"
            )
        n, tokens, d = array.shape
        self.shape = (n, tokens, d)
        self.dtype = np.dtype(jnp.result_type(float) if dtype is None else dtype)

    def read(self, start: int, size: int) -> np.ndarray:
        """Samples `start`, ... as a NumPy array; the last one of the file again beyond its end."""
        rows = _mapped(self.path)[start : start + size]
        if len(rows) < size:
            missing = size - len(rows)
            last = rows[-1:] if len(rows) else _mapped(self.path)[-1:]
            rows = np.concatenate([rows, np.broadcast_to(last, (missing, *self.shape[1:]))])
        return np.ascontiguousarray(rows, self.dtype)

    def take(self, start: Int[Array, ""], size: int) -> Float[Array, "c T d"]:
        """Read the samples on the host."""
        result = jax.ShapeDtypeStruct((size, *self.shape[1:]), self.dtype)
        return jax.pure_callback(lambda start: self.read(int(start), size), result, start, vmap_method="sequential")
