"""No training does better than the posterior mean."""

import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.bayes import solve_bayes
from amp_attention.problem import attention_problem
from amp_attention.state_evolution import state_evolution_nodes
from amp_attention.tuning import optimise


def rescaled_error(problem, point):
    """‖(β/β0) S − S0‖²_F/d: a student of another temperature learns (β0/β) S0."""
    ratio = problem.channel.head.beta / problem.target.head.beta
    return ratio**2 * point.q - 2 * ratio * point.m + problem.target.Q0


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2, 3])
@pytest.mark.parametrize("kappa0", [0.1, 0.5, 1.0, 2.0])
def test_the_best_regularisation_stays_above_the_bound(kappa0, tokens):
    """At the λ̃ of least squared error along α, from few to many samples per equation."""
    equations = tokens**2 + tokens - 2
    nodes, start = None, None
    for share in (0.2, 0.8, 3.0):
        problem = attention_problem(share / equations, 0.1, tokens=tokens, kappa0=kappa0, noise=0.5)
        nodes = state_evolution_nodes(problem, 1024, 4) if nodes is None else nodes
        best = optimise(problem, nodes, of="squared_error", start=start, tolerance=1e-5)
        assert best.successful
        bound = solve_bayes(problem.target, problem.alpha)
        assert bound.successful
        assert bound.value.squared_error < best.value
        start = None if best.collapse else best.solution.value


@pytest.mark.slow
def test_another_temperature_of_the_student_changes_nothing():
    """The bound holds for (β/β0) S, which estimates S0."""
    problem = attention_problem(0.3, 0.05, beta=1.5, beta0=1.0, noise=0.5)
    nodes = state_evolution_nodes(problem, 1024, 4)
    best = optimise(problem, nodes, of=rescaled_error, tolerance=1e-5)
    assert best.successful
    direct = optimise(problem, nodes, of="squared_error", tolerance=1e-5)
    assert solve_bayes(problem.target, 0.3).value.squared_error < best.value < direct.value
    np.testing.assert_allclose(rescaled_error(problem, best.solution.value), best.value, rtol=1e-6)
    assert jnp.isfinite(direct.value)
