"""AMP on drawn instances against state evolution: the gap shrinks with d, at the end and along the way."""

import jax
import numpy as np
import pytest

from amp_attention.amp import solve_amp
from amp_attention.data import generate_data
from amp_attention.generalisation import measure_test_error
from amp_attention.problem import attention_problem
from amp_attention.state_evolution import solve_state_evolution, state_evolution_nodes, trajectory

SEEDS = 4
STEPS = 12


def instances(problem, d):
    """Test errors and the q of the first steps, one row a seed."""
    errors, paths = [], []
    for seed in range(SEEDS):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(11), seed))
        data, S0 = generate_data(keys[0], problem, d)
        solution = solve_amp(problem, data, S0=S0)
        assert solution.successful
        errors.append(measure_test_error(problem, solution.value.S, S0, keys[1], 100_000)[0])
        # A damped run follows state evolution only before the damping sets in.
        paths.append(solve_amp(problem, data, S0=S0, damping=0.0, max_steps=STEPS).value.history.q)
    return np.array(errors), np.array(paths)


@pytest.mark.slow
def test_gap_to_state_evolution_shrinks_with_dimension(capsys):
    problem = attention_problem()
    nodes = state_evolution_nodes(problem, 1 << 15)
    theory = solve_state_evolution(problem, nodes).value
    expected = np.array(trajectory(problem, nodes, STEPS).q[1:])
    rows = {}
    for d in (50, 100, 200):
        errors, paths = instances(problem, d)
        gaps = errors - float(theory.test_error)
        distance = np.sqrt(np.mean((paths.mean(axis=0) - expected) ** 2))
        rows[d] = gaps.mean(), gaps.std(ddof=1) / np.sqrt(SEEDS), distance
    with capsys.disabled():
        for d, (gap, error, distance) in rows.items():
            print(
                f"\nd = {d}: test error above theory by {gap:.5f} ± {error:.5f}; rms gap of q(t) {distance:.4f}", end=""
            )
    assert abs(rows[200][0]) < abs(rows[50][0])
    assert rows[200][2] < rows[50][2]
    # The finite-d gap is O(1/d): at d = 200 it is below 2 % of the error, give or take four standard errors.
    assert abs(rows[200][0]) < 0.02 * float(theory.test_error) + 4 * rows[200][1]
