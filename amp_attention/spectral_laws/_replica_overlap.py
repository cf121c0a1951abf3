r"""Overlap of two copies of ReLU(X - ε) that share a part of their noise.

$$X_i = X_0 + \sqrt{g}\, Z_i, \qquad X_0 = S_0 + \sqrt{\delta^2 - g}\, Z_0,$$

Z0, Z1, Z2 independent GOE matrices and g, 0 <= g <= δ², the gap of the overlap of the noises. Given X0 the resolvents
R_i(t) = (t - X_i)^{-1} are free of each other, each with mean (t - g G(t) - X0)^{-1} and G = G_δ. The trace of the
product of two resolvents of X0 is a divided difference of its Cauchy transform, which at t - g G(t) equals G(t):

$$\frac1d \mathrm{Tr}\, R_1(t) R_2(s) = -\frac{G(t) - G(s)}{t - s - g\,(G(t) - G(s))}$$

The overlap is the double contour integral of this against (t - ε)(s - ε), over closed contours through ε around the
part of the support above it, where (x - ε)₊ is analytic; at ε itself it vanishes. t -> t - g G(t) is one-to-one on the
upper half plane, so the kernel has no pole; it is 0/0 at t = s alone, and contours that leave ε under different angles
meet nowhere else.
"""

import jax
import jax.numpy as jnp

from amp_attention._typing import Scalar
from amp_attention.spectral_laws._complex import as_complex, reciprocal, scaled
from amp_attention.spectral_laws._contour import HalfLines, half_lines
from amp_attention.spectral_laws._law import AbstractSpectralLaw
from amp_attention.spectral_laws._subordination import psi, subordinate
from amp_attention.spectral_laws._tangent_overlap import rays

_ANGLES = (jnp.pi / 3, 7 * jnp.pi / 36)


def _contour_integral(
    law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar, gap: Scalar, right: Scalar, further: Scalar
) -> Scalar:
    """The overlap for ε inside the convex hull of the support; `right` and `further` are real points of the w plane."""
    ends, angles = jnp.stack([further, right]), jnp.asarray(_ANGLES, delta.dtype)
    contours = rays(law, delta, epsilon, ends, angles)
    weight = contours.offset * contours.dt
    t, g, a = (part[0][:, None] for part in (contours.offset, contours.g, weight))
    # The lower half of the inner contour is the mirror image of the upper one, run in the opposite direction.
    s, h, b = (
        jnp.concatenate([part[1], sign * part[1].conj()])[None, :]
        for part, sign in ((contours.offset, 1), (contours.g, 1), (weight, -1))
    )
    difference = g - h
    kernel = -difference * reciprocal(t - s - scaled(gap, difference))
    # The lower half of the outer contour adds the complex conjugate.
    return -jnp.sum(a * b * kernel).real / (2 * jnp.pi**2)


def _points_to_the_right(lines: HalfLines, w_epsilon, outside):
    """Two real points right of the support, both as near to it as the scale of w_ε allows, for nested contours."""
    left, right = lines.ends
    reach = jnp.where(outside, right - left, right - jax.lax.stop_gradient(w_epsilon).real)
    return right, right + reach


def replica_overlap(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar, gap: Scalar) -> Scalar:
    """See `FreeConvolution.replica_overlap`."""
    w_epsilon = subordinate(law, delta, epsilon)
    lines = half_lines(law, delta, w_epsilon)
    outside = lines.all_above | lines.none_above
    right, further = _points_to_the_right(lines, w_epsilon, outside)
    # Outside the support any point inside will do, the result is discarded.
    middle = jax.lax.stop_gradient(jnp.mean(psi(law, delta, as_complex(lines.ends)).real))
    inside = jnp.where(outside, middle, epsilon)
    value = _contour_integral(law, delta, inside, gap, right, further)
    linear = law.moment(2) + delta**2 - 2 * epsilon * law.moment(1) + epsilon**2 - gap
    value = jnp.where(lines.all_above, linear, value)
    return jnp.where(lines.none_above, jnp.zeros_like(value), value)
