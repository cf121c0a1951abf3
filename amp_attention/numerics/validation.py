"""Checks of arguments: one clear sentence naming the argument, its value and the allowed range.

Values are checked when they are concrete; of a tracer, whose value is not known, shape and type are.
"""

import operator
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from amp_attention._typing import Array, Float, PRNGKeyArray, Scalar, ScalarLike

MOST_SAMPLES = 2**31 - 1  # their indices have 32 bits
LARGEST_SEED = 2**63 - 1
ROUNDING, AMP_ROUNDING = 8, 20  # where residuals stop falling in float32, in units of ε; see `reachable_tolerance`
_DTYPES = ("float32", "float64")


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | bytes) else str(value)


def _is_concrete(value) -> bool:
    return not isinstance(value, Tracer)


def real_array(value: Any) -> Any:
    """`value` as an array of JAX or NumPy; None for what is no array of real numbers, as booleans are none."""
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except jax.errors.TracerArrayConversionError:  # a list of tracers
        array = jnp.asarray(value)
    except (ValueError, TypeError):  # nested lists of different lengths, for instance
        return None
    real = jnp.issubdtype(array.dtype, np.floating) or jnp.issubdtype(array.dtype, np.integer)
    return array if real else None


def _scalar(name: str, value: ScalarLike, allowed: str, accept) -> Float[Array, ""]:
    number = real_array(value)
    refused = number is None or number.shape != ()
    if not refused and _is_concrete(value):
        number = np.asarray(number)  # JAX would trace what is asked of it under jit
        refused = not (np.isfinite(number) and accept(number))
    if refused:
        raise ValueError(f"{name} must be {allowed}, got {_shown(value)}")
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


def finite(name: str, value: ScalarLike) -> Float[Array, ""]:
    """`value` as a floating-point array; ValueError unless it is a finite number."""
    return _scalar(name, value, "a finite number", lambda x: True)


def whole_number(name: str, value: int, minimum: int, maximum: int | None = None) -> int:
    """`value` as an int; ValueError unless it is a whole number ≥ `minimum`, and ≤ `maximum` where there is one."""
    allowed = f"a whole number >= {minimum}" + ("" if maximum is None else f" and <= {maximum}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be {allowed}, got {value!r}") from None
    if number < minimum or (maximum is not None and number > maximum) or isinstance(value, bool):
        raise ValueError(f"{name} must be {allowed}, got {value}")
    return number


def instance_of(name: str, value: Any, kind: type | tuple[type, ...], allowed: str) -> None:
    """ValueError unless `value` is an instance of `kind`, which a sentence calls `allowed`."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def file_path(name: str, value: str | os.PathLike) -> None:
    """ValueError unless `value` is a path, which need not exist; an empty one is none."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"{name} must be the path of a file, got {value!r}")


def square_matrix(name: str, value: Float[Array, "d d"], d: int) -> None:
    """ValueError unless `value` is a d×d array of finite real numbers."""
    matrix = real_array(value)
    if matrix is None:
        raise ValueError(f"{name} must be an array of real numbers of shape {(d, d)}, got {described(value)}")
    if matrix.shape != (d, d):
        raise ValueError(f"{name} must have shape {(d, d)}, got {matrix.shape}")
    if _is_concrete(value) and not np.all(np.isfinite(matrix)):
        wrong = np.argwhere(~np.isfinite(np.asarray(matrix)))
        i, j = wrong[0]
        raise ValueError(f"{name} must have finite entries, got {matrix[i, j]} at {(int(i), int(j))}")


def described(value: Any) -> str:
    """An array by its dtype and shape, anything else by itself."""
    return f"{value.dtype} of shape {value.shape}" if hasattr(value, "dtype") else repr(value)


def random_key(name: str, key: PRNGKeyArray) -> None:
    """ValueError unless `key` is one random key, as `jax.random.key` makes them (or `jax.random.PRNGKey`)."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    raw = dtype == np.uint32 and shape in ((2,), (4,))  # of threefry and of rbg
    if not (typed or raw):
        raise ValueError(f"{name} must be one random key of jax.random.key, got {described(key)}")


def floating_type(name: str, dtype: Any) -> np.dtype:
    """`dtype` as a NumPy dtype; ValueError unless it is float32 or float64."""
    try:
        given = np.dtype(dtype)
    except TypeError:
        given = None
    if given is None or given.name not in _DTYPES:
        raise ValueError(f"{name} must be {' or '.join(_DTYPES)}, got {_shown(dtype)}")
    return given


def reachable_tolerance(name: str, value: ScalarLike, dtype: Any, rounding: int = ROUNDING) -> Scalar:
    """A tolerance on a residual as an array of `dtype`; ValueError unless > 0, and in float32 at least `rounding` ε.

    Residuals of numbers of order 1 stop falling at a few ε = 1.2e-7: an iteration that asks for less never ends. In
    float64 any tolerance is taken, since no use of it comes near.

    Args:
        name, value: the argument.
        dtype: of the computation.
        rounding: where the residual stops, in units of ε: `AMP_ROUNDING` in AMP. Measured over problems and sizes
            d = 20 to 120: 3 in state evolution, 7 in training, 15 in AMP.
    """
    tolerance = positive(name, value)
    least = rounding * float(np.finfo(np.float32).eps)
    if np.dtype(dtype) == np.float32 and _is_concrete(value) and float(value) < least:
        raise ValueError(
            f"{name} must be a finite number >= {least:.3g} in float32, whose rounding hides smaller residuals, "
            f"got {_shown(value)}; use float64"
        )
    return tolerance.astype(dtype)
