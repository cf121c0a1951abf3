"""The phases of the learned matrix in the plane of (α, λ̃), and the lines between them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from scipy.ndimage import label, minimum_filter
from scipy.optimize import linear_sum_assignment

from amp_attention.plotting._style import (
    COLOURS,
    LABELS,
    SINGLE,
    caption,
    describe,
    logarithmic_axis,
    new_figure,
    style,
)
from amp_attention.spectrum import PHASES

Record = Mapping[str, Any]
Branch = np.ndarray
# Name and soft colour of each phase, in the order of `PHASES`, and of what failed.
LOOK = {
    "rank_collapse": ("rank collapse", "#FFF1C4"),
    "bleed_out": ("bleed-out", "#8FC1E6"),
    "outliers_only": ("outliers only", "#B5E0C2"),
    "outliers_and_bulk": ("outliers + bulk", "#F2C6DC"),
}
FAILED = ("not solved", "#ADADAD")
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "collapse": (r"collapse, $\tilde\lambda_c(\alpha)$", {"color": "black", "linestyle": "-"}),
    "bleed_out": ("end of bleed-out", {"color": COLOURS[0], "linestyle": "--"}),
    "replicon": (r"replicon $R=1$", {"color": COLOURS[1], "linestyle": "-."}),
}
OUTLIER_COLOURS = (COLOURS[2], COLOURS[3], "0.35")
OUTLIER_STYLES = (":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 2)))
LARGEST_JUMP = 0.35  # of the panel's height, between neighbours on one branch
PIXELS = 240  # of the raster on which names are placed


def phase_diagram(
    records: Sequence[Record], parameters: Mapping[str, Any], boundaries: Mapping[str, Sequence[Sequence[float]]]
) -> Figure:
    """Cells coloured by the phase of their point of the grid, each phase named once, boundaries as lines.

    Nothing is drawn beyond the grid, where no phase is known; a grid of a single α or λ̃ is a narrow strip.

    Args:
        records: points of a grid in any order, with `alpha`, `lam` and `phase`, null where the point failed.
        parameters: what is the same for all, for the caption.
        boundaries: by name, pairs [α, λ̃] in any order; several at one α belong to several branches.

    Returns:
        The figure; nothing is drawn on a screen.
    """
    alphas, lams = (sorted({float(record[name]) for record in records}) for name in ("alpha", "lam"))
    with style():
        figure, axes = new_figure(1, 1, SINGLE * 1.6, 4.6)
        panel = axes[0, 0]
        log_alpha, log_lam = logarithmic_axis(panel, alphas), logarithmic_axis(panel, lams, "y")
        edges = cell_edges(alphas, log_alpha), cell_edges(lams, log_lam)
        phases = phase_table(records, alphas, lams)
        _cells(panel, edges, phases)
        points = {"color": "0.45", "markersize": 1.2, "zorder": 2.5, "clip_on": False}  # those at the ends are whole
        panel.plot(*zip(*itertools.product(alphas, lams), strict=True), ".", **points)
        if len(alphas) == len(lams) == 1:
            panel.plot(alphas, lams, "o", color="0.2")
        panel.set(xlim=edges[0][[0, -1]], ylim=edges[1][[0, -1]], xlabel=LABELS["alpha"], ylabel=LABELS["lam"])
        for axis, values in ((panel.xaxis, alphas), (panel.yaxis, lams)):
            if len(values) == 1:
                axis.set_ticks(values)  # the width of the strip means nothing
        lines = _boundaries(panel, boundaries, alphas)
        _write_names(panel, edges, phases)
        single = {name: v[0] if len(v) == 1 else None for name, v in (("alpha", alphas), ("lam", lams))}
        caption(figure, describe(dict(parameters) | single))
        handles = [*_patches(phases), *lines]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)))
    return figure


def cell_edges(values: Sequence[float], logarithmic: bool) -> np.ndarray:
    """Edges of cells of ascending values: the ends, and halfway between neighbours (in the logarithm on such an axis).

    Those of a single value are 1 % away from it.
    """
    centre = np.log(values) if logarithmic else np.asarray(values, float)
    if len(centre) == 1:
        half = 0.01 * (1.0 if logarithmic else abs(centre[0]) or 1.0)
        ends = np.asarray([centre[0] - half, centre[0] + half])
        return np.exp(ends) if logarithmic else ends
    edges = np.concatenate([centre[:1], (centre[1:] + centre[:-1]) / 2, centre[-1:]])
    return np.exp(edges) if logarithmic else edges


def phase_table(records: Sequence[Record], alphas: Sequence[float], lams: Sequence[float]) -> np.ndarray:
    """Index into `PHASES`, shape (λ̃, α); len(PHASES) where the point failed, NaN where there is none."""
    table = np.full((len(lams), len(alphas)), np.nan)
    for record in records:
        place = lams.index(float(record["lam"])), alphas.index(float(record["alpha"]))
        table[place] = len(PHASES) if record["phase"] is None else PHASES.index(record["phase"])
    return table


def branches(points: Sequence[Sequence[float]], alphas: Sequence[float], logarithmic: bool, height: float) -> list:
    """The branches of a boundary: points of neighbouring α, paired so that they move least.

    Args:
        points: pairs [α, λ̃] in any order.
        alphas: of the grid, ascending: a branch ends where one of them has no point.
        logarithmic: whether distances are measured in log λ̃.
        height: largest distance on a branch.

    Returns:
        Arrays (k, 2) of ascending α; a point without neighbours is a branch of its own.
    """
    known = [(a, lam) for a, lam in points if math.isfinite(lam) and (lam > 0 or not logarithmic)]
    finished: list[list[tuple[float, float]]] = []
    running: list[list[tuple[float, float]]] = []
    for alpha in alphas:
        here = sorted(point for point in known if math.isclose(point[0], alpha, rel_tol=1e-9))
        pairs = _pairs([b[-1][1] for b in running], [lam for _, lam in here], logarithmic, height)
        finished += [branch for i, branch in enumerate(running) if i not in pairs]
        old = {j: running[i] for i, j in pairs.items()}
        running = [[*old.get(j, []), point] for j, point in enumerate(here)]
    return [np.asarray(branch) for branch in finished + running]


def _pairs(before: Sequence[float], after: Sequence[float], logarithmic: bool, height: float) -> dict[int, int]:
    if not before or not after:
        return {}
    old, new = (np.log(v) if logarithmic else np.asarray(v) for v in (before, after))
    distance = np.abs(old[:, None] - new[None, :])
    return {i: j for i, j in zip(*linear_sum_assignment(distance), strict=True) if distance[i, j] <= height}


def _cells(panel: Axes, edges: tuple[np.ndarray, np.ndarray], phases: np.ndarray) -> None:
    colours = ListedColormap([*(LOOK[phase][1] for phase in PHASES), FAILED[1]])
    panel.pcolormesh(
        *edges, np.ma.masked_invalid(phases), cmap=colours, vmin=-0.5, vmax=len(PHASES) + 0.5, rasterized=True
    )


def _line(name: str) -> tuple[str, dict[str, Any]]:
    """Label and line of a boundary."""
    if name in LINES:
        return LINES[name]
    if not name.startswith("outlier_"):
        return name.replace("_", " "), {"color": "0.2", "linestyle": "-"}
    k = int(name.removeprefix("outlier_"))
    colour, dashes = OUTLIER_COLOURS[(k - 1) % 3], OUTLIER_STYLES[(k - 1 + (k - 1) // 3) % 3]
    return f"outlier {k} detaches", {"color": colour, "linestyle": dashes}


def _boundaries(panel: Axes, boundaries: Mapping[str, Sequence[Sequence[float]]], alphas: list[float]) -> list[Line2D]:
    """Draw them; the legend entries of those that are seen."""
    logarithmic, ylim = panel.get_yscale() == "log", panel.get_ylim()
    height = LARGEST_JUMP * float(np.ptp(np.log(ylim) if logarithmic else ylim))
    handles = []
    for name, points in boundaries.items():
        text, look = _line(name)
        found = branches(points, alphas, logarithmic, math.inf if name == "collapse" else height)  # one for each α
        for branch in found:
            panel.plot(*branch.T, marker="" if len(branch) > 1 else "D", markersize=3.5, **look)
        if any(b[:, 1].min() <= ylim[1] and b[:, 1].max() >= ylim[0] for b in found):
            alone = {"marker": "D", "markersize": 3.5, "linestyle": ""} if max(map(len, found)) == 1 else {}
            handles.append(Line2D([], [], label=text, **look | alone))
    return handles


def _patches(phases: np.ndarray) -> list[Artist]:
    looks = [*(LOOK[phase] for phase in PHASES), FAILED]
    seen = [look for index, look in enumerate(looks) if index in phases]
    return [Patch(facecolor=colour, edgecolor="0.5", linewidth=0.5, label=name) for name, colour in seen]


def _write_names(panel: Axes, edges: tuple[np.ndarray, np.ndarray], phases: np.ndarray) -> None:
    """Each name once, in the largest connected region of its phase, off the lines if it fits so."""
    x, y = (_cells_across(panel, side, name) for side, name in zip(edges, "xy", strict=True))
    raster = phases[np.ix_(y, x)]
    blocked = _lines_drawn(panel)
    for index, phase in enumerate(PHASES):
        text, colour = LOOK[phase]
        box = 0.018 * len(text), 0.05
        place = name_place(raster == index, blocked, box) or name_place(raster == index, np.zeros_like(blocked), box)
        if place is not None:
            halo = [withStroke(linewidth=2.5, foreground=colour)]
            look = {"ha": "center", "va": "center", "fontsize": 8.5, "color": "0.15", "path_effects": halo}
            panel.text(*place, text, transform=panel.transAxes, **look)


def _cells_across(panel: Axes, edges: np.ndarray, which: str) -> np.ndarray:
    """Which cell lies at each pixel across the panel."""
    scaled = np.log(edges) if getattr(panel, f"get_{which}scale")() == "log" else edges
    across = scaled[0] + (np.arange(PIXELS) + 0.5) / PIXELS * (scaled[-1] - scaled[0])
    return np.clip(np.searchsorted(scaled, across) - 1, 0, len(edges) - 2)


def _lines_drawn(panel: Axes) -> np.ndarray:
    """Pixels that a boundary passes; shape (PIXELS, PIXELS), from the bottom."""
    mask = np.zeros((PIXELS, PIXELS), bool)
    to_panel = panel.transData + panel.transAxes.inverted()
    for line in panel.lines:
        if line.get_marker() == ".":  # the points of the grid
            continue
        path = to_panel.transform(np.column_stack(line.get_data()))
        steps = np.linspace(0, 1, 2 * PIXELS)[:, None]
        dense = [a + steps * (b - a) for a, b in itertools.pairwise(path)] or [path]
        column, row = np.floor(PIXELS * np.concatenate(dense)).astype(int).T
        inside = np.all([row >= 0, row < PIXELS, column >= 0, column < PIXELS], axis=0)
        mask[row[inside], column[inside]] = True
    return mask


def name_place(region: np.ndarray, blocked: np.ndarray, box: tuple[float, float]) -> tuple[float, float] | None:
    """The middle of a place for a text in the largest connected part of a region; None where it does not fit.

    Args:
        region, blocked: pixels (rows from the bottom) where the text may be, and must not be.
        box: width and height of the text, as fractions of the panel.

    Returns:
        Fractions of the panel.
    """
    parts, count = label(region)  # pyright: ignore[reportGeneralTypeIssues]
    if not count:
        return None
    largest = parts == 1 + np.argmax(np.bincount(parts.ravel())[1:])
    free = largest & ~blocked
    centre = np.argwhere(largest).mean(axis=0)
    for margin in (2.0, 1.6, 1.3, 1.1, 1.0):  # the more room the better
        share = margin * box[1], box[0] * (1 + margin) / 2
        size = [max(1, math.ceil(part * side)) for part, side in zip(share, free.shape, strict=True)]
        fits = minimum_filter(free, size=size, mode="constant", cval=0)
        if fits.any():
            places = np.argwhere(fits)
            row, column = places[np.argmin(np.hypot(*(places - centre).T))]
            return (column + 0.5) / free.shape[1], (row + 0.5) / free.shape[0]
    return None
