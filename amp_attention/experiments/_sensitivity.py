"""Fixed points with the derivatives of one observable, in theory and of AMP at finite d."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention.amp import differentiable_estimate
from amp_attention.experiments._finite import FiniteSettings, solve_instance
from amp_attention.experiments._records import SUCCESSFUL, average, guarded, number, outcome
from amp_attention.experiments._store import NOT_STORED, Steps
from amp_attention.experiments._theory import TheoryPoint, TheorySettings, TheorySweep
from amp_attention.generalisation import measure_test_error
from amp_attention.problem import AttentionProblem
from amp_attention.sensitivity import PARAMETERS, Gradient, expansion, gradient, observable
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.state_evolution import solve_interpolator, solve_state_evolution

# Observables of a finite-d estimate with derivatives; `test_error` needs fresh samples besides.
FINITE_OBSERVABLES = {
    "train_objective": lambda value: value.objective,
    "free_entropy": lambda value: value.objective,
    "train_error": lambda value: value.train_error,
    "squared_error": lambda value: value.squared_error,
    "m": lambda value: value.m,
    "q": lambda value: value.q,
    "trace": lambda value: value.trace,
}
UNKNOWN = dict.fromkeys([*PARAMETERS, "gamma"])  # derivatives that have no meaning or were not found


@dataclass(frozen=True)
class SensitivityPoint:
    """A fixed point and the derivatives of an observable there, as in its `record`."""

    record: dict[str, Any]
    theory: TheoryPoint


def sensitivity_sweep(
    problems: Iterable[AttentionProblem],
    of: str = "test_error",
    settings: TheorySettings = TheorySettings(),
    *,
    finite: FiniteSettings | None = None,
    gamma: Callable[[Any], Any] | None = None,
    store: Steps = NOT_STORED,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[SensitivityPoint]:
    """Derivatives of an observable along a grid.

    Args:
        problems: neighbours in parameters.
        of: a field of `FixedPoint`.
        settings: how state evolution is solved.
        finite: also the derivative in λ̃ of the same observable of AMP, on these instances.
        gamma: takes the gradient in the eigenvalues of a list to that in the exponent of a power law.
        store: keeps what is found, for instance a `SweepStore`.
        progress: told what is about to run.

    Yields:
        A `SensitivityPoint` each. Its record is that of the fixed point and `value`, `gradients` by name (null where
        the problem has no such number or the point is not successful), `second` (of λ̃), `gradients_standard_error`
        (the scatter of the gradients of the replicas of the nodes, each at its own fixed point, over √replicas), and
        `finite_d`, null without `finite`. It is successful where theory and AMP are.
    """
    observable(of)
    sweep = TheorySweep(settings, store)
    for problem in problems:
        progress("fixed point")
        theory = sweep.solve(problem)
        record = theory.record | {"of": of, "value": number(getattr(theory.value, of, None))}
        progress("derivatives")
        record |= store.step("derivatives", partial(_derivatives, theory, sweep.nodes_for(problem), of, gamma))
        record["finite_d"] = None if finite is None else finite_derivative(problem, of, finite, store, progress)
        yield SensitivityPoint(jointly(record, record["finite_d"]), theory)


def _derivatives(theory: TheoryPoint, nodes, of: str, gamma) -> dict[str, Any]:
    blank = {"gradients": UNKNOWN, "gradients_standard_error": UNKNOWN, "second": {"lam": None}}
    if not theory.successful:
        return blank
    interpolating = not bool(jnp.isfinite(theory.value.Sigma))
    answer, failed = guarded(_at_interpolator if interpolating else _at_fixed_point, theory, nodes, of, gamma)
    return blank | (answer if failed is None else failed)


def _at_interpolator(theory: TheoryPoint, nodes, of: str, gamma) -> dict[str, Any]:
    """On the λ → 0⁺ branch, where nothing is a function of λ̃ and no replica is solved."""
    read = observable(of)
    slope = eqx.filter_grad(lambda p: read(p, solve_interpolator(p, nodes).value))(theory.problem)
    return {"gradients": named(Gradient(theory.value.q, slope), gamma) | {"lam": None}}


def _at_fixed_point(theory: TheoryPoint, nodes, of: str, gamma) -> dict[str, Any]:
    problem, solution = theory.problem, theory.solution
    return {
        "gradients": named(gradient(problem, nodes, solution, of), gamma),
        "gradients_standard_error": replica_errors(theory, nodes, of, gamma) or UNKNOWN,
        "second": {"lam": number(expansion(problem, nodes, solution, of).second)},
    }


def replica_errors(theory: TheoryPoint, nodes, of: str, gamma=None) -> dict[str, float | None] | None:
    """Standard errors of the gradients: the scatter over the replicas that have a fixed point of their own.

    None for a single replica, or if fewer than half of them converge.
    """
    replicas, found = nodes.shape[0], []
    for replica in range(replicas):
        own = nodes[replica : replica + 1]
        solution = solve_state_evolution(theory.problem, own, start=theory.value, max_steps=100)
        if bool(solution.successful):
            found.append(named(gradient(theory.problem, own, solution, of), gamma))
    if len(found) < max(2, replicas / 2):
        return None
    scatter = lambda values: float(np.std(values, ddof=1) / replicas**0.5)  # noqa: E731
    return {n: None if found[0][n] is None else scatter([one[n] for one in found]) for n in found[0]}


def named(found: Gradient, gamma=None) -> dict[str, float | None]:
    """Derivatives by name, None where the problem has no such number; that in γ where `gamma` takes it there."""
    result = {name: None if (value := found[name]) is None else number(value) for name in PARAMETERS}
    law = found.problem.target.law
    if gamma is None or not isinstance(law, FiniteLaw):
        return result | {"gamma": None}
    return result | {"gamma": number(gamma(law.eigenvalues))}


def jointly(record: dict[str, Any], finite: Mapping[str, Any] | None) -> dict[str, Any]:
    """A record of theory, not successful either where what was solved at finite d beside it is not."""
    if finite is None or record["result"] != SUCCESSFUL or finite["result"] == SUCCESSFUL:
        return record
    return record | {"result": finite["result"], "message": f"at finite d: {finite['message']}"}


def finite_derivative(
    problem: AttentionProblem,
    of: str,
    settings: FiniteSettings,
    store: Steps = NOT_STORED,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The derivative in λ̃ of an observable of AMP at finite d, by implicit differentiation at its fixed point.

    Returns:
        `d`, `lam` (the mean derivative over the successful repeats; null where AMP has no such observable),
        `standard_error` (null for one repeat), `result`, and `message` where that is not a success.
    """
    records = []
    for repeat in range(settings.repeats):
        progress(f"amp repeat {repeat + 1}/{settings.repeats}")
        records.append(store.run(f"amp repeat {repeat}", partial(_amp_derivative, problem, repeat, of, settings)))
    joint = average(records, ["lam"])
    error = (joint["standard_error"] or {}).get("lam")
    return {"d": settings.d} | joint | {"standard_error": error}


