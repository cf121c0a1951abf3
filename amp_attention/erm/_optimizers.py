"""The one place where an optax optimiser is run on the weights."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optax.tree_utils

from amp_attention._typing import Array, Bool, Float, Int, Scalar

OPTIMIZERS = ("lbfgs", "adam")


def named_optimizer(name: str, learning_rate: Scalar, max_steps: int) -> optax.GradientTransformation:
    """`lbfgs` with its zoom line search, or full-batch `adam` whose rate falls to 0 as a cosine over `max_steps`."""
    if name == "lbfgs":
        return optax.lbfgs()
    return optax.adam(lambda step: learning_rate * (1 + jnp.cos(jnp.pi * jnp.minimum(step / max_steps, 1))) / 2)


class Minimum(eqx.Module):
    """Where `minimise` stopped.

    Attributes:
        params: the point.
        residual: what `stop` said of it.
        steps: optimiser steps taken.
        converged: whether `stop` was satisfied.
        finite: whether value and gradient stayed finite; if not, `params` is the last point where they were.
    """

    params: Float[Array, "..."]
    residual: Scalar
    steps: Int[Array, ""]
    converged: Bool[Array, ""]
    finite: Bool[Array, ""]


def minimise(
    value_fn: Callable[[Array], Scalar],
    params: Float[Array, "..."],
    optimizer: optax.GradientTransformation,
    stop: Callable[[Array, Array], tuple[Bool[Array, ""], Scalar]],
    max_steps: int,
) -> Minimum:
    """Run an optax optimiser until `stop` is satisfied.

    Args:
        value_fn: the objective.
        params: starting point.
        optimizer: any optax transformation; those with a line search get `value`, `grad` and `value_fn`.
        stop: of the point and the gradient there; returns whether to stop, and a residual.
        max_steps: most optimiser steps.
    """
    with jax.numpy_dtype_promotion("standard"):  # optax's own optimisers mix dtypes
        return _minimise(value_fn, params, optax.with_extra_args_support(optimizer), stop, max_steps)


def _minimise(value_fn, params, optimizer, stop, max_steps):
    dtype = params.dtype
    state = optimizer.init(params)
    searches = all(optax.tree_utils.tree_get(state, name) is not None for name in ("value", "grad"))
    remembered, fresh = optax.value_and_grad_from_state(value_fn), jax.value_and_grad(value_fn)

    def value_and_grad(params, state) -> tuple[Any, Any]:
        return remembered(params, state=state) if searches else fresh(params)

    def going(carry):
        _, _, minimum = carry
        return ~minimum.converged & minimum.finite & (minimum.steps < max_steps)

    def body(carry):
        params, state, last = carry
        value, gradient = value_and_grad(params, state)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        converged, residual = stop(params, gradient)
        converged = converged & finite

        def advance():
            updates, new = optimizer.update(gradient, state, params, value=value, grad=gradient, value_fn=value_fn)
            return optax.apply_updates(params, updates), new

        following, state = jax.lax.cond(converged | ~finite, lambda: (params, state), advance)
        best = jnp.where(finite, params, last.params)
        steps = last.steps + jnp.where(converged | ~finite, 0, 1).astype(jnp.int32)
        residual = jnp.where(finite, residual, last.residual)
        return following, state, Minimum(best, residual, steps, converged, finite)

    infinity = jnp.full((), jnp.inf, dtype)
    start = Minimum(params, infinity, jnp.int32(0), jnp.asarray(False), jnp.asarray(True))
    last, _, minimum = jax.lax.while_loop(going, body, (params, state, start))
    exhausted = ~minimum.converged & minimum.finite  # the last step has not been looked at
    return eqx.tree_at(lambda m: m.params, minimum, jnp.where(exhausted, last, minimum.params))
