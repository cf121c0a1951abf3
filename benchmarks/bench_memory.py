"""Peak memory of making the data and five AMP iterations, over the bytes of the tokens.

α = 1, T = 2, float32, in a process of its own that has run the same program before. The limit is 1.5
times the tokens (nothing where they are redrawn instead of stored) plus what the labels, the per-sample numbers, d×d
matrices and one chunk take, as `estimated_memory` counts them.
"""

import jax.numpy as jnp
import pytest

from amp_attention.amp import AMP
from amp_attention.data import estimated_memory, sample_size
from benchmarks._measure import advanced, instance, peak_memory, row
from benchmarks._process import fresh

ALPHA, TOKENS = 1.0, 2


def run(d: int, alpha: float, stored: bool) -> None:
    """The program."""
    advanced(AMP(), *instance(d, TOKENS, alpha, jnp.float32, stored=stored), steps=5)


def measure(d: int, alpha: float, stored: bool) -> dict:
    """Peak bytes, seconds, and the bytes of the tokens."""
    return peak_memory(lambda: run(d, alpha, stored)) | {"tokens": 4 * sample_size(alpha, d) * TOKENS * d}


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "redrawn"])
def bench_peak(record, memory_d, stored):
    result = fresh(measure, d=memory_d, alpha=ALPHA, stored=stored)
    beside = estimated_memory(sample_size(ALPHA, memory_d), TOKENS, memory_d, jnp.float32, stored=False)
    limit = 1.5 * stored + beside / result["tokens"]
    rows = [
        row("peak / tokens", result["bytes"] / result["tokens"], limit=limit),
        row("peak", result["bytes"] / 2**20, "MiB"),
        row("tokens", result["tokens"] / 2**20, "MiB"),
    ]
    record(f"d = {memory_d}, {'stored' if stored else 'redrawn'}", [result["seconds"]], rows)
