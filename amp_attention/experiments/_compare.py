"""Theory, AMP and training side by side."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from amp_attention.data import sample_size
from amp_attention.experiments._bayes import BayesSweep
from amp_attention.experiments._finite import FiniteSettings, run_instances
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._records import SUCCESSFUL, number
from amp_attention.experiments._runs import FinitePoint
from amp_attention.experiments._store import NOT_STORED, Steps
from amp_attention.experiments._theory import TheoryPoint, TheorySettings, TheorySweep
from amp_attention.problem import AttentionProblem

# Observables that AMP at finite d and state evolution both have.
COMPARED = ("test_error", "train_objective", "train_error", "squared_error", "m", "q", "trace", "zero_fraction")


@dataclass(frozen=True)
class ComparisonPoint:
    """The engines at one problem.

    Attributes:
        record: what files and the JSON document hold.
        theory: the fixed point at the effective α of the data.
        finite: of "amp" and "train", those that ran.

    Its `record` has a part for each of them, None for one that did not run; the part `bayes` is the record of a
    `BayesSweep`, where that was asked for.
    """

    record: dict[str, Any]
    theory: TheoryPoint
    finite: dict[str, FinitePoint]


def compare(
    problems: Iterable[AttentionProblem],
    theory: TheorySettings = TheorySettings(),
    finite: FiniteSettings = FiniteSettings(),
    *,
    engines: Iterable[str] = ("amp", "train"),
    bound: BayesSweep | None = None,
    store: Steps = NOT_STORED,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[ComparisonPoint]:
    """State evolution, AMP and training on one grid.

    Args:
        problems: for instance a `problem_grid`.
        theory: how state evolution is solved; its κ is that of `finite`.
        finite: how the engines run at finite d.
        engines: of "amp" and "train", those that run.
        bound: adds the least ‖S − S0‖²_F/d and test error that any estimator can have, on the same labels. Both are
            bounds as they are for students of every β: that of the student enters neither of them.
        store: keeps what is found, for instance a `SweepStore`.
        progress: told what is about to run.

    Yields:
        A `ComparisonPoint` each.
    """
    engines = tuple(engines)
    sweep = TheorySweep(replace(theory, kappa=finite.kappa), store)
    for problem in problems:
        effective = sample_size(number(problem.alpha), finite.d) / finite.d**2
        predicted = sweep.solve(problem_at(problem, alpha=effective))
        least = None if bound is None else _least(bound, problem, effective, store)
        measured = run_instances(problem, engines, finite, store=store, progress=progress)
        yield ComparisonPoint(_record(problem, predicted, measured, least), predicted, measured)


def _least(bound: BayesSweep, problem: AttentionProblem, alpha: float, store: Steps) -> dict[str, Any]:
    return store.step(f"Bayes-optimal point at alpha {alpha!r}", lambda: bound.solve(problem.target, alpha).record)


def _record(
    problem: AttentionProblem, theory: TheoryPoint, finite: dict[str, FinitePoint], least: dict[str, Any] | None
) -> dict[str, Any]:
    parts: dict[str, Any] = {"state_evolution": theory.record, "bayes": least}
    parts |= {engine: finite[engine].record if engine in finite else None for engine in ("amp", "train")}
    failed = [(name, part) for name, part in parts.items() if part and part["result"] != SUCCESSFUL]
    head: dict[str, Any] = {"alpha": number(problem.alpha), "lam": number(getattr(problem.denoiser, "lam", None))}
    head["result"] = failed[0][1]["result"] if failed else SUCCESSFUL
    if failed:
        head["message"] = "; ".join(f"{name}: {part['message']}" for name, part in failed)
    return head | parts | {"agreement": agreement(theory.record, finite)}


def agreement(theory: dict[str, Any], finite: dict[str, FinitePoint]) -> dict[str, Any]:
    """Do the engines agree?

    Returns:
        `amp_minus_theory`: mean gap of each observable and, with several repeats, its `standard_error` (both engines').
        `objective_gap`: the largest |L_amp − L_train|/L_train over repeats; `squared_distance`: the mean of
        ‖S_amp − S_train‖²/d. Null where an engine did not run.
    """
    amp = finite["amp"].record if "amp" in finite else None
    result: dict[str, Any] = {"amp_minus_theory": None, "objective_gap": None, "squared_distance": None}
    if amp is not None:
        gaps: dict[str, Any] = {name: amp[name] - theory[name] for name in COMPARED}
        gaps["standard_error"] = _joint_error(amp["standard_error"], theory["standard_error"])
        result["amp_minus_theory"] = gaps
    if amp is not None and "train" in finite:
        pairs = list(zip(amp["runs"], finite["train"].record["runs"], strict=True))
        relative = [abs(a["train_objective"] - t["train_objective"]) / t["train_objective"] for a, t in pairs]
        distances = [t["squared_distance"] for _, t in pairs]
        result["objective_gap"] = max(relative) if not any(map(math.isnan, relative)) else math.nan
        result["squared_distance"] = sum(distances) / len(distances)
    return result


def _joint_error(amp: dict[str, float] | None, theory: dict[str, float] | None) -> dict[str, float] | None:
    if amp is None or theory is None:
        return None
    return {name: math.hypot(amp[name], theory[name]) for name in COMPARED}
