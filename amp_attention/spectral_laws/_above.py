"""Integrals against μ_δ over x > ε, each from the side of ε on which it is small."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar, ScalarLike
from amp_attention.spectral_laws._complex import as_complex, scaled
from amp_attention.spectral_laws._contour import HalfLines
from amp_attention.spectral_laws._law import AbstractSpectralLaw


class Above(eqx.Module):
    r"""Integrals against μ_δ over x > ε, and what is left below. All are scalars.

    With h the principal value of μ_δ and ξ(x) = E[S0 | x] = 2u - x (u Biane's coordinate), the conditional mean of the
    target given the eigenvalue x of S0 + δZ:

    Attributes:
        J: ∫(x-ε)² μ_δ. ∂J/∂δ = 4δ D1 and ∂J/∂ε = -2 trace.
        D1: ∫(x-ε) h μ_δ.
        trace: ∫(x-ε) μ_δ.
        rank_fraction: ∫μ_δ, the share of positive eigenvalues of S0 + δZ - ε.
        m: ∫(x-ε) ξ μ_δ, the overlap Tr(X S0)/d of X = ReLU(S0 + δZ - ε).
        target_trace: ∫ξ μ_δ, the share of Tr S0/d that lies above ε.
        zero_fraction: ∫_{x <= ε} μ_δ = 1 - rank_fraction, accurate where it is small.
        error: ‖X - S0‖²/d = Q0 - 2m + J, accurate where it is small.
    """

    J: Scalar
    D1: Scalar
    trace: Scalar
    rank_fraction: Scalar
    m: Scalar
    target_trace: Scalar
    zero_fraction: Scalar
    error: Scalar

    def squared_error(self, eta: ScalarLike) -> Scalar:
        """‖ηX - S0‖²/d = Q0 - 2ηm + η²J, without cancellation when η is close to 1."""
        gap = 1 - jnp.asarray(eta, self.J.dtype)
        return self.error - 2 * gap * (self.J - self.m) + gap**2 * self.J


class Parts(NamedTuple):
    """Integrals over one side of ε, or over both (shape (2,): left, right); names as in `Above`."""

    J: Float[Array, "..."]
    D1: Float[Array, "..."]
    trace: Float[Array, "..."]
    mass: Float[Array, "..."]
    m: Float[Array, "..."]
    target: Float[Array, "..."]


def contour_parts(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar, lines: HalfLines) -> Parts:
    """The contour integrals left and right of ε; meaningless where ε lies outside the support."""
    w, dw = lines.path
    g, g_prime = law.cauchy_pair(w)
    z = w + scaled(delta**2, g) - as_complex(epsilon)
    measure = dw * (1 + scaled(delta**2, g_prime))
    # A real constant taken from an analytic factor does not change the imaginary part of the integral, and
    # leaves only what varies over the path: without it a short path loses half the digits.
    w_ref, g_ref = (as_complex(jax.lax.stop_gradient(value[:, -1:].real)) for value in (w, g))
    v = g - g_ref
    target = (w - w_ref) * g + w_ref * v
    terms = Parts(z * z * v, z * v * (v + 2 * g_ref) / 2, z * v, v, z * target, target)
    # -Im/π for a path to the right; a path to the left runs against the direction of integration.
    sign = jnp.asarray([1, -1], delta.dtype) / jnp.pi
    return Parts(*(sign * jnp.sum(term * measure, axis=1).imag for term in terms))


def _whole(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar) -> Parts:
    """The integrals over the whole line, from the moments of μ0."""
    mean, second, one = law.moment(1), law.moment(2), jnp.ones_like(delta)
    square = second + delta**2 - 2 * epsilon * mean + epsilon**2
    return Parts(square, one / 2, mean - epsilon, one, second - epsilon * mean, mean)


def integrals_above(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar, lines: HalfLines) -> Above:
    """See `FreeConvolution.above`; `lines` part in ε."""
    parts, whole = contour_parts(law, delta, epsilon, lines), _whole(law, delta, epsilon)
    # Nothing or everything, exactly, when ε lies outside the support.
    empty, full = (lines.all_above, lines.none_above), (lines.none_above, lines.all_above)
    below, above = (
        Parts(
            *(
                jnp.where(empty[side], jnp.zeros_like(total), jnp.where(full[side], total, part[side]))
                for part, total in zip(parts, whole, strict=True)
            )
        )
        for side in (0, 1)
    )
    # Two exact forms of the error: the one with the smaller leading term cancels less.
    second, noise = law.moment(2), delta**2 + epsilon**2
    missed = noise - below.J + 2 * below.m
    kept = second - 2 * above.m + above.J
    error = jnp.where((noise <= second) & ~lines.none_above, missed, kept)
    return Above(above.J, above.D1, above.trace, above.mass, above.m, above.target, below.mass, error)
