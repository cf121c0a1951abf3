"""`amp --estimator bayes` and `compare --bound bayes`."""

import json
import math

import numpy as np
import pytest
import xarray as xr

from amp_attention._cli.streams import table
from amp_attention.amp import solve_amp
from amp_attention.bayes import bayes_problem, solve_bayes
from amp_attention.cli import run
from amp_attention.experiments import BayesSweep, draw_instance
from amp_attention.heads import HardmaxHead, SoftmaxHead
from amp_attention.spectral_laws import MarchenkoPastur
from amp_attention.targets import Target

SMALL = ("--d", "20", "--test-samples", "2000", "--quiet")
BAYES = ("amp", "--estimator", "bayes", *SMALL)
TARGET = Target(MarchenkoPastur(0.5), SoftmaxHead(2), 0.5)
OBSERVABLES = {
    *("test_error", "train_objective", "train_error", "squared_error", "m", "q", "trace", "zero_fraction"),
    *("V", "Gamma", "test_error_plugin"),
}
NULL = {"train_objective", "train_error", "zero_fraction"}
OF_MINIMISERS = {"lam", "weight_decay", "kappa", "beta", "penalty"}
CLOCK = ("seconds", "seconds_per_iteration", "compile_seconds")
GRID = (*BAYES, "--alpha", "0.2,0.4", "--repeats", "2")


