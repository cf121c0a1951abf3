"""Tokens and labels of n samples, with the checks that data from outside need."""

import os
import zipfile

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, Scalar
from amp_attention.data._chunks import Chunk, fold_chunks
from amp_attention.data._memory import check_memory

ROW_SUM_TOLERANCE = 1e-3
_NEGATIVE_TOLERANCE = 1e-6  # softmax outputs may have been rounded by whoever stored them


class Data(eqx.Module):
    """n samples of T tokens in d dimensions.

    Args:
        X: (n, T, d) tokens.
        y: (n, T, T) row-stochastic labels; (n,) for T = 1.

    Raises:
        ValueError: when the shapes do not belong together. Values are checked by `check`.
    """

    X: Float[Array, "n T d"]
    y: Float[Array, "n *labels"]

    def __init__(self, X: Float[Array, "n T d"], y: Float[Array, "n *labels"]):
        if X.ndim != 3 or 0 in X.shape:
            raise ValueError(f"X must have shape (n, T, d) with n, T, d >= 1, got {X.shape}")
        n, tokens, _ = X.shape
        expected = (n,) if tokens == 1 else (n, tokens, tokens)
        if y.shape != expected:
            raise ValueError(f"y must have shape {expected} for X of shape {X.shape}, got {y.shape}")
        self.X, self.y = X, y

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.X.shape[0]

    @property
    def T(self) -> int:
        """Tokens per sample."""
        return self.X.shape[1]

    @property
    def d(self) -> int:
        """Embedding dimension."""
        return self.X.shape[2]

    @property
    def alpha(self) -> float:
        """Effective α = n/d², after n was rounded to a whole number."""
        return self.n / self.d**2

    def take(self, chunk: Chunk) -> tuple[Float[Array, "c T d"], Float[Array, "... c"]]:
        """Tokens and labels of a chunk, the labels with samples last."""
        return chunk.take(self.X), jnp.moveaxis(chunk.take(self.y), 0, -1)

    def check(self) -> None:
        """Refuse values no attention head can have produced.

        Raises:
            ValueError: for NaN or infinities, negative labels, or rows that do not sum to 1 within 1e-3.
        """
        for name, array in (("X", self.X), ("y", self.y)):
            _first_offender(name, "finite numbers only", ~np.isfinite(np.asarray(array)))
        if self.T > 1:
            y = np.asarray(self.y)
            _first_offender("y", "no negative entries", y < -_NEGATIVE_TOLERANCE)
            sums = np.sum(y, axis=-1, dtype=np.float64)
            _first_offender("y", "rows that sum to 1 within 1e-3", np.abs(sums - 1) > ROW_SUM_TOLERANCE)


def _first_offender(name: str, allowed: str, offends: np.ndarray) -> None:
    if np.any(offends):
        samples = np.flatnonzero(np.any(offends.reshape(offends.shape[0], -1), axis=1))
        raise ValueError(
            f"{name} must have {allowed}; {samples.size} of {offends.shape[0]} samples do not, "
            f"the first is sample {samples[0]}"
        )


def load_npz(path: str | os.PathLike, dtype=None) -> Data:
    """Read and check data stored as `np.savez(path, X=..., y=...)`.

    Args:
        path: file with arrays X (n, T, d) and y (n, T, T), or X (n, 1, d) and y (n,).
        dtype: floating type of the result; JAX's default float by default.

    Raises:
        ValueError: when the file is no such archive, an array is missing, not numeric or of the wrong shape, values
            fail `Data.check`, or the data do not fit in memory.
    """
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


class Whiteness(eqx.Module):
    """Distance of the tokens from the N(0, I) that the theory assumes.

    Attributes:
        covariance: ‖C − I‖_F/√D of the D = T d joint coordinates of one sample, C = E x xᵀ.
        covariance_expected: what n white samples give, √((D + 1)/n).
        mean: ‖E x‖/√D.
        mean_expected: 1/√n.
    """

    covariance: Scalar
    covariance_expected: Scalar
    mean: Scalar
    mean_expected: Scalar

    @property
    def far_from_white(self) -> bool:
        """Whether a deviation exceeds twice its statistical size by more than 0.1."""
        covariance = self.covariance > 2 * self.covariance_expected + 0.1
        return bool(covariance | (self.mean > 2 * self.mean_expected + 0.1))


@eqx.filter_jit
def whiteness(X: Float[Array, "n T d"]) -> Whiteness:
    """How far mean and covariance of the tokens, also between positions, are from 0 and I."""
    n, tokens, d = X.shape
    size = tokens * d

    def body(carry, chunk):
        total, square = carry
        x = chunk.masked(chunk.take(X).reshape(-1, size).T)
        return (total + jnp.sum(x, axis=1), square + jnp.matmul(x, x.T, precision="highest")), None

    (total, square), _ = fold_chunks(body, (jnp.zeros(size, X.dtype), jnp.zeros((size, size), X.dtype)), n)
    deviation = square / n - jnp.eye(size, dtype=X.dtype)
    norm = lambda x: jnp.sqrt(jnp.sum(x**2) / size)  # noqa: E731
    expected = lambda x: jnp.sqrt(jnp.asarray(x, X.dtype))  # noqa: E731
    return Whiteness(norm(deviation), expected((size + 1) / n), norm(total / n), expected(1 / n))
