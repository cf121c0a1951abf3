"""Physics identities of the free entropy: overlaps are derivatives of the potential, Φ* is the training objective."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.problem import attention_problem
from amp_attention.state_evolution import free_entropy, solve_state_evolution, state_evolution_nodes

PROBLEMS = {
    "default": {},
    "three-tokens": {"tokens": 3, "alpha": 0.3, "noise": 0.3},
    "temperatures": {"alpha": 0.6, "lam": 0.03, "kappa0": 0.3, "noise": 0.0, "beta": 2.0, "beta0": 1.0},
    "linear": {"tokens": 1, "alpha": 0.3, "lam": 0.1},
}


SLOW = ("three-tokens",)


@pytest.fixture(scope="module", params=[pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in PROBLEMS])
def solved(request):
    problem = attention_problem(**PROBLEMS[request.param])
    nodes = state_evolution_nodes(problem)
    return problem, nodes, solve_state_evolution(problem, nodes, tolerance=1e-11).value


def test_free_entropy_is_the_training_objective(solved):
    _, _, point = solved
    np.testing.assert_allclose(point.free_entropy, point.train_objective, rtol=1e-7)


def test_free_entropy_is_stationary(solved):
    problem, nodes, point = solved
    value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda order: free_entropy(problem, order, nodes)))(
        point.order
    )
    np.testing.assert_allclose(value, point.free_entropy, rtol=1e-12)
    scale = jnp.max(jnp.abs(jnp.stack(jax.tree.leaves(point.order))))
    for slope in jax.tree.leaves(gradient):
        assert abs(slope) < 1e-9 * (1 + scale)


def test_envelope_identities(solved):
    """dΦ*/dλ̃ = Tr S/d and dΦ*/dα = M, by central differences of solved fixed points on the same nodes."""
    problem, nodes, point = solved

    def solved_entropy(where, value):
        moved = eqx.tree_at(where, problem, value)
        return solve_state_evolution(moved, nodes, start=point, tolerance=1e-11).value.free_entropy

    def slope(where):
        x = where(problem)
        step = 1e-4 * x
        return (solved_entropy(where, x + step) - solved_entropy(where, x - step)) / (2 * step)

    np.testing.assert_allclose(slope(lambda p: p.denoiser.lam), point.trace, rtol=1e-5)
    average = problem.channel.average(problem.target, *point.overlaps, nodes)
    np.testing.assert_allclose(slope(lambda p: p.alpha), jnp.mean(average.potential), rtol=1e-5)


def test_squared_error_is_its_expansion(solved):
    problem, _, point = solved
    np.testing.assert_allclose(
        point.squared_error, problem.target.Q0 - 2 * point.m + point.q, atol=1e-7 * problem.target.Q0
    )
