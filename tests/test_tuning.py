"""The best λ̃: against a brute-force grid, its own second derivative, and at bounds."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import RESULTS
from amp_attention.boundaries import collapse_lam
from amp_attention.problem import attention_problem
from amp_attention.sensitivity import gradient, with_parameter
from amp_attention.state_evolution import solve_lowest, state_evolution_nodes
from amp_attention.tuning import optimise, optimise_each

PROBLEM = attention_problem(0.5, 0.2)
NODES = state_evolution_nodes(PROBLEM, 256, 4)


@pytest.fixture(scope="module")
def optimum():
    return optimise(PROBLEM, NODES)


def error_at(lam, of="test_error", problem=PROBLEM):
    return float(getattr(solve_lowest(with_parameter(problem, "lam", lam), NODES, tolerance=1e-11).value, of))


def test_the_derivative_vanishes_in_a_few_solves(optimum):
    assert optimum.successful and optimum.bound is None
    assert abs(optimum.gradient) < 1e-8
    assert optimum.solves < 10
    assert optimum.curvature > 0
    assert float(gradient(optimum.problem, NODES, optimum.solution)["lam"]) == pytest.approx(
        optimum.gradient, abs=1e-12
    )


def test_no_value_of_a_brute_force_grid_is_lower(optimum):
    grid = np.geomspace(optimum.x / 3, 3 * optimum.x, 13)
    errors = np.asarray([error_at(lam) for lam in grid])
    assert errors.min() >= optimum.value - 1e-11  # the tolerance they are solved to
    # The parabola through the three lowest points of log λ̃ has its minimum there as well.
    k = int(np.argmin(errors))
    assert 0 < k < 12
    x, y = np.log(grid[k - 1 : k + 2]), errors[k - 1 : k + 2]
    a, b, _ = np.polyfit(x - math.log(optimum.x), y, 2)
    assert abs(b / (2 * a)) < 0.03
    assert 2 * a == pytest.approx(optimum.x**2 * optimum.curvature, rel=0.1)


def test_visited_points_are_fixed_points(optimum):
    for lam, value in optimum.visited:
        assert value == pytest.approx(error_at(lam), rel=1e-9)
    assert [lam for lam, _ in optimum.visited] == sorted(lam for lam, _ in optimum.visited)


def test_a_grid_of_alpha_continues_from_one_optimum_to_the_next():
    problems = [with_parameter(PROBLEM, "alpha", alpha) for alpha in (0.3, 0.4, 0.55, 0.8)]
    found = list(optimise_each(problems, NODES))
    assert all(optimum.successful and abs(optimum.gradient) < 1e-8 and optimum.solves < 10 for optimum in found)
    assert [float(optimum.problem.alpha) for optimum in found] == pytest.approx([0.3, 0.4, 0.55, 0.8])
    values = [optimum.value for optimum in found]
    assert values == sorted(values, reverse=True)
    alone = optimise(with_parameter(problems[1], "lam", 0.3), NODES)
    assert alone.x == pytest.approx(found[1].x, rel=1e-7)


def test_any_function_of_problem_and_fixed_point_also_its_maximum():
    found = optimise(PROBLEM, NODES, of=accuracy, maximise=True)
    assert found.successful and abs(found.gradient) < 1e-8 and found.curvature < 0
    for factor in (0.9, 1.1):
        assert 1 - found.value < error_at(factor * found.x, "squared_error") / float(PROBLEM.target.Q0)


def accuracy(problem, point):
    return 1 - point.squared_error / problem.target.Q0


def test_the_end_of_the_bounds_where_the_optimum_lies_outside(optimum):
    low = optimise(PROBLEM, NODES, bounds=(2 * optimum.x, 1.0))
    assert low.successful and low.bound == "lower" and low.x == pytest.approx(2 * optimum.x) and low.gradient > 0
    high = optimise(PROBLEM, NODES, bounds=(1e-3, optimum.x / 2))
    assert high.successful and high.bound == "upper" and high.x == pytest.approx(optimum.x / 2) and high.gradient < 0


def test_from_rank_collapse_where_the_error_is_flat(optimum):
    found = optimise(with_parameter(PROBLEM, "lam", 5.0), NODES, max_solves=40)
    assert found.successful
    assert found.x == pytest.approx(optimum.x, rel=1e-6)


@pytest.mark.parametrize("of", ["replicon", "trace", "zero_fraction"])
def test_an_optimum_where_the_matrix_collapses_says_so(of):
    """All three are extremal where S = 0; only the gradient of the first vanishes on the way there."""
    maximise = of == "zero_fraction"
    found = optimise(PROBLEM, NODES, of=of, maximise=maximise)
    assert found.successful and found.collapse and found.bound is None
    assert found.x == pytest.approx(float(collapse_lam(PROBLEM, NODES)), rel=1e-3)
    assert found.value == pytest.approx(1.0 if maximise else 0.0, abs=1e-8)


def test_bounds_beyond_the_collapse():
    found = optimise(with_parameter(PROBLEM, "lam", 6.0), NODES, bounds=(5.0, 10.0))
    assert found.successful and found.collapse and found.bound is None
    assert float(found.solution.value.rank_fraction) == found.gradient == 0


def test_an_optimum_of_a_learned_matrix_is_none_of_the_collapse(optimum):
    assert not optimum.collapse
    x = float(0.995 * collapse_lam(PROBLEM, NODES))  # next to it, where hardly anything is learned
    close = optimise(PROBLEM, NODES, of=Valley(x))
    assert close.successful and not close.collapse
    assert close.x == pytest.approx(x) and close.solution.value.q < 1e-5


@dataclass(frozen=True)
class Valley:
    """An observable that is least at x."""

    x: float

    def __call__(self, problem, point):
        return (problem.denoiser.lam - self.x) ** 2 + 0 * point.q


def test_failures_are_reported():
    few = optimise(PROBLEM, NODES, max_solves=2)
    assert few.result == RESULTS.max_steps_reached and not few.successful and few.solves == 2 and np.isfinite(few.value)
    unsolved = optimise(PROBLEM, NODES, max_steps=1)
    assert unsolved.result == RESULTS.max_steps_reached and math.isnan(unsolved.x) and unsolved.solution is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bounds": (0.0, 1.0)}, "bounds must be two numbers 0 < lower < upper"),
        ({"bounds": (2.0, 1.0)}, "bounds must be two numbers 0 < lower < upper"),
        ({"tolerance": 0.0}, "tolerance must be a finite number > 0"),
        ({"max_solves": 0}, "max_solves must be a whole number >= 1"),
        ({"of": "error"}, "of must be one of"),
        ({"along": "gamma"}, "parameter must be one of"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        optimise(PROBLEM, NODES, **options)


@pytest.mark.slow
def test_float32():
    problem = attention_problem(0.5, 0.1, dtype=jnp.float32)
    found = optimise(problem, state_evolution_nodes(problem, 256, 4), tolerance=1e-4)
    assert found.successful
    assert found.x == pytest.approx(optimise(PROBLEM, NODES).x, rel=1e-2)
