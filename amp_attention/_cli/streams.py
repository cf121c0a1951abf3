"""What goes to stdout and stderr."""

import errno
import io
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from amp_attention._cli.names import axes

Column = tuple[str, str]  # header, path of names in the record
UNKNOWN = "-"
ROUNDING = 1e-14  # standard errors below it, relative, are those of equal numbers

FINITE_COLUMNS: tuple[Column, ...] = (
    ("alpha", "alpha"),
    ("lam", "lam"),
    ("n", "n"),
    ("test_error", "test_error"),
    ("objective", "train_objective"),
    ("sq_error", "squared_error"),
    ("m", "m"),
    ("q", "q"),
    ("zero_frac", "zero_fraction"),
    ("result", "result"),
)
POSTERIOR_COLUMNS: tuple[Column, ...] = (
    ("alpha", "alpha"),
    ("n", "n"),
    ("sq_error", "squared_error"),
    ("test_error", "test_error"),
    ("plug-in", "test_error_plugin"),
    ("m", "m"),
    ("q", "q"),
    ("V", "V"),
    ("result", "result"),
)
PLACE: tuple[Column, ...] = (("alpha", "alpha"), ("lam", "lam"))
END: tuple[Column, ...] = (("result", "result"),)
SPECTRUM_COLUMNS: tuple[Column, ...] = (
    ("phase", "phase"),
    ("rank_frac", "rank_fraction"),
    ("delta", "delta"),
    ("epsilon", "epsilon"),
    ("eta", "eta"),
    ("replicon", "replicon"),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "state-evolution": (
        *PLACE,
        ("test_error", "test_error"),
        ("objective", "train_objective"),
        ("sq_error", "squared_error"),
        ("m", "m"),
        ("q", "q"),
        ("rank_frac", "rank_fraction"),
        ("replicon", "replicon"),
        ("stable", "stable"),
        *END,
    ),
    "sensitivity": (
        *PLACE,
        ("of", "of"),
        ("value", "value"),
        ("d/dalpha", "gradients.alpha"),
        ("d/dlam", "gradients.lam"),
        ("d2/dlam2", "second.lam"),
        ("d/dbeta", "gradients.beta"),
        ("d/dbeta0", "gradients.beta0"),
        ("d/dnoise", "gradients.noise"),
        ("d/dkappa0", "gradients.kappa0"),
        ("d/dgamma", "gradients.gamma"),
        ("AMP:d/dlam", "finite_d.lam"),
        *END,
    ),
    "tune": (
        ("alpha", "alpha"),
        ("lam_opt", "lam_opt"),
        ("bound", "bound"),
        ("value", "value"),
        ("test_error", "test_error"),
        ("gradient", "gradient"),
        ("curvature", "curvature"),
        ("solves", "solves"),
        ("stable", "stable"),
        *END,
    ),
    "thresholds": (
        ("tokens", "tokens"),
        ("kappa0", "kappa0"),
        ("noise", "noise"),
        ("interpolation", "alpha_interpolation"),
        ("d/dnoise", "gradients.alpha_interpolation.noise"),
        ("d/dkappa0", "gradients.alpha_interpolation.kappa0"),
        ("recovery", "alpha_recovery"),
        ("d/dkappa0", "gradients.alpha_recovery.kappa0"),
        ("bayes", "alpha_bayes"),
        ("d/dkappa0", "gradients.alpha_bayes.kappa0"),
        *END,
    ),
    "bayes": (
        ("alpha", "alpha"),
        ("effective_noise", "effective_noise"),
        ("squared_error", "squared_error"),
        ("q", "q"),
        ("test_error", "test_error"),
        ("plug-in", "test_error_plugin"),
        ("free_entropy", "free_entropy"),
        *END,
    ),
    "spectrum": (
        *PLACE,
        *SPECTRUM_COLUMNS,
        ("outliers", "outliers"),
        ("W1", "distance.wasserstein"),
        ("KS", "distance.ks"),
        *END,
    ),
    "phase-diagram": (*PLACE, *SPECTRUM_COLUMNS, *END),
    "amp": FINITE_COLUMNS,
    "train": FINITE_COLUMNS,
    "compare": (
        ("alpha", "alpha"),
        ("lam", "lam"),
        ("test_error:SE", "state_evolution.test_error"),
        ("AMP", "amp.test_error"),
        ("training", "train.test_error"),
        ("objective:SE", "state_evolution.train_objective"),
        ("AMP", "amp.train_objective"),
        ("training", "train.train_objective"),
        ("|dS|^2/d", "agreement.squared_distance"),
        ("result", "result"),
    ),
}
# Of `compare` with a bound.
BOUND_COLUMNS: tuple[Column, ...] = (
    ("test_error:bound", "bayes.test_error"),
    ("sq_error:bound", "bayes.squared_error"),
    ("SE", "state_evolution.squared_error"),
    ("AMP", "amp.squared_error"),
    ("training", "train.squared_error"),
)
# Left out of a table where no row has them: of other targets, of T > 1, of what was not asked for.
OPTIONAL = {
    *("gradients.beta", "gradients.beta0", "gradients.kappa0", "gradients.gamma"),
    *("finite_d.lam", "distance.wasserstein", "distance.ks"),
}


