"""Many runs in one process: memory stays what it was."""

import gc
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from amp_attention.amp import solve_amp
from amp_attention.data import generate_data
from amp_attention.problem import attention_problem
from amp_attention.state_evolution import solve_state_evolution, state_evolution_nodes

STATUS = Path("/proc/self/statm")
PAGE = 4096
LEAK = 2**22  # bytes in half of the runs, far below one small array or traced program a run
STEP = 2**26  # bytes that allocators may have taken once, on the way


def resident() -> int:
    """Bytes of memory that the process holds."""
    gc.collect()
    return int(STATUS.read_text().split()[1]) * PAGE


def assert_no_growth(run, times: int, warm: int) -> None:
    """Run `warm` times, then twice `times/2`: neither the arrays that live nor the memory may grow.

    Memory is taken from the system in steps, of which one may fall into either half; what leaks does so in both.
    """
    for i in range(warm):
        run(i)
    arrays, held = len(jax.live_arrays()), [resident()]
    for _ in range(2):
        for i in range(times // 2):
            run(i)
        held.append(resident())
    print(f"{times} runs: " + ", ".join(f"{size / 2**20:.1f} MiB" for size in held))
    assert len(jax.live_arrays()) <= arrays
    assert min(held[1] - held[0], held[2] - held[1]) <= LEAK
    assert held[2] - held[0] <= STEP


needs_status = pytest.mark.skipif(not STATUS.exists(), reason="the memory of a process is read from /proc")


@needs_status
@pytest.mark.slow
def test_gradients_of_state_evolution_leave_nothing_behind():
    """2000 of one compiled gradient, then some whose function is a new one at every call."""
    problem = attention_problem()
    nodes = state_evolution_nodes(problem, 256, 4)

    def test_error(lam):
        return solve_state_evolution(attention_problem(lam=lam), nodes).value.test_error

    compiled = jax.jit(jax.grad(test_error))
    assert_no_growth(lambda i: compiled(0.05 + 1e-5 * (i % 100)).block_until_ready(), 2000, 100)
    assert_no_growth(lambda i: jax.grad(lambda lam: test_error(lam))(0.05 + 1e-5 * (i % 100)), 240, 40)


@needs_status
@pytest.mark.slow
def test_runs_of_amp_leave_nothing_behind():
    """200, each on fresh data at another λ̃, and their derivatives."""
    problem = attention_problem(0.5, 0.1)

    def run(i: int) -> None:
        data, S0 = generate_data(jax.random.key(i), problem, 20)
        moved = eqx.tree_at(lambda p: p.denoiser.lam, problem, jnp.asarray(0.1 + 1e-3 * (i % 50)))
        solve_amp(moved, data, S0=S0).value.S.block_until_ready()

    assert_no_growth(run, 200, 20)
