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
        record["gradients"] = {name: _slopes(found, slopes, field) for field, name in THRESHOLD_NAMES.items()}
        yield ThresholdPoint(record | _failure(found, target), target)


def _slopes(found: Thresholds, slopes: ThresholdGradients, field: str) -> dict[str, float]:
    """NaN also where only the threshold has no meaning: perfect recovery at Δ > 0 does not depend on κ0 ≥ 1."""
    named = {"kappa0": slopes.kappa0, "noise": slopes.noise}
    if math.isnan(number(getattr(found, field))):
        return dict.fromkeys(named, math.nan)
    return {name: math.nan if values is None else number(getattr(values, field)) for name, values in named.items()}


def _failure(found: Thresholds, target: Target) -> dict[str, Any]:
    """An interpolation threshold that should exist and was not found."""
    if number(target.noise) > 0 and not math.isfinite(number(found.interpolation)):
        return {"result": "left_domain", "message": "no interpolation threshold was found for this spectrum"}
    return {}
