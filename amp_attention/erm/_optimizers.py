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


class Search(eqx.Module):
    """Where an optimiser is.

    Attributes:
        params: the point to be looked at next.
        state: of the optimiser.
        minimum: what is known of the point before.
    """

    params: Float[Array, "..."]
    state: Any
    minimum: Minimum

    @property
    def ended(self) -> Bool[Array, ""]:
        """Whether nothing is left to do, but for the number of steps."""
        return self.minimum.converged | ~self.minimum.finite


def begin(params: Float[Array, "..."], optimizer: optax.GradientTransformation) -> Search:
    """An optimiser before its first step."""
    with jax.numpy_dtype_promotion("standard"):
        state = optax.with_extra_args_support(optimizer).init(params)
    infinity = jnp.full((), jnp.inf, params.dtype)
    minimum = Minimum(params, infinity, jnp.int32(0), jnp.asarray(False), jnp.asarray(True))
    # Weakly typed numbers would come out of the loop as others.
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), Search(params, state, minimum))


def advance(
    value_fn: Callable[[Array], Scalar],
    search: Search,
    optimizer: optax.GradientTransformation,
    stop: Callable[[Array, Array], tuple[Bool[Array, ""], Scalar]],
    until: Int[Array, ""] | int,
) -> Search:
    """Go on until there are `until` steps, or the search has ended; see `minimise`.

    No number depends on how many calls it takes to get there.
    """
    with jax.numpy_dtype_promotion("standard"):  # optax's own optimisers mix dtypes
        return _advance(value_fn, search, optax.with_extra_args_support(optimizer), stop, until)


def _advance(value_fn, search: Search, optimizer, stop, until) -> Search:
    searches = all(optax.tree_utils.tree_get(search.state, name) is not None for name in ("value", "grad"))
    remembered, fresh = optax.value_and_grad_from_state(value_fn), jax.value_and_grad(value_fn)

    def value_and_grad(params, state) -> tuple[Any, Any]:
        return remembered(params, state=state) if searches else fresh(params)

    def body(search):
        params, state, last = search.params, search.state, search.minimum
        value, gradient = value_and_grad(params, state)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        converged, residual = stop(params, gradient)
        converged = converged & finite

        def step():
            updates, new = optimizer.update(gradient, state, params, value=value, grad=gradient, value_fn=value_fn)
            return optax.apply_updates(params, updates), new

        following, state = jax.lax.cond(converged | ~finite, lambda: (params, state), step)
        best = jnp.where(finite, params, last.params)
        steps = last.steps + jnp.where(converged | ~finite, 0, 1).astype(jnp.int32)
        residual = jnp.where(finite, residual, last.residual)
        return Search(following, state, Minimum(best, residual, steps, converged, finite))

    return jax.lax.while_loop(lambda search: ~search.ended & (search.minimum.steps < until), body, search)


def best(search: Search) -> Minimum:
    """Where a search that is over has arrived."""
    last, minimum = search.params, search.minimum
    # Where the steps ran out the last of them has not been looked at.
    return eqx.tree_at(lambda m: m.params, minimum, jnp.where(search.ended, minimum.params, last))


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
    return best(advance(value_fn, begin(params, optimizer), optimizer, stop, max_steps))
