"""Sample ratios where learning changes in kind, against the target."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from amp_attention.plotting._style import (
    COLOURS,
    LABELS,
    SINGLE,
    SYMBOLS,
    as_number,
    caption,
    describe,
    family_handles,
    format_number,
    logarithmic_axis,
    new_figure,
    style,
)
from amp_attention.plotting.sensitivity import record_values

Record = Mapping[str, Any]
Lines = Mapping[str, tuple[np.ndarray, np.ndarray]]  # x and y by threshold
# Entry of a record: label and colour.
THRESHOLDS = {
    "alpha_interpolation": (r"interpolation, $\tilde\lambda\to 0^+$", COLOURS[1]),
    "alpha_recovery": (r"exact recovery, $\tilde\lambda\to 0^+$", COLOURS[0]),
    "alpha_bayes": (r"Bayes-optimal recovery, $\Delta=0$", COLOURS[2]),
}
STYLES = (("-", "o"), ("--", "s"), (":", "^"))  # line, and marker where there is no line
WIDTH, HEIGHT = SINGLE * 1.4, 3.6


def threshold_lines(records: Sequence[Record], parameters: Mapping[str, Any]) -> Figure | None:
    """Thresholds in α against κ0, Δ or T, whichever has more values; the other lists distinguish line styles.

    The regions between the lines are named where there is one style only.

    Args:
        records: of a `threshold_sweep`, in any order; null entries are skipped.
        parameters: what is the same for all, for the caption.

    Returns:
        The figure, nothing is drawn on a screen; None where no threshold is known.
    """
    if not any(record_values(records, name) for name in THRESHOLDS):
        return None
    axis, others = threshold_axes(records)
    groups = threshold_families(records, others)
    with style():
        figure, axes = new_figure(1, 1, WIDTH, HEIGHT)
        lines = [_family(axes[0, 0], records, axis, dict(zip(others, g, strict=True)), k) for k, g in enumerate(groups)]
        _frame(axes[0, 0], records, axis)
        if len(groups) == 1:
            _name_regions(axes[0, 0], lines[0])
        values = {name: record_values(records, name) for name in ("kappa0", "noise", "tokens")}
        caption(figure, describe(dict(parameters) | {n: v[0] if len(v) == 1 else None for n, v in values.items()}))
        marked = any(line.get_marker() != "" for line in axes[0, 0].lines)
        kinds = [(_title(others, group), _look(k, marked)) for k, group in enumerate(groups) if others]
        figure.legend(handles=family_handles(kinds, []) + _handles(lines), loc="outside lower center", ncols=2)
    return figure


def threshold_axes(records: Sequence[Record]) -> tuple[str, tuple[str, ...]]:
    """(axis, others): the number of the target with most values, and the others that have several."""
    counts = {name: len(record_values(records, name)) for name in ("kappa0", "noise", "tokens")}
    axis = max(counts, key=lambda name: counts[name])
    return axis, tuple(name for name, count in counts.items() if name != axis and count > 1)


def threshold_families(records: Sequence[Record], others: Sequence[str]) -> list[tuple[float, ...]]:
    """The values of the other numbers that get a line style: at most three, evenly chosen."""
    unique = sorted({tuple(as_number(record.get(name)) for name in others) for record in records})
    index = np.unique(np.linspace(0, len(unique) - 1, min(len(unique), len(STYLES))).round().astype(int))
    return [unique[i] for i in index]


def _title(names: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(f"${SYMBOLS[name]}={format_number(value)}$" for name, value in zip(names, values, strict=True))


def _look(family: int, marked: bool) -> dict[str, Any]:
    line, marker = STYLES[family]
    return {"linestyle": line, "marker": marker if marked else ""}


def _handles(lines: Sequence[Lines]) -> list[Line2D]:
    """The colours: of a line, or of a marker where a threshold has markers alone."""
    handles = []
    for name, (label, colour) in THRESHOLDS.items():
        size = max(len(family[name][0]) for family in lines)
        alone: dict[str, Any] = {"linestyle": "", "marker": "o"} if size == 1 else {}
        handles += [Line2D([], [], color=colour, label=label, **alone)] if size else []
    return handles


def _family(panel: Axes, records: Sequence[Record], axis: str, family: Mapping[str, float], style: int) -> Lines:
    """The thresholds of one family: lines, with markers where the axis is discrete, or a marker alone."""
    chosen = [record for record in records if all(record.get(key) == value for key, value in family.items())]
    lines = {}
    for name, (_, colour) in THRESHOLDS.items():
        pairs = sorted((as_number(record[axis]), as_number(record.get(name))) for record in chosen)
        x, y = np.asarray([pair for pair in pairs if math.isfinite(pair[1])], float).reshape(-1, 2).T
        if len(x):
            panel.plot(x, y, color=colour, **_look(style, axis == "tokens" or len(x) == 1))
        lines[name] = x, y
    return lines


def _frame(panel: Axes, records: Sequence[Record], axis: str) -> None:
    panel.set_xlabel(LABELS[axis])
    panel.set_ylabel(LABELS["alpha"])
    logarithmic_axis(panel, record_values(records, axis))
    if not logarithmic_axis(panel, [value for name in THRESHOLDS for value in record_values(records, name)], "y"):
        panel.set_ylim(0, 1.12 * panel.get_ylim()[1])  # room for the name of the uppermost region
    if axis == "tokens":
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _name_regions(panel: Axes, lines: Lines) -> None:
    """A name between the lines, where it is clear of them by most."""
    known = {name: _in_panel(panel, *line) for name, line in lines.items() if len(line[0]) > 1}
    written = set()
    for name, above, below in region_names(known):
        place = clear_place(list(known.values()), known.get(below), known.get(above), len(name))
        if place is not None and name not in written:
            written.add(name)
            panel.text(*place, name, transform=panel.transAxes, ha="center", va="center", fontsize=7.5, color="0.4")


def region_names(lines: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, line above, line below) of each region, the better of two places first; "" is the end of the panel."""
    interpolation, recovery, bayes = THRESHOLDS
    if interpolation in lines:
        fitted = "every label is fitted"
        return [*((fitted, interpolation, below) for below in (bayes, "")), (f"not {fitted}", "", interpolation)]
    if recovery not in lines:
        return []
    exact = (r"$S=S_0$ as $\tilde\lambda\to 0^+$", "", recovery)
    if bayes not in lines:
        return [(r"$S\neq S_0$", recovery, ""), exact]
    return [("no exact recovery", bayes, ""), ("Bayes-optimal only", recovery, bayes), exact]


