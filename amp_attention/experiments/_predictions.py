"""What the theory predicts for figures: AMP's trajectory and dense curves."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from amp_attention.experiments._bayes import BayesSweep
from amp_attention.experiments._records import SUCCESSFUL
from amp_attention.experiments._theory import TheoryPoint, TheorySweep
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution import trajectory
from amp_attention.targets import Target


def predicted_trajectory(point: TheoryPoint, nodes, steps: int) -> dict[str, np.ndarray]:
    """Sigma, m, q of state evolution in time, from AMP's default start S = 0; arrays over iterations 0..steps."""
    path = trajectory(point.problem, nodes, steps)
    return {name: np.asarray(getattr(path, name), float) for name in ("Sigma", "m", "q")}


def theory_curve(problems: Iterable[AttentionProblem], sweep: TheorySweep) -> list[TheoryPoint]:
    """Fixed points between those of a grid, so that lines in figures are smooth; failures are left out."""
    points = [sweep.solve(problem) for problem in problems]
    return [point for point in points if point.record["result"] == SUCCESSFUL]


def bound_curve(target: Target, alphas: Iterable[float], sweep: BayesSweep) -> list[dict[str, Any]]:
    """Records of the Bayes-optimal estimator at each α; failures are left out."""
    records = [sweep.solve(target, alpha).record for alpha in alphas]
    return [record for record in records if record["result"] == SUCCESSFUL]


def refine(values: Sequence[float], count: int = 40) -> list[float]:
    """About `count` values over the range of `values`, logarithmic where they are, with the values themselves."""
    unique = sorted(set(values))
    if len(unique) < 2 or len(unique) >= count:
        return unique
    low, high = unique[0], unique[-1]
    dense = np.geomspace(low, high, count) if is_logarithmic(unique) else np.linspace(low, high, count)
    gap = (dense[1:] - dense[:-1]).min() / 4
    kept = [x for x in dense.tolist() if min(abs(x - u) for u in unique) > gap]
    return sorted({*unique, *kept})


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether a list of values spans more than a factor of 20: then an axis should be logarithmic."""
    return min(values) > 0 and max(values) / min(values) > 20
