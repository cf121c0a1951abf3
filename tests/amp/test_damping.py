"""The rule that raises the damping, on sequences whose right answer is known."""

import jax.numpy as jnp
import numpy as np

from amp_attention.amp import AutomaticDamping


def dampings(residuals, directions):
    """Damping after each of the given residuals; the change of S has the given direction in a plane."""
    rule = AutomaticDamping()
    state = rule.init(jnp.zeros((2, 2)))
    out = []
    for residual, angle in zip(residuals, directions, strict=True):
        change = jnp.diag(jnp.array([np.cos(angle), np.sin(angle)]))
        state = rule.update(state, jnp.asarray(residual), change)
        out.append(float(state.damping))
    return np.array(out)


STEPS = np.arange(60)


def test_fast_convergence_is_left_alone():
    assert np.all(dampings(0.5**STEPS, np.pi * STEPS) == 0)


def test_slow_drift_is_left_alone():
    assert np.all(dampings(0.99**STEPS, 0 * STEPS) == 0)


def test_a_steady_oscillation_raises_the_damping_again_and_again():
    damping = dampings(np.ones(60), np.pi * STEPS)
    assert damping[0] == 0 and np.all(np.diff(damping) >= 0)
    assert np.unique(damping).size >= 4 and damping[-1] < 1


def test_a_slowly_shrinking_oscillation_raises_it():
    assert dampings(0.95**STEPS, np.pi * STEPS)[-1] > 0


def test_a_stalled_rotation_raises_it():
    assert dampings(np.ones(60), np.pi / 2 * STEPS)[-1] > 0


def test_it_stays_below_one():
    steps = np.arange(600)
    assert dampings(np.ones(600), np.pi * steps)[-1] <= 0.9
