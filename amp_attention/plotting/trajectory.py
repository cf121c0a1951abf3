"""AMP iteration by iteration over the state evolution that follows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from amp_attention.plotting._style import (
    COLOURS,
    DOUBLE,
    ERROR_BARS,
    LABELS,
    MARKS,
    caption,
    describe,
    family_handles,
    new_figure,
    panel_letters,
    style,
)

PANELS = (("q", "q"), ("m", "m"), ("V", "Sigma"))


@dataclass(frozen=True)
class TrajectoryPanel:
    """One problem.

    Attributes:
        title: for the legend, for instance the values of α and λ̃.
        histories: one a repeat, each with arrays `q`, `m`, `V` over iterations 0, 1, ...
        theory: arrays `q`, `m`, `Sigma` over iterations 0, 1, ...
    """

    title: str
    histories: Sequence[Mapping[str, np.ndarray]]
    theory: Mapping[str, np.ndarray]


def amp_trajectories(panels: Sequence[TrajectoryPanel], parameters: Mapping[str, Any]) -> Figure:
    """Overlaps and variance against iteration: AMP's mean ± standard error over repeats, state evolution as lines."""
    with style():
        figure, axes = new_figure(1, len(PANELS), DOUBLE, 2.75)
        length = max(map(settled, panels))
        for axis, (name, predicted) in zip(axes.flat, PANELS, strict=True):
            for colour, panel in zip(COLOURS, panels, strict=False):
                _draw(axis, panel, name, predicted, colour, length)
            axis.set_xlabel(LABELS["iteration"])
            axis.set_ylabel(LABELS[name])
            axis.set_ylim(bottom=0)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel_letters(axes.flat)
        caption(figure, describe(parameters))
        colours = zip([panel.title for panel in panels], COLOURS, strict=False)
        handles = family_handles([MARKS["state_evolution"], MARKS["amp"]], colours)
        note = ERROR_BARS if any(len(panel.histories) > 1 for panel in panels) else None
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), title=note)
    return figure


def mean_history(
    histories: Sequence[Mapping[str, np.ndarray]], name: str, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over repeats, each continued by its last value once it has converged."""
    rows = []
    for history in histories:
        values = np.asarray(history[name], float)
        values = values[np.isfinite(values)][:length]
        if values.size:
            rows.append(np.pad(values, (0, length - values.size), mode="edge"))
    if not rows:
        return np.full(length, np.nan), np.zeros(length)
    table = np.stack(rows)
    error = table.std(axis=0, ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else np.zeros(length)
    return table.mean(axis=0), error


def settled(panel: TrajectoryPanel, shortest: int = 12) -> int:
    """Number of entries worth showing: until the theory stands still to a percent, and half as many again."""
    moving = 0
    for name in (predicted for _, predicted in PANELS):
        path = np.asarray(panel.theory[name], float)
        away = np.abs(path - path[-1]) > 0.01 * np.abs(path).max()
        moving = max(moving, int(np.flatnonzero(away).max(initial=0)))
    return min(max(shortest, moving + moving // 2 + 2), len(panel.theory["q"]))


def _draw(axis: Axes, panel: TrajectoryPanel, name: str, predicted: str, colour: str, length: int) -> None:
    steps = np.arange(length)
    axis.plot(steps, np.asarray(panel.theory[predicted], float)[:length], color=colour)
    mean, error = mean_history(panel.histories, name, length)
    axis.errorbar(
        steps,
        mean,
        yerr=error,
        fmt="o",
        color=colour,
        markerfacecolor="white",
        markersize=3.5,
        elinewidth=0.8,
        capsize=0,
        markeredgewidth=0.9,
    )
