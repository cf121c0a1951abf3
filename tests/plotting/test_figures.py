import matplotlib.pyplot as plt
import numpy as np
import pytest

from amp_attention.plotting import (
    SpectrumPanel,
    TrajectoryPanel,
    amp_trajectories,
    describe,
    eigenvalue_histograms,
    format_number,
    learning_curves,
    save,
    spectra_by_phase,
    spectrum_panel,
)
from amp_attention.plotting._style import COLOURS
from amp_attention.plotting.eigenvalues import positive_part
from amp_attention.plotting.learning_curves import family_values, grid_axes
from amp_attention.plotting.trajectory import mean_history, settled
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.spectrum import LearnedSpectrum, Outliers

PARAMETERS = {"tokens": 2, "kappa0": 0.5, "noise": 0.5, "beta": 1.0, "beta0": 1.0, "kappa": 1.0, "d": 50, "repeats": 3}


def point(alpha, lam, *, amp=True, result="successful", stable=True):
    observables = {"test_error": alpha + lam, "train_objective": alpha, "squared_error": lam, "zero_fraction": 0.25}
    theory = observables | {"alpha": alpha, "lam": lam, "result": result, "stable": stable, "rank_fraction": 0.75}
    errors = dict.fromkeys(observables, 0.01)
    measured = observables | {"standard_error": errors, "result": "successful"}
    engines = {"amp": measured, "train": measured} if amp else {}
    return {"alpha": alpha, "lam": lam, "state_evolution": theory} | engines


GRID = [point(alpha, lam) for alpha in (0.2, 0.4, 0.8) for lam in (0.05, 0.1)]


def texts(figure):
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return legends, [axis.get_xlabel() for axis in figure.axes], [axis.get_ylabel() for axis in figure.axes]


def test_learning_curves_draw_every_engine_with_labels():
    figure = learning_curves(GRID, PARAMETERS)
    legends, x, y = texts(figure)
    assert legends == ["state evolution", "AMP", "gradient training", r"$\tilde\lambda=0.05$", r"$\tilde\lambda=0.1$"]
    assert all("alpha = n/d^2" in label for label in x)
    assert "test error" in y[0]
    assert "1-F" in y[3]
    assert r"\kappa_0=0.5" in figure.get_suptitle()
    assert "3 instances" in figure.get_suptitle()


def test_learning_curves_draw_the_numbers():
    axis = learning_curves(GRID, PARAMETERS).axes[0]
    theory = [line for line in axis.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 3]
    np.testing.assert_allclose(theory[0].get_xdata(), [0.2, 0.4, 0.8])
    np.testing.assert_allclose(theory[0].get_ydata(), [0.25, 0.45, 0.85])
    assert len(axis.containers) == 4  # AMP and training, for two values of λ̃
    np.testing.assert_allclose(np.asarray(axis.containers[0].lines[0].get_ydata(), float), [0.25, 0.45, 0.85])
    segments = axis.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose(segments[0][:, 1], [0.24, 0.26])


def test_rank_fraction_of_amp_is_one_minus_its_zero_fraction():
    axis = learning_curves(GRID, PARAMETERS).axes[3]
    np.testing.assert_allclose(np.asarray(axis.containers[0].lines[0].get_ydata(), float), 0.75)


def test_the_axis_is_the_parameter_with_more_values():
    lams = [point(0.5, lam) for lam in (0.01, 0.1, 1.0)]
    figure = learning_curves(lams, PARAMETERS)
    assert figure.axes[0].get_xscale() == "log"
    assert "lambda" in figure.axes[0].get_xlabel()
    assert r"\alpha=0.5" in figure.get_suptitle()
    assert grid_axes(GRID) == ("alpha", "lam")


