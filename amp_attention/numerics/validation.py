"""Checks of arguments: one clear sentence naming the argument, its value and the allowed range.

Values are checked when they are concrete; a tracer passes, since its value is not known.
"""

import operator

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from amp_attention._typing import Array, Float, ScalarLike


def _is_concrete(value) -> bool:
    return not isinstance(value, Tracer)


def _scalar(name: str, value: ScalarLike, allowed: str, accept) -> Float[Array, ""]:
    if _is_concrete(value):
        number = np.asarray(value)
        if number.dtype.kind not in "iuf" or not np.all(np.isfinite(number)) or not np.all(accept(number)):
            raise ValueError(f"{name} must be {allowed}, got {value}")
    # An explicit dtype: weakly typed numbers would compile everything a second time.
    dtype = jnp.result_type(value)
    return jnp.asarray(value, dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float))


def positive(name: str, value: ScalarLike) -> Float[Array, ""]:
    """`value` as a floating-point array; ValueError unless finite and > 0."""
    return _scalar(name, value, "a finite number > 0", lambda x: x > 0)


def non_negative(name: str, value: ScalarLike) -> Float[Array, ""]:
    """`value` as a floating-point array; ValueError unless finite and ≥ 0."""
    return _scalar(name, value, "a finite number >= 0", lambda x: x >= 0)


def fraction(name: str, value: ScalarLike) -> Float[Array, ""]:
    """`value` as a floating-point array; ValueError unless 0 ≤ value < 1."""
    return _scalar(name, value, "a number >= 0 and < 1", lambda x: (x >= 0) & (x < 1))


def whole_number(name: str, value: int, minimum: int) -> int:
    """`value` as an int; ValueError unless it is a whole number ≥ `minimum`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number >= {minimum}, got {value!r}") from None
    if number < minimum:
        raise ValueError(f"{name} must be a whole number >= {minimum}, got {number}")
    return number
