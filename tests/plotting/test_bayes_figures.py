"""Figures of the Bayes-optimal estimator: what is drawn is what was given."""

import math

import numpy as np
import pytest

from amp_attention.plotting import ErrorSeries, bayes_curves, render, shrinkage_curves, squared_error_curves

PARAMETERS = {"tokens": 2, "kappa0": 0.5, "noise": 0.0}


def record(alpha, E, threshold=0.1875):
    return {
        "alpha": alpha,
        "squared_error": E,
        "test_error": E / 3,
        "test_error_plugin": E / 2,
        "alpha_bayes": threshold,
    }


def lines(panel):
    return [np.column_stack(line.get_data()) for line in panel.get_lines() if len(line.get_xdata()) > 2]


def test_errors_are_drawn_in_the_order_of_alpha():
    records = [record(0.1, 0.4), record(0.05, 0.7), record(0.15, 0.1)]
    figure = bayes_curves(records, PARAMETERS)
    error, test = figure.axes
    np.testing.assert_array_equal(lines(error)[0], [[0.05, 0.7], [0.1, 0.4], [0.15, 0.1]])
    np.testing.assert_allclose([line[1, 1] for line in lines(test)], [0.4 / 3, 0.2])
    assert any(list(line.get_xdata()) == [0.1875, 0.1875] for line in error.get_lines())
    assert "0.1875" in figure.get_suptitle()


def test_without_a_threshold_none_is_marked():
    records = [record(alpha, 1 - alpha, math.nan) for alpha in (0.1, 0.2, 0.3)]
    figure = bayes_curves(records, PARAMETERS)
    assert "dashed" not in figure.get_suptitle()
    assert all(len(line.get_xdata()) == 3 for line in figure.axes[0].get_lines())


def test_what_is_not_known_is_left_out():
    assert bayes_curves([record(0.1, math.nan)], PARAMETERS) is None
    figure = bayes_curves([record(alpha, 0.5) for alpha in (0.1, 0.2, 0.3)] + [record(0.4, math.nan)], PARAMETERS)
    assert len(lines(figure.axes[0])[0]) == 3


def test_lines_and_points_of_several_estimators():
    x = np.linspace(0.1, 0.5, 9)
    theory, best = ErrorSeries("theory", x, 1 - x), ErrorSeries("best", list(x), list(1.2 - x))
    amp = ErrorSeries("AMP", (0.2, 0.3, 0.4), (0.81, 0.7, 0.6), (0.02, 0.01, 0.03))
    figure = squared_error_curves([("left", [theory, amp]), ("right", [theory, best])], PARAMETERS, threshold=0.3)
    left, right = figure.axes
    np.testing.assert_allclose(lines(left)[0], np.column_stack([x, 1 - x]))
    (bars,) = left.containers
    np.testing.assert_allclose(bars.lines[2][0].get_segments()[0], [[0.2, 0.79], [0.2, 0.83]])
    assert right.get_lines()[0].get_color() == left.get_lines()[0].get_color()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["theory", "AMP", "best"]
    theory_mark, amp_mark, best_mark = figure.legends[0].get_lines()
    assert amp_mark.get_linestyle() == "None" and amp_mark.get_marker() == "o"
    assert theory_mark.get_linestyle() != best_mark.get_linestyle()
    assert left.get_ylim()[0] == 0 and left.get_ylim()[1] >= 1.1
    assert "exact recovery at $0.3$" in figure.get_suptitle()
    assert len(render(figure, "png")) > 1000


def test_both_axes_logarithmic():
    x = np.geomspace(0.1, 10, 5)
    figure = squared_error_curves([("", [ErrorSeries("E", x, x**-2.0)])], PARAMETERS, logarithmic=True)
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
    assert "dashed" not in figure.get_suptitle() and figure.legends[0].get_title().get_text() == ""


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_shrinkage(kind):
    y = np.linspace(-1, 4, 11)
    figure = shrinkage_curves([("a", y, y / 2), ("b", y, y / 3)], PARAMETERS)
    drawn = [np.column_stack(line.get_data()) for line in figure.axes[0].get_lines()]
    np.testing.assert_allclose(drawn[0], np.column_stack([y, y / 2]))
    np.testing.assert_allclose(drawn[-1][:, 0], drawn[-1][:, 1])  # the diagonal
    assert len(render(figure, kind)) > 1000
