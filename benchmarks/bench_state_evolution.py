"""A sweep of state evolution as the command runs it: α from 0.05 to 5 and four λ̃, T = 2, 4096 nodes.

The first process solves the four points of one α and compiles everything; a second one finds the compiled programs in
the cache and solves all points. Run time is wall time without compilation; an evaluation is one pass over the nodes
that solves their proximal problems, whatever derivatives it takes.
"""

import statistics
import tempfile
import time

import numpy as np

from amp_attention.experiments import TheorySettings, problem_grid, state_evolution_sweep
from benchmarks._measure import row
from benchmarks._process import fresh

LAMS = (0.01, 0.03, 0.1, 0.3)
SECONDS, EVALUATIONS = 20.0, 15.0  # limits, for 50 values of α on two cores and for each point


def measure(alphas: int) -> dict:
    """Run and compile seconds of a sweep, and how its points ended."""
    start = time.perf_counter()
    grid = problem_grid(np.geomspace(0.05, 5, alphas) if alphas > 1 else [0.5], LAMS, tokens=2)
    records = [point.record for point in state_evolution_sweep(grid, TheorySettings(nodes=4096))]
    compilation = sum(record["compile_seconds"] for record in records)
    return {
        "seconds": time.perf_counter() - start - compilation,
        "compile_seconds": compilation,
        "evaluations": statistics.mean(record["iterations"] for record in records),
        "unsuccessful": sum(record["result"] != "successful" for record in records),
        "points": len(records),
    }


def bench_sweep(record, alphas):
    with tempfile.TemporaryDirectory() as cache:
        environment = {"JAX_COMPILATION_CACHE_DIR": cache}
        cold = fresh(measure, dtype="float64", environment=environment, alphas=1)
        warm = fresh(measure, dtype="float64", environment=environment, alphas=alphas)
    assert warm["unsuccessful"] == 0
    rows = [
        row("run time", warm["seconds"], "s", SECONDS if alphas == 50 else None),
        row("run time of a point", 1e3 * warm["seconds"] / warm["points"], "ms"),
        row("channel evaluations of a point, mean", warm["evaluations"], limit=EVALUATIONS),
        row("compilation, first process", cold["compile_seconds"], "s"),
        row("compilation, from the cache", warm["compile_seconds"], "s"),
    ]
    record(f"{warm['points']} points", [warm["seconds"]], rows)
