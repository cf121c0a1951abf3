"""AMP on an accelerator: is it right, how fast is it, and how exact are its Gram matrices. Prints one JSON document.

```bash
python -m benchmarks.gpu --d 1000,2000 > accelerator.json
```

Runs on JAX's default device, whatever that is, and exits with status 1 if a check fails. Right means the S and the
objective that the CPU finds in float64 on the same data. Times are those of a late AMP iteration, of the products X@S
and XᵀY (the faster of whole and chunked) and of the eigendecomposition of d×d, called in turn. A Gram matrix WWᵀ, and
the S of AMP, must have no eigenvalue below −1e-5 times the largest.
"""

import argparse
import json
import sys

if __name__ == "__main__":
    from amp_attention._cli.environment import prepare

    prepare("float64")  # before JAX is imported

import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._solution import result_name
from amp_attention.amp import AMP, solve_amp
from amp_attention.data import Data
from amp_attention.erm import tied_matrix
from amp_attention.experiments._timing import timed
from amp_attention.problem import cast
from benchmarks._measure import (
    advanced,
    chunked_products,
    instance,
    interleaved,
    machine,
    medians,
    point,
    row,
    whole_products,
    within_limit,
)

DTYPES = ("float32", "float64")
_CLOSE = {"float32": (1e-4, 1e-6), "float64": (1e-6, 1e-9)}  # relative error of S and of the objective
_NEGATIVE = -1e-5  # smallest eigenvalue over the largest


def smallest_eigenvalue(S) -> float:
    """The smallest eigenvalue over the largest, by NumPy in float64."""
    values = np.linalg.eigvalsh(np.asarray(S, np.float64))
    return float(values[0] / values[-1])


def correctness(d: int, alpha: float, dtype: str) -> dict:
    """S and objective on the default device against those of the CPU in float64."""
    with jax.default_device(jax.devices("cpu")[0]):
        problem, data = instance(d, 2, alpha, jnp.float64)
        reference = solve_amp(problem, data, tolerance=1e-10)
        expected, objective = np.asarray(reference.value.S), float(reference.value.objective)
        arrays = [np.asarray(array, dtype) for array in (data.X, data.y)]
    assert bool(reference.successful)
    problem = jax.device_put(cast(problem, dtype), jax.devices()[0])
    found = solve_amp(problem, Data(*(jnp.asarray(array) for array in arrays)))
    S = np.asarray(found.value.S, np.float64)
    S_limit, objective_limit = _CLOSE[dtype]
    rows = [
        row("result", result_name(found.result)),
        row("S, relative error", float(np.linalg.norm(S - expected) / np.linalg.norm(expected)), limit=S_limit),
        row("objective, relative error", abs(float(found.value.objective) / objective - 1), limit=objective_limit),
        row("smallest eigenvalue of S over the largest", smallest_eigenvalue(S), limit=_NEGATIVE, least=True),
    ]
    return case(f"correctness, d = {d}, {dtype}", rows)


def speed(d: int, alpha: float, dtype: str, rounds: int) -> dict:
    """Seconds of an iteration and of its parts, memory, and eigenvalues of Gram matrices."""
    name = f"speed, d = {d}, {dtype}"
    try:
        (problem, data), drawing = timed(instance, d, 2, alpha, dtype)
    except ValueError as error:
        return case(name, [row("refused", str(error))])
    step, late, compilation = advanced(AMP(), problem, data)
    eigh = jax.jit(jnp.linalg.eigh)
    # Of full rank, as what AMP decomposes: eigenvalues that are exactly 0 would cost less.
    matrix = late.S + tied_matrix(jax.random.normal(jax.random.key(2), (d, 2 * d), dtype))
    functions = {
        "iteration": lambda: step(problem, data, late),
        "whole products": lambda: whole_products(late.S, data.X),
        "chunked products": lambda: chunked_products(late.S, data.X),
        "eigh": lambda: eigh(matrix),
    }
    seconds = interleaved(functions, rounds)
    middle = medians(seconds)
    products = min(middle["whole products"], middle["chunked products"])
    ratio = middle["iteration"] / (products + middle["eigh"])
    gram = tied_matrix(jax.random.normal(jax.random.key(3), (d, d // 2), dtype))
    rows = [
        row("iteration / (products + eigh)", ratio),
        *(row(name, 1e3 * value, "ms") for name, value in middle.items()),
        row("drawing the data", drawing.seconds, "s"),
        row("compilation of the iteration", compilation, "s"),
        row("smallest eigenvalue of S over the largest", smallest_eigenvalue(late.S), limit=_NEGATIVE, least=True),
        row("smallest eigenvalue of WWᵀ over the largest", smallest_eigenvalue(gram), limit=_NEGATIVE, least=True),
    ]
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if peak is not None:
        rows.append(row("peak memory until now / tokens", peak / (np.dtype(dtype).itemsize * data.n * 2 * d)))
    return case(name, rows, seconds["iteration"], [point("accelerator", dtype, d, ratio)])


def case(name: str, rows: list[dict], seconds: list[float] | None = None, points: list[dict] | None = None) -> dict:
    """One entry of the document, laid out as pytest-benchmark does."""
    stats = {"median": float(np.median(seconds)), "rounds": len(seconds)} if seconds else {}
    extra = {"case": name, "rows": rows, "points": points or []}
    return {"name": name, "group": "accelerator", "stats": stats, "extra_info": extra}


def measured(arguments: argparse.Namespace) -> dict:
    """The document."""
    cases = [correctness(arguments.correctness_d, arguments.alpha, dtype) for dtype in arguments.dtypes]
    for d in sorted(arguments.d):
        cases += [speed(d, arguments.alpha, dtype, arguments.rounds) for dtype in arguments.dtypes]
    device = jax.devices()[0]
    described = machine() | {"accelerator": f"{device.device_kind} ({device.platform})"}
    return {"machine_info": {"described": described}, "benchmarks": cases}


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=numbers, default=[1000, 2000], help="dimensions that are timed (1000,2000)")
    parser.add_argument("--correctness-d", type=int, default=200, help="dimension compared with the CPU (200)")
    parser.add_argument("--alpha", type=float, default=0.1, help="n/d² (0.1: 13 GB of float64 tokens at d = 2000)")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=list(DTYPES), help="float32,float64")
    parser.add_argument("--rounds", type=int, default=7, help="calls behind each median (7)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    document = measured(parsed(sys.argv[1:]))
    print(json.dumps(document, indent=1))
    everything = [row for entry in document["benchmarks"] for row in entry["extra_info"]["rows"]]
    sys.exit(0 if all(within_limit(row) for row in everything) else 1)
