"""The spectrum of the learned matrix under the predicted law."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_attention.plotting._style import (
    COLOURS,
    DOUBLE,
    LABELS,
    SINGLE,
    caption,
    describe,
    new_figure,
    panel_letters,
    style,
)


@dataclass(frozen=True)
class SpectrumPanel:
    """What one panel shows.

    Attributes:
        title: of the panel, for instance the values of α and λ̃.
        eigenvalues: of S, pooled over repeats.
        s: eigenvalues > 0 at which the law is known, ascending; NaN separates bands.
        density: of the law at s, of mass 1 − atom.
        atom: predicted mass at zero.
    """

    title: str
    eigenvalues: np.ndarray
    s: np.ndarray
    density: np.ndarray
    atom: float


def eigenvalue_histograms(
    panels: Sequence[SpectrumPanel], parameters: Mapping[str, Any], *, source: str = "AMP"
) -> Figure:
    """Histograms of the positive eigenvalues, the predicted density, and the atom at zero with its weight.

    Histogram and density have mass 1 − F, so that the atom's weight F completes them to 1.

    Args:
        panels: at least one.
        parameters: what is the same for all, for the caption.
        source: what the eigenvalues are of, for the legend.

    Returns:
        The figure; nothing is drawn on a screen.
    """
    with style():
        width = SINGLE * 1.3 if len(panels) == 1 else DOUBLE
        figure, axes = new_figure(1, len(panels), width, 2.9)
        for axis, panel in zip(axes.flat, panels, strict=True):
            _draw(axis, panel, source)
        axes[0, 0].set_ylabel(LABELS["density"])
        if len(panels) > 1:
            panel_letters(axes.flat)
        caption(figure, describe(parameters))
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def positive_part(eigenvalues: np.ndarray) -> np.ndarray:
    """Eigenvalues above rounding: the soft threshold makes the others exactly zero."""
    values = np.asarray(eigenvalues, float)
    return values[values > 1e-6 * max(float(np.abs(values).max(initial=0.0)), 1e-12)]


def _draw(axis: Axes, panel: SpectrumPanel, source: str) -> None:
    total = panel.eigenvalues.size
    positive = positive_part(panel.eigenvalues)
    top = float(np.nanmax(panel.density, initial=0.0))
    if positive.size:
        high = max(float(positive.max()), float(np.nanmax(panel.s, initial=0.0)))
        bins = np.linspace(0, high, int(np.clip(2 * positive.size ** (1 / 3), 8, 60)) + 1)
        counts, _ = np.histogram(positive, bins)
        heights = counts / total / np.diff(bins)
        axis.stairs(heights, bins, fill=True, color=COLOURS[5], alpha=0.55, label=f"{source}, eigenvalues $> 0$")
        top = max(min(top, 3 * float(heights.max())), float(heights.max()))
        axis.set_xlim(-0.04 * high, 1.05 * high)
    if panel.s.size:
        axis.plot(panel.s, panel.density, color=COLOURS[1], label=r"theory $\eta^{-1}\mu_\delta(\epsilon + s/\eta)$")
    top = top if top > 0 else 1.0
    axis.set_ylim(0, 1.3 * top)
    _atom(axis, panel.atom, 1 - positive.size / max(total, 1), top, source)
    axis.set_title(panel.title)
    axis.set_xlabel(LABELS["eigenvalue"])


def _atom(axis: Axes, predicted: float, measured: float, top: float, source: str) -> None:
    """An arrow at zero: an atom has a weight, not a height."""
    if max(np.nan_to_num(predicted), measured) < 5e-5:
        return
    axis.plot([0, 0], [0, 1.12 * top], color=COLOURS[1], linewidth=2.2, solid_capstyle="butt")
    axis.plot([0], [1.12 * top], marker="^", color=COLOURS[1], linestyle="", label="atom at 0 (not to scale)")
    lines = ["weight of the atom", f"{source} {measured:.3f}"]
    if np.isfinite(predicted):
        lines.append(f"theory {predicted:.3f}")
    axis.text(0.97, 0.97, "\n".join(lines), transform=axis.transAxes, ha="right", va="top", fontsize=8)
