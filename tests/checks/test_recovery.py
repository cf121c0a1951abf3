"""Noiseless labels, λ̃ → 0⁺: S → S0 above α_perf and not below, in state evolution and in AMP."""

import jax
import numpy as np
import pytest

from amp_attention.amp import solve_amp
from amp_attention.data import generate_data
from amp_attention.problem import attention_problem
from amp_attention.state_evolution import solve_lowest, state_evolution_nodes
from amp_attention.thresholds import recovery_threshold

KAPPA0 = 0.3
ALPHA_PERF = float(recovery_threshold(KAPPA0, 2))
LAMS = (1e-2, 3e-3, 1e-3, 3e-4)


def problem_at(alpha, lam):
    return attention_problem(alpha, lam, kappa0=KAPPA0, noise=0.0)


def theory(alpha):
    nodes = state_evolution_nodes(problem_at(alpha, 0.01), 1024, 4)
    found = [solve_lowest(problem_at(alpha, lam), nodes) for lam in LAMS]
    assert all(bool(solution.successful) for solution in found)
    return np.asarray([float(solution.value.squared_error) for solution in found])


def amp(alpha, seed):
    """Each λ̃ from the estimate of the one before."""
    data, S0 = generate_data(jax.random.key(seed), problem_at(alpha, 0.01), 100)
    errors, start = [], None
    for lam in LAMS:
        solution = solve_amp(problem_at(alpha, lam), data, S0=S0, start=start, max_steps=3000, tolerance=1e-6)
        assert bool(solution.successful)
        errors.append(float(solution.value.squared_error))
        start = solution.value.state
    return np.asarray(errors)


@pytest.mark.slow
def test_recovery_across_the_threshold_in_state_evolution():
    above, below = theory(1.3 * ALPHA_PERF), theory(0.7 * ALPHA_PERF)
    # Above, ‖S − S0‖²/d falls in proportion to a power of λ̃; below it tends to a constant.
    assert np.all(np.diff(np.log(above)) < -1.0) and above[-1] < 0.01
    assert below[-1] > 0.15 and np.diff(np.log(below))[-1] > -0.2


@pytest.mark.slow
def test_recovery_across_the_threshold_in_amp_at_d_100():
    above, below = amp(1.3 * ALPHA_PERF, 0), amp(0.7 * ALPHA_PERF, 0)
    assert np.all(np.diff(np.log(above)) < -0.7) and above[-1] < 0.02
    assert below[-1] > 0.15 and np.diff(np.log(below))[-1] > -0.2
