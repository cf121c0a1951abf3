r"""The subordination map of a free convolution with a semicircle, and its inverse.

For μ_δ = μ0 ⊞ semicircle(δ²), G_δ(ψ(w)) = G0(w) with ψ(w) = w + δ² G0(w) (Biane, Indiana Univ. Math. J. 46 (1997)
705). The inverse x ↦ w(x) is univalent on the upper half plane and continuous down to the real axis, where it runs
along the curve u + i v(u) of Biane, or along the real axis outside the support of μ_δ.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Complex, Float, Scalar
from amp_attention.numerics.bisection import bisect
from amp_attention.spectral_laws._complex import as_complex, reciprocal, scaled
from amp_attention.spectral_laws._law import AbstractSpectralLaw

# Newton steps after each move of the continuation and at its end. The move halves the height, where an univalent
# map can be as curved as Koebe's function; three steps then stay in the basin with room to spare.
_STEPS_PER_LEVEL = 3
_FINAL_STEPS = 5


def psi(law: AbstractSpectralLaw, delta: Scalar, w: Complex[Array, "..."]) -> Complex[Array, "..."]:
    """ψ(w) = w + δ² G0(w)."""
    return w + scaled(delta**2, law.cauchy(w))


def psi_pair(law: AbstractSpectralLaw, delta: Scalar, w: Complex[Array, "..."]):
    """ψ(w) and ψ'(w) = 1 + δ² G0'(w)."""
    value, slope = law.cauchy_pair(w)
    return w + scaled(delta**2, value), 1 + scaled(delta**2, slope)


def _divide(change: Complex[Array, "..."], slope: Complex[Array, "..."], smallest: float) -> Complex[Array, "..."]:
    """change/slope, or zero where |slope|² <= `smallest` or is not finite: at band edges and at ends of supp μ0.

    Linear in `change`, as the rule of derivatives below needs.
    """
    square = slope.real**2 + slope.imag**2
    usable = (square > smallest) & jnp.isfinite(square)
    quotient = change * reciprocal(jnp.where(usable, slope, jnp.ones_like(slope)))
    return jnp.where(usable, quotient, jnp.zeros_like(quotient))


def _newton(law, delta, w, z):
    """One guarded Newton step for ψ(w) = z: the half plane is never left, a vanishing slope moves nothing."""
    value, slope = psi_pair(law, delta, w)
    new = w - _divide(value - z, slope, float(jnp.finfo(delta.dtype).eps) ** 2)
    return jax.lax.complex(new.real, jnp.where(new.imag >= 0, new.imag, w.imag / 2))


def descend(law: AbstractSpectralLaw, delta: Scalar, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
    """Solve ψ(w) = z for Im z >= 0 by continuation from far above, halving the height; carries no derivative.

    Every level lies in the disc of univalence of the one above, which keeps Newton's method from jumping to a wrong
    root: tested from δ = 1e-3 to 10 times the scale of the law, in gaps, and at distances down to 1e-12 from edges.
    At a band edge, where ψ' = 0, the result is accurate to √eps, which is all x determines.
    """
    law, delta, z = jax.lax.stop_gradient((law, delta, z))
    left, right = law.components()
    start = 4 * (delta + right[-1] - left[0])
    levels = jnp.finfo(delta.dtype).nmant

    def step(k, w):
        level = 1 + k // _STEPS_PER_LEVEL
        height = jnp.where(level > levels, jnp.zeros_like(start), start * jnp.exp2(-level.astype(delta.dtype)))
        return _newton(law, delta, w, z + jax.lax.complex(0 * height, height))

    # One flat loop: a loop within a loop doubles the time of compilation.
    return jax.lax.fori_loop(0, _STEPS_PER_LEVEL * levels + _FINAL_STEPS, step, z + jax.lax.complex(0 * start, start))


def follow(
    law: AbstractSpectralLaw, delta: Scalar, w: Complex[Array, "..."], path: Complex[Array, "n ..."]
) -> Complex[Array, "n ..."]:
    """Roots of ψ(w) = z along the leading axis of `path`, from w at a point before it; carries no derivative.

    Consecutive points must be closer to each other than to the real axis, as in `descend`.
    """
    law, delta, w, path = jax.lax.stop_gradient((law, delta, w, path))

    def move(value, z):
        value = _newton(law, delta, value, z)
        return value, value

    _, roots = jax.lax.scan(move, w, jnp.repeat(path, _STEPS_PER_LEVEL, axis=0))
    return roots[_STEPS_PER_LEVEL - 1 :: _STEPS_PER_LEVEL]


@eqx.filter_custom_jvp
def implicit(law: AbstractSpectralLaw, delta: Scalar, z: Complex[Array, "..."], w: Complex[Array, "..."]):
    """The root w of ψ(w) = z, already found, as a differentiable function of law, δ and z; to every order.

    dw = (dz - dψ|_w)/ψ'(w). At a band edge (|ψ'| below √eps), where w has no derivative, dw = 0.
    """
    return w


@implicit.def_jvp
def _implicit_jvp(primals, tangents):
    law, delta, z, solution = primals
    law_dot, delta_dot, z_dot, _ = tangents
    # Through `implicit` again, so that derivatives of this rule are right as well.
    w = implicit(law, delta, z, solution)
    if not jax.tree.leaves((law_dot, delta_dot)):
        moved = jnp.zeros_like(w)
    else:
        moved = eqx.filter_jvp(lambda a, b: psi(a, b, w), (law, delta), (law_dot, delta_dot))[1]
    slope = psi_pair(law, delta, w)[1]
    return w, _divide(-moved if z_dot is None else z_dot - moved, slope, float(jnp.finfo(delta.dtype).eps))


def subordinate(law: AbstractSpectralLaw, delta: Scalar, x: Float[Array, "..."]) -> Complex[Array, "..."]:
    """Boundary point w = u + i v, v >= 0, with ψ(w) = x for real x; differentiable away from band edges."""
    z = as_complex(x)
    w = descend(law, delta, z)
    # Outside the support rounding leaves a trace of v; ψ' > 0 on the real axis tells that it is one. Within a
    # component of supp μ0, v = O(δ²) can be as small and is real.
    trace = w.imag <= 100 * jnp.finfo(x.dtype).eps * (jnp.abs(w.real) + delta)
    left, right = (end.reshape((1,) * w.ndim + (-1,)) for end in law.components())
    within = jnp.any((left <= w.real[..., None]) & (w.real[..., None] <= right), axis=-1)
    outside = trace & ~within & (psi_pair(law, delta, w)[1].real > 0)
    return implicit(law, delta, z, jax.lax.complex(w.real, jnp.where(outside, jnp.zeros_like(w.imag), w.imag)))


def outer_turning_points(law: AbstractSpectralLaw, delta: Scalar) -> Float[Array, "2"]:
    """Real u left and right of supp μ0 with -G0'(u) = 1/δ²: ψ maps them to the ends of supp μ_δ.

    The support reaches at most δ beyond that of μ0, because -G0'(u) <= 1/dist². No derivative (the ends of the
    support, as values of ψ at its critical points, do not need one).
    """
    law, delta = jax.lax.stop_gradient((law, delta))
    left, right = law.components()
    inner = jnp.stack([left[0], right[-1]])
    reach = jnp.stack([-delta, delta]) * (1 + 4 * jnp.finfo(delta.dtype).eps)

    def within(u):
        # "not below" counts an infinite or undefined value at the end of supp μ0 itself as within.
        return ~(-law.cauchy_prime(as_complex(u)).real < 1 / delta**2)

    return bisect(within, inner, inner + reach)
