"""Names that the command line needs before anything expensive is imported."""

# Fields of a fixed point that can be differentiated and tuned.
OBSERVABLES = (
    *("test_error", "train_objective", "train_error", "free_entropy", "squared_error", "trace", "zero_fraction"),
    *("rank_fraction", "replicon", "Sigma", "m", "q", "Sigma_hat", "m_hat", "q_hat", "delta", "epsilon", "eta"),
)
PHASES = ("rank_collapse", "bleed_out", "outliers_only", "outliers_and_bulk")

# T that the labels of a head can have: least and, where there is one, most.
HEAD_TOKENS: dict[str, tuple[int, int | None]] = {"softmax": (2, None), "hardmax": (2, 6), "linear": (1, 1)}

FIGURES = {
    "state-evolution": ("learning_curves",),
    "amp": ("learning_curves", "eigenvalues"),
    "train": ("learning_curves", "eigenvalues"),
    "compare": ("learning_curves", "eigenvalues", "trajectory"),
    "sensitivity": ("sensitivity",),
    "tune": ("tuning",),
    "thresholds": ("thresholds",),
    "bayes": ("bayes", "shrinkage"),
    "spectrum": ("spectra",),
    "phase-diagram": ("phase_diagram",),
}
# Tables besides that of the points: file name by command.
SERIES = {
    "amp": "amp-runs",
    "train": "train-runs",
    "compare": "compare-runs",
    "tune": "tune-curve",
    "spectrum": "spectrum-density",
    "phase-diagram": "phase-diagram-boundaries",
}
# The axes of the grid of points, outermost first.
AXES = {"tune": ("alpha",), "thresholds": ("tokens", "kappa0", "noise"), "bayes": ("alpha", "effective_noise")}
MANIFEST = ".amp-attention.json"


def axes(command: str) -> tuple[str, ...]:
    """The axes of the grid of a command; of `bayes`, the one that is not given as a list has no meaning."""
    return AXES.get(command, ("alpha", "lam"))


def tokens_of(head: str) -> str:
    """The range of T of a head, in words."""
    least, most = HEAD_TOKENS[head]
    if least == most:
        return str(least)
    return f"a whole number >= {least}" + ("" if most is None else f" and <= {most}")


def result_files(command: str) -> list[str]:
    """Tables, documents and figures, without the folder's own list of files."""
    names = [f"{command}.json", f"{command}.csv", f"{command}.nc", "command.txt"]
    names += [f"{SERIES[command]}.csv"] if command in SERIES else []
    return names + [f"{name}.{kind}" for name in FIGURES[command] for kind in ("png", "pdf")]
