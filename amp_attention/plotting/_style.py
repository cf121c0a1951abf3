"""One look for all figures: colours that colour-blind readers tell apart, the field's notation, sizes of a journal."""

import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

# Okabe and Ito's palette (jfly.uni-koeln.de/color), yellow left out: it vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SINGLE, DOUBLE = 3.5, 7.0  # inches: one and two columns

LABELS = {
    "alpha": r"sample ratio $\alpha = n/d^2$",
    "lam": r"regularisation $\tilde\lambda = \sqrt{\kappa}\,\lambda$",
    "test_error": r"test error $e$",
    "train_objective": r"training objective $L/d^2$",
    "train_error": r"training error $\alpha\,\langle\ell\rangle$",
    "squared_error": r"estimation error $\|S-S_0\|_F^2/d$",
    "rank_fraction": r"rank fraction $1-F$",
    "m": r"overlap $m = \mathrm{Tr}(S S_0)/d$",
    "q": r"norm $q = \mathrm{Tr}(S^2)/d$",
    "V": r"variance $V$ ($\Sigma$ in theory)",
    "iteration": "AMP iteration $t$",
    "eigenvalue": r"eigenvalue $s$ of the learned $S$",
    "density": r"density $\rho(s)$",
}

SYMBOLS = {"alpha": r"\alpha", "lam": r"\tilde\lambda"}

# Line properties of each engine's mark, the same in every figure.
MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "state_evolution": ("state evolution", {"linestyle": "-"}),
    "amp": ("AMP", {"linestyle": "", "marker": "o", "markerfacecolor": "white"}),
    "train": ("gradient training", {"linestyle": "", "marker": "x"}),
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
    symbols = {
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
    }
    single = {name: value for name, value in parameters.items() if isinstance(value, (int, float))}
    shown = {name: single.get(name) for name in symbols}
    if shown["beta0"] == shown["beta"]:
        shown["beta0"] = None
    if shown["kappa"] == 1:
        shown["kappa"] = None
    parts = [f"${symbols[name]}={format_number(float(v))}$" for name, v in shown.items() if v is not None]
    if parameters.get("normalise"):
        parts.append("$Q_0=1$")
    if (repeats := parameters.get("repeats")) is not None:
        parts.append(f"{repeats} instance{'' if repeats == 1 else 's'}")
    return ",  ".join(parts)


ERROR_BARS = "points and error bars: mean ± standard error over instances"


def caption(figure: Figure, text: str) -> None:
    """The parameter line above the panels."""
    figure.suptitle(text, fontsize=9)


def panel_letters(axes: Iterable[Axes]) -> None:
    """(a), (b), ... at the top left of each panel."""
    for letter, axis in zip("abcdefghijklmnop", axes, strict=False):
        axis.set_title(f"({letter})", loc="left")


def logarithmic_axis(axis: Axes, values: Sequence[float]) -> None:
    """A logarithmic x axis where the values span more than a factor of 20, with plain numbers over few decades."""
    if min(values) <= 0 or max(values) / min(values) <= 20:
        return
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    if max(values) / min(values) < 1000:
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


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
