"""Derivatives of an observable along one axis of a grid."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from amp_attention.plotting._style import (
    BAND,
    COLOURS,
    DOUBLE,
    ERROR_BARS,
    LABELS,
    MARKS,
    SINGLE,
    SYMBOLS,
    UNSTABLE,
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
from amp_attention.plotting.learning_curves import family_values, grid_axes

Record = Mapping[str, Any]
OPACITY = 0.25  # of bands


@dataclass(frozen=True)
class Quantity:
    """What one panel shows of a record, by paths of names.

    Attributes:
        label: of its axis.
        value: the number.
        error: its standard error in theory.
        measured: the same number of AMP at finite d, with a standard error over instances.
    """

    label: str
    value: tuple[str, ...]
    error: tuple[str, ...] = ()
    measured: tuple[str, str] | None = None

    @property
    def derivative(self) -> bool:
        """Whether zero has a meaning here: no change."""
        return self.value != ("value",)


def sensitivity_curves(records: Sequence[Record], parameters: Mapping[str, Any]) -> Figure | None:
    """An observable, its derivative in every number of the problem, and the second one in λ̃.

    Lines with a band of ± one standard error are theory, dotted where the fixed point is unstable; points are AMP. The
    axis is α or λ̃, whichever has more values; the other one distinguishes colours.

    Args:
        records: of a `sensitivity_sweep`, in any order; null entries are skipped.
        parameters: what is the same for all, for the caption.

    Returns:
        The figure, nothing is drawn on a screen; None where no record is successful.
    """
    solved = [record for record in records if record["result"] == "successful"]
    shown = [quantity for quantity in quantities(records[0]["of"]) if _any(solved, quantity.value)]
    if not shown:
        return None
    axis, family = grid_axes(records)
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    with style():
        width = SINGLE * 1.3 if columns == 1 else DOUBLE
        figure, axes = new_figure(rows, columns, width, 0.9 + 2.0 * rows)
        for panel, quantity in zip(axes.flat, shown, strict=False):
            _panel(panel, records, axis, family, quantity)
        for panel in axes.flat[len(shown) :]:
            panel.remove()
        panel_letters(axes.flat[: len(shown)])
        single = {name: record_values(records, name) for name in (axis, family)}
        values = {name: found[0] if len(found) == 1 else None for name, found in single.items()}
        caption(figure, describe(dict(parameters) | values))
        note = None if _several(records) else f"error bars: {BAND}"
        note = ERROR_BARS if _any(records, ("finite_d", "standard_error")) else note
        handles = _handles(records, shown, family)
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), title=note)
    return figure


def quantities(of: str) -> list[Quantity]:
    """Every panel there may be, in order."""
    found = [Quantity(LABELS.get(of, of), ("value",), ("standard_error", of))]
    for name in ("alpha", "lam", "beta", "beta0", "noise", "kappa0", "gamma"):
        label = rf"$\partial {_symbol(of)}/\partial{SYMBOLS[name]}$"
        measured = ("lam", "standard_error") if name == "lam" else None
        found.append(Quantity(label, ("gradients", name), ("gradients_standard_error", name), measured))
    second = rf"$\partial^2 {_symbol(of)}/\partial\tilde\lambda^2$"
    return [*found[:3], Quantity(second, ("second", "lam")), *found[3:]]


def record_values(records: Sequence[Record], name: str) -> list[float]:
    """The different values of an entry, null ones left out."""
    return sorted({value for record in records if math.isfinite(value := as_number(record.get(name)))})


def _symbol(of: str) -> str:
    symbol = SYMBOLS.get(of, rf"\mathrm{{{of}}}")
    return f"({symbol})" if any(sign in symbol for sign in ("/", "-", r"\langle")) else symbol


def _at(record: Record, path: Sequence[str]) -> float:
    """The number at the end of a path of names; NaN where there is none."""
    found: Any = record if path else None
    for name in path:
        found = None if found is None else found.get(name)
    return as_number(found)


def _any(records: Sequence[Record], path: Sequence[str]) -> bool:
    return any(math.isfinite(_at(record, path)) for record in records)


def _panel(panel: Axes, records: Sequence[Record], axis: str, family: str, quantity: Quantity) -> None:
    if quantity.derivative:
        panel.axhline(0, color="0.75", linewidth=0.6, zorder=0)
    for colour, value in zip(COLOURS, family_values(records, family), strict=False):
        chosen = sorted((record for record in records if record[family] == value), key=lambda record: record[axis])
        _theory(panel, chosen, axis, quantity, colour)
        if quantity.measured is not None:
            _measured(panel, chosen, axis, quantity.measured, colour)
    panel.set_xlabel(LABELS[axis])
    panel.set_ylabel(quantity.label)
    logarithmic_axis(panel, [record[axis] for record in records], narrow=True)


def _theory(panel: Axes, records: Sequence[Record], axis: str, quantity: Quantity, colour: str) -> None:
    good = [r for r in records if r["result"] == "successful" and math.isfinite(_at(r, quantity.value))]
    if not good:
        return
    x, y, error = np.asarray([(r[axis], _at(r, quantity.value), _at(r, quantity.error)) for r in good], float).T
    unstable = np.asarray([not r.get("stable", True) for r in good], bool)
    theory_line(panel, x, y, colour, unstable)
    if len(x) == 1:
        panel.errorbar(x, y, yerr=np.nan_to_num(error), color=colour, elinewidth=0.8)
    elif np.isfinite(error).any():
        panel.fill_between(x, y - error, y + error, color=colour, alpha=OPACITY, linewidth=0)


def _measured(panel: Axes, records: Sequence[Record], axis: str, path: tuple[str, str], colour: str) -> None:
    found = [(r[axis], *(_at(r, ("finite_d", name)) for name in path)) for r in records]
    found = [entry for entry in found if math.isfinite(entry[1])]
    if found:
        x, y, error = np.asarray(found, float).T
        properties = {"markeredgewidth": 1, "elinewidth": 0.8, "zorder": 3, **MARKS["amp"][1]}
        panel.errorbar(x, y, yerr=np.nan_to_num(error), color=colour, **properties)


def _handles(records: Sequence[Record], shown: Sequence[Quantity], family: str) -> list[Artist]:
    kinds = [MARKS["state_evolution"]]
    if any(not record.get("stable", True) for record in records if record["result"] == "successful"):
        kinds.append(UNSTABLE)
    if _any(records, ("finite_d", "lam")):
        sizes = {record["finite_d"]["d"] for record in records if record.get("finite_d")}
        label, properties = MARKS["amp"]
        kinds.append((label + "".join(f", $d={d}$" for d in sizes if len(sizes) == 1), properties))
    values = family_values(records, family)
    labels = [f"${SYMBOLS[family]}={format_number(value)}$" for value in values] if len(values) > 1 else []
    handles: list[Artist] = list(family_handles(kinds, zip(labels, COLOURS, strict=False)))
    if _several(records) and any(_any(records, quantity.error) for quantity in shown):
        handles.insert(len(kinds), Patch(color="0.2", alpha=OPACITY, linewidth=0, label=BAND))
    return handles


def _several(records: Sequence[Record]) -> bool:
    """Whether there are lines, with a band around them, instead of single points with error bars."""
    axis, _ = grid_axes(records)
    return len(record_values(records, axis)) > 1
