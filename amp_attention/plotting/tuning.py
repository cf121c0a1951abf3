"""The best regularisation along α, and the curves that it is the minimum of."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from amp_attention.plotting._style import (
    COLOURS,
    DOUBLE,
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
    log_scale,
    new_figure,
    panel_letters,
    style,
    theory_line,
)
from amp_attention.plotting.learning_curves import family_values

Record = Mapping[str, Any]
# How the search ended: label and marker.
ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "optimum": (r"optimum $\tilde\lambda_\mathrm{opt}$", {"linestyle": "", "marker": "o"}),
    "lower": ("at the lower bound", {"linestyle": "", "marker": "v", "markerfacecolor": "white"}),
    "upper": ("at the upper bound", {"linestyle": "", "marker": "^", "markerfacecolor": "white"}),
    "failed": ("not converged", {"linestyle": "", "marker": "x"}),
}
OTHER = "0.35"  # colour of what has no curve of its own


def tuning_curves(records: Sequence[Record], parameters: Mapping[str, Any]) -> Figure | None:
    """The tuned observable and λ̃_opt against α, and the observable against λ̃ for up to six values of α.

    Args:
        records: of a `tuning_sweep`, in any order, `of` the name of the observable; for a single α only the last panel.
        parameters: what is the same for all, for the caption.

    Returns:
        The figure, nothing is drawn on a screen; None where nothing is known.
    """
    if not any(math.isfinite(_place(record)[1]) or curve(record).size for record in records):
        return None
    records = sorted(records, key=lambda record: record["alpha"])
    alphas = sorted({record["alpha"] for record in records})
    colours = dict(zip(family_values(records, "alpha"), COLOURS, strict=False))
    of = LABELS.get(next((r["of"] for r in records if r.get("of")), ""), "observable")
    with style():
        columns = 3 if len(alphas) > 1 else 1
        figure, axes = new_figure(1, columns, DOUBLE if columns > 1 else SINGLE * 1.3, 2.9)
        if columns > 1:
            _along_alpha(axes[0, 0], records, colours, 1)
            axes[0, 0].set_ylabel(rf"{of} at $\tilde\lambda_\mathrm{{opt}}$")
            _along_alpha(axes[0, 1], records, colours, 0)
            axes[0, 1].set_ylabel(r"best regularisation $\tilde\lambda_\mathrm{opt}$")
            _log(axes[0, 1], [_place(record)[0] for record in records], "y")
            panel_letters(axes.flat)
        _curves(axes[0, -1], records, colours)
        axes[0, -1].set_ylabel(of)
        caption(figure, describe(dict(parameters) | {"alpha": alphas[0] if len(alphas) == 1 else None, "lam": None}))
        handles = _handles(records, colours)
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5 if columns > 1 else 3))
    return figure


def curve(record: Record) -> np.ndarray:
    """λ̃ and observable of the fixed points that are known, in the order of λ̃; shape (2, k)."""
    pairs = [(as_number(entry["lam"]), as_number(entry["value"])) for entry in record.get("curve") or []]
    known = [pair for pair in pairs if pair[0] > 0 and math.isfinite(pair[1])]
    return np.asarray(sorted(known), float).reshape(-1, 2).T


def end(record: Record) -> str:
    """Which of `ENDS`."""
    return "failed" if record["result"] != "successful" else record.get("bound") or "optimum"


def _place(record: Record) -> tuple[float, float]:
    """λ̃_opt and the observable there."""
    return as_number(record.get("lam_opt")), as_number(record.get("value"))


def _along_alpha(panel: Axes, records: Sequence[Record], colours: Mapping[float, str], which: int) -> None:
    """λ̃_opt (`which` = 0) or the observable there (1): a line through what is successful, a marker for how it ended."""
    ordered = [record for record in records if math.isfinite(_place(record)[which])]
    solved = [r for r in ordered if r["result"] == "successful"]
    if len(solved) > 1:
        x, y = np.asarray([(r["alpha"], _place(r)[which]) for r in solved], float).T
        theory_line(panel, x, y, OTHER, _unstable(solved), linewidth=0.9)
    for record in ordered:
        _mark(panel, record["alpha"], _place(record)[which], record, colours)
    panel.set_xlabel(LABELS["alpha"])
    _log(panel, [record["alpha"] for record in records], "x")


def _curves(panel: Axes, records: Sequence[Record], colours: Mapping[float, str]) -> None:
    seen: list[float] = []
    for record in records:
        if record["alpha"] not in colours:
            continue
        lam, value = curve(record)
        if lam.size:
            theory_line(panel, lam, value, colours[record["alpha"]], marker=".", markersize=2.5)
        if all(map(math.isfinite, _place(record))):
            _mark(panel, *_place(record), record, colours)
        seen += [*lam, _place(record)[0]]
    panel.set_xlabel(LABELS["lam"])
    _log(panel, seen, "x")


def _mark(panel: Axes, x: float, y: float, record: Record, colours: Mapping[float, str]) -> None:
    panel.plot([x], [y], color=colours.get(record["alpha"], OTHER), zorder=3, **ENDS[end(record)][1])


def _log(panel: Axes, values: Sequence[float], which: Any) -> None:
    known = [value for value in values if math.isfinite(value) and value > 0]
    if known:
        log_scale(panel, known, which, narrow=True)


def _unstable(records: Sequence[Record]) -> np.ndarray:
    return np.asarray([not record.get("stable", True) for record in records], bool)


def _handles(records: Sequence[Record], colours: Mapping[float, str]) -> list[Line2D]:
    marked = {end(record) for record in records if any(map(math.isfinite, _place(record)))}
    solved = [record for record in records if record["result"] == "successful"]
    kinds = [MARKS["state_evolution"]]
    if len(solved) > 1 and _unstable(solved).any():
        kinds.append(UNSTABLE)
    kinds += [mark for name, mark in ENDS.items() if name in marked]
    labels = [(f"${SYMBOLS['alpha']}={format_number(value)}$", colour) for value, colour in colours.items()]
    return family_handles(kinds, labels if len(labels) > 1 else [])
