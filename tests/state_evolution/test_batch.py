"""Many problems at once: each solution is its own."""

import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.data import device_mesh
from amp_attention.problem import attention_problem
from amp_attention.state_evolution import solve_each, solve_lowest, state_evolution_nodes

PROBLEMS = [attention_problem(alpha, 0.1) for alpha in (0.4, 0.6, 0.9)]
NODES = state_evolution_nodes(PROBLEMS[0], 256, 4)


@pytest.mark.parametrize("devices", [None, 2])
def test_lanes_are_single_runs(devices):
    mesh = None if devices is None else device_mesh(devices)
    alone = [solve_lowest(problem, NODES) for problem in PROBLEMS]
    for one, other in zip(alone, solve_each(PROBLEMS, NODES, mesh=mesh), strict=True):
        assert result_name(other.result) == "successful"
        assert other.stats["iterations"] == one.stats["iterations"]
        np.testing.assert_allclose(other.value.overlaps, one.value.overlaps, rtol=1e-10)
        np.testing.assert_allclose(other.value.errors.q, one.value.errors.q, rtol=1e-6)


def test_one_that_fails_spoils_no_other():
    """NaN in the nodes' problem of the second lane only."""
    bad = attention_problem(0.6, 0.1, noise=1e200)
    found = solve_each([PROBLEMS[0], bad, PROBLEMS[2]], NODES, mesh=device_mesh(2))
    names = [result_name(solution.result) for solution in found]
    assert names[0] == names[2] == "successful" and names[1] != "successful"
    np.testing.assert_allclose(found[2].value.q, solve_lowest(PROBLEMS[2], NODES).value.q, rtol=1e-10)


def test_starts_and_wrong_lists():
    known = solve_lowest(PROBLEMS[0], NODES)
    again = solve_each(PROBLEMS[:2], NODES, starts=[known.value, jnp.asarray([0.5, 1.0, 1.2])])
    assert again[0].stats["iterations"] < known.stats["iterations"]
    np.testing.assert_allclose(again[0].value.q, known.value.q, rtol=1e-7)
    with pytest.raises(ValueError, match="starts must be as many as the 2 problems, got 1"):
        solve_each(PROBLEMS[:2], NODES, starts=[None])
    assert solve_each([], NODES) == []
