"""AMP against a dense implementation that stores the sensing matrices: time of an iteration and peak memory.

T = 3, α = 0.05, float64. Both walk through the same iterates, to 1e-10, before anything is timed. Peak memory is that
of making the data and ten iterations, in a process of its own for each.
"""

import jax
import jax.numpy as jnp

from amp_attention.amp import AMP
from benchmarks._measure import LATE, advanced, instance, interleaved, medians, peak_memory, point, row
from benchmarks._process import fresh
from benchmarks.naive import dense_start, dense_step, sensing_matrices

TOKENS, ALPHA, LAM = 3, 0.05, 0.05


def _instance(d: int):
    return instance(d, TOKENS, ALPHA, jnp.float64, LAM)


def _dense_states(problem, data, steps: int):
    """The sensing matrices, and the states after 1, 2, ... steps."""
    A, state = sensing_matrices(data.X), dense_start(data)
    states = []
    for _ in range(steps):
        state = dense_step(problem, A, data.y, state)
        states.append(state)
    return A, states


def measure(d: int, rounds: int) -> dict:
    """Largest relative difference of the iterates, and seconds of a late iteration of both."""
    problem, data = _instance(d)
    A, states = _dense_states(problem, data, LATE)
    solver = AMP(damping=0.0)
    step, late, _ = advanced(solver, problem, data)
    state, difference = solver.init(problem, data), 0.0
    for dense in states:
        state, info = step(problem, data, state)
        assert info.residual > solver.resolved_tolerance(data)
        scale = jnp.linalg.norm(dense.S)
        difference = max(difference, float(jnp.linalg.norm(state.S - dense.S) / jnp.where(scale > 0, scale, 1)))
    functions = {
        "engine": lambda: step(problem, data, late),
        "dense": lambda: dense_step(problem, A, data.y, states[-1]),
    }
    return {"difference": difference, "seconds": interleaved(functions, rounds)}


def _run_dense(d: int) -> None:
    problem, data = _instance(d)
    jax.block_until_ready(_dense_states(problem, data, 10)[1][-1])


def _run_engine(d: int) -> None:
    advanced(AMP(damping=0.0), *_instance(d), steps=10)


def memory_dense(d: int) -> dict:
    """Peak bytes and seconds of the dense implementation."""
    return peak_memory(lambda: _run_dense(d))


def memory_engine(d: int) -> dict:
    """Peak bytes and seconds of the engine."""
    return peak_memory(lambda: _run_engine(d))


def bench_dense(record, naive_d, rounds):
    result = fresh(measure, dtype="float64", d=naive_d, rounds=rounds)
    assert result["difference"] <= 1e-10
    middle = medians(result["seconds"])
    memory = {
        "engine": fresh(memory_engine, dtype="float64", d=naive_d)["bytes"],
        "dense": fresh(memory_dense, dtype="float64", d=naive_d)["bytes"],
    }
    rows = [
        row("time of an iteration, dense / engine", middle["dense"] / middle["engine"]),
        row("peak memory, dense / engine", memory["dense"] / max(memory["engine"], 1)),
        row("largest relative difference of the iterates", result["difference"], limit=1e-10),
    ]
    rows += [row(f"iteration, {name}", 1e3 * seconds, "ms") for name, seconds in middle.items()]
    rows += [row(f"peak memory, {name}", size / 2**20, "MiB") for name, size in memory.items()]
    points = [point("naive_time", name, naive_d, seconds) for name, seconds in middle.items()]
    points += [point("naive_memory", name, naive_d, size / 2**20) for name, size in memory.items()]
    record(f"d = {naive_d}", result["seconds"]["engine"], rows, points)
