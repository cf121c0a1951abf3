"""Checks of arguments take what is inside their range, and nothing else."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from amp_attention.numerics.validation import fraction, non_negative, positive, whole_number


def test_a_traced_value_is_taken_and_a_traced_shape_is_not():
    """Under jit the value is not known, shape and type are."""
    assert jax.eval_shape(lambda x: positive("x", x), jax.ShapeDtypeStruct((), jnp.float64)).shape == ()
    for wrong in (jax.ShapeDtypeStruct((2,), jnp.float64), jax.ShapeDtypeStruct((), jnp.complex128)):
        with pytest.raises(ValueError, match="x must be a finite number > 0"):
            jax.eval_shape(lambda x: positive("x", x), wrong)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE)
def test_numbers_are_taken_inside_their_range_alone(value):
    for check, inside in ((positive, value > 0), (non_negative, value >= 0), (fraction, 0 <= value < 1)):
        if inside:
            assert float(check("x", value)) == value
        else:
            with pytest.raises(ValueError, match="x must be a"):
                check("x", value)


@given(st.sampled_from([math.nan, math.inf, -math.inf]), st.sampled_from([float, np.float32, np.float64, jnp.asarray]))
def test_no_check_takes_what_is_not_finite(value, kind):
    for check in (positive, non_negative, fraction):
        with pytest.raises(ValueError, match="x must be a"):
            check("x", kind(value))


@given(st.integers(-(2**70), 2**70), st.integers(0, 3))
def test_whole_numbers_are_taken_from_their_minimum_on(value, minimum):
    if value >= minimum:
        assert whole_number("x", value, minimum) == value
    else:
        with pytest.raises(ValueError, match=f"x must be a whole number >= {minimum}, got {value}"):
            whole_number("x", value, minimum)


@given(FINITE | st.booleans() | st.none() | st.text(max_size=3))
def test_nothing_else_is_a_whole_number(value):
    with pytest.raises(ValueError, match="x must be a whole number >= 1"):
        whole_number("x", value, 1)
