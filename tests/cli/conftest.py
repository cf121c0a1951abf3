"""One comparison of all engines, run once, whose files and document the tests look at."""

import json
from types import SimpleNamespace

import jax
import pytest

from amp_attention.cli import run

SMALL = ("--d", "12", "--test-samples", "2000", "--nodes", "256", "--replicas", "4")


@pytest.fixture(autouse=True)
def double_precision():
    """Tests compute in float64 again after a command that does not."""
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture
def answer(capsys):
    """Run a command with --json; returns its status, document and stderr."""

    def ask(*arguments):
        capsys.readouterr()
        status = run([*map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        assert out.count("\n") == 1
        return SimpleNamespace(status=status, document=json.loads(out), err=err, points=json.loads(out)["points"])

    return ask


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """`compare` on a grid of two points with two repeats, and its folder."""
    folder = tmp_path_factory.mktemp("comparison") / "results"
    grid = ("--lam", "0.05,0.2", "--repeats", "2", "--seed", "3")
    status = run(["compare", *SMALL, *grid, "--out", str(folder), "--quiet"])
    document = json.loads((folder / "compare.json").read_text())
    return SimpleNamespace(status=status, folder=folder, document=document, points=document["points"])
