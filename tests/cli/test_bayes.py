"""`bayes`: documents, folders, figures and refusals."""

import json

import numpy as np
import pytest
import xarray as xr

from amp_attention.bayes import bayes_point, solve_bayes
from amp_attention.cli import run
from amp_attention.heads import SoftmaxHead
from amp_attention.spectral_laws import MarchenkoPastur
from amp_attention.targets import Target

NODES = ("--nodes", "256", "--replicas", "4")
TARGET = Target(MarchenkoPastur(0.5), SoftmaxHead(2), 0.5)
ENTRIES = {
    *("alpha", "effective_noise", "squared_error", "q", "q_hat", "V", "test_error", "test_error_plugin"),
    *("free_entropy", "alpha_bayes", "standard_error", "result"),
}


def test_points_are_those_of_the_library(answer, tmp_path):
    found = answer("bayes", "--alpha", "0.1,0.3", *NODES, "--out", tmp_path / "new")
    assert found.status == 0
    assert found.document["problem"]["head"] == "softmax" and found.document["problem"]["effective_noise"] is None
    for point, alpha in zip(found.points, (0.1, 0.3), strict=True):
        value = solve_bayes(TARGET, alpha).value
        assert point.keys() == ENTRIES and point["alpha"] == alpha and point["alpha_bayes"] is None
        for name, field in (("effective_noise", "D"), ("squared_error", "squared_error"), ("V", "squared_error")):
            np.testing.assert_allclose(point[name], getattr(value, field), rtol=1e-12)
        assert 0 < point["test_error"] < point["test_error_plugin"]
        assert point["standard_error"].keys() == {"test_error", "test_error_plugin"}
    files = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"bayes.json", "bayes.csv", "bayes.nc", "bayes.png", "bayes.pdf", "shrinkage.png", "shrinkage.pdf"} < files
    assert json.loads((tmp_path / "new" / "bayes.json").read_text())["points"] == found.points
    with xr.open_dataset(tmp_path / "new" / "bayes.nc", engine="h5netcdf") as data:
        np.testing.assert_array_equal(data["alpha"], [0.1, 0.3])
        np.testing.assert_array_equal(data["squared_error"], [point["squared_error"] for point in found.points])


def test_the_explicit_curve(answer, tmp_path):
    found = answer("bayes", "--effective-noise", "0.7,2", *NODES, "--out", tmp_path / "new")
    assert found.document["problem"]["alpha"] is None
    for point, D in zip(found.points, (0.7, 2.0), strict=True):
        assert point["effective_noise"] == D
        np.testing.assert_allclose(point["alpha"], bayes_point(TARGET, D).alpha, rtol=1e-12)
    with xr.open_dataset(tmp_path / "new" / "bayes.nc", engine="h5netcdf") as data:
        np.testing.assert_array_equal(data["effective_noise"], [0.7, 2.0])


def test_beyond_the_threshold_nothing_is_left(answer):
    (point,) = answer("bayes", "--noise", "0", "--alpha", "0.2", *NODES).points
    assert point["squared_error"] == point["effective_noise"] == 0 and point["result"] == "successful"
    np.testing.assert_allclose(point["alpha_bayes"], 0.1875, rtol=1e-12)
    assert point["q_hat"] is None and point["free_entropy"] is None and point["test_error"] < 1e-20


def test_other_heads(answer):
    (hardmax,) = answer("bayes", "--head", "hardmax", "--alpha", "0.5", "--noise", "0", *NODES).points
    np.testing.assert_allclose(hardmax["squared_error"], 0.2130619, atol=1e-6)
    assert hardmax["alpha_bayes"] is None
    (linear,) = answer("bayes", "--head", "linear", "--alpha", "0.2", *NODES).points
    np.testing.assert_allclose(linear["squared_error"], solve_bayes(TARGET, 0.1).value.squared_error, rtol=1e-10)
    np.testing.assert_allclose(linear["test_error"], 2 * linear["V"] + 0.5, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--alpha", "0"), "--alpha must be a finite number > 0, got '0'."),
        (("--effective-noise", "-1"), "--effective-noise must be a finite number > 0, got '-1'."),
        (("--alpha", "0.1", "--effective-noise", "1"), "use one of them, not both."),
        (("--alpha", "0.1,0.1"), "--alpha must hold every value once, got 0.1 more than once."),
        (("--head", "hardmax", "--tokens", "7"), "a whole number >= 2 and <= 6 for --head hardmax, got 7."),
        (("--head", "linear", "--tokens", "2"), "--tokens must be 1 for --head linear, got 2."),
        (("--tokens", "1"), "--tokens must be a whole number >= 2 for --head softmax, got 1."),
        (("--head", "hardmax", "--beta0", "2"), "--beta0 must be left out for --head hardmax"),
        (("--kappa0", "0"), "--kappa0 must be a finite number > 0, got '0'."),
        (("--noise", "-1"), "--noise must be a finite number >= 0, got '-1'."),
        (("--gamma", "2"), "--gamma needs --target power-law"),
        (("--nodes", "0"), "--nodes must be a whole number >= 1, got '0'."),
        (("--lam", "0.1"), "--lam"),
        (("--kappa", "1"), "--kappa"),
        (("--beta", "1"), "--beta"),
    ],
)
def test_refusals(capsys, arguments, sentence):
    assert run(["bayes", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and sentence in captured.err and captured.err.count("\n") == 1
