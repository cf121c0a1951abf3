r"""Quadrature for μ_δ on the real axis, along Biane's curve.

For real u let v(u) >= 0 be the largest v with ∫μ0(dx)/((u-x)²+v²) >= 1/δ² (zero if there is none). Then
x(u) = u + δ² Re G0(u+iv) runs through the support while u runs through {v > 0}, with density v/(πδ²) and principal
value (x-u)/δ² (Biane, Indiana Univ. Math. J. 46 (1997) 705). -G0'(u) is convex in every gap of supp μ0, so that the gap
splits the support of μ_δ exactly if its minimum lies below 1/δ²: the number of cells is known in advance.
"""

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar
from amp_attention.numerics.bisection import bisect
from amp_attention.numerics.quadrature import tanh_sinh
from amp_attention.spectral_laws._complex import as_complex, scaled
from amp_attention.spectral_laws._law import AbstractSpectralLaw
from amp_attention.spectral_laws._subordination import outer_turning_points


def _phi(law: AbstractSpectralLaw, u: Float[Array, "..."]) -> Float[Array, "..."]:
    """-G0'(u) = ∫μ0(dx)/(u-x)² at real u outside supp μ0."""
    return -law.cauchy_prime(as_complex(u)).real


def _gap_ends(law: AbstractSpectralLaw, delta: Scalar) -> tuple[Float[Array, " g"], Float[Array, " g"]]:
    """In each gap of supp μ0, where v vanishes and where it rises again; the same point twice if the gap is closed."""
    left, right = law.components()
    a, b = right[:-1], left[1:]
    slope = lambda u: jax.jvp(lambda t: _phi(law, t), (u,), (jnp.ones_like(u),))[1]  # noqa: E731
    lowest = bisect(lambda u: ~(slope(u) >= 0), a, b)
    within = lambda u: ~(_phi(law, u) < 1 / delta**2)  # noqa: E731
    split = _phi(law, lowest) < 1 / delta**2
    down, up = bisect(within, a, lowest), bisect(within, b, lowest)
    return jnp.where(split, down, lowest), jnp.where(split, up, lowest)


def cells(law: AbstractSpectralLaw, delta: Scalar) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
    """Ends in u of the cells, one for each component of supp μ0; carry no derivative."""
    law, delta = jax.lax.stop_gradient((law, delta))
    first, last = outer_turning_points(law, delta)
    down, up = _gap_ends(law, delta)
    return jnp.concatenate([first[None], up]), jnp.concatenate([down, last[None]])


def height(law: AbstractSpectralLaw, delta: Scalar, u: Float[Array, "..."]) -> Float[Array, "..."]:
    """v(u) by bisection on (0, δ], then two Newton steps that give it its derivatives."""
    fixed_law, fixed_delta, fixed_u = jax.lax.stop_gradient((law, delta, u))

    def excess(law, delta, u, v):
        return -law.cauchy(jax.lax.complex(u, v)).imag * delta**2 / v - 1

    v = bisect(
        lambda v: excess(fixed_law, fixed_delta, fixed_u, v) > 0, jnp.zeros_like(u), jnp.broadcast_to(delta, u.shape)
    )
    for _ in range(2):
        fall = lambda t: excess(law, delta, u, t)  # noqa: E731
        value, slope = jax.jvp(fall, (v,), (jnp.ones_like(v),))
        safe = v * slope < -jnp.sqrt(jnp.finfo(v.dtype).eps)
        v = v - jnp.where(safe, value / jnp.where(safe, slope, -jnp.ones_like(slope)), jnp.zeros_like(v))
    return v


def edges(law: AbstractSpectralLaw, delta: Scalar) -> Float[Array, "M 2"]:
    """Images of the ends of the cells under x(u)."""
    ends = jnp.stack(cells(law, delta), axis=-1)
    w = jax.lax.complex(ends, jax.lax.stop_gradient(height(law, delta, ends)))
    return ends + delta**2 * law.cauchy(w).real


def default_per_cell(count: int) -> int:
    """Nodes per cell: a law with a few components needs its hard edges resolved, atoms have near-circular cells."""
    return 160 if count <= 4 else 32


def nodes(
    law: AbstractSpectralLaw, delta: Scalar, per_cell: int | None
) -> tuple[Float[Array, " k"], Float[Array, " k"], Float[Array, " k"]]:
    """x, weight and h; see `FreeConvolution.nodes`."""
    start, stop = cells(law, delta)
    near, far, weight = tanh_sinh(per_cell or default_per_cell(start.shape[0]), delta.dtype)
    width = (stop - start)[:, None]
    u = jnp.where((near < 0.5)[None], start[:, None] + width * near[None], stop[:, None] - width * far[None]).ravel()
    du = (width * weight[None]).ravel()
    v = height(law, delta, u)
    w = jax.lax.complex(u, v)
    g, g_prime = law.cauchy_pair(w)
    h, slope = g.real, 1 + scaled(delta**2, g_prime)
    safe = slope.real > 0
    stretch = (slope.real**2 + slope.imag**2) / jnp.where(safe, slope.real, jnp.ones_like(u))
    return u + delta**2 * h, jnp.where(safe, stretch * v * du, jnp.zeros_like(u)) / (jnp.pi * delta**2), h
