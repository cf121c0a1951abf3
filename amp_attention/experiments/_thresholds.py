"""Thresholds on a grid of targets."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from amp_attention.experiments._records import SUCCESSFUL, number
from amp_attention.targets import Target
from amp_attention.thresholds import ThresholdGradients, Thresholds, threshold_gradients, thresholds

# Names in records, by field of `Thresholds`.
THRESHOLD_NAMES = {
    "interpolation": "alpha_interpolation",
    "recovery": "alpha_recovery",
    "bayes": "alpha_bayes",
}


@dataclass(frozen=True)
class ThresholdPoint:
    """The thresholds of one target."""

    record: dict[str, Any]
    target: Target


def threshold_sweep(targets: Iterable[Target]) -> Iterator[ThresholdPoint]:
    """Thresholds in α of each target, with their derivatives in κ0 and Δ.

    Yields:
        A `ThresholdPoint` each; null where a threshold or a derivative has no meaning: interpolation at Δ = 0, recovery
        at Δ > 0, κ0 of a law without it.
    """
    for target in targets:
        found, slopes = thresholds(target), threshold_gradients(target)
        record: dict[str, Any] = {
            "kappa0": number(getattr(target.law, "kappa0", None)),
            "noise": number(target.noise),
            "tokens": target.head.tokens,
            "result": SUCCESSFUL,
        }
        record |= {name: number(getattr(found, field)) for field, name in THRESHOLD_NAMES.items()}
        record["gradients"] = {name: _slopes(slopes, field) for field, name in THRESHOLD_NAMES.items()}
        yield ThresholdPoint(record | _failure(found, target), target)


def _slopes(slopes: ThresholdGradients, field: str) -> dict[str, float]:
    return {
        "kappa0": math.nan if slopes.kappa0 is None else number(getattr(slopes.kappa0, field)),
        "noise": number(getattr(slopes.noise, field)),
    }


def _failure(found: Thresholds, target: Target) -> dict[str, Any]:
    """An interpolation threshold that should exist and was not found."""
    if number(target.noise) > 0 and not math.isfinite(number(found.interpolation)):
        return {"result": "left_domain", "message": "no interpolation threshold was found for this spectrum"}
    return {}
