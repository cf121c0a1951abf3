"""State evolution: fixed points, error bars, robustness, trajectories."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from reference import POINTS
from scipy.stats import t as student

from amp_attention._solution import RESULTS, result_name
from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.state_evolution import (
    informed_start,
    solve_lowest,
    solve_state_evolution,
    state_evolution_nodes,
    trajectory,
    uninformed_start,
    update,
)

REPLICAS = 8


def solve(nodes=4096, replicas=REPLICAS, seed=0, start=None, dtype=None, max_steps=1000, **options):
    problem = attention_problem(dtype=dtype, **options)
    points = state_evolution_nodes(problem, nodes, replicas, seed)
    return problem, points, solve_state_evolution(problem, points, start=start, max_steps=max_steps)


def assert_agrees(point, values):
    """Every value within the Student quantile of false-alarm rate 1e-5, of the combined standard errors."""
    for name, (mean, error) in values.items():
        mine, mine_error = float(getattr(point, name)), float(getattr(point.standard_error, name))
        quantile = student.ppf(1 - 0.5e-5, REPLICAS - 1)
        assert abs(mine - mean) < quantile * np.hypot(mine_error, error), f"{name}: {mine} ± {mine_error}, {mean}"
        assert mine_error < 0.05 * abs(mine), name


@pytest.mark.parametrize("slug", POINTS)
def test_independent_values(slug):
    options, values = POINTS[slug]
    _, _, solution = solve(**options)
    assert result_name(solution.result) == "successful"
    assert_agrees(solution.value, values)


@pytest.mark.slow
@pytest.mark.parametrize("slug", POINTS)
def test_independent_values_with_many_nodes(slug):
    options, values = POINTS[slug]
    _, _, solution = solve(nodes=65536, **options)
    assert_agrees(solution.value, values)


# T = 1, Δ = .5, power law of 1000 eigenvalues: (γ, log n/log d, log λ̃/log d) and E, δ, ε, rank fraction.
LINEAR = {
    "few-modes": ((1.5, 3.0, 1.0), (0.002331753, 0.01123236, 0.2500037, 0.0250)),
    "shallow-spectrum": ((1.0, 2.0, 0.25), (0.08768633, 0.4109053, 1.422684, 0.02416)),
}


@pytest.mark.parametrize("slug", LINEAR)
def test_linear_head_has_no_integration_error(slug):
    (gamma, n, lam), expected = LINEAR[slug]
    law = FiniteLaw.power_law(gamma, 1000)
    _, _, solution = solve(alpha=1000 ** (n - 2), lam=1000**lam, tokens=1, noise=0.5, law=law)
    point = solution.value
    assert solution.successful
    found = [point.squared_error, point.delta, point.epsilon, point.rank_fraction]
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-5)
    np.testing.assert_allclose(found[3], expected[3], rtol=2e-3)
    assert point.errors.squared_error < 1e-15
    np.testing.assert_allclose(point.eta, 1, rtol=1e-12)
    np.testing.assert_allclose(point.test_error, 2 * point.squared_error + 0.5, rtol=1e-6)


def test_standard_errors_are_those_of_independent_solutions():
    # The linear response of each replica against solving with that replica alone.
    problem, nodes, solution = solve(nodes=4096)
    alone = [solve_state_evolution(problem, nodes[r : r + 1]).value for r in range(REPLICAS)]
    for name in ("m", "q", "test_error", "train_objective", "replicon", "zero_fraction"):
        scatter = np.std([float(getattr(point, name)) for point in alone], ddof=1) / np.sqrt(REPLICAS)
        np.testing.assert_allclose(getattr(solution.value.standard_error, name), scatter, rtol=0.15, err_msg=name)
    assert np.isnan(alone[0].standard_error.m)


def test_integration_gap_is_within_its_error():
    _, _, solution = solve()
    gap, error = solution.value.integration_gap, solution.value.standard_error.integration_gap
    # Student quantile of false-alarm rate 1e-5; the seed is fixed.
    assert abs(gap) < student.ppf(1 - 0.5e-5, REPLICAS - 1) * error


_update = eqx.filter_jit(update)


def plain_iteration(problem, nodes, x, damping=0.5):
    """Plain damped iteration, the reference for convergence: (overlaps, evaluations)."""
    for count in range(1, 1501):
        image = _update(problem, x, nodes)
        if jnp.max(jnp.abs(image - x) / (1 + jnp.abs(x))) <= 1e-8:
            return x, count
        x = damping * x + (1 - damping) * image
    raise AssertionError("the plain iteration does not converge: not a case for this test")


HARD = {
    "default": {},
    "interpolation-peak": {"alpha": 0.15, "lam": 1e-3},
    "few-samples": {"alpha": 0.02, "lam": 1e-3},
    "near-recovery": {"alpha": 0.6, "lam": 0.03, "kappa0": 0.3, "noise": 0.0, "beta": 2.0, "beta0": 1.0},
    "cold-student": {"alpha": 2.065, "lam": 1.4e-4, "kappa0": 0.91, "noise": 2.0, "beta": 2.93, "beta0": 0.32},
    "low-rank": {"alpha": 0.52, "lam": 1.6e-3, "kappa0": 0.038, "noise": 0.0, "beta": 2.41, "beta0": 1.08},
    "almost-collapsed": {"alpha": 0.5, "lam": 1.0},
}


SLOWEST = ("interpolation-peak", "few-samples")  # a thousand plain steps


@pytest.mark.parametrize(
    ("slug", "start"),
    [(slug, uninformed_start) for slug in HARD]
    + [pytest.param(slug, informed_start, marks=pytest.mark.slow if slug in SLOWEST else ()) for slug in HARD],
)
def test_converges_where_damping_does_and_faster(slug, start):
    problem = attention_problem(**HARD[slug])
    nodes = state_evolution_nodes(problem, 1024)
    expected, evaluations = plain_iteration(problem, nodes, start(problem))
    solution = solve_state_evolution(problem, nodes, start=start(problem))
    assert result_name(solution.result) == "successful"
    np.testing.assert_allclose(solution.value.overlaps, expected, rtol=1e-5, atol=1e-6)
    assert solution.stats["iterations"] <= evaluations


def test_a_search_cut_short_ends_at_its_best_point():
    """The residual rises on the way to this fixed point; what is returned never does, to the accuracy it has."""
    problem = attention_problem(**HARD["interpolation-peak"])
    nodes = state_evolution_nodes(problem, 1024)
    short = [solve_state_evolution(problem, nodes, max_steps=count) for count in range(1, 16)]
    changes = np.diff([float(solution.stats["residual"]) for solution in short])
    assert np.all(changes <= 1e-13) and np.any(changes == 0)


def test_rank_collapse_is_an_ordinary_point():
    _, _, solution = solve(nodes=4096, lam=3.0)
    point = solution.value
    assert result_name(solution.result) == "successful"
    assert point.q == point.m == point.Sigma == point.trace == point.replicon == 0
    assert point.zero_fraction == 1 and point.rank_fraction == 0
    np.testing.assert_allclose(point.squared_error, 1.5, rtol=1e-12)
    np.testing.assert_allclose(point.train_objective, point.free_entropy, rtol=1e-12)


def test_continuation_starts_from_a_solution():
    problem, nodes, first = solve(nodes=4096, lam=0.05)
    neighbour = attention_problem(lam=0.06)
    warm = solve_state_evolution(neighbour, nodes, start=first.value)
    cold = solve_state_evolution(neighbour, nodes)
    np.testing.assert_allclose(warm.value.overlaps, cold.value.overlaps, rtol=1e-7)
    assert warm.stats["iterations"] < cold.stats["iterations"]
    again = solve_state_evolution(problem, nodes, start=first.value)
    assert again.stats["iterations"] <= 3


def test_lowest_of_several_fixed_points():
    # A cold student with noisy labels has two fixed points; the one of lower free entropy is the minimiser.
    options = {"alpha": 2.863, "lam": 1.562e-4, "kappa0": 1.398, "noise": 2.0, "beta": 2.574, "beta0": 2.574}
    problem, nodes, low = solve(nodes=4096, **options)
    high = solve_state_evolution(problem, nodes, start=informed_start(problem))
    assert low.successful and high.successful
    assert low.value.free_entropy < high.value.free_entropy - 0.01
    assert low.value.stable and not high.value.stable
    for starts in (None, [informed_start(problem), uninformed_start(problem)]):
        best = solve_lowest(problem, nodes, starts)
        np.testing.assert_allclose(best.value.free_entropy, low.value.free_entropy, rtol=1e-9)
        assert best.stats["iterations"] == low.stats["iterations"] + high.stats["iterations"] - 1  # one report


def test_vmap_over_problems_equals_single_runs():
    lams = jnp.array([0.02, 0.1, 0.5])
    problem = attention_problem()
    nodes = state_evolution_nodes(problem)
    problems = eqx.filter_vmap(lambda lam: eqx.tree_at(lambda p: p.denoiser.lam, problem, lam))(lams)
    together = eqx.filter_vmap(lambda p: solve_state_evolution(p, nodes))(problems)
    for lane, lam in enumerate(lams):
        alone = solve_state_evolution(eqx.tree_at(lambda p: p.denoiser.lam, problem, lam), nodes)
        np.testing.assert_allclose(together.value.overlaps[:, lane], alone.value.overlaps, rtol=1e-9)
        assert together.stats["iterations"][lane] == alone.stats["iterations"]
    assert jnp.all(together.successful)


def test_unfinished_run_says_so():
    _, _, solution = solve(nodes=4096, max_steps=3)
    assert result_name(solution.result) == "max_steps_reached"
    assert not solution.successful
    assert solution.stats["residual"] > 1e-8


def test_nan_in_the_problem_is_a_result_not_a_hang():
    problem = eqx.tree_at(lambda p: p.alpha, attention_problem(), jnp.asarray(jnp.nan))
    solution = solve_state_evolution(problem, state_evolution_nodes(problem))
    assert solution.result != RESULTS.successful


def test_float32_agrees_to_1e_3():
    _, _, exact = solve(nodes=4096)
    _, nodes, single = solve(nodes=4096, dtype=jnp.float32)
    assert nodes.dtype == single.value.q.dtype == jnp.float32
    assert result_name(single.result) == "successful"
    for name in ("m", "q", "Sigma", "test_error", "train_objective", "replicon", "zero_fraction", "squared_error"):
        np.testing.assert_allclose(getattr(single.value, name), getattr(exact.value, name), rtol=1e-3, err_msg=name)


@pytest.mark.slow
def test_atoms_approximate_the_law_they_are_quantiles_of():
    problem, nodes, exact = solve(nodes=4096)
    levels = (jnp.arange(400.0) + 0.5) / 400
    atoms = FiniteLaw(problem.target.law.quantiles(levels))
    solution = solve_state_evolution(attention_problem(law=atoms), nodes)
    assert result_name(solution.result) == "successful"
    np.testing.assert_allclose(solution.value.test_error, exact.value.test_error, rtol=5e-3)


def test_trajectory_ends_at_the_fixed_point():
    problem, nodes, solution = solve(nodes=4096)
    path = trajectory(problem, nodes, 60)
    assert path.q.shape == (61,) and path.q_hat.shape == (60,)
    assert path.q[0] == path.m[0] == path.Sigma[0] == 0
    end = jnp.stack([path.Sigma[-1], path.m[-1], path.q[-1]])
    np.testing.assert_allclose(end, solution.value.overlaps, rtol=1e-5)
    np.testing.assert_allclose(path.Sigma_hat[-1], solution.value.Sigma_hat, rtol=1e-5)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"damping": 1.0}, "damping must be a number >= 0 and < 1, got 1.0"),
        ({"tolerance": 0.0}, "tolerance must be a finite number > 0, got 0.0"),
        ({"max_steps": 0}, "max_steps must be a whole number >= 1, got 0"),
    ],
)
def test_arguments_out_of_range_are_named(option, message):
    problem = attention_problem()
    nodes = state_evolution_nodes(problem)
    with pytest.raises(ValueError, match=message):
        solve_state_evolution(problem, nodes, **option)


def test_nodes_and_tokens_out_of_range_are_named():
    with pytest.raises(ValueError, match="nodes must be a whole number >= 1, got 0"):
        state_evolution_nodes(attention_problem(), nodes=0)
    with pytest.raises(ValueError, match=r"tokens must be a whole number >= 1, got 1\.5"):
        attention_problem(tokens=1.5)