def _amp_derivative(problem, repeat: int, of: str, settings: FiniteSettings, checkpoint) -> dict[str, Any]:
    record, failed = guarded(_amp_solved, problem, settings.draw(problem, repeat), of, settings, checkpoint)
    return record if failed is None else failed


def _amp_solved(problem, instance, of: str, settings: FiniteSettings, checkpoint) -> dict[str, Any]:
    solution = solve_instance("amp", problem, instance, settings, checkpoint)
    return outcome(solution) | {"lam": _amp_slope(problem, instance, solution, of, settings)}


def _amp_slope(problem, instance, solution, of: str, settings: FiniteSettings) -> float:
    if of not in FINITE_OBSERVABLES and of != "test_error":
        return math.nan

    def value(lam):
        moved = eqx.tree_at(lambda p: p.denoiser.lam, problem, lam)
        estimate = differentiable_estimate(moved, instance.data, solution, S0=instance.S0).value
        if of == "test_error":
            return measure_test_error(problem, estimate.S, instance.S0, instance.test_key, settings.test_samples)[0]
        return FINITE_OBSERVABLES[of](estimate)

    lam = problem.denoiser.lam  # pyright: ignore[reportAttributeAccessIssue]
    return number(jax.jvp(value, (lam,), (jnp.ones_like(lam),))[1])
