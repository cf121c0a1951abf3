"""Tokens and labels of n samples, with the checks that data from outside need."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from amp_attention._typing import Array, Float
from amp_attention.data._tokens import AbstractTokens, MappedTokens
from amp_attention.numerics.devices import along_samples, check_mesh, placed
from amp_attention.numerics.validation import MOST_SAMPLES, instance_of, whole_number

ROW_SUM_TOLERANCE = 1e-3
_NEGATIVE_TOLERANCE = 1e-6  # softmax outputs may have been rounded by whoever stored them
_CHECKED_AT_ONCE = 2**24  # numbers of a file


class Data(eqx.Module):
    """n samples of T tokens in d dimensions.

    Args:
        X: (n, T, d) tokens, or a source of them.
        y: (n, T, T) row-stochastic labels; (n,) for T = 1.
        n: number of samples that count, for arrays filled up to a multiple of the devices of a mesh; see `shard`.
        mesh: devices that the samples are divided over.

    Raises:
        ValueError: when the shapes do not belong together, or the arrays are not of floating-point numbers. Values are
            checked by `check`.
    """

    X: Float[Array, "n T d"] | AbstractTokens
    y: Float[Array, "n *labels"]
    n: int = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)

    def __init__(
        self,
        X: Float[Array, "n T d"] | AbstractTokens,
        y: Float[Array, "n *labels"],
        *,
        n: int | None = None,
        mesh: Mesh | None = None,
    ):
        _require_floating("X", X)
        _require_floating("y", y)
        if X.dtype != y.dtype:
            raise ValueError(f"y must have the dtype of X, {X.dtype}, got {y.dtype}")
        check_mesh(mesh)
        if X.ndim != 3 or 0 in X.shape:
            raise ValueError(f"X must have shape (n, T, d) with n, T, d >= 1, got {X.shape}")
        samples, tokens, _ = X.shape
        self.n, self.mesh = whole_number("n", samples if n is None else n, 1, MOST_SAMPLES), mesh
        if samples != (self.n if isinstance(X, AbstractTokens) else filled(self.n, mesh)):
            raise ValueError(f"n must be the number of samples of X of shape {X.shape}, got {n}")
        rows = filled(self.n, mesh) if isinstance(X, AbstractTokens) else samples
        expected = (rows,) if tokens == 1 else (rows, tokens, tokens)
        if y.shape != expected:
            raise ValueError(f"y must have shape {expected} for X of shape {X.shape}, got {y.shape}")
        self.X, self.y = X, y

    @property
    def T(self) -> int:
        """Tokens per sample."""
        return self.X.shape[1]

    @property
    def d(self) -> int:
        """Embedding dimension."""
        return self.X.shape[2]

    @property
    def dtype(self) -> np.dtype:
        """Floating type of the tokens, in which everything is computed."""
        return np.dtype(self.X.dtype)

    @property
    def alpha(self) -> float:
        """Effective α = n/d², after n was rounded to a whole number."""
        return self.n / self.d**2

    def lanes(self, numbers: int) -> Float[Array, "K n"]:
        """Zeros, `numbers` a sample, samples last, placed where the samples are."""
        array = jnp.zeros((numbers, filled(self.n, self.mesh)), self.dtype)
        return array if self.mesh is None else placed(array, NamedSharding(self.mesh, along_samples(2, 1)))

    def check(self) -> None:
        """Refuse values no attention head can have produced.

        Raises:
            ValueError: for NaN or infinities, negative labels, or rows that do not sum to 1 within 1e-3.
        """
        if isinstance(self.X, MappedTokens):
            size = max(1, _CHECKED_AT_ONCE // (self.T * self.d))
            blocks = (self.X.read(start, min(size, self.n - start)) for start in range(0, self.n, size))
            offends = np.concatenate([~np.all(np.isfinite(block), axis=(1, 2)) for block in blocks])
            _first_offender("X", "finite numbers only", offends)
        elif not isinstance(self.X, AbstractTokens):
            _first_offender("X", "finite numbers only", ~np.isfinite(np.asarray(self.X)))
        y = np.asarray(self.y)
        _first_offender("y", "finite numbers only", ~np.isfinite(y))
        if self.T > 1:
            _first_offender("y", "no negative entries", y < -_NEGATIVE_TOLERANCE)
            sums = np.sum(y, axis=-1, dtype=np.float64)
            _first_offender("y", "rows that sum to 1 within 1e-3", np.abs(sums - 1) > ROW_SUM_TOLERANCE)


def _require_floating(name: str, array: Array | AbstractTokens) -> None:
    dtype = getattr(array, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, np.floating):
        found = f"dtype {dtype}" if dtype is not None else f"{type(array).__name__}"
        raise ValueError(f"{name} must be an array of floating-point numbers, got {found}")


def _first_offender(name: str, allowed: str, offends: np.ndarray) -> None:
    if np.any(offends):
        samples = np.flatnonzero(np.any(offends.reshape(offends.shape[0], -1), axis=1))
        raise ValueError(
            f"{name} must have {allowed}; {samples.size} of {offends.shape[0]} samples do not, "
            f"the first is sample {samples[0]}"
        )


def filled(n: int, mesh: Mesh | None) -> int:
    """n, or the multiple of the number of devices that n samples are filled up to."""
    return n if mesh is None else -(-n // mesh.size) * mesh.size


def shard(data: Data, mesh: Mesh) -> Data:
    """The same samples, divided over the devices of a mesh.

    Stored arrays are filled up with copies of the last sample, which count nowhere, to the same number on each device.

    Args:
        data: on one device; with several processes the same in all of them.
        mesh: of `device_mesh`.

    Raises:
        ValueError: for what is no data, or no such mesh.
    """
    instance_of("data", data, Data, "Data")
    check_mesh(mesh, required=True)
    missing = filled(data.n, mesh) - data.n

    def place(array):
        array = jnp.concatenate([array, jnp.repeat(array[-1:], missing, axis=0)]) if missing else array
        return placed(array, NamedSharding(mesh, along_samples(array.ndim, 0)))

    X = data.X if isinstance(data.X, AbstractTokens) else place(data.X)
    return Data(X, place(data.y), n=data.n, mesh=mesh)
