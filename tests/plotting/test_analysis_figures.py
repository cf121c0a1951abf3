"""Figures of derivatives, tuning, thresholds, spectra and phases: what is drawn is what the records say."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex

from amp_attention._cli import figures
from amp_attention._cli.names import FIGURES, OBSERVABLES, PHASES
from amp_attention.experiments import (
    PhasePoint,
    SensitivityPoint,
    SpectrumPoint,
    TheoryPoint,
    ThresholdPoint,
    TuningPoint,
)
from amp_attention.plotting import (
    COLOURS,
    phase_diagram,
    render,
    sensitivity_curves,
    threshold_lines,
    tuning_curves,
)
from amp_attention.plotting._style import LABELS, SYMBOLS, new_figure, theory_line
from amp_attention.plotting.phase_diagram import FAILED, LOOK, branches, cell_edges, name_place, phase_table
from amp_attention.plotting.sensitivity import quantities
from amp_attention.plotting.thresholds import clear_place, threshold_axes, threshold_families
from amp_attention.plotting.tuning import curve
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.spectrum import LearnedSpectrum

PARAMETERS = {
    "tokens": 2,
    "kappa0": 0.5,
    "noise": 0.5,
    "beta": 1.0,
    "beta0": 1.0,
    "kappa": 1.0,
    "alpha": [1],
    "lam": [1],
}


def texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines(panel, colour=None, style="-"):
    """Drawn lines of one colour with more than one point, the zero line left out."""
    found = [line for line in panel.lines if line.get_linestyle() == style and line.get_marker() in ("None", "", ".")]
    return [line for line in found if line.get_color() == colour]


def data(line):
    return np.asarray(line.get_data(), float)


def shuffled(records):
    return random.Random(3).sample(list(records), len(records))


# Derivatives.


def derivative(alpha, lam, *, of="test_error", finite=None, result="successful", stable=True, **gradients):
    """A record whose entries are all different."""
    known = {"alpha": -alpha, "lam": 2 * lam, "beta": alpha + lam, "beta0": -lam, "noise": 3 * alpha, "kappa0": 0.1}
    known |= gradients
    record = {"alpha": alpha, "lam": lam, "result": result, "stable": stable, "of": of, "value": alpha * lam}
    record |= {"gradients": known, "second": {"lam": 5 * alpha}, "standard_error": {of: 0.01}}
    record["gradients_standard_error"] = {name: None if v is None else 0.02 for name, v in known.items()}
    if result != "successful":
        record |= {"gradients": None, "gradients_standard_error": None, "second": {"lam": None}}
    return record | ({} if finite is None else {"finite_d": finite})


LAMS = (0.01, 0.1, 1.0)
SWEEP = [derivative(alpha, lam) for alpha in (0.2, 0.8) for lam in LAMS]


def test_every_number_has_a_panel_in_the_notation_of_the_field():
    figure = sensitivity_curves(SWEEP, PARAMETERS)
    names = [axis.get_ylabel() for axis in figure.axes]
    assert names[0] == LABELS["test_error"]
    assert names[1:] == [
        r"$\partial e/\partial\alpha$",
        r"$\partial e/\partial\tilde\lambda$",
        r"$\partial^2 e/\partial\tilde\lambda^2$",
        r"$\partial e/\partial\beta$",
        r"$\partial e/\partial\beta_0$",
        r"$\partial e/\partial\Delta$",
        r"$\partial e/\partial\kappa_0$",
    ]
    assert all(axis.get_xlabel() == LABELS["lam"] and axis.get_xscale() == "log" for axis in figure.axes)
    assert texts(figure) == ["state evolution", "± standard error", r"$\alpha=0.2$", r"$\alpha=0.8$"]
    assert figure.get_suptitle() == r"$T=2$,  $\kappa_0=0.5$,  $\Delta=0.5$,  $\beta=1$"


@pytest.mark.parametrize("arrange", [list, reversed, shuffled])
def test_derivatives_are_drawn_with_their_bands(arrange):
    panels = sensitivity_curves(list(arrange(SWEEP)), PARAMETERS).axes
    expected = [0.8 * np.array(LAMS), [-0.8] * 3, 2 * np.array(LAMS), [4.0] * 3, 0.8 + np.array(LAMS)]
    for panel, values in zip(panels, expected, strict=False):
        (line,) = lines(panel, COLOURS[1])
        np.testing.assert_allclose(data(line), [LAMS, values])
    vertices = panels[1].collections[1].get_paths()[0].vertices
    np.testing.assert_allclose([vertices[:, 1].min(), vertices[:, 1].max()], [-0.82, -0.78])
    assert not panels[3].collections  # the second derivative has no standard error


def test_derivatives_have_a_zero_line_and_the_observable_has_none():
    panels = sensitivity_curves(SWEEP, PARAMETERS).axes
    zero = [[line for line in panel.lines if list(line.get_ydata()) == [0, 0]] for panel in panels]
    assert list(map(len, zero)) == [0] + [1] * 7


def test_what_is_null_has_no_panel_and_gamma_has_one():
    figure = sensitivity_curves([derivative(a, 0.1, beta=None, beta0=None, kappa0=None, gamma=-a) for a in (1, 2)], {})
    names = [axis.get_ylabel() for axis in figure.axes]
    assert len(names) == 6
    assert names[-1] == r"$\partial e/\partial\gamma$"
    np.testing.assert_allclose(data(lines(figure.axes[-1], COLOURS[0])[0]), [[1, 2], [-1, -2]])


def test_failed_points_of_a_sweep_are_skipped():
    records = [derivative(a, 0.1, result="diverged" if a == 0.4 else "successful") for a in (0.2, 0.4, 0.6)]
    panels = sensitivity_curves(records, PARAMETERS).axes
    for panel in panels:
        np.testing.assert_allclose(lines(panel, COLOURS[0])[0].get_xdata(), [0.2, 0.6])
    assert sensitivity_curves([derivative(0.2, 0.1, result="diverged")], PARAMETERS) is None


def test_the_branch_without_a_function_of_lam_has_no_derivative_in_it():
    records = [derivative(a, 0.0, lam_=None) for a in (0.2, 0.4)]
    for record in records:
        record["gradients"] = record["gradients"] | {"lam": None, "lam_": None}
        record |= {"second": {"lam": None}, "gradients_standard_error": None}
    names = [axis.get_ylabel() for axis in sensitivity_curves(records, PARAMETERS).axes]
    assert len(names) == 6
    assert not any("partial\\tilde" in name for name in names)


def test_amp_is_points_with_error_bars_in_the_derivative_in_lam():
    finite = {"d": 80, "lam": 0.3, "standard_error": 0.05, "result": "successful"}
    unknown = {"d": 80, "lam": None, "standard_error": None, "result": "diverged"}
    records = [derivative(a, 0.1, finite=finite if a < 0.5 else unknown) for a in (0.2, 0.4, 0.6)]
    figure = sensitivity_curves(records, PARAMETERS)
    assert [len(panel.containers) for panel in figure.axes] == [0, 0, 1] + [0] * 5
    points, _, (bars,) = figure.axes[2].containers[0].lines
    np.testing.assert_allclose(data(points), [[0.2, 0.4], [0.3, 0.3]])
    np.testing.assert_allclose(bars.get_segments()[0][:, 1], [0.25, 0.35])
    assert "AMP, $d=80$" in texts(figure)
    assert "error bars" in figure.legends[0].get_title().get_text()


def test_a_single_point_is_a_mark_with_an_error_bar():
    figure = sensitivity_curves([derivative(0.5, 0.1)], PARAMETERS)
    for panel, error in zip(figure.axes[:2], (0.01, 0.02), strict=True):
        (mark,) = [line for line in panel.lines if line.get_marker() == "_" and line.get_markersize() == 16]
        np.testing.assert_allclose(mark.get_xdata(), [0.5])
        (bars,) = panel.containers[0].lines[2]
        np.testing.assert_allclose(np.ptp(bars.get_segments()[0][:, 1]), 2 * error)
    assert r"\alpha=0.5" in figure.get_suptitle() and r"\tilde\lambda=0.1" in figure.get_suptitle()
    assert texts(figure) == ["state evolution"]


def test_unstable_fixed_points_are_dotted_without_a_gap():
    records = [derivative(a, 0.1, stable=a > 0.5) for a in (0.2, 0.4, 0.6, 0.8)]
    figure = sensitivity_curves(records, PARAMETERS)
    (solid,), (dotted,) = (lines(figure.axes[0], COLOURS[0], style) for style in "-:")
    np.testing.assert_allclose(solid.get_ydata(), [math.nan, math.nan, 0.06, 0.08])
    np.testing.assert_allclose(dotted.get_ydata(), [0.02, 0.04, 0.06, math.nan])
    assert r"unstable, $R \geq 1$" in texts(figure)


def test_stable_lines_are_one_line():
    axis = new_figure(1, 1, 1, 1)[1][0, 0]
    theory_line(axis, np.arange(3), np.arange(3), "black", np.zeros(3, bool))
    assert len(axis.lines) == 1


@pytest.mark.parametrize("name", OBSERVABLES)
def test_every_observable_has_a_label_and_a_symbol(name):
    assert SYMBOLS[name] in LABELS[name]
    label = quantities(name)[1].label
    compound = any(sign in SYMBOLS[name] for sign in ("/", "-", "ell"))
    assert label == rf"$\partial {'(' if compound else ''}{SYMBOLS[name]}{')' if compound else ''}/\partial\alpha$"


# Tuning.


def tuned(
    alpha, lam_opt=0.1, *, bound=None, result="successful", stable=True, of="test_error", points=(0.02, 0.1, 1.0)
):
    visited = [{"lam": lam, "value": alpha + lam} for lam in points]
    value = alpha + lam_opt
    return {"alpha": alpha, "lam": lam_opt, "lam_opt": lam_opt, "value": value, "test_error": value, "of": of} | {
        "bound": bound,
        "result": result,
        "stable": stable,
        "curve": visited,
    }


def marks(panel, marker):
    return [line for line in panel.lines if line.get_marker() == marker]


@pytest.mark.parametrize("arrange", [list, reversed, shuffled])
def test_the_optimum_against_alpha(arrange):
    records = [tuned(alpha, alpha / 10) for alpha in (0.2, 0.4, 0.8)]
    figure = tuning_curves(list(arrange(records)), PARAMETERS)
    observable, best, curves = figure.axes
    np.testing.assert_allclose(data(observable.lines[0]), [[0.2, 0.4, 0.8], [0.22, 0.44, 0.88]])
    np.testing.assert_allclose(data(best.lines[0]), [[0.2, 0.4, 0.8], [0.02, 0.04, 0.08]])
    assert (best.get_xscale(), best.get_yscale(), observable.get_yscale()) == ("log", "log", "linear")
    (line,) = lines(curves, COLOURS[2])
    np.testing.assert_allclose(data(line), [[0.02, 0.1, 1.0], [0.82, 0.9, 1.8]])
    (mark,) = [line for line in marks(curves, "o") if line.get_color() == COLOURS[2]]
    np.testing.assert_allclose(data(mark), [[0.08], [0.88]])
    assert curves.get_xscale() == "log"
    assert texts(figure)[2:] == [r"$\alpha=0.2$", r"$\alpha=0.4$", r"$\alpha=0.8$"]
    assert observable.get_ylabel() == r"test error $e$ at $\tilde\lambda_\mathrm{opt}$"


def test_bounds_are_open_triangles_and_failures_are_crosses():
    records = [tuned(0.1), tuned(0.2, 0.01, bound="lower"), tuned(0.4, 1.0, bound="upper")]
    records += [tuned(0.8, 0.5, result="max_steps_reached"), tuned(1.6)]
    figure = tuning_curves(records, PARAMETERS)
    best = figure.axes[1]
    np.testing.assert_allclose(best.lines[0].get_xdata(), [0.1, 0.2, 0.4, 1.6])  # no line through what failed
    for marker, place in (("v", (0.2, 0.01)), ("^", (0.4, 1.0)), ("x", (0.8, 0.5))):
        (mark,) = marks(best, marker)
        np.testing.assert_allclose(data(mark)[:, 0], place)
        assert marker == "x" or to_hex(mark.get_markerfacecolor()) == "#ffffff"
    assert len(marks(best, "o")) == 2
    assert {"at the lower bound", "at the upper bound", "not converged"} < set(texts(figure))


def test_a_single_alpha_has_its_curve_alone():
    figure = tuning_curves([tuned(0.5)], PARAMETERS)
    (panel,) = figure.axes
    assert panel.get_xlabel() == LABELS["lam"]
    assert r"\alpha=0.5" in figure.get_suptitle()
    assert texts(figure) == ["state evolution", r"optimum $\tilde\lambda_\mathrm{opt}$"]
    single = tuning_curves([tuned(0.5, points=(0.1,))], PARAMETERS).axes[0]
    assert len(marks(single, "_")) == len(marks(single, "o")) == 1


def test_unknown_optima_and_values_are_skipped():
    lost = tuned(0.4, math.nan, result="diverged", points=()) | {"value": None, "lam_opt": None}
    partial = tuned(0.6) | {"curve": [{"lam": 0.5, "value": None}, {"lam": 0.2, "value": 3.0}]}
    figure = tuning_curves([tuned(0.2), lost, partial], PARAMETERS)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xdata(), [0.2, 0.6])
    np.testing.assert_allclose(curve(partial), [[0.2], [3.0]])
    assert "not converged" not in texts(figure)
    assert tuning_curves([lost], PARAMETERS) is None


def test_many_alphas_have_six_curves_and_all_optima():
    figure = tuning_curves([tuned(alpha) for alpha in np.geomspace(0.1, 2, 15)], PARAMETERS)
    assert len([line for line in figure.axes[2].lines if line.get_marker() == "."]) == 6
    assert len(marks(figure.axes[0], "o")) == 15


def test_another_observable_gives_its_name():
    figure = tuning_curves([tuned(0.5, of="squared_error")], PARAMETERS)
    assert figure.axes[0].get_ylabel() == LABELS["squared_error"]
    assert tuning_curves([tuned(0.5, of=None)], PARAMETERS).axes[0].get_ylabel() == "observable"


# Thresholds.


def threshold(kappa0, noise=0.0, tokens=2):
    found = {"alpha_interpolation": kappa0 + noise + 0.3, "alpha_recovery": kappa0 / 2 + 0.2, "alpha_bayes": kappa0 / 4}
    found["alpha_interpolation" if noise == 0 else "alpha_recovery"] = math.nan
    return {"kappa0": kappa0, "noise": noise, "tokens": tokens, "result": "successful"} | found


WIDTHS = np.array([0.2, 0.5, 1.0])


@pytest.mark.parametrize("arrange", [list, reversed, shuffled])
def test_thresholds_are_lines_and_null_ones_are_not_drawn(arrange):
    figure = threshold_lines(list(arrange([threshold(k) for k in WIDTHS])), PARAMETERS | {"noise": [0.0]})
    (panel,) = figure.axes
    drawn = {line.get_color(): data(line) for line in panel.lines}
    assert len(drawn) == len(panel.lines) == 2
    np.testing.assert_allclose(drawn[COLOURS[0]], [WIDTHS, WIDTHS / 2 + 0.2])
    np.testing.assert_allclose(drawn[COLOURS[2]], [WIDTHS, WIDTHS / 4])
    assert not any("interpolation" in text for text in texts(figure))
    assert panel.get_xlabel() == LABELS["kappa0"] and panel.get_ylabel() == LABELS["alpha"]
    assert r"\Delta=0$" in figure.get_suptitle() and r"\kappa_0" not in figure.get_suptitle()
    assert {text.get_text() for text in panel.texts} == {
        "no exact recovery",
        "Bayes-optimal only",
        r"$S=S_0$ as $\tilde\lambda\to 0^+$",
    }


def test_names_of_regions_lie_between_their_lines():
    panel = threshold_lines([threshold(k, 0.5) for k in WIDTHS], PARAMETERS).axes[0]
    to_data = panel.transAxes + panel.transData.inverted()
    for text in panel.texts:
        kappa0, alpha = to_data.transform(text.get_position())
        assert (alpha < kappa0 + 0.8) == (text.get_text() == "every label is fitted")
    assert len(panel.texts) == 2


def test_other_lists_are_line_styles():
    records = [threshold(k, noise) for noise in (0.0, 0.3, 0.6, 0.9) for k in np.geomspace(0.05, 1.2, 5)]
    figure = threshold_lines(shuffled(records), PARAMETERS)
    panel = figure.axes[0]
    styles = {line.get_linestyle() for line in panel.lines if line.get_color() == COLOURS[2]}
    assert styles == {"-", "--", ":"}
    assert texts(figure)[:3] == [r"$\Delta=0$", r"$\Delta=0.6$", r"$\Delta=0.9$"]
    assert panel.get_xscale() == "log"
    assert not panel.texts  # regions of several families are not named


def test_the_axis_is_the_longest_list():
    assert threshold_axes([threshold(0.5)]) == ("kappa0", ())
    assert threshold_axes([threshold(0.5, noise) for noise in (0.1, 0.2)]) == ("noise", ())
    assert threshold_axes([threshold(0.5, n, t) for n in (0.1, 0.2) for t in (1, 2, 3)]) == ("tokens", ("noise",))
    assert threshold_axes([threshold(0.5) | {"kappa0": math.nan}]) == ("noise", ())
    assert threshold_families([threshold(k) for k in WIDTHS], ("kappa0",)) == [(0.2,), (0.5,), (1.0,)]
    assert threshold_families([threshold(0.5)], ()) == [()]


def test_single_thresholds_are_markers():
    figure = threshold_lines([threshold(0.5, 0.5)], PARAMETERS)
    assert [line.get_marker() for line in figure.axes[0].lines] == ["o", "o"]
    assert [handle.get_marker() for handle in figure.legends[0].legend_handles] == ["o", "o"]
    noises = threshold_lines([threshold(k, n) for n in (0.0, 0.1, 0.2) for k in (0.3, 0.6)], PARAMETERS)
    recovery = [line for line in noises.axes[0].lines if line.get_color() == COLOURS[0]]
    assert [line.get_marker() for line in recovery] == ["o", "s"]
    np.testing.assert_allclose([data(line)[:, 0] for line in recovery], [(0, 0.35), (0, 0.5)])


def test_tokens_are_whole():
    panel = threshold_lines([threshold(0.5, 0.5, tokens) for tokens in (1, 2, 3)], PARAMETERS).axes[0]
    ticks = panel.get_xticks()
    np.testing.assert_array_equal(ticks, np.round(ticks))
    assert all(line.get_marker() == "o" for line in panel.lines)
    unknown = dict.fromkeys(("alpha_interpolation", "alpha_recovery", "alpha_bayes"))
    assert threshold_lines([threshold(0.5) | unknown], PARAMETERS) is None


def test_texts_keep_clear_of_lines():
    level = np.full(101, 0.5)
    assert clear_place([level], None, level, 10) == pytest.approx((0.5, 0.25), abs=0.11)
    _, y = clear_place([level], level, None, 10)
    assert y > 0.55
    assert clear_place([level, level + 0.05], level, level + 0.05, 10) is None


# Phases.


def cell(alpha, lam, phase="bleed_out"):
    return {"alpha": alpha, "lam": lam, "phase": phase, "result": "successful" if phase else "diverged"}


ALPHAS, PENALTIES = [0.1, 0.2, 0.4, 0.8], [0.01, 0.1, 1.0]
PLANE = [cell(a, lam, PHASES[i]) for a in ALPHAS for i, lam in enumerate(PENALTIES)]


@pytest.mark.parametrize("arrange", [list, reversed, shuffled])
def test_cells_have_the_colour_of_their_phase(arrange):
    figure = phase_diagram(list(arrange(PLANE)), PARAMETERS, {})
    (panel,) = figure.axes
    (mesh,) = panel.collections
    shown = mesh.to_rgba(mesh.get_array())
    assert shown.shape[:2] == (3, 4)
    for row, phase in zip(shown, PHASES, strict=False):
        assert {to_hex(colour) for colour in row} == {LOOK[phase][1].lower()}
    assert panel.get_yscale() == "log" and panel.get_xscale() == "linear"
    names = ["rank collapse", "bleed-out", "outliers only"]
    assert texts(figure) == names
    assert sorted(text.get_text() for text in panel.texts) == sorted(names)


def test_names_are_written_inside_their_phase():
    panel = phase_diagram(PLANE, PARAMETERS, {"bleed_out": [[a, 0.1] for a in ALPHAS]}).axes[0]
    to_data = panel.transAxes + panel.transData.inverted()
    for text in panel.texts:
        _, lam = to_data.transform(text.get_position())
        nearest = int(np.argmin(np.abs(np.log(lam / np.array(PENALTIES)))))
        assert text.get_text() == LOOK[PHASES[nearest]][0]


def test_failed_points_are_grey_and_missing_ones_empty():
    figure = phase_diagram([cell(0.1, 0.1, None), cell(0.2, 0.1), cell(0.2, 0.2)], PARAMETERS, {})
    (mesh,) = figure.axes[0].collections
    colours = mesh.to_rgba(mesh.get_array())
    assert to_hex(colours[0, 0]) == FAILED[1].lower()
    assert colours[1, 0, 3] == 0
    assert texts(figure) == ["bleed-out", FAILED[0]]


def test_a_single_point_of_the_plane_is_a_marker():
    figure = phase_diagram([cell(0.5, 0.1)], PARAMETERS, {"collapse": [[0.5, 0.4]], "replicon": []})
    (mark,) = marks(figure.axes[0], "o")
    np.testing.assert_allclose(data(mark)[:, 0], [0.5, 0.1])
    assert r"\alpha=0.5" in figure.get_suptitle()
    assert texts(figure) == ["bleed-out"]  # the line of collapse is outside


def test_boundaries_are_lines_of_their_own_style():
    found = {
        "collapse": [[a, a] for a in ALPHAS],
        "bleed_out": [[a, 0.05 * a] for a in reversed(ALPHAS)],
        "replicon": [[a, 0.1] for a in ALPHAS[:2]],
        "outlier_1": [[0.4, 0.3]],
        "outlier_2": [[a, 0.5] for a in ALPHAS],
        "outlier_3": [[0.1, 50.0]],
    }
    figure = phase_diagram(PLANE, PARAMETERS, found)
    drawn = [line for line in figure.axes[0].lines if line.get_marker() != "."]
    np.testing.assert_allclose(data(drawn[1]), [ALPHAS, 0.05 * np.array(ALPHAS)])
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn}
    assert len(looks) == 6
    assert drawn[3].get_marker() == "D"
    labels = texts(figure)[3:]
    assert labels[0].startswith("collapse") and labels[1:] == [
        "end of bleed-out",
        "replicon $R=1$",
        "outlier 1 detaches",
        "outlier 2 detaches",
    ]


def test_branches_join_neighbours():
    upper, lower = [(a, 0.5 + a / 10) for a in ALPHAS], [(a, 0.2) for a in ALPHAS[1:]]
    found = branches(shuffled(upper + lower), ALPHAS, False, 0.3)
    assert sorted(map(len, found)) == [3, 4]
    for branch, expected in zip(sorted(found, key=len), (lower, upper), strict=True):
        np.testing.assert_allclose(branch, expected)


def test_branches_end_where_a_row_has_no_point_and_at_jumps():
    gap = branches([(0.1, 0.5), (0.2, 0.5), (0.8, 0.5)], ALPHAS, False, 1.0)
    assert sorted(map(len, gap)) == [1, 2]
    jump = branches([(0.1, 0.01), (0.2, 1.0)], ALPHAS, True, 1.0)
    assert list(map(len, jump)) == [1, 1]
    assert branches([(0.1, math.nan), (0.2, 0.0)], ALPHAS, True, 1.0) == []


def test_cells_end_halfway_between_points_of_the_grid_and_with_it():
    np.testing.assert_allclose(cell_edges([1.0, 10.0, 100.0], True), 10.0 ** np.array([0, 0.5, 1.5, 2]))
    np.testing.assert_allclose(cell_edges([1.0, 2.0, 4.0], False), [1.0, 1.5, 3.0, 4.0])
    np.testing.assert_allclose(cell_edges([0.1, 0.5], False), [0.1, 0.3, 0.5])
    for logarithmic in (True, False):
        edges = cell_edges(PENALTIES, logarithmic)
        inside = [
            low <= x * (1 + 1e-12) and x * (1 - 1e-12) <= high
            for x, (low, high) in zip(PENALTIES, pairwise(edges), strict=True)
        ]
        assert all(inside)
        for single in (0.5, 0.0 if not logarithmic else 3.0):
            low, high = cell_edges([single], logarithmic)
            assert low < single < high and high - low < 0.1


def test_nothing_is_painted_beyond_the_grid():
    """Where S may have collapsed: at α = 0.3, λ̃ = 1.3 for instance, above points that are all bleed-out."""
    corners = [cell(alpha, lam) for alpha in (0.3, 0.5) for lam in (0.05, 1.0)]
    for records in (corners, corners[:2], corners[::2], corners[:1]):
        panel = phase_diagram(records, PARAMETERS, {"collapse": [[0.3, 1.21], [0.5, 1.9]]}).axes[0]
        (mesh,) = panel.collections
        ends = mesh.get_coordinates()[[0, -1], [0, -1]]
        np.testing.assert_allclose(np.transpose(ends), [panel.get_xlim(), panel.get_ylim()])
        for (low, high), name in zip(np.transpose(ends), ("alpha", "lam"), strict=True):
            values = [record[name] for record in records]
            spread = 0.01 * values[0] if len(set(values)) == 1 else 0
            np.testing.assert_allclose([low, high], [min(values) - spread, max(values) + spread])
        assert texts(panel.figure) == ["bleed-out"]  # the line of collapse is outside


def test_a_line_across_a_single_row_has_its_entry():
    row = [cell(alpha, 1.0, "rank_collapse" if alpha < 0.25 else "bleed_out") for alpha in ALPHAS]
    figure = phase_diagram(row, PARAMETERS, {"collapse": [[alpha, 4 * alpha] for alpha in ALPHAS]})
    assert texts(figure)[-1].startswith("collapse")
    assert list(figure.axes[0].get_yticks()) == [1.0]


def test_the_table_has_an_entry_a_point():
    table = phase_table(shuffled(PLANE[:-1]), ALPHAS, PENALTIES)
    np.testing.assert_array_equal(table[:, 0], [0, 1, 2])
    assert np.isnan(table[2, 3])


def test_names_go_to_the_largest_part_and_off_the_lines():
    region = np.zeros((100, 100), bool)
    region[:, :20] = region[60:, 40:] = True
    blocked = np.zeros_like(region)
    x, y = name_place(region, blocked, (0.2, 0.1))
    assert x > 0.5 and y > 0.6
    blocked[80] = True
    _, beside = name_place(region, blocked, (0.2, 0.1))
    assert abs(beside - 0.805) > 0.05
    assert name_place(region, blocked, (0.7, 0.1)) is None
    assert name_place(np.zeros_like(region), blocked, (0.2, 0.1)) is None


# The command line.

LAW = FiniteLaw(np.r_[np.zeros(58), 2.0, 3.0])


def spectrum_point(delta, epsilon, eigenvalues=()):
    spectrum = LearnedSpectrum(LAW, delta, epsilon, 0.8)
    record = {"alpha": 0.5, "lam": epsilon / 10, "phase": spectrum.phase()}
    return SpectrumPoint(record, None, spectrum, np.asarray(eigenvalues, float))


LOST = SpectrumPoint({"alpha": 1.0, "lam": 1.0, "phase": None}, None, None, np.zeros(0))


def test_spectra_of_different_phases_are_all_shown():
    points = [spectrum_point(1.0, 5.0), LOST, spectrum_point(1.0, 2.2), spectrum_point(1.0, 1.0, [0.0, 0.5, 1.0])]
    figure = figures.spectrum_figures(points, PARAMETERS, "train")["spectra"]
    titles = [axis.get_title().split("\n")[0] for axis in figure.axes]
    assert titles == ["rank collapse", "outliers only", "outliers and bulk"]
    assert any("gradient training" in text for text in texts(figure))


def test_spectra_of_one_phase_are_thinned():
    points = [spectrum_point(1.0, epsilon) for epsilon in (0.2, 0.5, 1.0, 1.5, 1.8)]
    figure = figures.spectrum_figures(points, PARAMETERS, "amp")["spectra"]
    assert [axis.get_title().split("=")[-1] for axis in figure.axes] == ["0.02$", "0.1$", "0.18$"]
    assert figures.spectrum_figures([LOST], PARAMETERS, "amp") == {}


def test_commands_make_the_figures_they_promise():
    made = {
        "sensitivity": figures.sensitivity_figures(
            [SensitivityPoint(r, TheoryPoint(r, None, None)) for r in SWEEP], PARAMETERS
        ),
        "tune": figures.tuning_figures([TuningPoint(tuned(a), None) for a in (0.2, 0.5)], PARAMETERS),
        "thresholds": figures.threshold_figures([ThresholdPoint(threshold(k), None) for k in WIDTHS], PARAMETERS),
        "spectrum": figures.spectrum_figures([spectrum_point(1.0, 1.0)], PARAMETERS, "amp"),
        "phase-diagram": figures.phase_figures([PhasePoint(r, None) for r in PLANE], PARAMETERS, {}),
    }
    assert {command: tuple(found) for command, found in made.items()} == {name: FIGURES[name] for name in made}
    assert figures.tuning_figures([TuningPoint(tuned(1, math.nan, points=()), None)], PARAMETERS) == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda arrange: sensitivity_curves(arrange(SWEEP), PARAMETERS),
        lambda arrange: tuning_curves(arrange([tuned(a) for a in (0.2, 0.5, 1.0)]), PARAMETERS),
        lambda arrange: threshold_lines(arrange([threshold(k) for k in WIDTHS]), PARAMETERS),
        lambda arrange: phase_diagram(arrange(PLANE), PARAMETERS, {"collapse": arrange([[a, a] for a in ALPHAS])}),
    ],
    ids=["sensitivity", "tuning", "thresholds", "phase_diagram"],
)
def test_bytes_do_not_depend_on_the_run_or_the_order_of_the_grid(make):
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        first = render(make(list), kind)
        assert first[:4] == start and len(first) > 5000
        assert first == render(make(list), kind)
    assert render(make(list), "png") == render(make(shuffled), "png")
