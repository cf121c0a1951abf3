"""A page of tables and figures from the results of benchmarks.

```bash
python -m benchmarks.report benchmarks.json [accelerator.json ...] --out docs
```

Reads what `pytest benchmarks --benchmark-json=benchmarks.json` and `python -m benchmarks.gpu > accelerator.json` wrote,
and writes `benchmarks.md` and its figures into the folder. Of a case that is in several files the last counts.
"""

import argparse
import importlib
import json
import math
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks._measure import within_limit

_THEMES = {  # group of a result: module that measured it
    "amp_iteration": "bench_amp_iteration",
    "eigh_trap": "bench_eigh_trap",
    "state_evolution": "bench_state_evolution",
    "bayes": "bench_bayes",
    "training": "bench_training",
    "naive": "bench_naive",
    "memory": "bench_memory",
    "growth": "bench_growth",
    "accelerator": "gpu",
}
_TITLES = {
    "amp_iteration": "One AMP iteration",
    "eigh_trap": "Eigendecompositions on a busy machine",
    "state_evolution": "State evolution",
    "bayes": "The Bayes-optimal curve",
    "training": "AMP and gradient training",
    "naive": "A dense implementation",
    "memory": "Peak memory",
    "growth": "Growth with d",
    "accelerator": "Accelerators",
}
_FIGURES = {  # name: theme, label of y
    "amp_iteration": ("amp_iteration", "iteration / (products + eigh)"),
    "training": ("training", "seconds to the same objective"),
    "naive_time": ("naive", "seconds of an iteration"),
    "naive_memory": ("naive", "peak memory [MiB]"),
    "growth_time": ("growth", "seconds of an iteration"),
    "growth_memory": ("growth", "peak memory [MiB]"),
    "accelerator": ("accelerator", "iteration / (products + eigh)"),
}
_RATIOS = ("amp_iteration", "accelerator")  # figures with a linear y axis


def read(paths: list[Path]) -> tuple[list[dict], dict[str, dict[str, dict]]]:
    """The machines, and the cases by theme and name."""
    machines, themes = [], defaultdict(dict)
    for path in paths:
        document = json.loads(path.read_text())
        machines.append(document["machine_info"]["described"])
        for entry in document["benchmarks"]:
            extra = entry["extra_info"]
            themes[entry["group"]][extra["case"]] = extra | {"rounds": entry["stats"].get("rounds")}
    return machines, dict(themes)


def written(value: float | str, unit: str) -> str:
    """A number with three digits and its unit; counts and words as they are."""
    if isinstance(value, str | int):
        return f"{value} {unit}".strip()
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 0
    text = f"{value:.2g}" if value and (abs(value) < 1e-3 or abs(value) >= 1e6) else f"{value:.{min(digits, 4)}f}"
    return f"{text} {unit}".strip()


def table(cases: dict[str, dict]) -> list[str]:
    """The rows of all cases of a theme."""
    lines = ["| case | quantity | measured | limit | kept |", "|---|---|---|---|---|"]
    for name, case in cases.items():
        for index, row in enumerate(case["rows"]):
            limit, kept = "", ""
            if row["limit"] is not None:
                limit = ("≥ " if row["least"] else "≤ ") + written(row["limit"], row["unit"])
                kept = "yes" if within_limit(row) else "**no**"
            cells = [name if index == 0 else "", row["quantity"], written(row["value"], row["unit"]), limit, kept]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def curves(cases: dict[str, dict], figure: str) -> dict[str, list[tuple[float, float]]]:
    """The points of a figure by label, in order of x."""
    found = defaultdict(list)
    for case in cases.values():
        for point in case["points"]:
            if point["figure"] == figure:
                found[point["label"]].append((point["x"], point["y"]))
    return {label: sorted(points) for label, points in found.items()}


def draw(lines: dict[str, list[tuple[float, float]]], figure: str, path: Path) -> None:
    """One figure over d."""
    axes_figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    dimensions = sorted({x for points in lines.values() for x, _ in points})
    axes.set_xscale("log")
    axes.set_xticks(dimensions, [f"{d:g}" for d in dimensions])
    axes.set_xticks([], minor=True)
    if figure in _RATIOS:
        axes.set_ylim(bottom=0)
        axes.axhline(1, color="0.7", linewidth=0.8, zorder=0)
    else:
        axes.set_yscale("log")
    axes.set_xlabel("d")
    axes.set_ylabel(_FIGURES[figure][1])
    axes.legend(frameon=False, fontsize="small")
    axes_figure.savefig(path, dpi=150)
    plt.close(axes_figure)


def explanation(theme: str) -> str:
    """What the module that measured a theme says of itself, without its example."""
    text = importlib.import_module(f"benchmarks.{_THEMES[theme]}").__doc__ or ""
    return text.strip()


def described(machines: list[dict]) -> list[str]:
    """One table for all machines."""
    names = list(dict.fromkeys(name for machine in machines for name in machine))
    header = ["| |" + "".join(f" machine {i + 1} |" if len(machines) > 1 else " |" for i in range(len(machines)))]
    rows = ["| " + " | ".join([name, *(str(machine.get(name, "")) for machine in machines)]) + " |" for name in names]
    return [*header, "|---|" + "---|" * len(machines), *rows]


def page(machines: list[dict], themes: dict[str, dict[str, dict]], out: Path) -> str:
    """The page; its figures are drawn into `out`."""
    lines = ["# Benchmarks", "", "Times are medians; what a ratio compares was called in turn, in one process.", ""]
    for theme in (name for name in _THEMES if name in themes):
        cases = themes[theme]
        lines += [f"## {_TITLES[theme]}", "", explanation(theme), "", *table(cases), ""]
        for figure in (name for name, (where, _) in _FIGURES.items() if where == theme):
            drawn = curves(cases, figure)
            if drawn:
                path = out / f"benchmarks-{figure.replace('_', '-')}.png"
                draw(drawn, figure, path)
                lines += [f"![{_FIGURES[figure][1]}]({path.name})", ""]
    return "\n".join([*lines, "## Machine", "", *described(machines), ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="JSON of pytest-benchmark or of benchmarks.gpu")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the page and its figures (docs)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    target = arguments.out / "benchmarks.md"
    target.write_text(page(*read(arguments.results), arguments.out))
    print(target)
