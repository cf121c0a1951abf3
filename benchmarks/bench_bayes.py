"""The Bayes-optimal curve: 100 values of α solved one after the other, each from nothing.

One process solves one point, which compiles; then it times all of them. κ0 = 0.5, no noise, α from 0.02 to 0.18 for
the softmax of two tokens and from 0.05 to 5 for the hardmax; of three tokens, whose averages are sums over all labels,
five values of α at the default nodes.
"""

import time
from collections.abc import Callable

import numpy as np
import pytest

from amp_attention.bayes import solve_bayes
from amp_attention.heads import AbstractHead, HardmaxHead, SoftmaxHead
from amp_attention.spectral_laws import MarchenkoPastur
from amp_attention.targets import Target
from benchmarks._measure import row
from benchmarks._process import fresh

CASES: dict[str, tuple[Callable[[], AbstractHead], np.ndarray, float | None]] = {  # head, α, limit in seconds
    "softmax": (lambda: SoftmaxHead(2), np.linspace(0.02, 0.18, 100), 2.0),
    "hardmax, T = 2": (lambda: HardmaxHead(2), np.geomspace(0.05, 5, 100), 30.0),
    "hardmax, T = 3": (lambda: HardmaxHead(3), np.geomspace(0.05, 1, 5), None),
}


def measure(case: str) -> dict:
    """Seconds of the first point, and of all."""
    head, alphas, _ = CASES[case]
    target = Target(MarchenkoPastur(0.5), head(), 0.0)
    start = time.perf_counter()
    solve_bayes(target, alphas[0]).value.squared_error.block_until_ready()
    first = time.perf_counter() - start
    start = time.perf_counter()
    solutions = [solve_bayes(target, alpha) for alpha in alphas]
    solutions[-1].value.squared_error.block_until_ready()
    return {
        "first": first,
        "seconds": time.perf_counter() - start,
        "points": len(alphas),
        "unsuccessful": sum(not solution.successful for solution in solutions),
    }


@pytest.mark.parametrize("case", CASES)
def bench_curve(record, case):
    found = fresh(measure, dtype="float64", case=case)
    assert found["unsuccessful"] == 0
    rows = [
        row(f"run time of {found['points']} points", found["seconds"], "s", CASES[case][2]),
        row("first point, with compilation", found["first"], "s"),
    ]
    record(case, [found["seconds"]], rows)
