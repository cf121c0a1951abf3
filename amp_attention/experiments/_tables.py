"""Points as tables: flat rows for CSV, an xarray Dataset over the axes of the grid for netCDF."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

NESTED = ("state_evolution", "amp", "train", "agreement")

DESCRIPTIONS = {
    "alpha": "alpha = n/d^2",
    "lam": "lambda-tilde = sqrt(kappa) lambda",
    "Sigma": "AMP variance",
    "m": "Tr(S S0)/d",
    "q": "Tr(S^2)/d",
    "test_error": "mean squared error on fresh noisy labels, summed over T^2 entries",
    "test_error_plugin": "that of the label of the posterior mean of S0",
    "train_objective": "training objective L/d^2",
    "train_error": "sum of losses / d^2",
    "free_entropy": "free entropy at the fixed point",
    "squared_error": "|S - S0|_F^2/d",
    "trace": "Tr S/d",
    "zero_fraction": "fraction F of zero eigenvalues of S",
    "rank_fraction": "1 - F",
    "replicon": "replicon eigenvalue; the fixed point is stable below 1",
    "gradient_norm": "KKT residual",
    "seconds": "wall time without compilation",
    "compile_seconds": "tracing, lowering and compiling",
}


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One level of names: `standard_error.m` → `m_standard_error`, `amp.m` → `amp_m`; runs are left out."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if name == "standard_error":
            flat |= {f"{prefix}{key}_standard_error": entry for key, entry in (value or {}).items()}
        elif isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}_")
        elif not isinstance(value, list):
            flat[prefix + name] = value
    return flat


def point_rows(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One flat row a point."""
    return [flatten(point) for point in points]


def run_rows(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One flat row a run, with the grid's α and λ̃; empty for state evolution."""
    rows = []
    for point in points:
        for engine, part in [("", point), ("amp", point.get("amp")), ("train", point.get("train"))]:
            for run in (part or {}).get("runs", []):
                where = {"grid_alpha": point["alpha"], "lam": point["lam"]}
                rows.append(where | ({"engine": engine} if engine else {}) | flatten(run))
    return rows


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every name that occurs, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def series_rows(points: Sequence[Mapping[str, Any]], axes: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row an entry of the lists `names` of a point (of equal lengths), beside the point's place on the grid."""
    rows = []
    for point in points:
        where = {axis: point[axis] for axis in axes}
        rows += [where | dict(zip(names, entry, strict=True)) for entry in zip(*(point[n] for n in names), strict=True)]
    return rows


def dataset(
    points: Sequence[Mapping[str, Any]],
    axes: Mapping[str, Sequence[float]],
    attributes: Mapping[str, str] | None = None,
) -> xr.Dataset:
    """Observables over the axes of a grid, and of each run over these and `repeat`.

    Args:
        points: records in grid order, first axis outermost; those at the end may be missing (an interrupted sweep).
        axes: names and values, for instance of alpha and lam.
        attributes: of the dataset: command line, versions, problem.

    Returns:
        A dataset whose missing entries are NaN or empty strings.
    """
    rows = [{k: v for k, v in row.items() if k not in axes} for row in point_rows(points)]
    shape = tuple(len(values) for values in axes.values())
    data: dict[str, Any] = {name: (tuple(axes), _grid(rows, name, shape)) for name in columns(rows)}
    for engine in ("", "amp", "train"):
        data |= _runs(points, engine, tuple(axes), shape)
    result = xr.Dataset(data, {name: list(values) for name, values in axes.items()}, dict(attributes or {}))
    for name in result.variables:
        for key, text in DESCRIPTIONS.items():
            if name == key or str(name).endswith(f"_{key}"):
                result[name].attrs["long_name"] = text
    return result


def _runs(
    points: Sequence[Mapping[str, Any]], engine: str, axes: tuple[str, ...], shape: tuple[int, ...]
) -> dict[str, Any]:
    runs = [((point.get(engine) or {}) if engine else point).get("runs", []) for point in points]
    repeats = max(map(len, runs), default=0)
    flat = [[flatten(run) for run in group] for group in runs]
    names = columns([row for group in flat for row in group])
    prefix = f"{engine}_run_" if engine else "run_"
    data = {}
    for name in names:
        layers = [_grid([g[i] if i < len(g) else {} for g in flat], name, shape) for i in range(repeats)]
        data[prefix + name] = ((*axes, "repeat"), np.stack(layers, axis=-1))
    return data


def _grid(rows: Sequence[Mapping[str, Any]], name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = [row.get(name) for row in rows] + [None] * (math.prod(shape) - len(rows))
    if any(isinstance(value, str) for value in values):
        return np.asarray([value or "" for value in values], dtype=str).reshape(shape)
    return np.asarray([math.nan if v is None else float(v) for v in values]).reshape(shape)
