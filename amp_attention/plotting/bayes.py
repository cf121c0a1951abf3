"""The Bayes-optimal errors against α beside those of other estimators, and the denoiser behind them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from amp_attention.plotting._style import (
    COLOURS,
    DOUBLE,
    ERROR_BARS,
    LABELS,
    SINGLE,
    as_number,
    caption,
    describe,
    format_number,
    log_scale,
    logarithmic_axis,
    new_figure,
    panel_letters,
    style,
    theory_line,
)

Record = Mapping[str, Any]
ERRORS = {
    "test_error": ("posterior mean of the label", COLOURS[0]),
    "test_error_plugin": ("label of the posterior mean", COLOURS[1]),
}


def bayes_curves(records: Sequence[Record], parameters: Mapping[str, Any]) -> Figure | None:
    """Estimation error and test errors against α, with the threshold of exact recovery marked.

    Args:
        records: of a `bayes_sweep`, in any order; what is not known is skipped.
        parameters: what is the same for all, for the caption.

    Returns:
        The figure, nothing is drawn on a screen; None where nothing is known.
    """
    known = sorted((r for r in records if math.isfinite(as_number(r["squared_error"]))), key=lambda r: r["alpha"])
    if not known:
        return None
    with style():
        figure, axes = new_figure(1, 2, DOUBLE, 2.9)
        error, test = axes[0]
        _line(error, known, "squared_error", COLOURS[0])
        error.set_ylabel(LABELS["squared_error"])
        for name, (label, colour) in ERRORS.items():
            _line(test, known, name, colour, label=label)
        test.set_ylabel(LABELS["test_error"])
        test.legend()
        threshold = as_number(known[0]["alpha_bayes"])
        for panel in (error, test):
            panel.set_xlabel(LABELS["alpha"])
            panel.set_ylim(bottom=0)
            logarithmic_axis(panel, [r["alpha"] for r in known])
            if math.isfinite(threshold):
                panel.axvline(threshold, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
        panel_letters(axes.flat)
        text = describe(dict(parameters) | {"alpha": None})
        if math.isfinite(threshold):
            text += rf",  dashed: $\alpha_\mathrm{{Bayes}}={format_number(threshold)}$"
        caption(figure, text)
    return figure


def _line(panel: Axes, records: Sequence[Record], name: str, colour: str, **properties: Any) -> None:
    x, y = (np.array([as_number(r[key]) for r in records]) for key in ("alpha", name))
    theory_line(panel, x, y, colour, **properties)


@dataclass(frozen=True)
class ErrorSeries:
    """Squared errors of one estimator: a line, or points where there are standard errors.

    Attributes:
        label: for the legend; those of one label have one colour.
        x, y: places and errors E.
        standard_errors: of the mean over instances.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    standard_errors: Sequence[float] | None = None


def squared_error_curves(
    panels: Sequence[tuple[str, Sequence[ErrorSeries]]],
    parameters: Mapping[str, Any],
    *,
    xlabel: str = LABELS["alpha"],
    threshold: float = math.nan,
    logarithmic: bool = False,
) -> Figure:
    """Squared errors of several estimators, one panel beside the other.

    Args:
        panels: (title, series) each; a label keeps its colour from panel to panel.
        parameters: what is the same for all, for the caption.
        xlabel: of all panels.
        threshold: of exact recovery, marked in the first panel; NaN for none.
        logarithmic: both axes.

    Returns:
        The figure, nothing is drawn on a screen.
    """
    labels = list(dict.fromkeys(series.label for _, group in panels for series in group))
    colours = dict(zip(labels, COLOURS, strict=False))
    dashes = dict(zip(labels, _DASHES * len(labels), strict=False))  # lines of different colour may coincide
    with style():
        figure, axes = new_figure(1, len(panels), DOUBLE if len(panels) > 1 else SINGLE * 1.2, 3.2, sharey=True)
        for panel, (title, group) in zip(axes.flat, panels, strict=True):
            for series in group:
                _series(panel, series, colours[series.label], dashes[series.label])
            panel.set_title(title)
            panel.set_xlabel(xlabel)
            x, y = ([float(v) for s in group for v in getattr(s, name)] for name in ("x", "y"))
            if logarithmic:
                log_scale(panel, x)
                log_scale(panel, y, "y")
            else:
                logarithmic_axis(panel, x)
        if not logarithmic:
            axes[0, 0].set_ylim(bottom=0)
        axes[0, 0].set_ylabel(LABELS["squared_error"])
        text = describe(parameters)
        if math.isfinite(threshold):
            axes[0, 0].axvline(threshold, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
            text += f",  dashed: exact recovery at ${format_number(threshold)}$"
        caption(figure, text)
        note = ERROR_BARS if any(s.standard_errors is not None for _, group in panels for s in group) else None
        every = [series for _, group in panels for series in group]
        handles = [_handle([s for s in every if s.label == label], colours[label], dashes[label]) for label in labels]
        columns = min(len(labels), 4 if len(panels) > 1 else 2)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, title=note)
    return figure


_DASHES = ("-", "--", ":")
_POINTS: dict[str, Any] = {"marker": "o", "markerfacecolor": "white"}


def _series(panel: Axes, series: ErrorSeries, colour: str, dashes: str) -> None:
    if series.standard_errors is None:
        theory_line(panel, np.asarray(series.x), np.asarray(series.y), colour, linestyle=dashes)
        return
    look: dict[str, Any] = {"linestyle": "", "color": colour, "elinewidth": 0.8, "zorder": 3, **_POINTS}
    panel.errorbar(series.x, series.y, yerr=series.standard_errors, **look)


def _handle(group: Sequence[ErrorSeries], colour: str, dashes: str) -> Line2D:
    """Of what has one label: a line, points or both."""
    look: dict[str, Any] = {"linestyle": dashes if any(s.standard_errors is None for s in group) else ""}
    look |= _POINTS if any(s.standard_errors is not None for s in group) else {}
    return Line2D([], [], color=colour, label=group[0].label, **look)


def shrinkage_curves(curves: Sequence[tuple[str, np.ndarray, np.ndarray]], parameters: Mapping[str, Any]) -> Figure:
    """Eigenvalues ξ(y) of the posterior mean against those of the noisy matrix.

    Args:
        curves: (label, y, ξ) each.
        parameters: what is the same for all, for the caption.

    Returns:
        The figure, nothing is drawn on a screen.
    """
    with style():
        figure, axes = new_figure(1, 1, SINGLE * 1.2, 3.2)
        panel = axes[0, 0]
        for (label, y, shrunk), colour in zip(curves, COLOURS, strict=False):
            panel.plot(y, shrunk, color=colour, label=label)
        (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
        panel.plot([left, right], [left, right], color="0.7", linewidth=0.8, zorder=0)
        panel.set_xlim(left, right)
        panel.set_ylim(bottom, top)
        panel.set_xlabel(r"eigenvalue $y$ of $S_0+\sqrt{D}\,Z$")
        panel.set_ylabel(r"eigenvalue $\xi(y)$ of the posterior mean")
        panel.legend()
        caption(figure, describe(dict(parameters) | {"alpha": None}))
    return figure
