"""AMP against gradient training of the weights, to the same objective on the same data.

The minimum is the lowest objective that AMP or L-BFGS reaches when it runs to convergence. For each method the smallest
number of steps that comes within a relative 1e-6 of it is found first; then `solve_amp` and `train` are called with
just that many steps, in turn, after a first call that compiles. What is counted is all that such a call does, the
report of its solution included, and no compilation. Width p = d, float64, λ̃ = 0.05, T = 2.

L-BFGS walks the same path whatever its budget. The learning rate of Adam falls over its budget, so a budget is searched
for: doubled until it suffices, then narrowed to within a fifth. All steps of Adam cost the same: 100 of them are timed,
and the time is scaled to the budget, which counts a few percent too much.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from amp_attention.amp import AMP, solve_amp
from amp_attention.erm import minimise, tied_matrix, train, training_objective
from amp_attention.erm._optimizers import named_optimizer
from benchmarks._measure import instance, interleaved, medians, point, row
from benchmarks._process import fresh

CLOSE = 1e-6  # relative, above the minimum
_NEVER = 1e-300  # a tolerance that stops nothing
_MOST = 20_000  # steps of a method that does not get there
_TIMED = 100  # steps of Adam
_KEY = 1


def amp_steps(problem, data, target: float) -> int:
    """AMP steps from S = 0 to the target."""
    solver = AMP()
    step, state = eqx.filter_jit(solver.step), solver.init(problem, data)
    objective = eqx.filter_jit(training_objective)
    for steps in range(1, _MOST):
        state, _ = step(problem, data, state)
        if float(objective(problem, state.S, data)) <= target:
            return steps
    raise RuntimeError(f"AMP did not come to {target} in {_MOST} steps")


@eqx.filter_jit
def _lbfgs_run(problem, data, W, target):
    objective = lambda W: training_objective(problem, tied_matrix(W), data)  # noqa: E731

    def stop(W, _):
        reached = objective(W)
        return reached <= target, reached

    optimizer = named_optimizer("lbfgs", jnp.ones((), W.dtype), _MOST)
    return minimise(lambda W: data.d**2 * objective(W), W, optimizer, stop, _MOST)


def lbfgs_steps(problem, data, target: float) -> int:
    """L-BFGS steps from the weights that `train` starts from to the target."""
    W = jax.random.normal(jax.random.key(_KEY), (data.d, data.d), data.dtype)
    found = _lbfgs_run(problem, data, W, jnp.asarray(target, data.dtype))
    if not bool(found.converged):
        raise RuntimeError(f"L-BFGS did not come to {target} in {int(found.steps)} steps")
    return int(found.steps)


def adam_steps(problem, data, target: float) -> int:
    """The smallest budget, within a fifth, with which Adam comes to the target."""

    def reaches(steps):
        return bool(trained(problem, data, "adam", steps).value.objective <= target)

    enough = 64
    while not reaches(enough):
        enough *= 2
        if enough > _MOST:
            raise RuntimeError(f"Adam did not come to {target} in {enough // 2} steps")
    for share in (0.7, 0.85):
        enough = round(share * enough) if reaches(round(share * enough)) else enough
    return enough


def trained(problem, data, optimizer: str, steps: int):
    """`train` with a budget that it uses up."""
    key = jax.random.key(_KEY)
    return train(problem, data, key=key, optimizer=optimizer, max_steps=steps, tolerance=_NEVER)


def measure(d: int, alpha: float, rounds: int) -> dict:
    """Steps and seconds of each method to the same objective."""
    problem, data = instance(d, 2, alpha, jnp.float64)
    converged = [
        solve_amp(problem, data, tolerance=1e-10).value.objective,
        train(problem, data, key=jax.random.key(_KEY)).value.objective,
    ]
    target = (1 + CLOSE) * float(min(converged))
    steps = {
        "AMP": amp_steps(problem, data, target),
        "L-BFGS": lbfgs_steps(problem, data, target),
        "Adam": adam_steps(problem, data, target),
    }
    functions = {
        "AMP": lambda: solve_amp(problem, data, max_steps=steps["AMP"], tolerance=_NEVER),
        "L-BFGS": lambda: trained(problem, data, "lbfgs", steps["L-BFGS"]),
        "Adam": lambda: trained(problem, data, "adam", min(_TIMED, steps["Adam"])),
    }
    reached = {name: float(functions[name]().value.objective) for name in ("AMP", "L-BFGS")}
    seconds = interleaved(functions, rounds)
    scale = steps["Adam"] / min(_TIMED, steps["Adam"])
    seconds["Adam"] = [scale * value for value in seconds["Adam"]]
    distances = {name: objective / float(min(converged)) - 1 for name, objective in reached.items()}
    return {"steps": steps, "seconds": seconds, "reached": distances}


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def bench_methods(record, training_d, alpha, rounds):
    result = fresh(measure, dtype="float64", timeout=24 * 3600, d=training_d, alpha=alpha, rounds=rounds)
    # A last bit more or less in another compiled program may lie on the other side of the target.
    assert max(result["reached"].values()) <= 1.1 * CLOSE
    middle = medians(result["seconds"])
    rows = [row(f"{name} / AMP, time", middle[name] / middle["AMP"]) for name in ("L-BFGS", "Adam")]
    rows += [row(f"{name}, time", seconds, "s") for name, seconds in middle.items()]
    rows += [row(f"{name}, steps", steps) for name, steps in result["steps"].items()]
    rows += [row(f"{name}, relative distance from the minimum", gap) for name, gap in result["reached"].items()]
    points = [point("training", f"{name}, α = {alpha}", training_d, seconds) for name, seconds in middle.items()]
    record(f"d = {training_d}, α = {alpha}", result["seconds"]["AMP"], rows, points)
