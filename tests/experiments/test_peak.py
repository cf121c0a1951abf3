"""The interpolation peak: Newton's method agrees, error bars and diagnostics are there, failures say so."""

import math
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import RESULTS, Solution
from amp_attention.experiments import TheorySettings, _peak, peak_sweep
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._peak import _interior_maximum, _maximum, _Row
from amp_attention.problem import attention_problem
from amp_attention.state_evolution import solve_lowest, state_evolution_nodes
from amp_attention.tuning import optimise

PROBLEM = attention_problem(0.2, 1e-3, smoothing=0.03)
SETTINGS = TheorySettings(nodes=1024, replicas=4)


def test_a_maximum_has_lower_values_on_both_sides():
    assert _interior_maximum([5.0, 1.0, 2.0, 1.5, 3.0, 2.5, 9.0]) == 4
    assert _interior_maximum([3.0, 2.0, 1.0]) is None
    assert _interior_maximum([]) is None


X = np.asarray([0.0, -1.0, 1.0, -2.0, 2.0])  # in any order


def test_maximum_of_a_cubic():
    found = _maximum(X, 3 + 0.6 * X - X**2 + 0.1 * X**3)
    place = (2 - math.sqrt(4 - 0.72)) / 0.6
    assert found.place == pytest.approx(place)
    assert found.height == pytest.approx(3 + 0.6 * place - place**2 + 0.1 * place**3)
    assert found.curvature == pytest.approx(-2 + 0.6 * place)
    assert max(found.scatter, found.place_error, found.height_error) < 1e-14
    assert _maximum(X, X + 0.01 * X**2).place == 2 and _maximum(X, -X + 0.01 * X**2).place == -2


def test_polynomials_of_lower_degree_have_their_maximum():
    """The leading coefficients of the cubic are zero then."""
    assert _maximum(X, 2 - X**2).place == pytest.approx(0, abs=1e-12)
    assert _maximum(X, 3 * X).place == 2 and _maximum(X, -3 * X).place == -2
    assert _maximum(X, X**2 + 0.5 * X**3).place == pytest.approx(-4 / 3)  # the minimum at 0 is as close
    for constant in (0.0, 1.0):  # which end does not matter
        found = _maximum(X, np.full(5, constant))
        assert abs(found.place) == 2 and math.isnan(found.height)


def test_errors_of_a_maximum_cover_the_scatter():
    """68 % within one error, though the scatter is known from one residual alone: false alarm in 1 of 10⁴ runs."""
    curve = 1 + 0.1 * X - 0.3 * X**2 + 0.02 * X**3
    exact, noise = _maximum(X, curve), 1e-3 * np.random.default_rng(0).normal(size=(4000, 5))
    found = [_maximum(X, curve + row) for row in noise]
    for name in ("place", "height"):
        errors = np.asarray([getattr(one, f"{name}_error") for one in found])
        off = np.abs([getattr(one, name) - getattr(exact, name) for one in found])
        assert np.mean(off < errors) == pytest.approx(0.683, abs=4 * math.sqrt(0.683 * 0.317 / 4000))
    assert np.sqrt(np.mean([one.scatter**2 for one in found])) == pytest.approx(1e-3, rel=0.05)


@dataclass
class Made(_Row):
    """A row whose observable is made up, instead of solved."""

    values: dict[int, float] = field(default_factory=dict)

    def value(self, k):
        results = RESULTS.successful if math.isfinite(self.values[k]) else RESULTS.integration_error
        self.solved[k] = Solution(None, results, {"residual": jnp.inf})
        return self.values[k]


def made(values):
    """`values` is a function of k."""
    everywhere = {k: float(values(k)) for k in range(-20, 60)}
    return Made(PROBLEM, 0.15, jnp.zeros(()), "test_error", None, None, values=everywhere)


@pytest.fixture
def without_errors(monkeypatch):
    monkeypatch.setattr(_peak, "_known", lambda solution: bool(solution.successful))


@pytest.mark.usefixtures("without_errors")
def test_a_peak_is_walked_to_whether_or_not_all_points_are_known():
    smooth = lambda k: 1 - 0.01 * (k - 6.3) ** 2  # noqa: E731
    found = made(smooth).peak(0)
    assert found.nearest == 6
    assert found.alpha == pytest.approx(0.15 * math.exp(0.03 * 6.3))
    assert found.maximum.height == pytest.approx(1)
    gaps = made(lambda k: math.nan if k in (6, 8) else smooth(k)).peak(0)
    assert gaps.nearest == 7  # one that is known
    assert gaps.alpha == pytest.approx(found.alpha)


@pytest.mark.usefixtures("without_errors")
@pytest.mark.parametrize("values", [lambda k: k, lambda k: -k, lambda k: 0.44, lambda k: 0, lambda k: abs(k - 40)])
def test_without_an_interior_maximum_the_message_says_where_it_was_sought(values):
    row = made(values)
    found = row.peak(row.scan())
    assert bool(found.result == RESULTS.left_domain)
    low, high = (0.15 * math.exp(0.03 * end(row.solved)) for end in (min, max))
    assert found.message == f"no interior maximum of test_error over α between {low:.4g} and {high:.4g}"


