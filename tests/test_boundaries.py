"""Lines in the (α, λ̃) plane: what they separate, their derivatives, and S = 0 exactly above collapse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import RESULTS
from amp_attention.amp import solve_amp
from amp_attention.boundaries import collapse_lam, crossing, crossing_gradient, margins, named_margin, replicon_margin
from amp_attention.data import generate_data
from amp_attention.problem import attention_problem
from amp_attention.sensitivity import parameter, with_parameter
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.state_evolution import solve_lowest, state_evolution_nodes

PROBLEM = attention_problem(0.5, 0.05)
NODES = state_evolution_nodes(PROBLEM, 256, 4)


def solved(problem, **changes):
    for name, value in changes.items():
        problem = with_parameter(problem, name, value)
    return solve_lowest(problem, NODES, tolerance=1e-11)


def test_rank_collapse_of_the_lowest_fixed_point():
    lam = float(collapse_lam(PROBLEM, NODES))
    below, above = solved(PROBLEM, lam=0.99 * lam), solved(PROBLEM, lam=1.01 * lam)
    assert bool(below.successful) and bool(above.successful)
    assert below.value.q > 0 and below.value.zero_fraction < 1
    assert above.value.q == 0 and above.value.zero_fraction == 1


def test_rank_collapse_is_differentiable():
    slopes = eqx.filter_jit(eqx.filter_grad(collapse_lam))(PROBLEM, NODES)
    names, h = ("alpha", "noise", "kappa0", "beta", "beta0"), 1e-4
    for name in names:
        x = parameter(PROBLEM, name)
        above, below = (collapse_lam(with_parameter(PROBLEM, name, x + s * h), NODES) for s in (1, -1))
        np.testing.assert_allclose(parameter(slopes, name), (above - below) / (2 * h), rtol=1e-6)
    along = jax.jit(lambda t: collapse_lam(with_parameter(PROBLEM, "beta0", PROBLEM.target.head.beta + t), NODES))
    np.testing.assert_allclose(jax.jacfwd(along)(0.0), parameter(slopes, "beta0"), rtol=1e-10)


@pytest.mark.slow
def test_amp_finds_zero_exactly_above_rank_collapse():
    """At d = 60 the largest eigenvalue of B scatters by about 0.1 of the edge: 1.3 λ̃_c is ten of its scatters away."""
    lam = float(collapse_lam(PROBLEM, NODES))
    for seed in range(4):
        data, _ = generate_data(jax.random.key(seed), PROBLEM, 60)
        above = solve_amp(with_parameter(PROBLEM, "lam", 1.3 * lam), data)
        below = solve_amp(with_parameter(PROBLEM, "lam", 0.6 * lam), data)
        assert bool(above.successful) and np.all(np.asarray(above.value.S) == 0) and above.value.gradient_norm == 0
        assert bool(below.successful) and below.value.q > 0


def test_bulk_edge_at_the_threshold():
    problem, name, bounds = attention_problem(2.0, 0.3, kappa0=0.3), "bleed_out", (0.2, 2.0)
    margin = margins()[name]
    found = crossing(problem, NODES, name, bounds=bounds)
    assert found.successful and bounds[0] < found.x < bounds[1]
    assert abs(found.margin) < 1e-9
    for factor, sign in ((0.98, -1), (1.02, 1)):
        aside = with_parameter(problem, "lam", factor * found.x)
        assert sign * margin(aside, solved(aside).value) > 0
    slopes = crossing_gradient(NODES, margin, found)
    h = 1e-3
    along = [crossing(with_parameter(problem, "alpha", 2.0 + s * h), NODES, margin, bounds=bounds).x for s in (-1, 1)]
    np.testing.assert_allclose(slopes["alpha"], (along[1] - along[0]) / (2 * h), rtol=1e-5)


def test_detachment_of_an_outlier():
    problem = attention_problem(0.4, 0.3, law=FiniteLaw(jnp.asarray([0.0] * 30 + [1.0, 2.0])))
    found = crossing(problem, NODES, "outlier_1", along="alpha", bounds=(0.02, 1.0))
    assert found.successful
    delta = float(found.solution.value.delta)
    # Below s_1 = 2 lie 30 zeros and one eigenvalue 1: 1 = δ² (30/4 + 1)/31.
    assert delta == pytest.approx(np.sqrt(31 / 8.5), rel=1e-7)


def test_the_replicon_line():
    """R = 1 does not occur for the squared loss at these parameters: take another level, R = .3."""
    found = crossing(PROBLEM, NODES, lambda p, point: replicon_margin(p, point) - 0.7, bounds=(1e-3, 0.5))
    assert found.successful
    assert float(found.solution.value.replicon) == pytest.approx(0.3, abs=1e-9)


def test_a_margin_that_keeps_its_sign():
    found = crossing(PROBLEM, NODES, replicon_margin, bounds=(0.04, 0.06))
    assert found.result == RESULTS.left_domain and np.isnan(found.x)
    with pytest.raises(ValueError, match="found must be a crossing with a solution"):
        failed = crossing(PROBLEM, NODES, replicon_margin, bounds=(0.04, 0.06), max_steps=1)
        crossing_gradient(NODES, replicon_margin, failed)


def test_names_of_margins():
    assert named_margin("outlier_2") == margins(2)["outlier_2"] and named_margin("replicon") is replicon_margin
    for name in ("test_error", "outlier_0", "outlier"):
        with pytest.raises(
            ValueError, match=f"margin must be replicon, bleed_out, outlier_k or a function, got '{name}'"
        ):
            crossing(PROBLEM, NODES, name, bounds=(0.1, 1.0))


def test_only_the_nuclear_norm_collapses():
    other = eqx.tree_at(lambda p: p.denoiser, PROBLEM, PROBLEM.channel)
    with pytest.raises(TypeError, match="denoiser must be NuclearNorm to have a rank collapse, got ERMChannel"):
        collapse_lam(other, NODES)
