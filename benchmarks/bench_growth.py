"""How time and memory of AMP grow with d at fixed α: exponents of the best power law.

α = 0.5, T = 2, float32. The products cost nT d² = αT d⁴ and the tokens take αT d³, so that 4 and 3 are expected. The
iterations of all dimensions are timed in turn, in one process; memory is that of `bench_memory.py`.
"""

import jax.numpy as jnp
import numpy as np

from amp_attention.amp import AMP
from benchmarks._measure import advanced, instance, interleaved, medians, point, row
from benchmarks._process import fresh
from benchmarks.bench_memory import measure as measure_memory

ALPHA = 0.5


def measure(dimensions: list[int], rounds: int) -> dict:
    """Seconds of a late iteration in each dimension."""
    functions = {}
    for d in dimensions:
        problem, data = instance(d, 2, ALPHA, jnp.float32)
        step, late, _ = advanced(AMP(), problem, data)
        functions[str(d)] = lambda step=step, problem=problem, data=data, late=late: step(problem, data, late)
    return {"seconds": interleaved(functions, rounds)}


def exponent(x: list[int], y: list[float]) -> float:
    """The slope of log y in log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def bench_exponents(record, growth_d, rounds):
    result = fresh(measure, dimensions=growth_d, rounds=rounds)
    middle = list(medians(result["seconds"]).values())
    memory = [fresh(measure_memory, d=d, alpha=ALPHA, stored=True)["bytes"] / 2**20 for d in growth_d]
    rows = [
        row("exponent of the time of an iteration (products: 4)", exponent(growth_d, middle)),
        row("exponent of the peak memory (tokens: 3)", exponent(growth_d, memory)),
    ]
    points = [point("growth_time", "iteration", d, y) for d, y in zip(growth_d, middle, strict=True)]
    points += [point("growth_memory", "peak", d, y) for d, y in zip(growth_d, memory, strict=True)]
    record(f"d = {', '.join(map(str, growth_d))}", result["seconds"][str(growth_d[-1])], rows, points)