def test_failed_points_are_left_out_and_unstable_ones_dotted():
    points = [point(0.2, 0.1), point(0.4, 0.1, result="diverged"), point(0.8, 0.1, stable=False), point(0.9, 0.1)]
    lines = learning_curves(points, PARAMETERS).axes[0].lines
    np.testing.assert_allclose(lines[0].get_xdata(), [0.2, 0.8, 0.9])
    assert np.isnan(lines[0].get_ydata()[1])
    assert lines[1].get_linestyle() == ":"


def test_a_dense_curve_joins_its_family():
    curve = [point(alpha, lam)["state_evolution"] for alpha in (0.3, 0.6) for lam in (0.05, 0.1)]
    axis = learning_curves(GRID, PARAMETERS, curve=curve).axes[0]
    np.testing.assert_allclose(axis.lines[0].get_xdata(), [0.2, 0.3, 0.4, 0.6, 0.8])


def bound(alpha, result="successful"):
    return {"alpha": alpha, "squared_error": 0.04, "test_error": 0.1 * alpha, "result": result}


def dashed(axis):
    return [line for line in axis.lines if line.get_linestyle() == "--"]


def test_the_bound_over_alpha_is_one_line():
    """On the two panels that it bounds, through the points and those between them."""
    points = [p | {"bayes": bound(p["alpha"])} for p in GRID] + [point(1.0, 0.1) | {"bayes": bound(1.0, "diverged")}]
    figure = learning_curves(points, PARAMETERS, bound=[bound(0.3), bound(0.6)])
    assert "Bayes-optimal" in texts(figure)[0]
    test, objective, squared, rank = figure.axes
    assert not dashed(objective) and not dashed(rank) and len(dashed(squared)) == 1
    (line,) = dashed(test)
    np.testing.assert_allclose(line.get_xdata(), [0.2, 0.3, 0.4, 0.6, 0.8])
    np.testing.assert_allclose(line.get_ydata(), 0.1 * line.get_xdata())
    assert line.get_color() == "black"


def test_the_bound_over_lam_is_one_line_of_each_colour():
    points = [point(a, lam) | {"bayes": bound(a)} for a in (0.5, 1.0) for lam in (0.01, 0.1, 1.0)]
    lines = dashed(learning_curves(points, PARAMETERS).axes[0])
    assert [line.get_color() for line in lines] == list(COLOURS[:2])
    for line, alpha in zip(lines, (0.5, 1.0), strict=True):
        np.testing.assert_allclose(line.get_xdata(), [0.01, 0.1, 1.0])
        np.testing.assert_allclose(line.get_ydata(), 0.1 * alpha)


@pytest.mark.parametrize("lam", [None, float("nan")])
def test_points_without_a_regularisation(lam):
    """Of a posterior mean; a NaN read from a file is another one each time."""
    points = [{"alpha": a, "lam": lam and float("nan"), "amp": point(a, 0.1)["amp"]} for a in (0.2, 0.4, 0.8)]
    figure = learning_curves(points, PARAMETERS | {"lam": None}, bound=[bound(0.3), bound(0.6)], panels=["test_error"])
    assert texts(figure)[0] == ["AMP", "Bayes-optimal"] and "lambda" not in figure.get_suptitle()
    (axis,) = figure.axes[:1]
    assert "alpha" in axis.get_xlabel() and len(axis.containers) == 1 and len(dashed(axis)) == 1
    np.testing.assert_allclose(np.asarray(axis.containers[0].lines[0].get_xdata(), float), [0.2, 0.4, 0.8])


def test_a_single_point_and_theory_alone_can_be_drawn():
    assert texts(learning_curves([point(0.5, 0.1)], PARAMETERS))[0][:1] == ["state evolution"]
    assert texts(learning_curves([point(0.5, 0.1, amp=False)], PARAMETERS))[0] == ["state evolution"]


def test_many_values_of_the_family_are_thinned():
    points = [point(alpha, lam) for alpha in np.linspace(0.1, 1, 30) for lam in np.linspace(0.01, 1, 20)]
    assert len(family_values(points, "lam")) == 6


