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
    format_number,
    new_figure,
    panel_letters,
    style,
)
from amp_attention.spectrum import PHASES, LearnedSpectrum, Outliers, positive_part as positive_part

LABELLED = 4  # outliers whose overlap is written down


@dataclass(frozen=True)
class SpectrumPanel:
    """What one panel shows.

    Attributes:
        title: of the panel, for instance the values of α and λ̃.
        eigenvalues: of S, pooled over repeats; empty for the law alone.
        s: eigenvalues > 0 at which the law is known, ascending; NaN separates bands.
        density: of the law at s, of mass 1 − atom.
        atom: predicted mass at zero.
        outliers: predicted isolated eigenvalues; None where they were not asked for.
        phase: one of `amp_attention.spectrum.PHASES`, shown in the title; None leaves it out.
    """

    title: str
    eigenvalues: np.ndarray
    s: np.ndarray
    density: np.ndarray
    atom: float
    outliers: Outliers | None = None
    phase: str | None = None


def spectrum_panel(title: str, spectrum: LearnedSpectrum, eigenvalues: np.ndarray | None = None) -> SpectrumPanel:
    """A panel of a law with its outliers and its phase, with or without eigenvalues found at finite d."""
    found = np.zeros(0) if eigenvalues is None else eigenvalues
    return SpectrumPanel(title, found, *spectrum.grid(), float(spectrum.atom), spectrum.outliers(), spectrum.phase())


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
    return _figure(panels, parameters, source, len(panels))


def spectra_by_phase(panels: Sequence[SpectrumPanel], parameters: Mapping[str, Any], *, source: str = "AMP") -> Figure:
    """The law of the learned matrix in each of its phases, in the order of `PHASES`: density, atom and outliers.

    Args:
        panels: one to four, of different phases; with eigenvalues, these are drawn as a histogram under the law.
        parameters: what is the same for all, for the caption.
        source: what the eigenvalues are of, for the legend.

    Returns:
        The figure; nothing is drawn on a screen.

    Source: arXiv:2509.24914 (the phases of the learned weights).
    """
    phases = [panel.phase for panel in panels]
    if not panels or len(set(phases)) < len(panels) or not set(phases) <= set(PHASES):
        raise ValueError(f"panels must have one of the phases {', '.join(PHASES)} each, none twice, got {phases}")
    ordered = sorted(panels, key=lambda panel: PHASES.index(str(panel.phase)))
    return _figure(ordered, parameters, source, min(len(panels), 2))


def _figure(panels: Sequence[SpectrumPanel], parameters: Mapping[str, Any], source: str, columns: int) -> Figure:
    rows = -(-len(panels) // columns)
    with style():
        width = SINGLE * 1.3 if columns == 1 else DOUBLE
        figure, axes = new_figure(rows, columns, width, 2.9 if rows == 1 else 2.5 * rows)
        for axis, panel in zip(axes.flat, panels, strict=False):
            _draw(axis, panel, source)
        for axis in axes.flat[len(panels) :]:
            axis.remove()
        for axis in axes[:, 0]:
            axis.set_ylabel(LABELS["density"])
        if len(panels) > 1:
            panel_letters(axes.flat[: len(panels)])
        caption(figure, describe(parameters))
        # Each label once, whichever panels have it.
        entries = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes.flat[: len(panels)]]
        legend = {label: handle for entry in entries for handle, label in entry}
        figure.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=min(len(legend), 3 if columns > 1 else 2)
        )
    return figure


def _draw(axis: Axes, panel: SpectrumPanel, source: str) -> None:
    total = panel.eigenvalues.size
    positive = positive_part(panel.eigenvalues)
    values = np.zeros(0) if panel.outliers is None else panel.outliers.value
    high = max(float(np.nanmax(x, initial=0.0)) for x in (positive, panel.s, values))
    top = _height(panel, values)
    if positive.size:
        bins = np.linspace(0, high, int(np.clip(2 * positive.size ** (1 / 3), 8, 60)) + 1)
        counts, _ = np.histogram(positive, bins)
        heights = counts / total / np.diff(bins)
        axis.stairs(heights, bins, fill=True, color=COLOURS[5], alpha=0.55, label=f"{source}, eigenvalues $> 0$")
        top = max(min(top, 3 * float(heights.max())), float(heights.max()))
    if high > 0:
        axis.set_xlim(-0.04 * high, 1.05 * high)
    if panel.s.size:
        axis.plot(panel.s, panel.density, color=COLOURS[1], label=r"theory $\eta^{-1}\mu_\delta(\epsilon + s/\eta)$")
    top = top if top > 0 else 1.0
    axis.set_ylim(0, 1.3 * top)
    _atom(axis, panel.atom, 1 - positive.size / total if total else np.nan, top, source)
    if panel.outliers is not None and values.size:
        _outliers(axis, panel.outliers, top)
    axis.set_title(panel.title if panel.phase is None else f"{panel.phase.replace('_', ' ')}\n{panel.title}".strip())
    axis.set_xlabel(LABELS["eigenvalue"])


def _height(panel: SpectrumPanel, outliers: np.ndarray) -> float:
    """Largest density of the bands that hold no outlier, if there are any: the height of the others tells nothing."""
    tops: dict[bool, list[float]] = {False: [0.0], True: [0.0]}
    for band in np.split(np.arange(panel.s.size), np.flatnonzero(np.isnan(panel.s))):
        s, density = (x[band][~np.isnan(panel.s[band])] for x in (panel.s, panel.density))
        if s.size:
            isolated = bool(np.any((s[0] <= outliers) & (outliers <= s[-1])))
            tops[isolated].append(float(density.max()))
    return max(tops[False]) or max(tops[True])


def _outliers(axis: Axes, outliers: Outliers, top: float) -> None:
    """A triangle at each outlier, with its overlap for the largest; hollow where the overlap is not resolved."""
    height = 0.06 * top
    mark: dict[str, Any] = {"marker": "v", "color": COLOURS[2], "linestyle": ""}
    mixed = np.isnan(outliers.overlap)
    if not mixed.all():
        axis.plot(outliers.value[~mixed], np.full(np.sum(~mixed), height), label="outliers, with overlap", **mark)
    if mixed.any():
        label = "outliers, eigenvectors mixed"
        axis.plot(outliers.value[mixed], np.full(np.sum(mixed), height), markerfacecolor="white", label=label, **mark)
    for i in np.flatnonzero(~mixed)[:LABELLED]:
        text = format_number(round(float(outliers.overlap[i]), 3))
        x = float(outliers.value[i])
        axis.text(x, 2.2 * height, text, rotation=90, ha="center", va="bottom", fontsize=7, color=COLOURS[2])


def _atom(axis: Axes, predicted: float, measured: float, top: float, source: str) -> None:
    """An arrow at zero: an atom has a weight, not a height."""
    if max(np.nan_to_num(predicted), np.nan_to_num(measured)) < 5e-5:
        return
    axis.plot([0, 0], [0, 1.12 * top], color=COLOURS[1], linewidth=2.2, solid_capstyle="butt")
    axis.plot([0], [1.12 * top], marker="^", color=COLOURS[1], linestyle="", label="atom at 0 (not to scale)")
    lines = ["weight of the atom"]
    if np.isfinite(measured):
        lines.append(f"{source} {measured:.3f}")
    if np.isfinite(predicted):
        lines.append(f"theory {predicted:.3f}")
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
    axis.text(0.97, 0.97, "\n".join(lines), transform=axis.transAxes, ha="right", va="top", fontsize=8, bbox=box)