@pytest.mark.usefixtures("without_errors")
def test_jumps_are_named_as_the_cause():
    torn = made(lambda k: [2, 0, 2, 1][k % 4]).peak(0)
    assert bool(torn.result == RESULTS.integration_error)
    assert torn.message.startswith("test_error jumps between the fixed points next to α = ")
    unknown = made(lambda k: math.nan if k % 3 else 1.0).peak(0)
    assert bool(unknown.result == RESULTS.integration_error)
    assert unknown.message.startswith("4 of 7 fixed points next to α = 0.15 could not be solved: the equations jump")
    for message in (torn.message, unknown.message):
        assert "start the list of λ̃ from a larger one" in message and "raise" not in message


def test_labels_without_noise_have_no_peak():
    with pytest.raises(ValueError, match="noise must be a finite number > 0, got 0"):
        peak_sweep(attention_problem(0.2, 1e-3, noise=0.0), [1e-3])


@pytest.mark.parametrize(
    ("lams", "words"),
    [
        (1e-3, "lams must be a list of numbers > 0, got 0.001"),
        (jnp.float64(1e-3), "lams must be a list of numbers > 0, got"),
        (None, "lams must be a list of numbers > 0, got None"),
        ("1e-3", "lams must be a list of numbers > 0, got '1e-3'"),
        ([[1e-3, 1e-4]], "lams must be a list of numbers > 0, got"),
        (["1e-3"], "every value of lams must be a finite number > 0, got '1e-3'"),
        ([1e-3, math.nan], "every value of lams must be a finite number > 0, got nan"),
        ([math.inf], "every value of lams must be a finite number > 0, got inf"),
        ([1e-3, 0.0], "every value of lams must be a finite number > 0, got 0"),
        ([1e-3, -1e-4], "every value of lams must be a finite number > 0, got -0.0001"),
        ([1e-4, 3e-4], "lams must be in falling order, each value once, got 0.0003 after 0.0001"),
        ([1e-3, 1e-3], "lams must be in falling order, each value once, got 0.001 after 0.001"),
    ],
)
def test_wrong_lists_are_refused_at_once(lams, words):
    with pytest.raises(ValueError) as raised:
        peak_sweep(PROBLEM, lams, SETTINGS)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize("of", ["error", "standard_error", 3, None, len])
def test_unknown_observables_are_refused_at_once(of):
    with pytest.raises(ValueError, match=r"of must be one of Sigma, .*test_error.*, got"):
        peak_sweep(PROBLEM, [1e-3], SETTINGS, of=of)


def test_an_empty_list_has_no_peaks():
    assert list(peak_sweep(PROBLEM, [], SETTINGS)) == []


def test_rank_collapse_has_no_peak():
    """Where e is constant over α."""
    (record,) = (point.record for point in peak_sweep(PROBLEM, [3.0], SETTINGS))
    assert record["result"] == "left_domain"
    assert record["message"].startswith("no interior maximum of test_error over α between 0.136")
    assert math.isnan(record["value"]) and math.isnan(record["alpha"]) and record["standard_error"] is None


@pytest.mark.slow
def test_the_peak_is_one_and_is_followed():
    collapsed, first, second = (point.record for point in peak_sweep(PROBLEM, [3.0, 1e-3, 3e-4], SETTINGS))
    assert collapsed["result"] == "left_domain"  # which harms none of the others
    assert collapsed.keys() - {"message"} <= first.keys()
    for record in (first, second):
        assert record["result"] == "successful" and record["curvature"] < 0
        assert record["standard_error"]["value"] > 0 and record["standard_error"]["alpha"] > 0
        assert 0 < record["scatter"] < record["standard_error"]["value"]
        assert abs(math.log(record["alpha"] / record["alpha_nearest"])) <= 0.015 * (1 + 1e-9)
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
def test_two_ways_to_the_peak_agree_within_their_errors():
    """Where the fixed points depend on where they were continued from; their nodes are the same."""
    *_, followed = (point.record for point in peak_sweep(PROBLEM, [1e-3, 3e-4, 1e-4], SETTINGS))
    (alone,) = (point.record for point in peak_sweep(PROBLEM, [1e-4], SETTINGS))
    assert followed["alpha"] != pytest.approx(alone["alpha"], rel=0.01)
    for name in ("alpha", "value"):
        error = math.hypot(followed["standard_error"][name], alone["standard_error"][name])
        assert abs(followed[name] - alone[name]) < 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SETTINGS, TheorySettings(nodes=256, replicas=1)])  # one tells no standard error
def test_without_a_peak_the_record_says_so(settings):
    (record,) = (point.record for point in peak_sweep(problem_at(PROBLEM, lam=0.05), [0.05], settings))
    assert record["result"] == "left_domain"
    assert record["message"].startswith("no interior maximum of test_error over α between 0.1")
    assert math.isnan(record["value"]) and record["standard_error"] is None
    assert np.isnan(record["alpha"])
