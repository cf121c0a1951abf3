"""Timing, peak memory, and what a measurement says about itself."""

import contextlib
import ctypes
import gc
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention.amp import AMP
from amp_attention.data import CHUNK, Data, generate_data
from amp_attention.experiments._timing import timed
from amp_attention.problem import AttentionProblem, attention_problem

LATE = 13  # iterations after which most samples' problems are solved by their warm start
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def row(quantity: str, value: float | str, unit: str = "", limit: float | None = None, least: bool = False) -> dict:
    """One line of the table of results.

    Args:
        quantity: what was measured.
        value: a number, a count, or words.
        unit: of the number.
        limit: what the number should not exceed, where there is such a limit.
        least: whether it should instead not fall below the limit.
    """
    value = value if isinstance(value, str | int) else float(value)
    return {"quantity": quantity, "value": value, "unit": unit, "limit": limit, "least": least}


def within_limit(row: dict) -> bool:
    """Whether a row keeps its limit, or has none."""
    if row["limit"] is None:
        return True
    return row["value"] >= row["limit"] if row["least"] else row["value"] <= row["limit"]


def point(figure: str, label: str, x: float, y: float) -> dict:
    """One point of a curve of a figure of the report."""
    return {"figure": figure, "label": label, "x": float(x), "y": float(y)}


def interleaved(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each function, called in turn so that whatever else the machine does strikes all of them alike.

    Args:
        functions: without arguments; results are waited for.
        rounds: how often each is called, after a first call that compiles and is not counted.

    Returns:
        The seconds of each call, by name.
    """
    for function in functions.values():
        jax.block_until_ready(function())
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            seconds[name].append(time.perf_counter() - start)
    return seconds


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each list."""
    return {name: statistics.median(values) for name, values in seconds.items()}


@jax.jit
def whole_products(S, X):
    """X@S and Xᵀ(X@S) of the whole array of tokens."""
    rows = X.reshape(-1, X.shape[-1])
    mapped = jnp.matmul(rows, S, precision="highest")
    return jnp.matmul(rows.T, mapped, precision="highest")


@jax.jit
def chunked_products(S, X):
    """The same two products summed over chunks of samples, so that X@S stays in cache."""
    n, _, d = X.shape
    chunk = min(CHUNK, n)

    def add(total, start, size):
        return total + whole_products(S, jax.lax.dynamic_slice_in_dim(X, start, size, 0))

    starts = jnp.arange(n // chunk, dtype=jnp.int32) * chunk
    total, _ = jax.lax.scan(lambda total, start: (add(total, start, chunk), None), jnp.zeros((d, d), X.dtype), starts)
    return add(total, n - n % chunk, n % chunk) if n % chunk else total


def instance(
    d: int, tokens: int, alpha: float, dtype: Any, lam: float = 0.05, **options: Any
) -> tuple[AttentionProblem, Data]:
    """A problem and data that are the same in every benchmark; `options` are those of `generate_data`."""
    problem = attention_problem(alpha, lam, tokens=tokens, dtype=dtype)
    return problem, generate_data(jax.random.key(0), problem, d, **options)[0]


def advanced(solver: AMP, problem: AttentionProblem, data: Data, steps: int = LATE):
    """(compiled step, state after some AMP iterations, seconds of compilation)."""
    step = eqx.filter_jit(solver.step)
    (state, _), timing = timed(step, problem, data, solver.init(problem, data))
    for _ in range(steps - 1):
        state, _ = step(problem, data, state)
    return step, jax.block_until_ready(state), timing.compile_seconds


class PeakMemory:
    """Most memory that a block of code holds above what the process held before, in bytes.

    ```python
    with PeakMemory() as memory:
        ...
    memory.bytes
    ```

    On Linux the recorded peak of the process is set back first; elsewhere it is compared with the peak until then,
    which hides what is smaller than an earlier peak.
    """

    bytes: int = 0

    def __enter__(self) -> "PeakMemory":
        _return_freed_memory()
        try:
            _CLEAR.write_text("5")
            self._before = _kibibytes("VmRSS")
        except OSError:
            self._before = None
            self._maximum = _maximum()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = _maximum() - self._maximum if self._before is None else _kibibytes("VmHWM") - self._before


def peak_memory(program: Callable[[], Any]) -> dict[str, float]:
    """Peak `bytes` of a program above what the process holds before it, and the `seconds` it takes.

    It is run once before it is measured: compiling and loading libraries takes memory that has nothing to do with it.
    """
    program()
    with PeakMemory() as memory:
        start = time.perf_counter()
        program()
        seconds = time.perf_counter() - start
    return {"bytes": memory.bytes, "seconds": seconds}


def _return_freed_memory() -> None:
    """Give back to the system what was freed, where the C library can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _kibibytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def _maximum() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def machine() -> dict[str, Any]:
    """Processor, cores, memory and versions of what the numbers depend on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_GiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
