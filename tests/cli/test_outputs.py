"""Folders, figures, interruptions and pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr

from amp_attention._cli.options import OutputOptions, ProblemOptions, Request, SolverOptions
from amp_attention._cli.parsing import RunError
from amp_attention._cli.results import Results
from amp_attention._cli.streams import problems_of, replace_closed_streams
from amp_attention.cli import run
from amp_attention.experiments._records import guarded
from amp_attention.plotting import describe, learning_curves
from amp_attention.plotting._style import ERROR_BARS

NODES = ("--nodes", "256", "--replicas", "4")


def test_a_comparison_leaves_all_its_files(comparison):
    names = {file.name for file in comparison.folder.iterdir()}
    figures = {f"{name}.{kind}" for name in ("learning_curves", "eigenvalues", "trajectory") for kind in ("png", "pdf")}
    tables = {"compare.json", "compare.csv", "compare-runs.csv", "compare.nc", "command.txt", ".amp-attention.json"}
    assert names == figures | tables
    assert all((comparison.folder / name).stat().st_size > 10_000 for name in figures if name.endswith("png"))


def test_the_command_is_recorded(comparison):
    lines = (comparison.folder / "command.txt").read_text().splitlines()
    assert lines[0].startswith("amp-attention compare --d 12")
    assert any(line.startswith("jax ") for line in lines)


def test_tables_hold_the_document(comparison):
    header, *rows = (comparison.folder / "compare.csv").read_text().splitlines()
    names = header.split(",")
    assert len(rows) == 2
    value = float(rows[1].split(",")[names.index("amp_test_error")])
    assert value == comparison.points[1]["amp"]["test_error"]
    assert "bayes" not in names
    runs = (comparison.folder / "compare-runs.csv").read_text().splitlines()
    assert len(runs) == 1 + 2 * 2 * 2
    with xr.open_dataset(comparison.folder / "compare.nc", engine="h5netcdf") as grid:
        assert dict(grid.sizes) == {"alpha": 1, "lam": 2, "repeat": 2}
        np.testing.assert_allclose(grid.amp_m[0], [point["amp"]["m"] for point in comparison.points])
        assert "amp-attention compare" in grid.attrs["command_line"]


def test_running_again_replaces_own_files_and_changed_ones_are_foreign(comparison, capsys, tmp_path):
    arguments = ["state-evolution", "--lam", "0.1", *NODES, "--out", str(tmp_path), "--quiet"]
    assert run(arguments) == 0
    assert run(arguments) == 0
    (tmp_path / "state-evolution.csv").write_text("notes")
    assert run(arguments) == 2
    assert (tmp_path / "state-evolution.csv").read_text() == "notes"
    assert run([*arguments, "--overwrite"]) == 0
    assert (tmp_path / "state-evolution.csv").read_text() != "notes"


def test_foreign_files_stop_a_run_before_it_computes(comparison, capsys, tmp_path, monkeypatch):
    (tmp_path / "trajectory.png").write_text("mine")
    monkeypatch.setattr("amp_attention.experiments.compare", lambda *a, **k: pytest.fail("computed"))
    assert run(["compare", "--d", "12", "--out", str(tmp_path)]) == 2


def results(tmp_path, json_option=True):
    output = OutputOptions(out=tmp_path, json=json_option, quiet=True)
    request = Request("state-evolution", ProblemOptions(lam=(0.1, 0.2, 0.3)), SolverOptions(), output)
    return Results(request, ["state-evolution"])


def test_an_interrupted_sweep_keeps_its_points(tmp_path, capsys):
    def points(_):
        yield SimpleNamespace(record={"alpha": 0.5, "lam": 0.1, "result": "successful", "m": 1.0})
        yield SimpleNamespace(record={"alpha": 0.5, "lam": 0.2, "result": "successful", "m": 2.0})
        raise KeyboardInterrupt

    assert results(tmp_path).answer(points, 3, lambda *_: pytest.fail("drew figures")) == 130
    out, err = capsys.readouterr()
    assert len(json.loads(out)["points"]) == 2
    assert "2 of 3" in err
    assert len(json.loads((tmp_path / "state-evolution.json").read_text())["points"]) == 2
    with xr.open_dataset(tmp_path / "state-evolution.nc", engine="h5netcdf") as grid:
        np.testing.assert_allclose(grid.m, [[1.0, 2.0, np.nan]])


def test_points_are_saved_as_they_come(tmp_path, monkeypatch):
    monkeypatch.setattr("amp_attention._cli.results.SAVE_EVERY", 0.0)
    seen = []

    def points(_):
        for lam in (0.1, 0.2):
            yield SimpleNamespace(record={"alpha": 0.5, "lam": lam, "result": "successful"})
            seen.append(len(json.loads((tmp_path / "state-evolution.json").read_text())["points"]))

    results(tmp_path).answer(points, 2, lambda *_: {})
    assert seen == [1, 2]


def test_a_disk_that_fills_up_takes_no_answer_away(tmp_path, monkeypatch):
    """Status 1, the document on stdout, and no half a file."""

    def full(*_):
        raise OSError(28, "No space left on device")

    def points(_):
        yield SimpleNamespace(record={"alpha": 0.5, "lam": 0.1, "result": "successful"})

    found, printed = results(tmp_path), []
    monkeypatch.setattr("amp_attention._cli.results.deliver", printed.append)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunError, match=r"--out: .*could not be written: .*No space left on device"):
        found.answer(points, 1, lambda *_: {})
    assert len(json.loads(printed[0])["points"]) == 1 and not list(tmp_path.iterdir())


def test_a_lost_process_ends_the_program_and_keeps_its_points(tmp_path, monkeypatch):
    """What JAX raises then, in a point or between two, is no result."""
    monkeypatch.setattr("os._exit", sys.exit)
    for inside in (guarded, lambda function: function()):
        found = results(tmp_path)

        def points(_, inside=inside):
            yield SimpleNamespace(record={"alpha": 0.5, "lam": 0.1, "result": "successful"})
            inside(lost)

        said = []
        monkeypatch.setattr("amp_attention._cli.streams.say", said.append)
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr("jax.process_count", lambda: 2)
            found.answer(points, 2, lambda *_: {})
        assert ended.value.code == 1
        assert said == ["amp-attention: another process was lost: JaxRuntimeError: Connection closed by peer"]
        assert len(json.loads((tmp_path / "state-evolution.json").read_text())["points"]) == 1


def lost():
    raise jax.errors.JaxRuntimeError("Connection closed by peer")


def test_a_closed_pipe_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "amp_attention.cli", "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert b"Traceback" not in done.stderr
    assert done.returncode in (0, 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("where", ["/dev/full", "&-"])
def test_help_to_a_stdout_that_takes_nothing(where):
    command = f"exec {sys.executable} -m amp_attention.cli --help >{where}"
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "could not be written to stdout" in done.stderr


@pytest.mark.parametrize("json_option", [True, False])
def test_results_are_kept_where_stdout_takes_nothing(tmp_path, capsys, monkeypatch, json_option):
    def points(_):
        for lam in (0.1, 0.2, 0.3):
            yield SimpleNamespace(record={"alpha": 0.5, "lam": lam, "result": "successful"})

    drawn = []
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", None)
        replace_closed_streams()
        assert results(tmp_path, json_option).answer(points, 3, lambda *_: drawn.append(1) or {}) == 1
    assert drawn == [1]
    assert len(json.loads((tmp_path / "state-evolution.json").read_text())["points"]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "could not be written to stdout" in err


def test_unfinished_points_say_how_far_they_came():
    bad = {"alpha": 0.5, "lam": 0.1, "result": "max_steps_reached", "message": "stopped"}
    good = {"result": "successful", "gradient_norm": 1.0}
    assert problems_of("state-evolution", [bad | {"residual": 3e-4}]) == [
        "alpha 0.5, lam 0.1: max_steps_reached: stopped (residual 0.0003)"
    ]
    assert problems_of("state-evolution", [bad | {"residual": None}])[0].endswith("stopped")
    unfinished = bad | {"gradient_norm": 0.02}
    assert problems_of("state-evolution", [bad | {"runs": [good, unfinished]}])[0].endswith("(residual 0.02)")
    assert problems_of("state-evolution", [bad | {"state_evolution": good, "amp": bad | {"runs": [unfinished]}}])[
        0
    ].endswith("(residual 0.02)")


def test_an_estimate_in_the_new_folder_of_the_results(tmp_path, capsys):
    folder = tmp_path / "new"
    arguments = ["--d", "12", "--test-samples", "2000", "--lam", "0.2", "--quiet"]
    assert run(["amp", *arguments, "--out", str(folder), "--save-estimate", str(folder / "S.npy")]) == 0
    assert np.load(folder / "S.npy").shape == (12, 12)


def test_the_parameter_line_and_the_meaning_of_error_bars():
    text = describe({"gamma": 1.5, "target_d": 200, "normalise": True, "repeats": 3})
    assert "=200$" in text
    assert "$Q_0=1$" in text
    records = [{"alpha": a, "lam": 0.1, "amp": {"m": 1.0, "standard_error": {"m": 0.1}}} for a in (0.5, 1.0)]
    assert learning_curves(records, {}, panels=["m"]).legends[0].get_title().get_text() == ERROR_BARS
    for record in records:
        record["amp"]["standard_error"] = None
    assert learning_curves(records, {}, panels=["m"]).legends[0].get_title().get_text() == ""


@pytest.mark.slow
def test_float32_agrees_and_is_one_json_document():
    arguments = ["state-evolution", "--nodes", "256", "--replicas", "4", "--json", "--quiet", "--dtype"]
    program = [sys.executable, "-m", "amp_attention.cli"]
    points = []
    for dtype in ("float64", "float32"):
        done = subprocess.run([*program, *arguments, dtype], capture_output=True, text=True, check=True)
        points += json.loads(done.stdout)["points"]
    for name in ("q", "m", "test_error", "replicon", "zero_fraction"):
        assert points[0][name] == pytest.approx(points[1][name], rel=1e-3)
