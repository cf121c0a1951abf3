"""AMP and training on finite-d instances: one record a run, means over repeats."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from amp_attention.amp import solve_amp
from amp_attention.channels import AbstractPosteriorChannel
from amp_attention.checkpoints import Checkpoint
from amp_attention.erm import OPTIMIZERS, train
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._instances import Instance, draw_instance
from amp_attention.experiments._records import (
    AMP_NAMES,
    FINITE_NAMES,
    POSTERIOR_NAMES,
    SUCCESSFUL,
    average,
    guarded,
    number,
    numbers,
    outcome,
)
from amp_attention.experiments._runs import FinitePoint, FiniteRun
from amp_attention.experiments._settings import SolverSettings
from amp_attention.experiments._store import NOT_STORED, Steps
from amp_attention.experiments._timing import timed
from amp_attention.generalisation import measure_test_error
from amp_attention.numerics.devices import device_mesh
from amp_attention.numerics.validation import instance_of, whole_number
from amp_attention.problem import AttentionProblem


@dataclass(frozen=True, kw_only=True)
class FiniteSettings(SolverSettings):
    """How the engines run on instances.

    The seed is that of the experiment, the tolerance is on the KKT residual, the damping is AMP's, training has width
    p = round(κd) ≥ 1, and the samples are divided over the devices.

    Attributes:
        d: embedding dimension.
        repeats: number of independent instances.
        test_samples: fresh samples behind the test error.
        optimizer: of training, "lbfgs" or "adam".
        keep_matrices: keep the learned S of every run (d² numbers each).
        stored: keep the tokens in memory, rather than redraw them at every pass.
    """

    d: int = 100
    repeats: int = 1
    test_samples: int = 100_000
    optimizer: str = "lbfgs"
    keep_matrices: bool = False
    stored: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("d", "repeats", "test_samples"):
            whole_number(name, getattr(self, name), 1)
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        for name in ("keep_matrices", "stored"):
            instance_of(name, getattr(self, name), bool, "True or False")

    @property
    def mesh(self) -> Mesh | None:
        """The devices, if there are several."""
        return None if self.devices == 1 else device_mesh(self.devices)

    def draw(self, problem: AttentionProblem, repeat: int) -> Instance:
        """The instance of one repeat."""
        return draw_instance(problem, self.d, self.seed, repeat, mesh=self.mesh, stored=self.stored)


Engine = Callable[[AttentionProblem, Instance, FiniteSettings, Checkpoint | None], Any]


def _options(settings: FiniteSettings, checkpoint: Checkpoint | None) -> dict[str, Any]:
    options: dict[str, Any] = {"tolerance": settings.tolerance, "checkpoint": checkpoint}
    return options if settings.max_iterations is None else options | {"max_steps": settings.max_iterations}


def _amp(problem: AttentionProblem, instance: Instance, settings: FiniteSettings, checkpoint: Checkpoint | None):
    options = _options(settings, checkpoint)
    return solve_amp(problem, instance.data, S0=instance.S0, damping=settings.damping, **options)


def _train(problem: AttentionProblem, instance: Instance, settings: FiniteSettings, checkpoint: Checkpoint | None):
    width = max(1, round(settings.kappa * instance.data.d))
    options = _options(settings, checkpoint) | {"optimizer": settings.optimizer, "width": width}
    return train(problem, instance.data, key=instance.train_key, **options)


ENGINES: dict[str, Engine] = {"amp": _amp, "train": _train}
EXTRA_NAMES: dict[str, tuple[str, ...]] = {"amp": AMP_NAMES, "train": ()}


def observables(engine: str, problem: AttentionProblem) -> tuple[str, ...]:
    """What a run of the engine has a number for, or a NaN."""
    predictions = POSTERIOR_NAMES if _is_posterior(problem) else ()
    return FINITE_NAMES + EXTRA_NAMES[engine] + predictions


def _is_posterior(problem: AttentionProblem) -> bool:
    return isinstance(problem.channel, AbstractPosteriorChannel)


def solve_instance(
    engine: str,
    problem: AttentionProblem,
    instance: Instance,
    settings: FiniteSettings,
    checkpoint: Checkpoint | None = None,
) -> Any:
    """The engine's own `Solution` on one instance; `engine` is "amp" or "train"."""
    return ENGINES[engine](problem, instance, settings, checkpoint)


