"""One look for all figures: colours that colour-blind readers tell apart, the field's notation, sizes of a journal."""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

# Okabe and Ito's palette (jfly.uni-koeln.de/color), yellow left out: it vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SINGLE, DOUBLE = 3.5, 7.0  # inches: one and two columns

LABELS = {
    "alpha": r"sample ratio $\alpha = n/d^2$",
    "lam": r"regularisation $\tilde\lambda = \sqrt{\kappa}\,\lambda$",
    "test_error": r"test error $e$",
    "train_objective": r"training objective $L/d^2$",
    "train_error": r"training error $\alpha\,\langle\ell\rangle$",
    "free_entropy": r"free entropy $\Phi$",
    "squared_error": r"estimation error $\|S-S_0\|_F^2/d$",
    "trace": r"trace $\mathrm{Tr}\,S/d$",
    "zero_fraction": r"zero fraction $F$",
    "rank_fraction": r"rank fraction $1-F$",
    "replicon": r"replicon $R$",
    "Sigma": r"variance $\Sigma$",
    "m": r"overlap $m = \mathrm{Tr}(S S_0)/d$",
    "q": r"norm $q = \mathrm{Tr}(S^2)/d$",
    "Sigma_hat": r"conjugate $\hat\Sigma$",
    "m_hat": r"conjugate $\hat m$",
    "q_hat": r"conjugate $\hat q$",
    "delta": r"noise of the matrix $\delta$",
    "epsilon": r"spectral threshold $\epsilon$",
    "eta": r"shrinkage $\eta$",
    "kappa0": r"teacher width $\kappa_0 = p_0/d$",
    "noise": r"label noise $\Delta$",
    "tokens": r"tokens $T$",
    "V": r"variance $V$ ($\Sigma$ in theory)",
    "iteration": "AMP iteration $t$",
    "eigenvalue": r"eigenvalue $s$ of the learned $S$",
    "density": r"density $\rho(s)$",
}

# Of the parameters, in the order of captions, and of the observables.
SYMBOLS = {
    "tokens": "T",
    "kappa": r"\kappa",
    "kappa0": r"\kappa_0",
    "gamma": r"\gamma",
    "target_d": r"d_\mathrm{target}",
    "noise": r"\Delta",
    "beta": r"\beta",
    "beta0": r"\beta_0",
    "alpha": r"\alpha",
    "lam": r"\tilde\lambda",
    "d": "d",
    "test_error": "e",
    "train_objective": "L/d^2",
    "train_error": r"\alpha\,\langle\ell\rangle",
    "free_entropy": r"\Phi",
    "squared_error": r"\|S-S_0\|_F^2/d",
    "trace": r"\mathrm{Tr}\,S/d",
    "zero_fraction": "F",
    "rank_fraction": "1-F",
    "replicon": "R",
    "Sigma": r"\Sigma",
    "m": "m",
    "q": "q",
    "Sigma_hat": r"\hat\Sigma",
    "m_hat": r"\hat m",
    "q_hat": r"\hat q",
    "delta": r"\delta",
    "epsilon": r"\epsilon",
    "eta": r"\eta",
}
CAPTION = ("tokens", "kappa", "kappa0", "gamma", "target_d", "noise", "beta", "beta0", "alpha", "lam", "d")
UNSTABLE: tuple[str, dict[str, Any]] = (r"unstable, $R \geq 1$", {"linestyle": ":"})

# Line properties of each engine's mark, the same in every figure.
MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "state_evolution": ("state evolution", {"linestyle": "-"}),
    "amp": ("AMP", {"linestyle": "", "marker": "o", "markerfacecolor": "white"}),
    "train": ("gradient training", {"linestyle": "", "marker": "x"}),
    "bayes": ("Bayes-optimal", {"linestyle": "--"}),
}

_RC: dict[Any, Any] = {
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "errorbar.capsize": 2,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "figure.constrained_layout.use": True,
}


def style() -> AbstractContextManager[None]:
    """Context in which figures are made and saved."""
    return mpl.rc_context(_RC)


