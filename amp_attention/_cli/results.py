"""Runs one command: collects its points, keeps them safe as they come, and writes tables, files and figures."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from amp_attention._cli.environment import is_first_process
from amp_attention._cli.names import SERIES, axes, result_files
from amp_attention._cli.options import BayesRequest, Request, TargetRequest
from amp_attention._cli.parsing import RunError, UsageError
from amp_attention._cli.streams import Progress, deliver, leave, problems_of, say, series_table, table
from amp_attention.checkpoints import CheckpointError, CheckpointWriteError, same_everywhere
from amp_attention.experiments import (
    NOT_STORED,
    ForeignFileError,
    LostProcessError,
    ResultFolder,
    Steps,
    columns,
    command_line,
    dataset,
    point_rows,
    refuse_lost_process,
    run_rows,
    series_rows,
    to_csv,
    to_json,
    to_netcdf,
    versions,
)

SAVE_EVERY = 5.0  # seconds
NESTED = ("x", "density", "edges", "outliers", "eigenvalues", "distance", "finite_d", "bayes")
Points = Callable[[Callable[[str], None]], Iterator[Any]]
Figures = Callable[[list[Any], Mapping[str, Any]], Mapping[str, Any]]


class Results:
    """The points of one command, its document and its files.

    Args:
        request: the command with its options.
        arguments: of the command line, for the record.
        overrides: entries of the `problem` description that data from a file have answered.
    """

    def __init__(
        self,
        request: Request | TargetRequest | BayesRequest,
        arguments: Sequence[str],
        overrides: Mapping[str, Any] | None = None,
    ):
        self.request, self.arguments = request, list(arguments)
        self.started = self.saved = time.perf_counter()
        self.problem = request.describe() | dict(overrides or {})
        self.parameters: dict[str, Any] = dict(self.problem)  # for the captions of figures
        self.extras: Mapping[str, Any] = {}  # more entries of the document, filled while points come
        self.points: list[Any] = []
        self._refuse_other_options()
        self.folder = self._open()

    @property
    def records(self) -> list[dict[str, Any]]:
        """The points as plain records."""
        return [point.record for point in self.points]

    def _refuse_other_options(self) -> None:
        """Several processes that compute different things together would give a mixture as their answer."""
        checkpoints = getattr(self.request, "checkpoints", None)
        kept = None if checkpoints is None else [checkpoints.checkpoint is not None, checkpoints.resume]
        asked = [self.request.command, self.problem, self.request.settings(), kept]
        if not same_everywhere(to_json(asked).encode()):
            raise UsageError("--distributed must be with the same options in all processes, got different ones.")

    def _open(self) -> ResultFolder | None:
        output = self.request.output
        if output.out is None or not is_first_process():
            return None
        try:
            folder = ResultFolder(output.out, output.overwrite)
            folder.claim(result_files(self.request.command))
            tempfile.TemporaryFile(dir=folder.path).close()  # known now, not after the computation
        except ForeignFileError as error:
            raise UsageError(
                f"--out must not replace foreign files: {error}; choose another folder or --overwrite."
            ) from None
        except OSError as error:
            raise UsageError(
                f"--out must be a folder that can be written, got {str(output.out)!r} ({error.strerror})."
            ) from None
        return folder

    def collect(self, points: Iterator[Any], progress: Progress, store: Steps = NOT_STORED) -> bool:
        """Gather the points, saving what is there every few seconds.

        Returns:
            Whether all were computed; False when the user interrupted.
        """
        try:
            with store:
                self._gather(points, progress)
        except KeyboardInterrupt:
            return False
        except LostProcessError as error:
            with suppress(RunError):
                self.save(complete=False)
            leave(f"amp-attention: {error}")
        except CheckpointWriteError as error:
            raise RunError(f"--checkpoint: {error}.") from None
        except CheckpointError as error:
            raise UsageError(f"--checkpoint: {error}.") from None
        finally:
            progress.close()
        return True

    def _gather(self, points: Iterator[Any], progress: Progress) -> None:
        try:
            for point in points:
                self.points.append(point)
                progress.point(point.record)
                if time.perf_counter() - self.saved > SAVE_EVERY:
                    self.save(complete=False)
        except RuntimeError as error:
            refuse_lost_process(error)
            raise

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "command": self.request.command,
            "version": versions()["amp-attention"],
            "problem": self.problem,
            "settings": self.request.settings(),
            "seconds": time.perf_counter() - self.started,
            "points": self.records,
        } | dict(self.extras)

    def save(self, complete: bool = True) -> None:
        """Write tables and document; a netCDF file of the whole when complete."""
        self.saved = time.perf_counter()
        if self.folder is None:
            return
        command, records = self.request.command, [_flattened(record) for record in self.records]
        self._write(f"{command}.json", to_json(self.document()) + "\n")
        for name, rows in ((command, point_rows(records)), (SERIES.get(command, ""), self._series())):
            if rows:
                self._write(f"{name}.csv", to_csv(rows, columns(rows)))
        lines = [command_line(self.arguments), *(f"{name} {version}" for name, version in versions().items())]
        self._write("command.txt", "\n".join(lines) + "\n")
        if complete and records:
            attributes = {"command_line": lines[0], "versions": to_json(versions()), "problem": to_json(self.problem)}
            attributes["settings"] = to_json(self.request.settings())
            given = {axis: self.problem[axis] for axis in axes(command) if self.problem[axis] is not None}
            grid = dataset(records, given, attributes)
            self._write(f"{command}.nc", to_netcdf(grid))

    def _series(self) -> list[dict[str, Any]]:
        """Rows of the command's second table: runs, curves, densities or boundaries."""
        records = self.records
        match self.request.command:
            case "tune":
                return [{"alpha": r["alpha"]} | entry for r in records for entry in r["curve"]]
            case "spectrum":
                solved = [r for r in records if r["x"] is not None]
                return series_rows(solved, ("alpha", "lam"), ("x", "density"))
            case "phase-diagram":
                lines = self.extras.get("boundaries", {}).items()
                return [{"boundary": name, "alpha": a, "lam": lam} for name, line in lines for a, lam in line]
        return run_rows(records) if self.request.command in SERIES else []

    def save_figures(self, figures: Mapping[str, Any]) -> None:
        """PNG and PDF of each figure."""
        from amp_attention.plotting import render

        for name, figure in figures.items():
            for kind in ("png", "pdf"):
                self._write(f"{name}.{kind}", render(figure, kind))

    def _write(self, name: str, content: str | bytes) -> None:
        assert self.folder is not None
        try:
            self.folder.write(name, content)
        except (OSError, ForeignFileError) as error:
            raise RunError(f"--out: {self.folder.path / name} could not be written: {error}.") from None

    def answer(self, points: Points, total: int, make_figures: Figures, store: Steps = NOT_STORED) -> int:
        """Compute, save, draw and print.

        Args:
            points: called with a function that is told what is about to run; yields the points.
            total: how many there will be.
            make_figures: of the points and the parameters of the captions.
            store: keeps what is found; written to its end here.

        Returns:
            The exit status.
        """
        progress = Progress(self.request.command, total, self.request.output.quiet or not is_first_process())
        complete = self.collect(points(progress.tell), progress, store)
        try:
            self.save()
        finally:
            printed = self._print()  # nothing that goes wrong with files or figures takes the answer away
        if self.folder is not None and complete:
            self.save_figures(make_figures(self.points, self.parameters))
        if self.folder is not None and not self.request.output.quiet:
            say(f"results are in {self.folder.path}")
        if not complete:
            say(f"amp-attention: interrupted; {len(self.points)} of {total} points are done.")
            return 130
        return 0 if printed and all(record["result"] == "successful" for record in self.records) else 1

    def _print(self) -> bool:
        """Whether stdout took the answer."""
        printed = True
        if self.request.output.json:
            printed = deliver(to_json(self.document()))
        elif self.points:
            lines = self._series() if self.request.command == "phase-diagram" else []
            tables = [table(self.request.command, self.records), *([series_table(lines)] if lines else [])]
            printed = deliver("\n\n".join(tables))
        for sentence in problems_of(self.request.command, self.records):
            say(sentence)
        return printed


def _flattened(record: dict[str, Any]) -> dict[str, Any]:
    """Without lists and groups that are null here: a table has no column for them."""
    return {name: value for name, value in record.items() if value is not None or name not in NESTED}


def save_matrix(path: Path, matrix: np.ndarray | None) -> None:
    """The learned S as a .npy file."""
    if matrix is None:
        say(f"{path} is not written: there is no estimate.")
        return
    if not is_first_process():
        return
    try:
        with path.open("wb") as file:
            np.save(file, matrix)
    except OSError as error:
        raise RunError(f"--save-estimate: {path} could not be written ({error.strerror}).") from None