def run_engine(
    engine: str,
    problem: AttentionProblem,
    instance: Instance,
    settings: FiniteSettings,
    repeat: int = 0,
    checkpoint: Checkpoint | None = None,
) -> FiniteRun:
    """One engine on one instance.

    Args:
        engine: "amp" or "train".
        problem: its α is replaced by the effective n/d² of the data.
        instance: the draw.
        settings: how to run.
        repeat: index written to the record.
        checkpoint: of the engine.

    Returns:
        The run; an exception inside it is a result with a message.
    """
    n, d = instance.data.n, instance.data.d
    problem = problem_at(problem, alpha=n / d**2)
    head = {"repeat": repeat, "seed": settings.seed, "d": d, "n": n, "alpha": n / d**2}
    answer, failed = guarded(timed, solve_instance, engine, problem, instance, settings, checkpoint)
    names, sampled = observables(engine, problem), tuple(f"{name}_standard_error" for name in _predictors(problem))
    if failed is not None:
        unknown = (*sampled, "gradient_norm", "seconds", "seconds_per_iteration", "compile_seconds")
        return FiniteRun(head | failed | numbers({}, names + unknown) | {"iterations": None})
    solution, timing = answer
    value = solution.value
    iterations = int(number(solution.stats["iterations"]))
    record = head | outcome(solution) | numbers(value, names) | _against_target(problem, instance, value, settings)
    record |= {
        "train_objective": number(value.objective),
        "gradient_norm": number(value.gradient_norm),
        "iterations": iterations,
        "seconds": timing.seconds,
        "seconds_per_iteration": timing.seconds / max(iterations, 1),
        "compile_seconds": timing.compile_seconds,
    }
    S = np.asarray(value.S)
    finite = bool(np.all(np.isfinite(S)))
    return FiniteRun(record, S, np.linalg.eigvalsh(S) if finite else None, _history(value, problem, instance))


def _predictors(problem: AttentionProblem) -> tuple[str, ...]:
    """Names of the test errors, in the order of `measure_test_error`."""
    return ("test_error", *POSTERIOR_NAMES) if _is_posterior(problem) else ("test_error",)


def _against_target(problem: AttentionProblem, instance: Instance, value, settings: FiniteSettings) -> dict[str, float]:
    predictors = _predictors(problem)
    names = [name for predictor in predictors for name in (predictor, f"{predictor}_standard_error")]
    names += ["squared_error", "m"]
    if instance.S0 is None:
        return dict.fromkeys(names, math.nan)
    S, S0 = np.asarray(value.S), np.asarray(instance.S0)  # from whatever devices they are on
    variance = number(value.V) if _is_posterior(problem) else None
    where = (instance.test_key, settings.test_samples)
    found = measure_test_error(problem, jnp.asarray(S), jnp.asarray(S0), *where, variance=variance)
    sampled = np.stack([np.atleast_1d(np.asarray(part)) for part in found], axis=1)  # mean, error of each
    d = S.shape[0]
    distance, overlap = ((S - S0) ** 2).sum() / d, (S * S0).sum() / d
    return dict(zip(names, map(number, (*sampled.ravel(), distance, overlap)), strict=True))