def new_figure(rows: int, columns: int, width: float, height: float, **kwargs: Any) -> tuple[Figure, Any]:
    """A figure that belongs to no window and no global state, with a 2-d array of axes."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.05))
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def format_number(value: float) -> str:
    """Four significant digits, as mathematics where an exponent is needed."""
    text = f"{value:.4g}"
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    return ("" if digits == "1" else rf"{digits}\times ") + rf"10^{{{int(exponent)}}}"


def describe(parameters: Mapping[str, Any]) -> str:
    """One line with the parameters of a figure, null ones and lists left out; the text of `caption`."""
    single = {name: value for name, value in parameters.items() if isinstance(value, (int, float))}
    shown = {name: single.get(name) for name in CAPTION}
    if shown["beta0"] == shown["beta"]:
        shown["beta0"] = None
    if shown["kappa"] == 1:
        shown["kappa"] = None
    parts = [f"${SYMBOLS[name]}={format_number(float(v))}$" for name, v in shown.items() if v is not None]
    if parameters.get("head") == "hardmax":
        parts.insert(0, "hardmax")
    if parameters.get("normalise"):
        parts.append("$Q_0=1$")
    if (repeats := parameters.get("repeats")) is not None:
        parts.append(f"{repeats} instance{'' if repeats == 1 else 's'}")
    return ",  ".join(parts)


BAND = "± standard error"
ERROR_BARS = "points and error bars: mean ± standard error over instances"


def caption(figure: Figure, text: str) -> None:
    """The parameter line above the panels."""
    figure.suptitle(text, fontsize=9)


def panel_letters(axes: Iterable[Axes]) -> None:
    """(a), (b), ... at the top left of each panel."""
    for letter, axis in zip("abcdefghijklmnop", axes, strict=False):
        axis.set_title(f"({letter})", loc="left")


def as_number(value: Any) -> float:
    """An entry of a record as a float; NaN for null."""
    return math.nan if value is None else float(value)


def logarithmic_axis(axis: Axes, values: Sequence[float], which: Literal["x", "y"] = "x", narrow: bool = False) -> bool:
    """A logarithmic axis where the values span more than a factor of 20, with plain numbers over few decades.

    Args:
        axis: the panel.
        values: what is drawn along the axis.
        which: of the two axes.
        narrow: room for few numbers only.

    Returns:
        Whether the axis is logarithmic.
    """
    if not values or min(values) <= 0 or max(values) / min(values) <= 20:
        return False
    log_scale(axis, values, which, narrow)
    return True


def log_scale(axis: Axes, values: Sequence[float], which: Literal["x", "y"] = "x", narrow: bool = False) -> None:
    """A logarithmic axis whatever the values (> 0) span; see `logarithmic_axis`."""
    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    line, span = (axis.xaxis if which == "x" else axis.yaxis), max(values) / min(values)
    line.set_minor_formatter(NullFormatter())
    if span < 1000:
        subs = (1, 2, 5) if not narrow or span < 50 else (1,)
        line.set_major_locator(LogLocator(subs=subs) if span > 8 else MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        line.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    if span <= 8:
        line.set_minor_locator(NullLocator())


def theory_line(
    axis: Axes, x: np.ndarray, y: np.ndarray, colour: str, unstable: np.ndarray | None = None, **properties: Any
) -> None:
    """A line, dotted where the fixed point is unstable; a dash where there is a single point."""
    if len(x) == 1:
        axis.plot(x, y, marker="_", markersize=16, markeredgewidth=1.5, color=colour)
    elif unstable is None or not unstable.any():
        axis.plot(x, y, color=colour, **properties)
    else:
        beside = np.convolve(unstable, [1, 1, 1], "same") > 0  # so that no gap is left
        axis.plot(x, np.where(unstable, np.nan, y), color=colour, **properties)
        axis.plot(x, np.where(beside, y, np.nan), color=colour, **properties | UNSTABLE[1])


def family_handles(kinds: Iterable[tuple[str, dict[str, Any]]], colours: Iterable[tuple[str, str]]) -> list[Line2D]:
    """Legend entries: each kind of mark once in grey, then each colour once.

    Args:
        kinds: (label, line properties).
        colours: (label, colour).
    """
    marks = [Line2D([], [], color="0.2", label=label, **properties) for label, properties in kinds]
    return marks + [Line2D([], [], color=colour, label=label) for label, colour in colours]


def save(figure: Figure, path: str | Path) -> list[Path]:
    """The figure as PNG and PDF.

    Args:
        figure: from one of the functions of this package.
        path: without an extension.

    Returns:
        The two files.
    """
    files = [Path(f"{path}.{kind}") for kind in ("png", "pdf")]
    for file in files:
        file.write_bytes(render(figure, file.suffix[1:]))
    return files


def render(figure: Figure, kind: str) -> bytes:
    """The figure as the bytes of a file; `kind` is png or pdf. The same figure gives the same bytes."""
    buffer = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": "amp_attention"}
    with style():
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()