def _in_panel(panel: Axes, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Heights of a line at 101 places across the panel, both as fractions of it; NaN beyond the ends of the line."""
    to_panel = panel.transData + panel.transAxes.inverted()
    across, up = to_panel.transform(np.column_stack([x, y])).T
    return np.interp(np.linspace(0, 1, 101), across, up, left=np.nan, right=np.nan)


def clear_place(
    lines: Sequence[np.ndarray], below: np.ndarray | None, above: np.ndarray | None, letters: int
) -> tuple[float, float] | None:
    """Where a text between two lines keeps most clear of all lines; None where there is no room.

    Args:
        lines: heights across the panel, see `_in_panel`.
        below, above: the lines it must lie between; None is the end of the panel.
        letters: the length of the text.

    Returns:
        Fractions of the panel.
    """
    half = max(1, round(100 * 0.011 * letters / 2))
    low = np.zeros(101) if below is None else below
    high = np.ones(101) if above is None else above
    best, place = 0.055, None
    for middle in sorted(range(half + 2, 99 - half), key=lambda i: abs(i - 50)):
        span = slice(middle - half, middle + half + 1)
        for up in np.linspace(0.05, 0.95, 46):
            if not (np.all(low[span] < up) and np.all(up < high[span])):
                continue
            gap = min([up, 1 - up, *(float(np.nanmin(np.abs(line[span] - up), initial=1.0)) for line in lines)])
            if min(gap, 0.15) > best:
                best, place = min(gap, 0.15), (middle / 100, float(up))
    return place
