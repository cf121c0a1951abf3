"""jnp.linalg.eigh on a busy machine, with the BLAS threads as they come and with one.

On CPUs JAX calls the OpenBLAS that SciPy brings, whose threads wait for each other while others have the cores. The
command line limits them to one before it computes; a process of one's own has to do so itself:

```python
import scipy.linalg  # loads the library
import threadpoolctl

threadpoolctl.threadpool_limits(1, "blas")
```

One process calls eigh in turn with all threads and with one, first on the machine as it is, then with a busy process on
every core. Another one is prepared as the command line is, and says how many threads are left.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import scipy.linalg  # noqa: F401  (loads the BLAS that eigh calls)
import threadpoolctl

from benchmarks._measure import interleaved, machine, medians, row
from benchmarks._process import fresh


@contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """Processes that do nothing but keep the cores busy."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _example(d: int):
    half = jax.random.normal(jax.random.key(0), (d, d), jnp.float32)
    return half + half.T


def blas() -> list[dict]:
    """Name and threads of every BLAS in the process."""
    found = [entry for entry in threadpoolctl.threadpool_info() if entry["user_api"] == "blas"]
    return [{"library": Path(entry["filepath"]).name, "threads": entry["num_threads"]} for entry in found]


def measure(d: int, rounds: int) -> dict:
    """Seconds with all threads and with one, idle and busy; this process must not have been prepared."""
    matrix, eigh = _example(d), jax.jit(jnp.linalg.eigh)
    controller = threadpoolctl.ThreadpoolController()

    def one_thread():
        with controller.limit(limits=1, user_api="blas"):
            return jax.block_until_ready(eigh(matrix))

    functions = {"all threads": lambda: eigh(matrix), "one thread": one_thread}
    idle = interleaved(functions, rounds)
    with busy_machine(machine()["cores"]):
        busy = interleaved(functions, rounds)
    return {"idle": idle, "busy": busy, "blas": blas()}


def threads_when_prepared(d: int) -> dict:
    """The BLAS libraries after an eigh in a process prepared as the command line is."""
    jax.block_until_ready(jnp.linalg.eigh(_example(d)))
    return {"blas": blas()}


def _names(libraries: list[dict]) -> str:
    return ", ".join(f"{entry['library']}: {entry['threads']}" for entry in libraries)


def bench_eigh(record, rounds):
    d = 200
    result = fresh(measure, guard=False, d=d, rounds=rounds)
    prepared = fresh(threads_when_prepared, d=d)["blas"]
    assert prepared and all(entry["threads"] == 1 for entry in prepared)
    rows = [row("BLAS threads as they come", _names(result["blas"])), row("prepared", _names(prepared))]
    for load in ("idle", "busy"):
        middle = medians(result[load])
        rows += [row(f"{name}, {load}", 1e3 * seconds, "ms") for name, seconds in middle.items()]
        rows.append(row(f"all threads / one thread, {load}", middle["all threads"] / middle["one thread"]))
    record(f"d = {d}", result["busy"]["one thread"], rows)
