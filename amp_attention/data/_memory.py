"""Memory a problem needs, estimated before anything is allocated."""

import os
from typing import Any

import jax
import numpy as np

from amp_attention.data._chunks import CHUNK
from amp_attention.numerics.lanes import lane_count
from amp_attention.numerics.packing import packed_size
from amp_attention.numerics.validation import floating_type, whole_number


def estimated_memory(n: int, tokens: int, d: int, dtype: Any = np.float64, *, stored: bool = True) -> int:
    """Bytes that data and solver hold at their peak, from shapes alone.

    The n T d tokens where they are stored, four times the labels, eight arrays of n K per-sample numbers, twenty d×d
    matrices and the temporaries of one chunk.

    Args:
        n: samples, ≥ 1.
        tokens: T ≥ 1.
        d: embedding dimension, ≥ 1.
        dtype: of the data, float32 or float64.
        stored: whether the tokens are in memory, rather than redrawn or read from a file at every pass.

    Returns:
        An exact Python integer, however large.

    Raises:
        ValueError: for numbers out of range.
    """
    n, tokens, d = whole_number("n", n, 1), whole_number("tokens", tokens, 1), whole_number("d", d, 1)
    K = packed_size(tokens)
    chunk = min(n, max(CHUNK, lane_count(K)))
    numbers = n * tokens * d * stored + 4 * n * tokens**2 + 8 * n * K + 20 * d * d
    numbers += chunk * (4 * tokens * d + 40 * K * (K + 1))
    return numbers * floating_type("dtype", dtype).itemsize


def available_memory() -> int | None:
    """Bytes free for new arrays on JAX's default device; None where the system does not tell."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in statistics:
        return statistics["bytes_limit"] - statistics.get("bytes_in_use", 0)
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def check_memory(
    n: int,
    tokens: int,
    d: int,
    dtype: Any = np.float64,
    *,
    stored: bool = True,
    devices: int = 1,
    available: int | None = None,
) -> None:
    """Refuse a problem that does not fit, before allocating any of it.

    Args:
        n, tokens, d, dtype, stored: as in `estimated_memory`.
        devices: number of devices that the samples are divided over; the CPU devices of a process share its memory.
        available: bytes to compare with, of one device; measured by default.

    Raises:
        ValueError: with the sizes; for numbers out of range.
    """
    n, devices = whole_number("n", n, 1), whole_number("devices", devices, 1)
    available = available_memory() if available is None else whole_number("available", available, 0)
    memories = jax.process_count() if jax.default_backend() == "cpu" else devices
    needed = estimated_memory(-(-n // memories), tokens, d, dtype, stored=stored)
    if available is not None and needed > available:
        raise ValueError(
            f"n = {n} samples of T = {tokens} tokens in d = {d} dimensions ({np.dtype(dtype).name}) need about "
            f"{needed / 2**30:.1f} GiB, but {available / 2**30:.1f} GiB are available; refused before allocating. "
            "Lower d, alpha or tokens, use float32 or more devices"
            + (", or redraw the tokens instead of storing them" if stored else "")
        )
