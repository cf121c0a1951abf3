"""The Bayes-optimal estimator on a grid of α, or of effective noises."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from amp_attention._solution import RESULTS, Solution
from amp_attention.bayes import BayesPoint, bayes_nodes, bayes_point, bayes_test_errors, solve_bayes
from amp_attention.experiments._records import guarded, number, outcome
from amp_attention.heads import HardmaxHead
from amp_attention.targets import Target
from amp_attention.thresholds import bayes_recovery_threshold

BAYES_NAMES = ("alpha", "effective_noise", "squared_error", "q", "q_hat", "V", "free_entropy")


@dataclass(frozen=True)
class BayesSweepPoint:
    """The estimator at one α, with its `record` for files; `value` is None where the solver raised."""

    record: dict[str, Any]
    value: BayesPoint | None


def bayes_sweep(
    target: Target,
    alphas: Iterable[float] = (),
    effective_noises: Iterable[float] = (),
    *,
    nodes: int = 65_536,
    replicas: int = 8,
    seed: int = 0,
) -> Iterator[BayesSweepPoint]:
    """The Bayes-optimal errors at each α, then at each D of the explicit curve.

    Args:
        target: all of it is known to the estimator.
        alphas: values of α > 0.
        effective_noises: values of D > 0.
        nodes, replicas, seed: of the test errors, see `bayes_nodes`.

    Yields:
        A `BayesSweepPoint` each, with `effective_noise` for D, `V` for Q0 − q, the two test errors with their
        `standard_error`, and `alpha_bayes` (NaN where S0 is never found exactly: with noise, and for a hardmax).
    """
    points = bayes_nodes(target, nodes, replicas, seed)
    for alpha in alphas:
        yield _point(target, points, {"alpha": alpha}, *guarded(solve_bayes, target, alpha))
    for D in effective_noises:
        solution, failure = guarded(lambda D=D: Solution(bayes_point(target, D), RESULTS.successful, {}))
        yield _point(target, points, {"effective_noise": D}, solution, failure)


def _point(target: Target, nodes, given: dict[str, float], solution: Any, failure: Any) -> BayesSweepPoint:
    record: dict[str, Any] = dict.fromkeys((*BAYES_NAMES, "test_error", "test_error_plugin"), math.nan) | given
    record |= {"alpha_bayes": recovery(target), "standard_error": None}
    if solution is None:
        return BayesSweepPoint(record | failure, None)
    point: BayesPoint = solution.value
    names = {"effective_noise": "D", "V": "squared_error"}
    record |= {name: number(getattr(point, names.get(name, name))) for name in BAYES_NAMES}
    errors = bayes_test_errors(target, point, nodes)
    found = {"test_error": np.asarray(errors.optimal), "test_error_plugin": np.asarray(errors.plug_in)}
    record |= {name: float(np.mean(values)) for name, values in found.items()}
    if nodes.shape[0] > 1:
        scale = math.sqrt(nodes.shape[0])
        record["standard_error"] = {name: float(np.std(values, ddof=1)) / scale for name, values in found.items()}
    return BayesSweepPoint(record | given | outcome(solution), point)


def recovery(target: Target) -> float:
    """α from which S0 is found exactly; NaN where it never is."""
    if isinstance(target.head, HardmaxHead) or bool(jnp.any(target.noise > 0)):
        return math.nan
    return number(bayes_recovery_threshold(target.law, target.head.constraints))
