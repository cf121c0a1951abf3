"""Each notebook is the executed twin of its percent-format source, and the source runs as a script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9]*.py"))
LARGEST = 600_000  # bytes of a notebook

each_notebook = pytest.mark.parametrize("source", SOURCES, ids=[source.stem for source in SOURCES])


def executed(source):
    return json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))


def joined(cell):
    text = cell["source"]
    return (text if isinstance(text, str) else "".join(text)).strip()


def test_there_are_notebooks():
    assert SOURCES


@each_notebook
def test_every_cell_ran_in_order_without_an_error(source):
    code = [cell for cell in executed(source)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]


@each_notebook
def test_it_shows_a_figure_and_is_small(source):
    outputs = [output for cell in executed(source)["cells"] for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert source.with_suffix(".ipynb").stat().st_size < LARGEST


@each_notebook
def test_nothing_depends_on_the_machine(source):
    text = source.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert not [word for word in ("/home/", "/root/", "/tmp/", "/opt/", "site-packages", str(FOLDER)) if word in text]
    assert all("execution" not in cell["metadata"] for cell in executed(source)["cells"])


@each_notebook
def test_the_cells_are_those_of_the_source(source):
    jupytext = pytest.importorskip("jupytext", reason="jupytext reads the percent format: pip install '.[notebooks]'")
    cells = jupytext.read(source)["cells"]
    kept = executed(source)["cells"]
    assert [cell["cell_type"] for cell in cells] == [cell["cell_type"] for cell in kept]
    assert [joined(cell) for cell in cells] == [joined(cell) for cell in kept]


@each_notebook
@pytest.mark.slow
def test_the_source_runs_as_a_script(source):
    """At reduced sizes; every claim of the notebook is an assertion in it."""
    pytest.importorskip("IPython", reason="IPython shows the figures: pip install '.[notebooks]'")
    environment = os.environ | {"AMP_ATTENTION_FAST": "1", "MPLBACKEND": "Agg", "PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run([sys.executable, str(source)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