class Progress:
    """One line a point on stderr; a bar with the remaining time where stderr is a terminal."""

    def __init__(self, command: str, total: int, quiet: bool):
        self.command, self.total, self.quiet, self.done = command, total, quiet, 0
        self._bar = None
        if not quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=command, file=sys.stderr, unit="point", leave=False)

    def tell(self, text: str) -> None:
        """What is about to run: in the bar only."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)

    def point(self, record: Mapping[str, Any]) -> None:
        """A point is done."""
        self.done += 1
        if self._bar is not None:
            self._bar.update()
        elif not self.quiet:
            say(f"{self.command} {self.done}/{self.total}: {place(self.command, record)}: {record['result']}")

    def close(self) -> None:
        """Clear the bar."""
        if self._bar is not None:
            self._bar.close()


def place(command: str, record: Mapping[str, Any]) -> str:
    """Where on its grid a point is."""
    known = ((name, record[name]) for name in axes(command))
    return ", ".join(f"{name} {value:.6g}" for name, value in known if value is not None and math.isfinite(value))


def say(text: str) -> None:
    """One line on stderr, lost where nobody takes it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def leave(sentence: str) -> NoReturn:
    """End at once with a sentence and status 1, without what JAX does at exit: it would wait for lost processes."""
    say(sentence)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(1)


class ClosedStream(io.TextIOBase):
    """Stands for a stdout that the caller has closed, where Python has None: writing fails as to any full device."""

    def write(self, text: str, /) -> int:
        """Refuse."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def replace_closed_streams() -> None:
    """Neither stdout nor stderr is None afterwards."""
    if sys.stdout is None:
        sys.stdout = ClosedStream()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open as long as the program runs)


def deliver(text: str) -> bool:
    """Print on stdout; where that fails, say so and return False."""
    try:
        print(text, flush=True)
    except OSError as error:
        abandon_stdout(error)
        return False
    return True


def abandon_stdout(error: OSError) -> None:
    """One sentence, none where the reader has gone (`| head`), and keep Python from flushing again at its exit."""
    if not isinstance(error, BrokenPipeError):
        say(f"amp-attention: the output could not be written to stdout ({error.strerror or error}).")
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(command: str, records: Sequence[Mapping[str, Any]]) -> str:
    """A readable table: mean±standard error where there are repeats, the length of a list."""
    cells = {column: [_cell(record, column[1]) for record in records] for column in _columns(command, records)}
    shown = {c: entries for c, entries in cells.items() if c[1] not in OPTIONAL or set(entries) != {UNKNOWN}}
    return aligned([[header for header, _ in shown], *map(list, zip(*shown.values(), strict=True))])


def _columns(command: str, records: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Those of the command: a posterior mean has neither λ̃ nor an objective, and a bound has columns of its own."""
    if command == "amp" and "test_error_plugin" in records[0]:
        return POSTERIOR_COLUMNS
    if command == "compare" and records[0].get("bayes"):
        return (*COLUMNS[command][:-1], *BOUND_COLUMNS, *END)
    return COLUMNS[command]


def series_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A second table, of rows with the same names."""
    return aligned([list(rows[0]), *([_number(value) for value in row.values()] for row in rows)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns to the right, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cell(record: Mapping[str, Any], path: str) -> str:
    *parents, name = path.split(".")
    for parent in parents:
        record = record.get(parent) or {}
    value, error = record.get(name), record.get("standard_error")
    if not isinstance(error, float):  # that of the only number here
        error = (error or {}).get(name) if "runs" in record else None
    return _number(value) + ("" if error is None or not error > ROUNDING * abs(value or 0) else f"±{error:.1g}")


def _number(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    if isinstance(value, list):
        return str(len(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.5g}"


def problems_of(command: str, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each point that is not a success."""
    return [
        f"{place(command, r)}: {r['result']}: {r.get('message', '')}{_reached(r)}"
        for r in records
        if r["result"] != "successful"
    ]


def _reached(record: Mapping[str, Any]) -> str:
    """The largest residual of what is not a success, where there is one."""
    found = _residuals(record)
    return f" (residual {max(found):.2g})" if found else ""


def _residuals(record: Mapping[str, Any]) -> list[float]:
    parts = [record[engine] for engine in ("state_evolution", "amp", "train", "finite_d") if record.get(engine)]
    parts += record.get("runs") or []
    own = [record.get(name) for name in ("residual", "gradient_norm")] if record["result"] != "successful" else []
    return [r for r in own if r is not None and math.isfinite(r)] + [r for part in parts for r in _residuals(part)]
