import jax
import numpy as np
import pytest

from amp_attention.experiments import (
    TheorySettings,
    _theory,
    predicted_trajectory,
    problem_at,
    problem_grid,
    refine,
    state_evolution_sweep,
)
from amp_attention.experiments._predictions import is_logarithmic
from amp_attention.spectrum import learned_spectrum

SETTINGS = TheorySettings(nodes=128, replicas=2)  # shapes that no other test module has: the traces are counted here
LAMS = np.geomspace(0.02, 1.0, 20).tolist()


@pytest.fixture(scope="module")
def traces():
    """Names of the functions that JAX has traced so far."""
    names = []

    def listen(event, duration_secs, **metadata):
        if event == "/jax/core/compile/jaxpr_trace_duration":
            names.append(str(metadata.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    return names


@pytest.fixture(scope="module")
def sweep(traces):
    """A sweep over 20 values of λ̃, and the functions that were traced for it."""
    before = len(traces)
    points = list(state_evolution_sweep(problem_grid([0.5], LAMS), SETTINGS))
    return points, traces[before:]


def test_a_sweep_traces_the_solver_at_most_twice(sweep):
    points, traced = sweep
    assert len(points) == len(LAMS)
    assert 1 <= traced.count("_search") <= 2, sorted(set(traced))


def test_a_second_sweep_traces_nothing_of_the_solver(sweep, traces):
    before = len(traces)
    list(state_evolution_sweep(problem_grid([0.6], [0.03, 0.3]), SETTINGS))
    assert "_search" not in traces[before:]


def test_points_are_where_they_should_be(sweep):
    points, _ = sweep
    assert [point.record["lam"] for point in points] == pytest.approx(LAMS)
    for point in points:
        record = point.record
        assert record["result"] == "successful"
        assert record["residual"] <= 1e-8
        assert record["train_objective"] == pytest.approx(record["free_entropy"], abs=1e-8)
        assert record["rank_fraction"] == pytest.approx(1 - record["zero_fraction"])
        assert record["standard_error"].keys() == set(_theory.THEORY_NAMES)
    trace = [point.record["trace"] for point in points]
    assert trace == sorted(trace, reverse=True)


def test_continuation_finds_what_a_fresh_start_finds(sweep):
    points, _ = sweep
    (alone,) = state_evolution_sweep(problem_grid([0.5], LAMS[-1:]), SETTINGS)
    assert alone.record["q"] == pytest.approx(points[-1].record["q"], rel=1e-6)


def test_a_sweep_may_come_past_zero(sweep):
    """Above interpolation λ̃ = 0 is a point like any other, but has no logarithm."""
    points = list(state_evolution_sweep(problem_grid([0.6, 0.7], [0.1, 0.0]), SETTINGS))
    assert [point.record["lam"] for point in points] == [0.1, 0.0, 0.1, 0.0]
    assert all(point.successful for point in points)


def test_an_unfinished_point_says_so_and_leaves_the_others_alone(sweep):
    # At λ̃ = 5 everything is at zero and three steps are enough; they are not at 0.05.
    settings = TheorySettings(nodes=128, replicas=2, max_iterations=3)
    first, middle, last = state_evolution_sweep(problem_grid([0.5], [5.0, 0.05, 6.0]), settings)
    assert first.record["result"] == last.record["result"] == "successful"
    assert middle.record["result"] == "max_steps_reached"
    assert middle.record["message"]


def test_an_exception_inside_a_point_is_a_result(monkeypatch):
    def solve(problem, nodes, **_):
        raise FloatingPointError("nan")

    monkeypatch.setattr(_theory, "solve_lowest", solve)
    (point,) = state_evolution_sweep(problem_grid([0.5], [0.1]), SETTINGS)
    assert point.record["result"] == "nonfinite"
    assert "FloatingPointError" in point.record["message"]
    assert point.value is None


def test_narrow_students_are_marked(sweep):
    grid = problem_grid([0.5], [0.05])
    wide, narrow = (
        next(iter(state_evolution_sweep(grid, TheorySettings(nodes=128, replicas=2, kappa=kappa))))
        for kappa in (1.0, 0.1)
    )
    assert not wide.record["width_binds"]
    assert narrow.record["width_binds"]


def test_learned_spectrum_has_mass_one_and_the_moments_of_the_point(sweep):
    point = sweep[0][5]
    law = learned_spectrum(point.problem, point.value)
    s, density = map(np.nan_to_num, law.grid())
    assert float(law.atom) == pytest.approx(point.record["zero_fraction"], abs=1e-12)
    assert np.trapezoid(density, s) + float(law.atom) == pytest.approx(1, abs=1e-3)
    assert np.trapezoid(s * density, s) == pytest.approx(point.record["trace"], abs=1e-3)
    assert np.trapezoid(s**2 * density, s) == pytest.approx(point.record["q"], abs=2e-3)


def test_trajectory_starts_at_zero_and_ends_at_the_fixed_point(sweep):
    point = sweep[0][10]
    nodes = _theory.TheorySweep(SETTINGS).nodes_for(point.problem)
    path = predicted_trajectory(point, nodes, 40)
    for name in ("Sigma", "m", "q"):
        assert path[name].shape == (41,)
        assert path[name][0] == 0
        assert path[name][-1] == pytest.approx(point.record[name], rel=1e-4)


def test_problem_at_changes_only_what_it_is_told():
    (problem,) = problem_grid([0.5], [0.1], noise=0.2)
    moved = problem_at(problem, alpha=0.7, lam=0.3)
    assert (float(moved.alpha), float(moved.denoiser.lam)) == (0.7, 0.3)
    assert jax.tree.structure(moved) == jax.tree.structure(problem)
    assert float(problem_at(problem).alpha) == 0.5


def test_refine_keeps_the_grid_and_its_spacing():
    dense = refine([0.01, 0.1, 1.0], 30)
    assert {0.01, 0.1, 1.0} <= set(dense)
    assert dense == sorted(dense)
    assert 25 < len(dense) < 35
    assert is_logarithmic(dense)
    assert refine([0.5], 30) == [0.5]
    assert refine([0.2, 0.4], 5)[1] == pytest.approx(0.25)
