"""The Bayes-optimal estimator on a grid of α, or of effective noises."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from amp_attention._solution import RESULTS, Solution
from amp_attention.bayes import (
    BayesPoint,
    bayes_nodes,
    bayes_point,
    bayes_test_errors,
    posterior_channel,
    solve_bayes,
)
from amp_attention.channels import AbstractPosteriorChannel
from amp_attention.experiments._records import guarded, number, outcome
from amp_attention.heads import HardmaxHead
from amp_attention.targets import Target
from amp_attention.thresholds import bayes_recovery_threshold

BAYES_NAMES = ("alpha", "effective_noise", "squared_error", "q", "q_hat", "V", "free_entropy")
ERROR_NAMES = ("test_error", "test_error_plugin")
FIELDS = {"effective_noise": "D", "V": "squared_error"}


@dataclass(frozen=True)
class BayesSweepPoint:
    """The estimator at one α, with its `record` for files; `value` is None where the solver raised."""

    record: dict[str, Any]
    value: BayesPoint | None


class BayesSweep:
    """The Bayes-optimal errors at one place after the other, with the same nodes for all targets of one head.

    A record has `effective_noise` for D, `V` for Q0 − q, the two test errors with their `standard_error`, and
    `alpha_bayes` (NaN where S0 is never found exactly: with noise, and for a hardmax).

    Args:
        nodes, replicas, seed: of the test errors, see `bayes_nodes`; of a `SampledHardmaxPosterior`, a 32nd of them.
    """

    def __init__(self, nodes: int = 65_536, replicas: int = 8, seed: int = 0):
        self._options = (nodes, replicas, seed)
        self._nodes: dict[tuple[int, Any], Any] = {}

    def solve(self, target: Target, alpha: float) -> BayesSweepPoint:
        """The estimator at α > 0."""
        return self._point(target, {"alpha": alpha}, *guarded(solve_bayes, target, alpha, self._channel(target)))

    def on_curve(self, target: Target, D: float) -> BayesSweepPoint:
        """The estimator at an effective noise D > 0, whose α follows."""
        found = guarded(lambda: Solution(bayes_point(target, D, self._channel(target)), RESULTS.successful, {}))
        return self._point(target, {"effective_noise": D}, *found)

    def _channel(self, target: Target) -> AbstractPosteriorChannel:
        nodes, replicas, seed = self._options
        return posterior_channel(target, nodes=-(-nodes // 32), replicas=replicas, seed=seed)

    def nodes_for(self, target: Target):
        """Integration nodes of the test errors."""
        kind = (target.head.tokens, target.noise.dtype)
        if kind not in self._nodes:
            self._nodes[kind] = bayes_nodes(target, *self._options)
        return self._nodes[kind]

    def _point(self, target: Target, given: dict[str, float], solution: Any, failure: Any) -> BayesSweepPoint:
        record: dict[str, Any] = dict.fromkeys((*BAYES_NAMES, *ERROR_NAMES), math.nan) | given
        record |= {"alpha_bayes": recovery(target), "standard_error": None}
        if solution is None:
            return BayesSweepPoint(record | failure, None)
        point: BayesPoint = solution.value
        record |= {name: number(getattr(point, FIELDS.get(name, name))) for name in BAYES_NAMES}
        nodes = self.nodes_for(target)
        errors = bayes_test_errors(target, point, nodes)
        found: dict[str, np.ndarray] = dict(
            zip(ERROR_NAMES, map(np.asarray, (errors.optimal, errors.plug_in)), strict=True)
        )
        record |= {name: float(np.mean(values)) for name, values in found.items()}
        if nodes.shape[0] > 1:
            record["standard_error"] = _standard_errors(target, point, nodes, found)
        return BayesSweepPoint(record | given | outcome(solution), point)


def _standard_errors(target: Target, point: BayesPoint, nodes, found: dict[str, np.ndarray]) -> dict[str, float]:
    """Of the test errors, and of all else where the channel is sampled."""
    errors = {name: float(np.std(values, ddof=1)) / math.sqrt(len(values)) for name, values in found.items()}
    own = {name: number(getattr(point.standard_error, FIELDS.get(name, name))) for name in BAYES_NAMES}
    if not any(own.values()):
        return errors
    # What the error of E does to the test errors: their derivatives do not exist for labels of maxima.
    ends = []
    for sign in (-1, 1):
        E = jnp.maximum(point.squared_error + sign * point.standard_error.squared_error, 0)
        moved = eqx.tree_at(lambda p: (p.squared_error, p.q), point, (E, target.Q0 - E))
        value = bayes_test_errors(target, moved, nodes)
        ends.append({"test_error": jnp.mean(value.optimal), "test_error_plugin": jnp.mean(value.plug_in)})
    low, high = ends
    return own | {name: math.hypot(errors[name], number(high[name] - low[name]) / 2) for name in errors}


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
        nodes, replicas, seed: see `BayesSweep`.

    Yields:
        A `BayesSweepPoint` each, with a record as of `BayesSweep`.
    """
    sweep = BayesSweep(nodes, replicas, seed)
    yield from (sweep.solve(target, alpha) for alpha in alphas)
    yield from (sweep.on_curve(target, D) for D in effective_noises)


def recovery(target: Target) -> float:
    """α from which S0 is found exactly; NaN where it never is."""
    if isinstance(target.head, HardmaxHead) or bool(jnp.any(target.noise > 0)):
        return math.nan
    return number(bayes_recovery_threshold(target.law, target.head.constraints))
