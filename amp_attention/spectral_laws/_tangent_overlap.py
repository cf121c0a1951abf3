r"""The kernel integral of the replicon, R2 = (1-F)² + 2∬_{x>ε>y} ((x-ε)/(x-y))² μ_δ(dx) μ_δ(dy).

Both integrals are taken over complex contours in the plane of x itself: x on a ray that leaves ε at 60°, y on its
mirror image at 120°, each closed by a leg down to the real axis outside the support, together with the complex
conjugates. On the two rays the kernel depends on the ratio of the distances from ε alone, and is discontinuous at
distance 0; nodes spaced evenly in the logarithm of the distance make it smooth. The cost grows with the number of
atoms only as that of G0 does, and no band edge is needed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Complex, Float, Scalar
from amp_attention.spectral_laws._complex import as_complex, reciprocal, scaled
from amp_attention.spectral_laws._contour import HalfLines, finest_scale, graded, segment
from amp_attention.spectral_laws._law import AbstractSpectralLaw
from amp_attention.spectral_laws._subordination import descend, follow, implicit, psi

NODES_ON_RAY = 160
_NODES_ON_LEG = 64
_ANGLE = jnp.pi / 3


class Rays(NamedTuple):
    """Nodes t in the upper half plane, from ε along a ray and down to the real axis; one contour a row.

    offset is t - ε, g is G_δ(t), and dt the increment, for a contour run outwards from ε.
    """

    offset: Complex[Array, "2 k"]
    g: Complex[Array, "2 k"]
    dt: Complex[Array, "2 k"]


def rays(
    law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar, ends: Float[Array, "2"], angles: Float[Array, "2"]
) -> Rays:
    """Contours from ε along rays of the given angles to an apex, and from there to the real `ends` of the w plane."""
    ends = as_complex(jax.lax.stop_gradient(ends))
    turn = jax.lax.complex(jnp.cos(angles), jnp.sin(angles))
    length = jax.lax.stop_gradient(jnp.abs(psi(law, delta, ends).real - epsilon))
    # Within this distance of ε the kernel is not resolved; the density is at most 1/(πδ), so that little is lost.
    finest = jnp.sqrt(jnp.finfo(delta.dtype).eps) * jnp.minimum(jax.lax.stop_gradient(delta), length)
    r, weight = graded(length, finest, NODES_ON_RAY)
    # The apex is the last of the points on the rays, with no weight: its root is where the other legs end.
    offset = jnp.concatenate([scaled(r, turn[:, None]), scaled(length, turn)[:, None]], axis=1)
    z = as_complex(epsilon) + offset
    roots = follow(law, delta, descend(law, delta, z[:, -1]), z.T[::-1])[::-1].T
    roots = implicit(law, delta, z, roots)

    closing = segment(ends, roots[:, -1], finest_scale(law, delta, ends), _NODES_ON_LEG)
    w = jnp.concatenate([roots[:, :-1], closing.w], axis=1)
    g, g_prime = law.cauchy_pair(w)
    moved = w + scaled(delta**2, g) - as_complex(epsilon)
    dt = -closing.dw * (1 + scaled(delta**2, g_prime))[:, NODES_ON_RAY:]
    dt = jnp.concatenate([scaled(weight, turn[:, None]), dt], axis=1)
    return Rays(jnp.concatenate([offset[:, :-1], moved[:, NODES_ON_RAY:]], axis=1), g, dt)


def _kernel_integral(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar, ends: Float[Array, "2"]) -> Scalar:
    """∬_{x>ε>y} ((x-ε)/(x-y))² μ_δ(dx) μ_δ(dy).

    Args:
        law: μ0.
        delta: δ.
        epsilon: ε, inside the convex hull of the support of μ_δ.
        ends: real points of the subordination plane, left and right of the support.
    """
    angles = jnp.asarray([jnp.pi - _ANGLE, _ANGLE], delta.dtype)
    contours = rays(law, delta, epsilon, ends, angles)
    # ∫f dμ_δ = 2 Re Σ weight f(t) on each side. On the left a contour runs against the direction of integration.
    direction = jnp.asarray([-1, 1], delta.dtype)[:, None] / (2 * jnp.pi)
    weight = jax.lax.complex(jnp.zeros_like(direction), direction) * contours.g * contours.dt
    y, x = contours.offset[0], contours.offset[1][:, None]
    b, a = weight[0], weight[1][:, None]
    y, b = jnp.concatenate([y, y.conj()])[None, :], jnp.concatenate([b, b.conj()])[None, :]
    ratio = x * reciprocal(x - y)
    return 2 * jnp.sum(a * b * ratio * ratio).real


def tangent_overlap(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar, lines: HalfLines, rank: Scalar) -> Scalar:
    """See `FreeConvolution.tangent_overlap`; `lines` part in ε, `rank` is the mass above it."""
    outside = lines.all_above | lines.none_above
    # Outside the support any point inside will do, the result is discarded.
    middle = jax.lax.stop_gradient(jnp.mean(psi(law, delta, as_complex(lines.ends)).real))
    inside = jnp.where(outside, middle, epsilon)
    value = rank**2 + 2 * _kernel_integral(law, delta, inside, lines.ends)
    return jnp.where(outside, lines.all_above.astype(value.dtype), value)
