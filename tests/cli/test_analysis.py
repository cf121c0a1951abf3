"""`sensitivity`, `tune`, `thresholds`, `spectrum` and `phase-diagram`: documents, folders, refusals, numbers."""

import contextlib
import io
import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from amp_attention._cli.names import OBSERVABLES, PHASES, result_files
from amp_attention.cli import run
from amp_attention.problem import attention_problem
from amp_attention.sensitivity import gradient
from amp_attention.spectrum import PHASES as SPECTRUM_PHASES
from amp_attention.state_evolution import FixedPoint, solve_state_evolution, state_evolution_nodes

NODES = ("--nodes", "256", "--replicas", "4")
TIGHT = (*NODES, "--tolerance", "1e-12")
SINGLE = ("--nodes", "256", "--replicas", "1", "--tolerance", "1e-12")  # no standard errors, half the compilation
FINITE = ("--d", "12", "--test-samples", "2000")
DERIVATIVES = {"alpha", "lam", "beta", "beta0", "noise", "kappa0", "gamma"}
SPECTRUM = {"x", "density", "atom", "edges", "outliers", "phase", "eigenvalues", "distance"}
THRESHOLDS = {"alpha_interpolation", "alpha_recovery", "alpha_bayes"}
THEORY = {"alpha", "lam", "result", "seconds", "stable", "standard_error", *OBSERVABLES}


