"""Learning curves: what theory, AMP and training find along one axis of a grid."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from amp_attention.plotting._style import (
    COLOURS,
    DOUBLE,
    ERROR_BARS,
    LABELS,
    MARKS,
    SYMBOLS,
    as_number,
    caption,
    describe,
    family_handles,
    format_number,
    logarithmic_axis,
    new_figure,
    panel_letters,
    style,
    theory_line,
)

Record = Mapping[str, Any]
PANELS = ("test_error", "train_objective", "squared_error", "rank_fraction")
BOUNDED = ("test_error", "squared_error")  # what the Bayes-optimal estimator has the least of
LARGEST_FAMILY = len(COLOURS) - 1


def learning_curves(
    points: Sequence[Record],
    parameters: Mapping[str, Any],
    *,
    curve: Sequence[Record] = (),
    bound: Sequence[Record] = (),
    panels: Sequence[str] = PANELS,
) -> Figure:
    """Theory as lines, AMP as points with standard errors over repeats, training as crosses.

    The axis is α or λ̃, whichever has more values; the other one distinguishes colours (at most six of its values are
    drawn, evenly chosen). The errors of the Bayes-optimal estimator, which depend on α alone, are dashed: one black
    line over α, over λ̃ one of each colour.

    Args:
        points: records of a grid, each with `alpha`, `lam` (null: without a meaning) and some of `state_evolution`,
            `amp`, `train`, `bayes`.
        parameters: what is the same for all, for the caption.
        curve: more state-evolution records, between those of the grid, for smooth lines.
        bound: more records of the Bayes-optimal estimator, likewise; drawn over α.
        panels: observables, one panel each.

    Returns:
        The figure; nothing is drawn on a screen.
    """
    axis, family = grid_axes(points)
    with style():
        rows = math.ceil(len(panels) / 2)
        figure, axes = new_figure(rows, min(2, len(panels)), DOUBLE, 0.5 + 2.35 * rows)
        for panel, name in zip(axes.flat, panels, strict=False):
            _panel(panel, points, curve, axis, family, name)
            if name in BOUNDED:
                _bounds(panel, points, bound, axis, name)
        panel_letters(axes.flat[: len(panels)])
        shown = dict(parameters) | {axis: None, family: _single(points, family)}
        caption(figure, describe(shown))
        handles = _handles(points, family, bound)
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(5, len(handles)), title=_note(points, panels)
        )
    return figure


def grid_axes(points: Sequence[Record]) -> tuple[Literal["alpha", "lam"], Literal["alpha", "lam"]]:
    """(axis, family): the parameter with more values, α when equal, and the other one."""
    counts = {name: len(_values(points, name)) for name in ("alpha", "lam")}
    return ("lam", "alpha") if counts["lam"] > counts["alpha"] else ("alpha", "lam")


def family_values(points: Sequence[Record], family: str) -> list[float]:
    """The values that get a colour; none where the family has no meaning."""
    unique = _values(points, family)
    chosen = np.unique(np.linspace(0, len(unique) - 1, min(len(unique), LARGEST_FAMILY)).round().astype(int))
    return [unique[i] for i in chosen]


def _values(points: Sequence[Record], name: str) -> list[float]:
    """Ascending, each once; none where the parameter has no meaning."""
    return sorted({point[name] for point in points if math.isfinite(as_number(point[name]))})


def _single(points: Sequence[Record], family: str) -> float | None:
    values = _values(points, family)
    return values[0] if len(values) == 1 else None


def _handles(points: Sequence[Record], family: str, bound: Sequence[Record]) -> list[Line2D]:
    drawn = {key for key in MARKS if _any(points, key)} | ({"bayes"} if bound else set())
    kinds = [mark for key, mark in MARKS.items() if key in drawn]
    values = family_values(points, family)
    labels = [f"${SYMBOLS[family]}={format_number(value)}$" for value in values] if len(values) > 1 else []
    return family_handles(kinds, zip(labels, COLOURS, strict=False))


def _note(points: Sequence[Record], panels: Sequence[str]) -> str | None:
    """What the error bars are, where there are any."""
    engines = [point[engine] for point in points for engine in ("amp", "train") if point.get(engine)]
    return ERROR_BARS if any(_error(record, name) for record in engines for name in panels) else None


def _any(points: Sequence[Record], engine: str) -> bool:
    return any(point.get(engine) for point in points)


def _panel(panel: Axes, points: Sequence[Record], curve: Sequence[Record], axis: str, family: str, name: str) -> None:
    values = family_values(points, family) or [None]
    for colour, value in zip(COLOURS, values, strict=False):
        chosen = sorted((p for p in points if value is None or p[family] == value), key=lambda p: p[axis])
        between = [r for r in curve if value is None or math.isclose(r[family], value, rel_tol=1e-9)]
        _theory_line(
            panel, [p["state_evolution"] for p in chosen if p.get("state_evolution")], between, axis, name, colour
        )
        _points(
            panel, chosen, "amp", axis, name, {"fmt": "o", "markerfacecolor": "white", "color": colour, "zorder": 3}
        )
        _points(panel, chosen, "train", axis, name, {"fmt": "x", "color": colour, "zorder": 4, "capsize": 0})
    panel.set_xlabel(LABELS[axis])
    panel.set_ylabel(LABELS.get(name, name))
    logarithmic_axis(panel, [point[axis] for point in points])
    panel.set_ylim(bottom=0)


def _bounds(panel: Axes, points: Sequence[Record], bound: Sequence[Record], axis: str, name: str) -> None:
    """Over α one line, whatever λ̃; over λ̃ one for each α, in its colour."""
    solved = [point for point in points if point.get("bayes") and point["bayes"]["result"] == "successful"]
    if axis == "alpha":
        records = [*bound, *(point["bayes"] for point in solved)]
        _bound_line(panel, {record["alpha"]: _value(record, name) for record in records}, "black")
        return
    for colour, value in zip(COLOURS, family_values(points, "alpha"), strict=False):
        mine = [point for point in solved if point["alpha"] == value]
        _bound_line(panel, {point["lam"]: _value(point["bayes"], name) for point in mine}, colour)


def _bound_line(panel: Axes, values: Mapping[float, float], colour: str) -> None:
    known = sorted((x, y) for x, y in values.items() if math.isfinite(y))
    if known:
        x, y = np.asarray(known).T
        theory_line(panel, x, y, colour, linewidth=1.1, zorder=2.5, **MARKS["bayes"][1])


def _theory_line(
    panel: Axes, records: Sequence[Record], between: Sequence[Record], axis: str, name: str, colour: str
) -> None:
    records = sorted([*records, *between], key=lambda r: r[axis])
    good = [r for r in records if r["result"] == "successful" and math.isfinite(_value(r, name))]
    x, y = np.asarray([r[axis] for r in good]), np.asarray([_value(r, name) for r in good])
    unstable = np.asarray([not r.get("stable", True) for r in good], bool)
    if len(good) == 1:
        panel.plot(x, y, marker="_", markersize=16, markeredgewidth=1.5, color=colour)
        return
    panel.plot(x, np.where(unstable, np.nan, y), color=colour)
    if unstable.any():
        panel.plot(x, np.where(unstable, y, np.nan), color=colour, linestyle=":")


def _points(panel: Axes, points: Sequence[Record], engine: str, axis: str, name: str, kwargs: dict[str, Any]) -> None:
    found = [(p[axis], p[engine]) for p in points if p.get(engine) and math.isfinite(_value(p[engine], name))]
    if found:
        y = [_value(record, name) for _, record in found]
        errors = [_error(record, name) for _, record in found]
        panel.errorbar([x for x, _ in found], y, yerr=errors, elinewidth=0.8, markeredgewidth=1, **kwargs)


def _value(record: Record, name: str) -> float:
    """The observable; NaN where it is unknown."""
    if name == "rank_fraction" and name not in record:
        return 1 - _value(record, "zero_fraction")
    value = record.get(name)
    return math.nan if value is None else float(value)


def _error(record: Record, name: str) -> float:
    errors = record.get("standard_error") or {}
    error = errors.get("zero_fraction" if name == "rank_fraction" and name not in errors else name)
    return error if error is not None and math.isfinite(error) else 0.0
