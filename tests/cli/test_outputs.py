"""Folders, figures, interruptions and pipes."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from amp_attention._cli.options import OutputOptions, ProblemOptions, Request, SolverOptions
from amp_attention._cli.results import Results
from amp_attention.cli import run

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


def results(tmp_path):
    output = OutputOptions(out=tmp_path, json=True, quiet=True)
    request = Request("state-evolution", ProblemOptions(lam=(0.1, 0.2, 0.3)), SolverOptions(), output)
    return Results(request, ["state-evolution"], ["learning_curves"])


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


def test_a_closed_pipe_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "amp_attention.cli", "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert b"Traceback" not in done.stderr
    assert done.returncode in (0, 1)


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
