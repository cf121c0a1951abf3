"""Bisection on arrays of independent brackets."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Bool, Float


def bisect(
    is_left: Callable[[Float[Array, "..."]], Bool[Array, "..."]],
    left: Float[Array, "..."],
    right: Float[Array, "..."],
) -> Float[Array, "..."]:
    """Point where `is_left` turns from True to False in [left, right], to the last bit of the type; elementwise.

    Carries no derivative. The returned midpoint lies within one rounding of the switch.

    Args:
        is_left: monotone predicate, True to the left of the wanted point.
        left: left ends.
        right: right ends, same shape; `right < left` is allowed and turns "left" into "the side of `left`".

    Returns:
        Array of the shape of the brackets.
    """
    left, right = jax.lax.stop_gradient((left, right))

    def halve(_, bracket):
        a, b = bracket
        middle = a + (b - a) / 2
        inside = is_left(middle)
        return jnp.where(inside, middle, a), jnp.where(inside, b, middle)

    steps = jnp.finfo(left.dtype).nmant + 6
    a, b = jax.lax.fori_loop(0, steps, halve, (left, right))
    return a + (b - a) / 2
