"""The files that each command writes into --out."""

FIGURES = {
    "state-evolution": ("learning_curves",),
    "amp": ("learning_curves", "eigenvalues"),
    "train": ("learning_curves", "eigenvalues"),
    "compare": ("learning_curves", "eigenvalues", "trajectory"),
}
MANIFEST = ".amp-attention.json"


def result_files(command: str) -> list[str]:
    """Tables, documents and figures, without the folder's own list of files."""
    names = [f"{command}.json", f"{command}.csv", f"{command}-runs.csv", f"{command}.nc", "command.txt"]
    return names + [f"{name}.{kind}" for name in FIGURES[command] for kind in ("png", "pdf")]
