"""The interpolation peak: Newton's method agrees, error bars and diagnostics are there, failures say so."""

import math

import numpy as np
import pytest

from amp_attention.experiments import TheorySettings, peak_sweep
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._peak import _interior_maximum, _maximum
from amp_attention.problem import attention_problem
from amp_attention.state_evolution import solve_lowest, state_evolution_nodes
from amp_attention.tuning import optimise

PROBLEM = attention_problem(0.2, 1e-3, smoothing=0.03)
SETTINGS = TheorySettings(nodes=1024, replicas=4)


def test_a_maximum_has_lower_values_on_both_sides():
    assert _interior_maximum([5.0, 1.0, 2.0, 1.5, 3.0, 2.5, 9.0]) == 4
    assert _interior_maximum([3.0, 2.0, 1.0]) is None
    assert _interior_maximum([]) is None


def test_maximum_of_a_cubic():
    x = np.asarray([0, 1, -1, 2, -2])  # in any order
    place, height, curvature = _maximum(x, 3 + 0.6 * x - x**2 + 0.1 * x**3)
    roots = (2 - math.sqrt(4 - 0.72)) / 0.6
    assert place == pytest.approx(roots)
    assert height == pytest.approx(3 + 0.6 * place - place**2 + 0.1 * place**3)
    assert curvature == pytest.approx(-2 + 0.6 * place)
    assert _maximum(x, x + 0.01 * x**2)[0] == 2 and _maximum(x, -x + 0.01 * x**2)[0] == -2


def test_labels_without_noise_have_no_peak():
    with pytest.raises(ValueError, match="noise must be a finite number > 0, got 0"):
        next(peak_sweep(attention_problem(0.2, 1e-3, noise=0.0), [1e-3]))


@pytest.mark.slow
def test_the_peak_is_one_and_is_followed():
    first, second = (point.record for point in peak_sweep(PROBLEM, [1e-3, 3e-4], SETTINGS))
    for record in (first, second):
        assert record["result"] == "successful" and record["curvature"] < 0
        assert record["standard_error"]["value"] > 0 and record["standard_error"]["alpha"] > 0
        assert 0 < record["two_minima"] < 0.1 and record["switching"] > 0
    assert second["value"] > first["value"] and second["alpha"] < first["alpha"]
    nodes = state_evolution_nodes(PROBLEM, 1024, 4)
    for factor in (0.9, 1.1):
        aside = solve_lowest(problem_at(PROBLEM, alpha=factor * first["alpha"]), nodes)
        assert bool(aside.successful) and float(aside.value.test_error) < first["value"]


@pytest.mark.slow
def test_newton_finds_the_same_peak():
    """Where there are derivatives to follow."""
    problem = attention_problem(0.28, 0.01, noise=2.0, smoothing=0.03)
    (record,) = (point.record for point in peak_sweep(problem, [0.01], SETTINGS))
    nodes = state_evolution_nodes(problem, 1024, 4)
    newton = optimise(problem, nodes, along="alpha", maximise=True, bounds=(0.2, 1.0))
    assert newton.successful and newton.bound is None
    # The nodes that jump near the peak leave the cubic off it, by much less than the integration error.
    error = record["standard_error"]
    assert abs(record["value"] - newton.value) < 0.1 * error["value"]
    assert abs(record["alpha"] - newton.x) < 0.5 * error["alpha"]


@pytest.mark.slow
def test_without_a_peak_the_record_says_so():
    (record,) = (point.record for point in peak_sweep(problem_at(PROBLEM, lam=0.05), [0.05], SETTINGS))
    assert record["result"] == "left_domain" and "message" in record
    assert math.isnan(record["value"]) and record["standard_error"] is None
    assert np.isnan(record["alpha"])
