"""Input files and sizes, looked at before anything is allocated."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from amp_attention.data import available_memory
from amp_attention.numerics.packing import packed_size
from amp_attention.spectral_laws import AbstractSpectralLaw, FiniteLaw


def read_eigenvalues(path: Path) -> np.ndarray:
    """Eigenvalues of S0 from a .npy file.

    Args:
        path: one-dimensional array of real numbers, finite and ≥ 0, in any order.

    Raises:
        ValueError: with what is wrong with the file.
    """
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as a .npy file: {error}") from None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.size == 0:
        raise ValueError(
            f"{path} must hold a non-empty list of eigenvalues, got shape {getattr(values, 'shape', None)}"
        )
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{path} must hold real numbers, got {values.dtype}")
    wrong = ~np.isfinite(values) | (values < 0)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"{path} must hold finite eigenvalues >= 0, got {values[first]} at index {first}")
    return values.astype(float)


def check_node_memory(tokens: int, nodes: int, replicas: int, dtype: np.dtype) -> None:
    """Refuse nodes whose averages do not fit in memory.

    A pass over the nodes keeps about a dozen K×K matrices for each of them (Hessian, Jacobian and their derivatives).
    """
    size = packed_size(tokens)
    points = max(nodes, replicas)
    _check(f"{nodes} nodes of T = {tokens} tokens", 2 * points * (12 * size**2 + 20 * size) * dtype.itemsize)


def check_law_memory(option: str, count: int) -> None:
    """Refuse lists of eigenvalues whose Cauchy transform on a contour does not fit in memory."""
    _check(f"{option}: {count} eigenvalues", 16 * 4096 * count)


def _check(what: str, needed: int) -> None:
    available = available_memory()
    if available is not None and needed > available:
        gib = 2**30
        raise ValueError(
            f"{what} need about {needed / gib:.3g} GiB, but {available / gib:.3g} GiB are available; "
            "refused before allocating"
        )


def kept_second_moment(law: AbstractSpectralLaw, d: int) -> float:
    """The share of Q0 = ∫x² that a d×d target drawn from a list of eigenvalues keeps; 1 for every other law.

    A list of another length is drawn through its quantiles (i − ½)/d, which leave out the ends of a heavy tail: far
    from 1, theory and data are about different targets.
    """
    if not isinstance(law, FiniteLaw) or law.eigenvalues.size == d:
        return 1.0
    second = float(law.moment(2))
    levels = (np.arange(d) + 0.5) / d
    drawn = float(jnp.mean(law.quantiles(jnp.asarray(levels, law.dtype)) ** 2))
    return drawn / second if second > 0 else 1.0