def ask(*arguments, json_option=True):
    """One run of the program: status, document, stdout and stderr; with --json, exactly one document on stdout."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run([*map(str, arguments), *(["--json"] if json_option else [])])
    found = SimpleNamespace(status=status, out=out.getvalue(), err=err.getvalue())
    if json_option:
        assert found.out.count("\n") == 1
        found.document = json.loads(found.out)
        found.points = found.document["points"]
        assert {"command", "version", "problem", "settings", "seconds", "points"} <= found.document.keys()
        assert found.document["command"] == arguments[0]
    return found


def in_folder(factory, *arguments):
    """The same, with its folder; nothing else is in it than what was announced."""
    folder = factory.mktemp("results") / "new"
    found = ask(*arguments, "--out", folder)
    found.folder = folder
    names = {file.name for file in folder.iterdir()}
    assert names == {*result_files(arguments[0]), ".amp-attention.json"}
    assert all((folder / name).stat().st_size > 5000 for name in names if name.endswith((".png", ".pdf")))
    assert json.loads((folder / f"{arguments[0]}.json").read_text())["points"] == found.points
    return found


def rows(folder, name):
    """A CSV file as dictionaries of texts."""
    header, *lines = (folder / f"{name}.csv").read_text().splitlines()
    return [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]


def grid(found, command):
    """The netCDF file, in memory."""
    with xr.open_dataset(found.folder / f"{command}.nc", engine="h5netcdf") as data:
        return data.load()


@pytest.fixture(scope="session")
def sensitivity(tmp_path_factory):
    return in_folder(tmp_path_factory, "sensitivity", "--lam", "0.05,0.1", *SINGLE)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory):
    return in_folder(tmp_path_factory, "tune", "--alpha", "0.4,0.5", "--lam", "0.01,0.1,0.03", *NODES)


@pytest.fixture(scope="session")
def threshold_grid(tmp_path_factory):
    lists = ("--kappa0", "0.3,0.5,2", "--noise", "0,0.5")
    return in_folder(tmp_path_factory, "thresholds", *lists)


@pytest.fixture(scope="session")
def spectra(tmp_path_factory):
    return in_folder(tmp_path_factory, "spectrum", "--alpha", "0.2,0.5", *FINITE, "--repeats", "2", *NODES)


@pytest.fixture(scope="session")
def phases(tmp_path_factory):
    return in_folder(tmp_path_factory, "phase-diagram", "--alpha", "0.1,0.2", "--lam", "0.05,0.4,1", *NODES)


# Names


def test_names_are_those_of_the_library():
    assert set(OBSERVABLES) == set(FixedPoint.__dataclass_fields__) - {"standard_error", "integration_gap"}
    assert len(set(OBSERVABLES)) == len(OBSERVABLES)
    assert PHASES == SPECTRUM_PHASES


# sensitivity


def test_sensitivity_document(sensitivity):
    assert sensitivity.status == 0
    assert sensitivity.document["settings"]["of"] == "test_error"
    assert sensitivity.document["settings"]["finite_d"] is False
    assert sensitivity.document["settings"]["test_samples"] is None  # nothing is drawn
    for point, lam in zip(sensitivity.points, (0.05, 0.1), strict=True):
        assert point.keys() >= THEORY | {"of", "value", "gradients", "gradients_standard_error", "second", "finite_d"}
        assert (point["alpha"], point["lam"], point["result"]) == (0.5, lam, "successful")
        assert point["value"] == point["test_error"]
        assert point["gradients"].keys() == point["gradients_standard_error"].keys() == DERIVATIVES
        known = DERIVATIVES - {"gamma"}  # the target is no power law
        assert all((point["gradients"][name] is None) == (name not in known) for name in DERIVATIVES)
        assert set(point["gradients_standard_error"].values()) == {None}  # of a single replica
        assert point["second"].keys() == {"lam"}
        assert point["finite_d"] is None


@pytest.mark.parametrize(
    ("name", "middle"),
    [("alpha", 0.5), ("lam", 0.05), ("beta", 1.0), ("beta0", 1.0), ("noise", 0.5), ("kappa0", 0.5)],
)
def test_gradients_are_central_differences(sensitivity, name, middle):
    step = 1e-4 * middle

    def value(number):
        options = {"lam": 0.05, "beta0": 1.0} | {name: number}
        flags = [text for key, entry in options.items() for text in (f"--{key}", repr(entry))]
        (point,) = ask("state-evolution", *flags, *SINGLE).points
        return point["test_error"]

    difference = (value(middle + step) - value(middle - step)) / (2 * step)
    assert sensitivity.points[0]["gradients"][name] == pytest.approx(difference, rel=1e-5)


def test_second_derivative_is_a_central_difference(sensitivity):
    step = 1e-3
    points = ask("state-evolution", "--lam", f"{0.05 - step},0.05,{0.05 + step}", *SINGLE).points
    values = [point["test_error"] for point in points]
    difference = (values[0] - 2 * values[1] + values[2]) / step**2
    assert sensitivity.points[0]["second"]["lam"] == pytest.approx(difference, rel=2e-3)  # O(step²)


def test_sensitivity_folder(sensitivity):
    table = rows(sensitivity.folder, "sensitivity")
    assert [float(row["gradients_lam"]) for row in table] == [p["gradients"]["lam"] for p in sensitivity.points]
    assert not {"gradients", "gradients_standard_error", "finite_d"} & table[0].keys()
    data = grid(sensitivity, "sensitivity")
    assert dict(data.sizes) == {"alpha": 1, "lam": 2}
    np.testing.assert_array_equal(data.second_lam[0], [point["second"]["lam"] for point in sensitivity.points])


def test_an_unsolved_point_has_no_derivatives():
    found = ask("sensitivity", "--lam", "0.05", "--max-iterations", "1", *SINGLE)
    (point,) = found.points
    assert found.status == 1
    assert point["result"] == "max_steps_reached"
    assert point["message"]
    assert "alpha 0.5, lam 0.05: max_steps_reached" in found.err
    assert point["gradients"] == point["gradients_standard_error"] == dict.fromkeys(DERIVATIVES)
    assert point["second"] == {"lam": None}


@pytest.mark.slow
def test_standard_errors_of_derivatives_are_the_scatter_of_the_replicas():
    (point,) = ask("sensitivity", "--nodes", "256", "--replicas", "2", "--tolerance", "1e-12").points
    problem = attention_problem(0.5, 0.05)
    nodes = state_evolution_nodes(problem, 256, 2, 0)
    solve = lambda own: solve_state_evolution(problem, own, start=jnp.asarray([1.3, 1.1, 0.8]))  # noqa: E731
    one, two = (gradient(problem, own, solve(own)).named for own in (nodes[:1], nodes[1:]))
    for name, found in one.items():
        scatter = float(jnp.abs(jnp.asarray(found) - jnp.asarray(two[name]))) / 2
        assert point["gradients_standard_error"][name] == pytest.approx(scatter, rel=1e-4)
    assert point["gradients_standard_error"]["gamma"] is None


@pytest.mark.slow
def test_sensitivity_of_amp_at_finite_d():
    found = ask("sensitivity", "--of", "train_objective", "--finite-d", *FINITE, "--repeats", "2", *SINGLE)
    (point,) = found.points
    assert found.status == 0
    assert point["finite_d"].keys() == {"d", "lam", "standard_error", "result"}
    objective = lambda lam: ask("amp", "--lam", lam, *FINITE, "--repeats", "2", "--tolerance", "1e-11").points[0]  # noqa: E731
    step = 1e-4
    difference = (objective(0.05 + step)["train_objective"] - objective(0.05 - step)["train_objective"]) / (2 * step)
    assert point["finite_d"]["lam"] == pytest.approx(difference, rel=1e-5)
    assert point["finite_d"]["lam"] == pytest.approx(objective(0.05)["trace"], rel=1e-6)  # envelope theorem
    assert point["gradients"]["lam"] == pytest.approx(point["trace"], rel=1e-9)
    failed = ask("sensitivity", "--of", "m", "--finite-d", *FINITE, "--lam", "0.2", "--max-iterations", "12", *NODES)
    assert failed.status == 1
    assert failed.points[0]["result"] == failed.points[0]["finite_d"]["result"] == "max_steps_reached"
    assert failed.points[0]["finite_d"]["lam"] is None
    assert "at finite d" in failed.points[0]["message"]
    assert failed.points[0]["gradients"]["lam"] is not None


@pytest.mark.slow
def test_sensitivity_in_the_exponent_of_a_power_law():
    law = ("--target", "power-law", "--target-d", "8", "--normalise", *SINGLE)
    (point,) = ask("sensitivity", "--gamma", "1.2", *law).points
    assert point["gradients"]["kappa0"] is None
    high, low = (ask("state-evolution", "--gamma", gamma, *law).points[0]["test_error"] for gamma in (1.2001, 1.1999))
    assert point["gradients"]["gamma"] == pytest.approx((high - low) / 2e-4, rel=1e-5)


@pytest.mark.slow
def test_sensitivity_without_regularisation_and_for_one_token():
    interpolating, thresholded = ask("sensitivity", "--alpha", "0.1,0.5", "--lam", "0", *NODES).points
    assert interpolating["gradients"]["lam"] is None
    assert interpolating["gradients"]["alpha"] < 0
    assert interpolating["second"] == {"lam": None}
    assert thresholded["gradients"]["lam"] < 0
    (linear,) = ask("sensitivity", "--tokens", "1", "--lam", "0.1", *NODES).points
    assert linear["gradients"]["beta"] is linear["gradients"]["beta0"] is None


# tune


def test_tune_document(tuned):
    assert tuned.status == 0
    assert tuned.document["problem"]["lam"] is None  # an answer here
    assert tuned.document["settings"]["bounds"] == [0.01, 0.1]
    assert tuned.document["settings"]["grid"] == [0.01, 0.03, 0.1]
    for point, alpha in zip(tuned.points, (0.4, 0.5), strict=True):
        names = {"lam_opt", "value", "test_error", "curvature", "gradient", "solves", "curve", "bound", "result"}
        assert point.keys() >= names
        assert (point["alpha"], point["result"], point["bound"]) == (alpha, "successful", None)
        assert point["collapse"] is False and "message" not in point
        assert point["value"] == point["test_error"]
        assert point["value"] == pytest.approx(min(entry["value"] for entry in point["curve"]), rel=1e-12)
        assert abs(point["gradient"]) <= 1e-8
        assert point["curvature"] > 0
        lams = [entry["lam"] for entry in point["curve"]]
        assert lams == sorted(lams)
        assert {0.01, 0.03, 0.1, point["lam_opt"]} <= set(lams)


def test_the_optimum_is_below_its_neighbours(tuned):
    best = tuned.points[1]
    lams = ",".join(repr(best["lam_opt"] * factor) for factor in (0.9, 1.0, 1.1))
    low, middle, high = (p["test_error"] for p in ask("state-evolution", "--lam", lams, *TIGHT).points)
    assert middle < min(low, high)
    assert middle == pytest.approx(best["value"], rel=1e-9)
    second = (low + high - 2 * middle) / (0.1 * best["lam_opt"]) ** 2
    assert best["curvature"] == pytest.approx(second, rel=0.1)


def test_tune_folder(tuned):
    assert [float(row["lam_opt"]) for row in rows(tuned.folder, "tune")] == [p["lam_opt"] for p in tuned.points]
    curve = rows(tuned.folder, "tune-curve")
    assert len(curve) == sum(len(point["curve"]) for point in tuned.points)
    assert curve[0].keys() == {"alpha", "lam", "value"}
    data = grid(tuned, "tune")
    assert dict(data.sizes) == {"alpha": 2}
    np.testing.assert_array_equal(data.lam_opt, [point["lam_opt"] for point in tuned.points])


def test_a_bound_takes_the_place_of_the_optimum():
    (point,) = ask("tune", "--lam", "0.1,0.3", *NODES).points
    assert (point["bound"], point["lam_opt"]) == ("lower", pytest.approx(0.1))
    assert point["gradient"] > 0


@pytest.mark.slow
def test_tune_that_ends_where_the_matrix_collapses_says_so():
    (point,) = ask("tune", "--alpha", "0.3", "--of", "replicon", *NODES).points
    assert (point["result"], point["bound"], point["collapse"]) == ("successful", None, True)
    assert point["message"] == "S = 0 from lam_opt on, where the observable is constant: every larger λ̃ is as good"


def test_tune_says_that_lam_is_positive():
    found = ask("tune", "--help", json_option=False)
    text = " ".join(found.out.replace("│", " ").split())
    assert found.status == 0
    assert "λ̃ = √κ λ >= 0 (0, the λ̃ → 0⁺ limit, in theory only; tune: > 0)" in text
    assert "λ >= 0 (0 in theory only; tune: > 0)" in text


def test_tune_that_cannot_solve_says_so():
    found = ask("tune", "--max-iterations", "1", *NODES)
    assert found.status == 1
    assert found.points[0]["result"] == "max_steps_reached"
    assert found.points[0]["lam_opt"] is None
    assert found.points[0]["curve"] == []
    assert "alpha 0.5: max_steps_reached" in found.err


# thresholds


def test_threshold_document(threshold_grid):
    assert threshold_grid.status == 0
    assert len(threshold_grid.points) == 6
    for point in threshold_grid.points:
        assert point.keys() >= {"kappa0", "noise", "tokens", "result", "gradients"} | THRESHOLDS
        assert point["gradients"].keys() == THRESHOLDS
        assert all(entry.keys() == {"kappa0", "noise"} for entry in point["gradients"].values())
        noisy = point["noise"] > 0
        assert (point["alpha_interpolation"] is None) == (not noisy)
        assert (point["alpha_recovery"] is None) == noisy
        for name in THRESHOLDS:
            slopes = point["gradients"][name]
            assert (slopes["kappa0"] is None) == (point[name] is None)
            assert (slopes["noise"] is None) == (name != "alpha_interpolation" or not noisy)


def test_thresholds_are_those_of_the_theory(threshold_grid):
    values = {(p["kappa0"], p["noise"]): p for p in threshold_grid.points}
    assert values[0.3, 0]["alpha_recovery"] == pytest.approx(0.163577, abs=1e-6)
    assert values[0.5, 0]["alpha_recovery"] == pytest.approx(0.211087, abs=1e-6)
    assert values[2, 0]["alpha_recovery"] == pytest.approx(0.25)
    assert values[0.5, 0.5]["alpha_interpolation"] == pytest.approx(0.15348210, abs=1e-8)
    assert values[0.3, 0.5]["alpha_bayes"] == pytest.approx((0.6 - 0.09) / 4)
    assert values[0.3, 0]["gradients"]["alpha_bayes"]["kappa0"] == pytest.approx((2 - 0.6) / 4)


def test_threshold_gradients_are_central_differences(threshold_grid):
    point = next(p for p in threshold_grid.points if (p["kappa0"], p["noise"]) == (0.5, 0.5))
    found = ask("thresholds", "--kappa0", "0.4999,0.5001", "--noise", "0.4999,0.5001").points
    a, b, c, d = (p["alpha_interpolation"] for p in found)  # kappa0 outermost
    slopes = point["gradients"]["alpha_interpolation"]
    assert slopes["kappa0"] == pytest.approx((c + d - a - b) / 4e-4, rel=1e-6)
    assert slopes["noise"] == pytest.approx((b + d - a - c) / 4e-4, rel=1e-6)


def test_threshold_folder(threshold_grid):
    table = rows(threshold_grid.folder, "thresholds")
    assert table[0]["alpha_interpolation"] == ""
    assert float(table[1]["gradients_alpha_bayes_kappa0"]) == 0.35
    data = grid(threshold_grid, "thresholds")
    assert dict(data.sizes) == {"tokens": 1, "kappa0": 3, "noise": 2}
    assert float(data.alpha_interpolation.sel(tokens=2, kappa0=0.5, noise=0.5)) == pytest.approx(0.1534821, abs=1e-7)


@pytest.mark.slow
def test_thresholds_of_a_list_and_of_one_token(tmp_path):
    np.save(tmp_path / "s.npy", [0.0, 0.0, 1.0, 2.0])
    (point,) = ask("thresholds", "--target", tmp_path / "s.npy", "--noise", "0").points
    assert point["kappa0"] is None
    assert point["alpha_recovery"] == pytest.approx(0.211087, abs=1e-6)  # that of rank 1/2
    assert point["gradients"]["alpha_bayes"]["kappa0"] is None
    one, three = ask("thresholds", "--tokens", "1,3").points
    assert one["alpha_interpolation"] == pytest.approx(2 * 0.15348210, abs=1e-8)  # C_T: 1, and 2 for T = 2
    assert three["alpha_interpolation"] == pytest.approx(0.4 * 0.15348210, abs=1e-8)  # 5


# spectrum


def test_spectrum_document(spectra):
    assert spectra.status == 0
    assert spectra.document["settings"]["engine"] == "amp"
    assert spectra.document["settings"]["optimizer"] is None  # nothing is trained
    for point in spectra.points:
        assert point.keys() >= THEORY | SPECTRUM
        assert point["phase"] in PHASES
        assert point["atom"] == pytest.approx(point["zero_fraction"], abs=1e-9)
        assert point["outliers"] == []
        assert len(point["eigenvalues"]) == 24
        assert point["distance"].keys() == {"wasserstein", "ks"}
        assert 0 < point["distance"]["ks"] < 0.35  # 24 eigenvalues; that of independent ones exceeds it once in 200
        assert point["finite_d"]["result"] == "successful"


def test_the_density_is_the_law_of_the_fixed_point(spectra):
    for point in spectra.points:
        x, density = np.asarray(point["x"]), np.asarray(point["density"])
        assert [x[0], x[-1]] == pytest.approx([point["edges"][0][0], point["edges"][-1][1]])
        assert np.trapezoid(density, x) == pytest.approx(point["rank_fraction"], abs=1e-4)
        assert np.trapezoid(density * x, x) == pytest.approx(point["trace"], rel=1e-4)
        assert np.trapezoid(density * x**2, x) == pytest.approx(point["q"], rel=1e-4)


def test_spectrum_folder(spectra):
    table = rows(spectra.folder, "spectrum")
    assert [row["phase"] for row in table] == [point["phase"] for point in spectra.points]
    density = rows(spectra.folder, "spectrum-density")
    assert density[0].keys() == {"alpha", "lam", "x", "density"}
    assert [float(row["x"]) for row in density] == [x for point in spectra.points for x in point["x"]]
    data = grid(spectra, "spectrum")
    assert dict(data.sizes) == {"alpha": 2, "lam": 1}
    assert [str(name) for name in data.phase[:, 0].values] == [point["phase"] for point in spectra.points]


def test_spectrum_of_theory_alone():
    found = ask("spectrum", *NODES)
    (point,) = found.points
    assert point["eigenvalues"] is point["distance"] is point["finite_d"] is None
    assert found.document["settings"]["engine"] is None
    failed = ask("spectrum", "--max-iterations", "1", *NODES)
    assert failed.status == 1
    assert all(failed.points[0][name] is None for name in SPECTRUM)


@pytest.mark.slow
def test_outliers_of_a_list(tmp_path):
    np.save(tmp_path / "s.npy", [*np.linspace(0, 0.2, 11), 4.0])
    target = ("--target", tmp_path / "s.npy", "--alpha", "1", "--lam", "0.3")
    (point,) = ask("spectrum", *target, *NODES).points
    (outlier,) = point["outliers"]
    assert outlier.keys() == {"value", "overlap", "target_eigenvalue"}
    assert outlier["target_eigenvalue"] == 4.0
    assert 0 < outlier["overlap"] < 1
    assert point["phase"].startswith("outliers")
    found = ask("phase-diagram", *target, "--outliers", "1", *NODES)
    assert found.points[0]["phase"] == point["phase"]
    assert found.document["boundaries"].keys() == {"collapse", "replicon", "bleed_out", "outlier_1"}


@pytest.mark.slow
def test_spectrum_that_training_finds_is_that_of_amp(spectra):
    found = ask("spectrum", "--alpha", "0.5", *FINITE, "--repeats", "2", "--engine", "train", *NODES)
    assert found.document["settings"]["optimizer"] == "lbfgs"
    np.testing.assert_allclose(found.points[0]["eigenvalues"], spectra.points[1]["eigenvalues"], atol=1e-3)


# phase-diagram


def test_phase_diagram_document(phases):
    assert phases.status == 0
    assert phases.document["boundaries"].keys() == {"collapse", "replicon", "bleed_out"}
    assert len(phases.points) == 6
    line = dict(phases.document["boundaries"]["collapse"])
    assert line.keys() == {0.1, 0.2}
    for point in phases.points:
        assert point.keys() >= THEORY | {"phase"}
        assert (point["phase"] == "rank_collapse") == (point["lam"] > line[point["alpha"]])
        assert (point["phase"] == "rank_collapse") == (point["zero_fraction"] == 1)
    assert {point["phase"] for point in phases.points} == {"rank_collapse", "bleed_out"}


def test_bleed_out_ends_where_all_collapses_without_a_gap_in_the_target(phases):
    collapse, bleed_out = (np.asarray(phases.document["boundaries"][name]) for name in ("collapse", "bleed_out"))
    np.testing.assert_allclose(bleed_out, collapse[: len(bleed_out)], rtol=1e-6)
    assert len(bleed_out) > 0


def test_phase_diagram_folder(phases):
    lines = [(row["boundary"], float(row["alpha"])) for row in rows(phases.folder, "phase-diagram-boundaries")]
    assert lines[:2] == [("collapse", 0.1), ("collapse", 0.2)]
    data = grid(phases, "phase-diagram")
    assert dict(data.sizes) == {"alpha": 2, "lam": 3}
    assert str(data.phase.sel(alpha=0.1, lam=1.0).values) == "rank_collapse"


def test_phase_of_an_unsolved_point():
    found = ask("phase-diagram", "--alpha", "0.2", "--lam", "0.05", "--max-iterations", "1", *NODES)
    assert found.status == 1
    assert found.points[0]["phase"] is None
    assert len(found.document["boundaries"]["collapse"]) == 1  # needs no fixed point


# Tables


def header_of(*arguments):
    found = ask(*arguments, "--quiet", json_option=False)
    assert found.status == 0
    assert found.err == ""
    return found.out.splitlines()


def test_tables():
    lines = header_of("thresholds", "--noise", "0.5")
    assert lines[0].split()[:4] == ["tokens", "kappa0", "noise", "interpolation"]
    assert lines[1].split()[3] == "0.15348"
    lines = header_of("spectrum", "--lam", "0.1", *NODES)
    assert "W1" not in lines[0]  # not asked for
    assert lines[1].split()[2] == "bleed_out"
    lines = header_of("phase-diagram", "--alpha", "0.2", "--lam", "0.05,1", *NODES)
    assert lines[4].split() == ["boundary", "alpha", "lam"]
    assert lines[5].split()[:2] == ["collapse", "0.2"]


def test_tables_of_derivatives(sensitivity, tuned):
    lines = header_of("sensitivity", "--lam", "0.05,0.1", *SINGLE)
    assert {"d/dalpha", "d2/dlam2", "d/dkappa0"} <= set(lines[0].split())
    assert not {"d/dgamma", "AMP:d/dlam"} & set(lines[0].split())
    assert len(lines) == 3
    lines = header_of("tune", "--alpha", "0.4,0.5", *NODES)
    assert float(lines[2].split()[1]) == pytest.approx(tuned.points[1]["lam_opt"], rel=1e-4)


# Refusals


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("sensitivity", "--of nonsense", "--of 'nonsense' test_error replicon"),
        ("sensitivity", "--of stable", "--of 'stable'"),
        ("sensitivity", "--finite-d --lam 0", "--lam > 0 0 --finite-d"),
        ("sensitivity", "--finite-d --d 1", "--d >= 2 1"),
        ("sensitivity", "--d 10", "--d 10 --finite-d"),
        ("sensitivity", "--alpha 0.1,0.1", "--alpha 0.1 once"),
        ("tune", "--of nonsense", "--of 'nonsense'"),
        ("tune", "--lam 0", "--lam > 0 tune"),
        ("tune", "--lam x", "--lam >= 0 (tune: 0), 'x'"),
        ("tune", "--weight-decay -1", "--weight-decay >= 0 (tune: 0), '-1'"),
        ("tune", "--lam 0,0.1", "--lam > 0 tune"),
        ("tune", "--weight-decay 0", "--weight-decay > 0"),
        ("tune", "--lam 0.1,0.1", "--lam 0.1 once"),
        ("tune", "--gradient-tolerance 0", "--gradient-tolerance > 0 '0'"),
        ("tune", "--d 10", "--d"),
        ("thresholds", "--tokens 1.5", "--tokens whole >= 1 1.5"),
        ("thresholds", "--tokens 0", "--tokens >= 1 '0'"),
        ("thresholds", "--tokens 2,2", "--tokens 2 once"),
        ("thresholds", "--tokens 1e30", "--tokens GiB"),
        ("thresholds", "--kappa0 0", "--kappa0 > 0 '0'"),
        ("thresholds", "--kappa0 0.5,0.5", "--kappa0 0.5 once"),
        ("thresholds", "--noise -1", "--noise >= 0 '-1'"),
        ("thresholds", "--gamma 1", "--gamma power-law"),
        ("thresholds", "--target power-law --kappa0 0.5", "--kappa0 power-law"),
        ("thresholds", "--lam 0.1", "--lam"),
        ("spectrum", "--d 1", "--d >= 2 1"),
        ("spectrum", "--d 10 --lam 0", "--lam > 0 0 --d"),
        ("spectrum", "--engine train", "--engine train --d"),
        ("spectrum", "--engine nonsense", "--engine nonsense"),
        ("spectrum", "--repeats 2", "--repeats 2 --d"),
        ("spectrum", "--d 10 --optimizer adam", "--optimizer adam --engine"),
        ("phase-diagram", "--outliers -1", "--outliers >= 0 '-1'"),
        ("phase-diagram", "--outliers 1.5", "--outliers whole '1.5'"),
        ("phase-diagram", "--penalty frobenius", "--penalty frobenius"),
    ],
)
def test_refusals(command, arguments, words):
    found = ask(command, *arguments.split(), json_option=False)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("amp-attention: ")
    assert found.err.count("\n") == 1
    assert all(word in found.err for word in words.split()), found.err