S = np.linspace(0, 2, 101)
LAW = SpectrumPanel("a title", np.concatenate([np.zeros(50), np.linspace(0.02, 1.98, 50)]), S, np.full(101, 0.25), 0.5)


def test_histogram_has_the_mass_of_the_positive_eigenvalues():
    figure = eigenvalue_histograms([LAW], PARAMETERS)
    axis = figure.axes[0]
    (stairs,) = [patch for patch in axis.patches if hasattr(patch, "get_data")]
    values, edges, _ = stairs.get_data()
    assert np.sum(values * np.diff(edges)) == pytest.approx(0.5)
    written = " ".join(text.get_text() for text in axis.texts)
    assert "AMP 0.500" in written
    assert "theory 0.500" in written
    legends, x, y = texts(figure)
    assert any("mu_" in label for label in legends)
    assert any("atom" in label for label in legends)
    assert "eigenvalue" in x[0]
    assert "density" in y[0]


def test_histogram_without_a_law_or_without_eigenvalues():
    empty = np.zeros(0)
    figure = eigenvalue_histograms([SpectrumPanel("x", LAW.eigenvalues, empty, empty, np.nan)], PARAMETERS)
    assert "theory" not in " ".join([*texts(figure)[0], *(text.get_text() for text in figure.axes[0].texts)])
    eigenvalue_histograms([SpectrumPanel("x", np.zeros(10), empty, empty, 1.0)], PARAMETERS)


OUTLIERS = Outliers(np.array([3.0, 2.5, 2.2]), np.array([0.9, np.nan, 0.7]), np.array([3.1, 2.7, 2.5]))


def panel(phase, eigenvalues=LAW.eigenvalues):
    return SpectrumPanel("a title", eigenvalues, S, LAW.density, 0.5, OUTLIERS, phase)


def test_outliers_are_triangles_with_their_overlap():
    axis = eigenvalue_histograms([panel("bleed_out")], PARAMETERS).axes[0]
    marks = {line.get_label(): line for line in axis.lines if line.get_marker() == "v"}
    np.testing.assert_allclose(marks["outliers, with overlap"].get_xdata(), [3.0, 2.2])
    np.testing.assert_allclose(marks["outliers, eigenvectors mixed"].get_xdata(), [2.5])
    written = [text.get_text() for text in axis.texts]
    assert "0.9" in written and "0.7" in written
    assert not any("nan" in text for text in written)
    assert axis.get_xlim()[1] > 3.0
    assert axis.get_title() == "bleed out\na title"


def test_bands_of_outliers_do_not_set_the_height():
    s = np.concatenate([S, [np.nan], np.linspace(2.9, 3.1, 11)])
    density = np.concatenate([LAW.density, [np.nan], np.full(11, 40.0)])
    drawn = SpectrumPanel("x", np.zeros(0), s, density, 0.5, OUTLIERS)
    assert eigenvalue_histograms([drawn], PARAMETERS).axes[0].get_ylim()[1] == pytest.approx(1.3 * 0.25)


def test_spectra_by_phase_are_in_the_order_of_the_phases():
    empty = np.zeros(0)
    panels = [
        panel("outliers_and_bulk"),
        panel("bleed_out", empty),
        SpectrumPanel("", empty, empty, empty, 1.0, phase="rank_collapse"),
    ]
    figure = spectra_by_phase(panels, PARAMETERS)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["rank collapse", "bleed out\na title", "outliers and bulk\na title"]
    labels = texts(figure)[0]
    assert len(labels) == len(set(labels)) == 5
    assert "AMP" not in " ".join(text.get_text() for text in figure.axes[1].texts)
    assert any("AMP" in text.get_text() for text in figure.axes[2].texts)
    assert len(spectra_by_phase(panels[:1], PARAMETERS).axes) == 1