def _history(value, problem: AttentionProblem, instance: Instance) -> dict[str, np.ndarray]:
    """q, m, V over iterations 0, 1, ...: where the denoiser starts, then AMP's own record without its unused tail."""
    history = getattr(value, "history", None)
    if history is None:
        return {}
    d = instance.data.d
    S, V = (np.asarray(part, float) for part in problem.denoiser.start(d))
    S0 = np.full_like(S, np.nan) if instance.S0 is None else np.asarray(instance.S0, float)
    start = {"q": (S**2).sum() / d, "m": (S * S0).sum() / d, "V": V}
    steps = int(np.isfinite(np.asarray(history.q)).sum())
    return {n: np.append(first, np.asarray(getattr(history, n), float)[:steps]) for n, first in start.items()}


def finite_point(engine: str, problem: AttentionProblem, runs: list[FiniteRun]) -> FinitePoint:
    """Means over the successful repeats, with the runs themselves."""
    records = [run.record for run in runs]
    head = {"alpha": number(problem.alpha), "lam": number(getattr(problem.denoiser, "lam", None))}
    head |= {"d": records[0]["d"], "n": records[0]["n"]}
    means = average(records, observables(engine, problem))
    return FinitePoint(head | means | {"runs": records}, runs)


def run_instances(
    problem: AttentionProblem,
    engines: Iterable[str],
    settings: FiniteSettings,
    *,
    instance: Instance | None = None,
    store: Steps = NOT_STORED,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, FinitePoint]:
    """Every engine on the same instances.

    Args:
        problem: target, channel, denoiser and α.
        engines: of "amp" and "train".
        settings: how to run.
        instance: a user's data; by default each repeat draws its own.
        store: keeps the runs, for instance a `SweepStore`.
        progress: told what is about to run.

    Returns:
        A point for each engine. When both ran, each training run carries `squared_distance` = ‖S_amp − S_train‖²/d.

    Raises:
        ValueError: for what is no problem, no settings, or another engine.
    """
    instance_of("problem", problem, AttentionProblem, "an AttentionProblem")
    instance_of("settings", settings, FiniteSettings, "FiniteSettings")
    engines = (engines,) if isinstance(engines, str) else tuple(engines)
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown or not engines:
        raise ValueError(f"engines must be of {', '.join(ENGINES)}, got {unknown[0] if unknown else 'none'!r}")
    runs: dict[str, list[FiniteRun]] = {engine: [] for engine in engines}
    kept = settings.keep_matrices or len(engines) == 2
    place = f"alpha {number(problem.alpha)!r}, lam {number(getattr(problem.denoiser, 'lam', None))!r}"
    for repeat in range(settings.repeats):
        drawn = cache(lambda repeat=repeat: settings.draw(problem, repeat) if instance is None else instance)
        for engine in engines:
            progress(f"{engine} repeat {repeat + 1}/{settings.repeats}")
            run = partial(_run, engine, problem, drawn, settings, repeat, matrix=kept)
            runs[engine].append(FiniteRun(**store.run(f"{engine} repeat {repeat} at {place}", run)))
        if len(engines) == 2:
            _compare_runs(runs["amp"][-1], runs["train"][-1])
        if not settings.keep_matrices:
            for done in runs.values():
                done[-1] = replace(done[-1], S=None)
    return {engine: finite_point(engine, problem, runs[engine]) for engine in engines}


def _run(engine, problem, drawn, settings: FiniteSettings, repeat: int, checkpoint, *, matrix: bool) -> dict[str, Any]:
    """`run_engine` on an instance that is drawn only now, without the learned matrix where nobody will look at it."""
    run = vars(run_engine(engine, problem, drawn(), settings, repeat, checkpoint))
    return run if matrix else run | {"S": None}


def _compare_runs(amp: FiniteRun, trained: FiniteRun) -> None:
    distance = math.nan
    finished = amp.record["result"] == trained.record["result"] == SUCCESSFUL
    if finished and amp.S is not None and trained.S is not None:
        distance = float(((amp.S - trained.S) ** 2).sum() / len(amp.S))
    trained.record["squared_distance"] = distance
