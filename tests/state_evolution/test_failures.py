"""State evolution where the undamped map does not converge, heavy damping, and problems that fail beside others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.problem import attention_problem
from amp_attention.state_evolution import (
    solve_each,
    solve_lowest,
    solve_state_evolution,
    state_evolution_nodes,
    trajectory,
)

FEW = attention_problem(0.02, 1e-3)
NODES = state_evolution_nodes(FEW, 1024)
FAR = jnp.array([0.0, 0.0, 10.0])  # q = 10
TOLERANCE = 1e-8


@pytest.fixture(scope="module")
def solved():
    return solve_state_evolution(FEW, NODES)


def test_the_undamped_map_runs_in_a_cycle_and_the_solver_converges(solved):
    """α = 0.02, λ̃ = 1e-3, from q = 10: q rises beyond 10⁵, falls to 0 and so on; every number stays finite."""
    path = trajectory(FEW, NODES, 40, FAR)
    q = np.array(path.q)
    assert np.all(np.isfinite(q)) and q.max() > 1e5 and np.sum(q == 0) >= 5
    found = solve_state_evolution(FEW, NODES, start=FAR)
    assert solved.successful and found.successful
    np.testing.assert_allclose(found.value.overlaps, solved.value.overlaps, rtol=10 * TOLERANCE)


@pytest.mark.parametrize("damping", [0.0, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("problem", [FEW, attention_problem(0.5, 0.05)], ids=["few-samples", "default"])
def test_any_damping_ends_at_the_same_point_or_says_that_it_did_not(problem, damping):
    """Within ten times the tolerance, of |x| + 1; with few samples heavily damped steps may creep without arriving."""
    expected = solve_state_evolution(problem, NODES).value.overlaps
    found = solve_state_evolution(problem, NODES, damping=damping, max_steps=2000)
    short = solve_state_evolution(problem, NODES, damping=damping, max_steps=4)
    if found.successful:
        assert found.stats["residual"] <= TOLERANCE
        np.testing.assert_allclose(found.value.overlaps, expected, rtol=10 * TOLERANCE, atol=10 * TOLERANCE)
    else:
        assert problem is FEW and damping >= 0.99
    for solution in (short, found):
        if not solution.successful:
            assert result_name(solution.result) == "max_steps_reached" and solution.stats["residual"] > TOLERANCE
    assert not short.successful


def test_problems_that_fail_spoil_no_other():
    """Overflowing noise in the second, a NaN in the last; as many evaluations and the same numbers as alone."""
    nodes = state_evolution_nodes(FEW, 64, 4)
    problems = [attention_problem(0.4, 0.1), attention_problem(0.6, 0.1, noise=1e200), attention_problem(0.9, 0.1)]
    stacked = [*problems, jax.tree.map(lambda x: x * jnp.nan, problems[0])]
    together = solve_each(stacked, nodes)
    for i, (problem, found) in enumerate(zip(stacked, together, strict=True)):
        alone = solve_lowest(problem, nodes)
        assert result_name(found.result) == result_name(alone.result)
        assert bool(found.successful) == (i in (0, 2))
        assert found.stats["iterations"] == alone.stats["iterations"]
        if found.successful:
            np.testing.assert_allclose(found.value.overlaps, alone.value.overlaps, rtol=1e-10)
            np.testing.assert_allclose(found.value.test_error, alone.value.test_error, rtol=1e-10)
    assert len({int(found.stats["iterations"]) for found in together}) > 1
