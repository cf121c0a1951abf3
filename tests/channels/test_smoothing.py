"""Passing smoothly between two proximal minima: exact where there is one, a potential with its gradient where not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.channels import ERMChannel
from amp_attention.problem import attention_problem
from amp_attention.sensitivity import with_parameter
from amp_attention.state_evolution import solve_state_evolution, state_evolution_nodes

TAU = 0.03
HARD, SMOOTH = attention_problem(0.2, 1e-4), attention_problem(0.2, 1e-4, smoothing=TAU)
NODES = state_evolution_nodes(HARD, 2048, 4)
ONE_MINIMUM, TWO_MINIMA = jnp.asarray([1.2, 1.05, 0.85]), jnp.asarray([195.0, 1.87, 4.3])


@eqx.filter_jit
def average(problem, overlaps):
    return problem.channel.average(problem.target, *overlaps, NODES)


def test_nothing_changes_where_every_sample_has_one_minimum():
    for one, other in zip(
        jax.tree.leaves(average(HARD, ONE_MINIMUM)), jax.tree.leaves(average(SMOOTH, ONE_MINIMUM)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    found = SMOOTH.channel.minima(SMOOTH.target, *ONE_MINIMUM, NODES)
    assert np.all(found.fraction == 0) and np.all(found.switching == 0)


def test_little_changes_where_some_have_two():
    found = SMOOTH.channel.minima(SMOOTH.target, *TWO_MINIMA, NODES)
    assert 0.01 < np.mean(found.fraction) < 0.1 and np.mean(found.switching) > 0
    hard, smooth = average(HARD, TWO_MINIMA), average(SMOOTH, TWO_MINIMA)
    gap = np.asarray(hard.potential - smooth.potential)
    assert np.all(gap >= -1e-12) and np.mean(gap) < TAU**2  # the smooth minimum lies below, by O(τ²)
    assert np.mean(hard.test_error) == pytest.approx(float(np.mean(smooth.test_error)), rel=1e-12)


def test_the_averages_are_the_gradient_of_the_smooth_potential():
    step = 1e-5 * jnp.asarray([100.0, 1.0, 1.0])
    envelope = average(SMOOTH, TWO_MINIMA)
    for k, name in enumerate(("d_Sigma", "d_m", "d_q")):
        shift = jnp.zeros(3).at[k].set(step[k])
        up, down = average(SMOOTH, TWO_MINIMA + shift), average(SMOOTH, TWO_MINIMA - shift)
        slope = float(np.mean(up.potential - down.potential) / (2 * step[k]))
        assert float(np.mean(getattr(envelope, name))) == pytest.approx(slope, rel=1e-5)


def test_jumps_belong_to_the_divergence():
    """E tr ∂g = −2 ∂M/∂q holds for the whole derivative of g, jumps included, within 12 standard errors of the mean.

    For Student's t with three degrees of freedom, false alarms are rarer than 2e-3.
    """
    found = average(SMOOTH, TWO_MINIMA)
    jumps = SMOOTH.channel.minima(SMOOTH.target, *TWO_MINIMA, NODES).switching
    gap = np.asarray(found.divergence + 2 * found.d_q)
    assert abs(np.mean(gap)) < 12 * np.std(gap, ddof=1) / 2
    assert np.mean(jumps) > 0


@pytest.mark.slow
def test_a_fixed_point_where_the_hard_minimum_leaves_none():
    nodes = state_evolution_nodes(HARD, 4096, 8)
    near = solve_state_evolution(with_parameter(SMOOTH, "alpha", 0.16), nodes).value
    hard = solve_state_evolution(HARD, nodes, start=near, max_steps=300)
    smooth = solve_state_evolution(SMOOTH, nodes, start=near)
    assert result_name(hard.result) == "integration_error"
    assert bool(smooth.successful) and smooth.stats["iterations"] < 100
    error = float(smooth.value.errors.test_error)
    assert abs(float(hard.value.test_error - smooth.value.test_error)) < error
    gap = float(smooth.value.free_entropy - smooth.value.train_objective)
    assert abs(gap) < TAU**2


def test_wrong_arguments():
    with pytest.raises(ValueError, match="smoothing must be a finite number > 0, got 0"):
        ERMChannel(HARD.channel.loss, smoothing=0.0)
    with pytest.raises(ValueError, match="smoothing must be given"):
        HARD.channel.minima(HARD.target, *ONE_MINIMUM, NODES)