def timeless(points):
    """Without what depends on the clock."""
    runs = [[{n: v for n, v in entry.items() if n not in CLOCK} for entry in point["runs"]] for point in points]
    return [point | {"runs": entries} for point, entries in zip(points, runs, strict=True)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The document of a sweep over α, its folder, and its checkpoint."""
    folder = tmp_path_factory.mktemp("bayes")
    assert run([*GRID, "--out", str(folder / "out"), "--checkpoint", str(folder / "sweep")]) == 0
    return json.loads((folder / "out" / "amp.json").read_text()), folder / "out", folder / "sweep"


def test_the_problem_says_what_is_estimated(sweep):
    problem = sweep[0]["problem"]
    assert problem["estimator"] == "bayes" and problem["head"] == "softmax" and problem["schedule"] == "se"
    assert {name for name in OF_MINIMISERS if problem[name] is None} == OF_MINIMISERS
    assert problem["alpha"] == [0.2, 0.4] and problem["beta0"] == 1 and problem["tokens"] == 2


def test_points_are_those_of_the_library(sweep):
    points = sweep[0]["points"]
    for point, alpha in zip(points, (0.2, 0.4), strict=True):
        assert OBSERVABLES | {"alpha", "lam", "d", "n", "standard_error", "result", "runs"} == point.keys()
        assert {name for name in OBSERVABLES | {"lam"} if point[name] is None} == NULL | {"lam"}
        assert point["alpha"] == alpha and point["standard_error"]["squared_error"] > 0
        problem = bayes_problem(TARGET, alpha)
        for repeat, found in enumerate(point["runs"]):
            instance = draw_instance(problem, 20, 0, repeat)
            value = solve_amp(problem, instance.data, S0=instance.S0).value
            for name in ("squared_error", "m", "q", "trace", "V", "Gamma"):
                np.testing.assert_allclose(found[name], getattr(value, name), rtol=1e-8)
            assert found["test_error"] < found["test_error_plugin"] and found["gradient_norm"] is None
            assert found["test_error_standard_error"] > 0 and found["test_error_plugin_standard_error"] > 0


def test_folder(sweep):
    document, folder, _ = sweep
    names = {"amp.csv", "amp-runs.csv", "amp.nc", "learning_curves.png", "learning_curves.pdf", "eigenvalues.png"}
    assert names <= {path.name for path in folder.iterdir()}
    with xr.open_dataset(folder / "amp.nc", engine="h5netcdf") as data:
        assert dict(data.sizes) == {"alpha": 2, "repeat": 2}
        np.testing.assert_array_equal(data.squared_error, [point["squared_error"] for point in document["points"]])


def test_a_table_has_no_columns_that_mean_nothing(sweep):
    lines = table("amp", sweep[0]["points"]).splitlines()
    assert lines[0].split() == ["alpha", "n", "sq_error", "test_error", "plug-in", "m", "q", "V", "result"]
    assert " - " not in lines[1] and "±" not in lines[1].split()[-2]  # V is the same in all repeats


def test_an_interrupted_sweep_goes_on(answer, sweep, monkeypatch, tmp_path):
    from amp_attention.experiments import _finite

    calls, engine = [], _finite.run_engine

    def counting(*arguments):
        calls.append(arguments[4])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return engine(*arguments)

    monkeypatch.setattr(_finite, "run_engine", counting)
    file = ("--checkpoint", str(tmp_path / "sweep"))
    assert run([*GRID, *file]) == 130
    found = answer(*GRID, *file, "--resume")
    assert len(calls) == 5 and timeless(found.points) == timeless(sweep[0]["points"])
    assert found.document["problem"] == sweep[0]["problem"]


def test_another_estimator_does_not_go_on_from_it(capsys, sweep):
    minimiser = ("amp", *SMALL, "--alpha", "0.2,0.4", "--repeats", "2")
    for arguments, words in (
        ((*GRID, "--schedule", "empirical"), "--schedule is se there and empirical here"),
        ((*GRID, "--head", "hardmax"), "--head is softmax there and hardmax here"),
        (minimiser, "--estimator is bayes there and erm here"),
    ):
        assert run([*arguments, "--checkpoint", str(sweep[2]), "--resume"]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--devices", "2"), ("--token-source", "key"), ("--dtype", "float32")])
def test_other_ways_to_compute_it(answer, sweep, options):
    found = answer(*BAYES, "--alpha", "0.2", *options)
    assert found.status == 0
    (point,), expected = found.points, sweep[0]["points"][0]["runs"][0]
    if "float32" not in options:  # whose numbers are drawn anew
        for name in ("squared_error", "test_error", "test_error_plugin", "m", "V"):
            np.testing.assert_allclose(point[name], expected[name], rtol=1e-7)
    np.testing.assert_allclose(point["V"], expected["V"], rtol=1e-4)


def test_other_heads_and_schedules(answer, tmp_path):
    hardmax = answer(*BAYES, "--alpha", "0.5", "--noise", "0", "--head", "hardmax", "--schedule", "empirical")
    problem, (point,) = hardmax.document["problem"], hardmax.points
    assert (problem["head"], problem["schedule"], problem["beta0"]) == ("hardmax", "empirical", None)
    target = Target(MarchenkoPastur(0.5), HardmaxHead(2), 0.0)
    problem = bayes_problem(target, 0.5, "empirical")
    value = solve_amp(problem, draw_instance(problem, 20).data).value
    np.testing.assert_allclose([point["V"], point["q"]], [value.V, value.q], rtol=1e-8)
    linear = answer(*BAYES, "--alpha", "0.5", "--head", "linear", "--save-estimate", tmp_path / "S.npy")
    assert linear.document["problem"]["tokens"] == 1 and linear.document["problem"]["beta0"] is None
    (point,) = linear.points
    np.testing.assert_allclose(point["test_error"], point["test_error_plugin"], rtol=1e-12)
    np.testing.assert_allclose(np.trace(np.load(tmp_path / "S.npy")) / 20, point["trace"], rtol=1e-12)
    assert answer(*BAYES, "--alpha", "0.5", "--tokens", "1").points[0]["q"] == point["q"]


def test_minimisers_say_so(answer):
    problem = answer("amp", "--d", "12", "--test-samples", "2000", "--quiet").document["problem"]
    assert (problem["estimator"], problem["schedule"], problem["head"]) == ("erm", None, "softmax")
    assert (problem["beta"], problem["kappa"], problem["penalty"]) == (1.0, 1.0, "nuclear")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--lam", "0.1,0.2"),
            "--lam must be left out beside --estimator bayes, which does not depend on it, got 0.1, 0.2.",
        ),
        (("--lam", "0"), "--lam must be left out beside --estimator bayes"),
        (("--weight-decay", "1"), "--weight-decay must be left out beside --estimator bayes"),
        (("--beta", "1"), "--beta must be left out beside --estimator bayes, which does not depend on it, got 1.0."),
        (("--kappa", "1"), "--kappa must be left out beside --estimator bayes"),
        (("--penalty", "nuclear"), "--penalty must be left out beside --estimator bayes"),
        (("--data", "x.npz"), "--data must be left out beside --estimator bayes, which has to know the law"),
        (("--schedule", "fast"), "--schedule"),
        (("--head", "hardmax", "--tokens", "1"), "for --head hardmax, got 1."),
        (("--head", "linear", "--tokens", "2"), "--tokens must be 1 for --head linear, got 2."),
        (("--head", "softmax", "--tokens", "1"), "--tokens must be a whole number >= 2 for --head softmax, got 1."),
        (
            ("--head", "hardmax", "--beta0", "2"),
            "--beta0 must be left out for --head hardmax, which has no temperature",
        ),
        (("--tokens", "1", "--beta0", "2"), "--beta0 must be left out for --head linear"),
        (("--estimator", "erm"), "--estimator"),
    ],
)
def test_refusals(capsys, arguments, sentence):
    assert run(["amp", "--estimator", "bayes", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and sentence in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize(("name", "value"), [("--schedule", "se"), ("--head", "softmax")])
def test_options_of_the_posterior_mean_alone(capsys, name, value):
    assert run(["amp", name, value]) == 2
    assert f"{name} must be left out without --estimator bayes, got {value}." in capsys.readouterr().err


# compare --bound bayes

COMPARE = ("compare", "--d", "20", "--test-samples", "20000", "--without", "train", "--quiet")
NODES = ("--nodes", "256", "--replicas", "4")


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A comparison beside the bound, and its folder."""
    folder = tmp_path_factory.mktemp("bounded")
    grid = ("--alpha", "0.401,0.8", "--lam", "0.1", "--repeats", "2", "--bound", "bayes")
    arguments = [*COMPARE, *NODES, *grid]
    assert run([*arguments, "--out", str(folder / "out"), "--checkpoint", str(folder / "sweep")]) == 0
    return json.loads((folder / "out" / "compare.json").read_text()), arguments, folder


def test_the_bound_is_that_of_the_effective_alpha(bounded):
    document, _, _ = bounded
    assert document["settings"]["bound"] == "bayes"
    for point in document["points"]:
        alpha = point["amp"]["n"] / 400
        assert point["bayes"]["alpha"] == alpha and point["result"] == point["bayes"]["result"] == "successful"
        value = solve_bayes(TARGET, alpha).value
        for name in ("squared_error", "q", "q_hat", "free_entropy"):
            np.testing.assert_allclose(point["bayes"][name], getattr(value, name), rtol=1e-12)
        expected = BayesSweep().solve(TARGET, alpha).record
        assert point["bayes"].keys() == expected.keys()
        assert point["bayes"]["test_error"] == pytest.approx(expected["test_error"], rel=1e-12)


def test_nothing_is_below_the_bound(bounded):
    """Theory and AMP at d = 20, whose errors are larger still; 4 standard errors, false alarm 6e-5 each."""
    for point in bounded[0]["points"]:
        for name in ("squared_error", "test_error"):
            theory, amp, least = (point[part][name] for part in ("state_evolution", "amp", "bayes"))
            assert theory - 4 * point["state_evolution"]["standard_error"][name] > least
            assert amp + 4 * point["amp"]["standard_error"][name] > least


def test_the_files_hold_the_bound(bounded):
    document, _, folder = bounded
    header = (folder / "out" / "compare.csv").read_text().splitlines()[0].split(",")
    assert {"bayes_squared_error", "bayes_test_error", "bayes_test_error_standard_error"} <= set(header)
    assert "test_error:bound" in table("compare", document["points"])
    with xr.open_dataset(folder / "out" / "compare.nc", engine="h5netcdf") as data:
        expected = [point["bayes"]["squared_error"] for point in document["points"]]
        np.testing.assert_array_equal(data.bayes_squared_error[:, 0], expected)


def test_bounds_are_part_of_a_checkpoint(answer, bounded, monkeypatch, capsys):
    document, arguments, folder = bounded
    monkeypatch.setattr("amp_attention.experiments._bayes.solve_bayes", None)
    kept = ("--checkpoint", str(folder / "sweep"), "--resume")
    assert answer(*arguments, *kept).points == document["points"]
    assert run([*arguments[:-2], *kept]) == 2
    assert "--bound is bayes there and not given here" in capsys.readouterr().err


def test_a_bound_that_is_not_found_is_said(answer, monkeypatch):
    def fails(*_):
        raise FloatingPointError("no root")

    monkeypatch.setattr("amp_attention.experiments._bayes.solve_bayes", fails)
    found = answer(*COMPARE, *NODES, "--alpha", "0.8", "--lam", "0.1", "--bound", "bayes")
    (point,) = found.points
    assert found.status == 1 and point["result"] == point["bayes"]["result"] == "nonfinite"
    assert "bayes: FloatingPointError: no root" in point["message"] and point["amp"]["result"] == "successful"


def test_the_bound_of_a_student_of_another_temperature(answer):
    """Is that of the target's labels."""
    options = ("--alpha", "0.8", "--lam", "0.1", "--beta", "2", "--beta0", "1", "--bound", "bayes")
    (point,) = answer(*COMPARE, *NODES, *options).points
    assert math.isclose(point["bayes"]["squared_error"], float(solve_bayes(TARGET, 0.8).value.squared_error))
    assert point["bayes"]["test_error"] < point["state_evolution"]["test_error"]
