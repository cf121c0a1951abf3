"""The Bayes-optimal errors against α, and the denoiser behind them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_attention.plotting._style import (
    COLOURS,
    DOUBLE,
    LABELS,
    SINGLE,
    as_number,
    caption,
    describe,
    format_number,
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