def test_spectra_by_phase_refuse_panels_of_one_phase():
    for panels in ([], [panel("bleed_out")] * 2, [panel(None)], [panel("x")]):
        with pytest.raises(ValueError, match="panels must have one of the phases rank_collapse"):
            spectra_by_phase(panels, PARAMETERS)


def test_a_panel_of_a_law():
    spectrum = LearnedSpectrum(FiniteLaw(np.r_[np.zeros(58), 2.0, 3.0]), 1.0, 1.0, 0.8)
    drawn = spectrum_panel("x", spectrum)
    assert drawn.phase == "outliers_and_bulk"
    assert drawn.eigenvalues.size == 0
    np.testing.assert_allclose(drawn.outliers.value, 0.8 * np.array([3 + 1 / 3 - 1, 2 + 1 / 2 - 1]))
    assert np.isnan(drawn.s).sum() == 3
    spectra_by_phase([drawn], PARAMETERS)


def test_rounding_is_not_an_eigenvalue():
    np.testing.assert_array_equal(positive_part(np.array([-1e-12, 0.0, 1e-13, 0.5])), [0.5])


T = np.arange(41)
THEORY = dict.fromkeys(("q", "m", "Sigma"), 1 - 0.5**T)
HISTORIES = [{name: (1 + shift) * (1 - 0.5 ** np.arange(9)) for name in ("q", "m", "V")} for shift in (-0.1, 0.1)]


def test_trajectory_has_three_panels_with_theory_and_amp():
    figure = amp_trajectories([TrajectoryPanel("one", HISTORIES, THEORY)], PARAMETERS)
    legends, x, y = texts(figure)
    assert legends == ["state evolution", "AMP", "one"]
    assert all("iteration" in label for label in x)
    assert [label.split("$")[1][0] for label in y] == ["q", "m", "V"]
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), THEORY["q"][: len(line.get_xdata())])


def test_converged_histories_are_continued_by_their_last_value():
    mean, error = mean_history([{"q": np.array([0.0, 1.0])}, {"q": np.array([0.0, 3.0, 5.0, np.nan])}], "q", 4)
    np.testing.assert_allclose(mean, [0, 2, 3, 3])
    np.testing.assert_allclose(error, [0, 1, 2, 2])
    assert np.isnan(mean_history([], "q", 3)[0]).all()


def test_trajectory_stops_soon_after_the_theory_has_settled():
    assert 12 <= settled(TrajectoryPanel("one", HISTORIES, THEORY)) < 20


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (1e-6, r"10^{-6}"), (2.5e-7, r"2.5\times 10^{-7}"), (1 / 3, "0.3333")]
)
def test_numbers_in_titles(value, text):
    assert format_number(value) == text


def test_captions_leave_out_what_has_no_meaning():
    assert describe({"tokens": 2, "kappa0": None, "noise": 0.5, "alpha": [0.1, 0.2]}) == r"$T=2$,  $\Delta=0.5$"
    assert describe({"tokens": 2, "head": "hardmax"}) == r"hardmax,  $T=2$"
    assert describe({"tokens": 2, "head": "softmax"}) == r"$T=2$"


def test_files_are_png_and_pdf_and_reproducible(tmp_path):
    figure = learning_curves(GRID, PARAMETERS)
    png, pdf = save(figure, tmp_path / "curves")
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert pdf.read_bytes()[:4] == b"%PDF"
    assert min(png.stat().st_size, pdf.stat().st_size) > 5000
    first = png.read_bytes(), pdf.read_bytes()
    save(learning_curves(GRID, PARAMETERS), tmp_path / "curves")
    assert first == (png.read_bytes(), pdf.read_bytes())


def test_nothing_is_left_on_screens_or_in_global_state():
    before = plt.rcParams["font.family"]
    learning_curves(GRID, PARAMETERS)
    assert plt.get_fignums() == []
    assert plt.rcParams["font.family"] == before
