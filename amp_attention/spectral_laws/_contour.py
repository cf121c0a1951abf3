r"""Integrals against μ_δ over a half line, as contour integrals in the subordination plane.

$$\int_{\epsilon}^{\infty} f \, d\mu_\delta
  = -\frac1\pi \,\mathrm{Im} \int_{w_\epsilon}^{w_R} f(\psi(w)) G_0(w) \psi'(w)\, dw$$

with w_ε the boundary point over ε and w_R any real point right of the support; the integrand is analytic in the
whole upper half plane, so any path in it will do. The path here has two straight legs, 60° up from either end, with
nodes graded exponentially towards the ends. What limits the accuracy is only the ratio of the size of the support
to the distance of w_ε from supp μ0, through its logarithm: narrow bands far apart cost no more than a wide one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Bool, Complex, Float, Scalar
from amp_attention.numerics.quadrature import gauss_legendre
from amp_attention.spectral_laws._complex import as_complex, modulus, scaled
from amp_attention.spectral_laws._law import AbstractSpectralLaw
from amp_attention.spectral_laws._subordination import outer_turning_points

NODES_PER_LEG = 96
# The logarithmic grading begins at this fraction of the distance to the nearest singularity (measured: square-root
# edges want it smaller, poles want it larger).
_FINE = 0.3
# Distances below this fraction of δ are not resolved: at a square-root edge of μ0 they carry no weight, and
# atoms closer than that would need masses below its square.
_FINEST = 1e-3
_SLOPE = jnp.pi / 3


class Path(NamedTuple):
    """Nodes w in the upper half plane and the increments dw that belong to them."""

    w: Complex[Array, "... n"]
    dw: Complex[Array, "... n"]


def graded(length: Float[Array, "..."], finest: Float[Array, "..."], n: int):
    """Nodes r and weights on [0, length], Gauss-Legendre in log(1 + r/finest); a new last axis."""
    t, weight = (value.reshape((1,) * length.ndim + (-1,)) for value in gauss_legendre(n, length.dtype))
    finest = finest[..., None]
    span = jnp.log1p(length[..., None] / finest)
    return finest * jnp.expm1(span * t), finest * span * jnp.exp(span * t) * weight


def segment(start: Complex[Array, "..."], stop: Complex[Array, "..."], finest: Float[Array, "..."], n: int) -> Path:
    """Straight paths from `start` to `stop`, their nodes graded towards `start` down to the distance `finest`."""
    length = jax.lax.stop_gradient(modulus(stop - start))
    r, weight = graded(length, finest, n)
    step = scaled(1 / length, stop - start)[..., None]
    return Path(start[..., None] + scaled(r, step), scaled(weight, step))


def finest_scale(law: AbstractSpectralLaw, delta: Scalar, w: Complex[Array, " k"]) -> Float[Array, " k"]:
    """Scale of the nodes near w: its distance from the nearest end of a component of supp μ0, where G0 is singular."""
    w = jax.lax.stop_gradient(w)
    ends = jnp.concatenate(jax.lax.stop_gradient(law.components()))
    across = jnp.min(jnp.abs(w.real[:, None] - ends[None, :]), axis=1)
    return _FINE * jnp.maximum(jnp.sqrt(across**2 + w.imag**2), _FINEST * jax.lax.stop_gradient(delta))


class HalfLines(NamedTuple):
    """Paths that part in w_ε, and on which side of the support ε lies.

    Attributes:
        path: row 0 from w_ε to the left, row 1 from w_ε to the right.
        ends: their real ends, left and right of the support.
        all_above: whether ε lies left of the whole support.
        none_above: whether it lies right of it.
    """

    path: Path
    ends: Float[Array, "2"]
    all_above: Bool[Array, ""]
    none_above: Bool[Array, ""]


def half_lines(law: AbstractSpectralLaw, delta: Scalar, w_epsilon: Complex[Array, ""]) -> HalfLines:
    """Paths from w_ε to a real point left of the support and to one right of it.

    The real ends lie as far from the outer turning points as w_ε does: when ε approaches an end of the support,
    the path shrinks with the mass it encloses, and the result keeps its relative accuracy.
    """
    turning = outer_turning_points(law, delta)
    fixed = jax.lax.stop_gradient(w_epsilon)
    # v = 0 left and right of the turning points, and only there or in a gap.
    all_above, none_above = fixed.real <= turning[0], fixed.real >= turning[1]
    # A path of no length has no derivative: outside the support integrate over something else and discard it.
    middle = jax.lax.stop_gradient(jax.lax.complex(jnp.mean(turning), delta))
    start = jnp.where(all_above | none_above, middle, w_epsilon)
    outward = jnp.asarray([-1, 1], turning.dtype)
    ends = turning + outward * modulus(jax.lax.stop_gradient(start)[None] - as_complex(turning))
    starts, ends_c = jnp.broadcast_to(start, (2,)), as_complex(ends)
    # Legs of slope 60° and 120° from the two ends of a path meet in its apex.
    across, climb = outward * (ends_c - starts).real, -start.imag
    rise = across / (2 * jnp.cos(_SLOPE)) + climb / (2 * jnp.sin(_SLOPE))
    apex = starts + jax.lax.complex(outward * rise * jnp.cos(_SLOPE), rise * jnp.sin(_SLOPE))
    inner = segment(starts, apex, finest_scale(law, delta, starts), NODES_PER_LEG)
    outer = segment(ends_c, apex, finest_scale(law, delta, ends_c), NODES_PER_LEG)
    path = Path(jnp.concatenate([inner.w, outer.w], axis=1), jnp.concatenate([inner.dw, -outer.dw], axis=1))
    return HalfLines(path, ends, all_above, none_above)
