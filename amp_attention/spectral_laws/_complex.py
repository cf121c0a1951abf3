"""Complex arithmetic on the closed upper half plane, spelled out in real numbers.

The generic complex division and square root guard against overflow and all sign conventions, and dominate the time
of compilation on CPUs; here numbers are of moderate size and Im z >= 0.
"""

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Complex, Float


def as_complex(value: Float[Array, "..."]) -> Complex[Array, "..."]:
    """`value + 0i`; strict type promotion asks for it before a product with complex numbers."""
    return jax.lax.complex(value, jnp.zeros_like(value))


def scaled(factor: Float[Array, "..."], z: Complex[Array, "..."]) -> Complex[Array, "..."]:
    """Product of a real and a complex array."""
    return jax.lax.complex(factor * z.real, factor * z.imag)


def modulus(z: Complex[Array, "..."]) -> Float[Array, "..."]:
    """|z|."""
    return jnp.sqrt(z.real**2 + z.imag**2)


def reciprocal(z: Complex[Array, "..."]) -> Complex[Array, "..."]:
    """1/z."""
    return scaled(1 / (z.real**2 + z.imag**2), z.conj())


def root(z: Complex[Array, "..."]) -> Complex[Array, "..."]:
    """√z for Im z >= 0, in the first quadrant: a negative real number counts as the limit from above.

    At z = 0, where the derivative is infinite, it is set to zero.
    """
    square = z.real**2 + z.imag**2
    zero = square == 0
    larger = jnp.sqrt((jnp.sqrt(jnp.where(zero, jnp.ones_like(square), square)) + jnp.abs(z.real)) / 2)
    smaller = z.imag / (2 * larger)
    larger = jnp.where(zero, jnp.zeros_like(larger), larger)
    right = z.real >= 0
    return jax.lax.complex(jnp.where(right, larger, smaller), jnp.where(right, smaller, larger))
