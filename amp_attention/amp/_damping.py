"""When and how much to damp. `damping` is the weight of the OLD iterate: 0 is the plain step."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Int, Scalar, ScalarLike
from amp_attention.numerics.validation import fraction

_WINDOW = 10  # steps between decisions
_FAST = 0.1  # a window that lowers the residual by this factor is left alone
_STALLED = 0.9  # a window that lowers it by less than this is going nowhere
_ALIGNED = 0.9  # mean cosine of successive changes above which the iterate drifts along one direction
_SHRINK = 0.8  # factor on 1 − damping at each raise
_LARGEST = 0.9


class AbstractDamping(eqx.Module):
    """A rule for the damping, fed the residual of the undamped map at every step."""

    @abc.abstractmethod
    def init(self, S: Float[Array, "d d"]) -> Any:
        """The rule's state; it has an attribute `damping`."""

    @abc.abstractmethod
    def update(self, state: Any, residual: Scalar, change: Float[Array, "d d"]) -> Any:
        """The state for the next step, given the undamped residual and the undamped change of S."""


class FixedState(eqx.Module):
    """State of `FixedDamping`."""

    damping: Scalar


class FixedDamping(AbstractDamping):
    """The same damping at every step.

    Args:
        damping: weight of the old iterate, 0 ≤ damping < 1.
    """

    damping: Float[Array, ""]

    def __init__(self, damping: ScalarLike):
        self.damping = fraction("damping", damping)

    def init(self, S: Float[Array, "d d"]) -> FixedState:
        """The constant."""
        return FixedState(self.damping.astype(S.dtype))

    def update(self, state: FixedState, residual: Scalar, change: Float[Array, "d d"]) -> FixedState:
        """Unchanged."""
        return state


class AutomaticState(eqx.Module):
    """State of `AutomaticDamping`.

    Attributes:
        damping: current weight of the old iterate.
        best: smallest residual of the current window.
        previous_best: smallest residual of all earlier windows at this damping.
        alignment: sum of the cosines of successive changes in the window.
        steps: steps taken in the window.
        change: last undamped change of S.
    """

    damping: Scalar
    best: Scalar
    previous_best: Scalar
    alignment: Scalar
    steps: Int[Array, ""]
    change: Float[Array, "d d"]


class AutomaticDamping(AbstractDamping):
    """Plain steps while they converge; more damping each time the residual stalls.

    The smallest residual of a window of steps is compared with that of the windows before, and successive changes of S
    with each other. Changes that point against each other (negative mean cosine) are an oscillation, which damping
    shortens: 1 − damping shrinks by a factor unless the residual falls fast anyway. A residual that hardly falls at
    all raises the damping too, except where all changes point the same way: there damping would only slow the drift.
    """

    def init(self, S: Float[Array, "d d"]) -> AutomaticState:
        """No damping."""
        infinity, zero = jnp.asarray(jnp.inf, S.dtype), jnp.zeros((), S.dtype)
        return AutomaticState(zero, infinity, infinity, zero, jnp.int32(0), jnp.zeros_like(S))

    def update(self, state: AutomaticState, residual: Scalar, change: Float[Array, "d d"]) -> AutomaticState:
        """Count the step; decide at the end of a window."""
        norms = jnp.sqrt(jnp.sum(change**2) * jnp.sum(state.change**2))
        cosine = jnp.where(norms > 0, jnp.sum(change * state.change) / jnp.where(norms > 0, norms, 1), 0)
        best = jnp.minimum(state.best, residual)
        alignment = state.alignment + cosine
        steps = state.steps + 1

        ends = steps == _WINDOW
        oscillates = (best > _FAST * state.previous_best) & (alignment < 0)
        stalls = (best > _STALLED * state.previous_best) & (alignment < _ALIGNED * _WINDOW)
        raised = jnp.minimum(1 - _SHRINK * (1 - state.damping), _LARGEST)
        infinity, zero = jnp.asarray(jnp.inf, best.dtype), jnp.zeros_like(best)
        return AutomaticState(
            damping=jnp.where(ends & (oscillates | stalls), raised, state.damping),
            best=jnp.where(ends, infinity, best),
            previous_best=jnp.where(ends, jnp.minimum(best, state.previous_best), state.previous_best),
            alignment=jnp.where(ends, zero, alignment),
            steps=jnp.where(ends, 0, steps),
            change=change,
        )
