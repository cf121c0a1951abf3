r"""Ends of the bulk and of the support of μ_δ, and the phases of the learned matrix that they bound.

An end of the support is a critical value of ψ(u) = u + δ²G0(u), so that its derivative in δ and in the law is that of
ψ at a fixed critical point.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Bool, Int, Scalar, ScalarLike
from amp_attention.spectral_laws import AbstractSpectralLaw, FiniteLaw, FreeConvolution
from amp_attention.spectral_laws._complex import as_complex
from amp_attention.spectral_laws._subordination import outer_turning_points, psi
from amp_attention.spectrum._outliers import as_delta, bulk, detached

PHASES = ("rank_collapse", "bleed_out", "outliers_only", "outliers_and_bulk")


@eqx.filter_jit
def _support_end(law: AbstractSpectralLaw, delta: Scalar) -> Scalar:
    return psi(law, delta, as_complex(outer_turning_points(law, delta)[1])).real


def support_end(law: AbstractSpectralLaw, delta: ScalarLike) -> Scalar:
    """Right end of the support of μ_δ; of a `FiniteLaw`, including its spikes with the width their weight gives them.

    Args:
        law: μ0.
        delta: δ > 0.

    Returns:
        Scalar, differentiable in δ and the law.
    """
    return _support_end(law, as_delta(law, delta))


def _first_band(law: AbstractSpectralLaw, delta: Scalar) -> tuple[Scalar, Bool[Array, ""]]:
    """Right end of the lowest band of μ_δ, and whether another one follows."""
    edges = FreeConvolution(law, delta).edges()
    right, left = edges[:-1, 1], edges[1:, 0]
    rounding = 16 * jnp.finfo(law.dtype).eps * (jnp.abs(right) + delta)
    apart = left > right + rounding
    index = jnp.argmax(jnp.concatenate([apart, jnp.ones((1,), bool)]))
    return edges[index, 1], jnp.any(apart)


@eqx.filter_jit
def _bulk(law: AbstractSpectralLaw, delta: Scalar) -> tuple[Scalar, Bool[Array, ""]]:
    """The bulk edge, and whether anything lies detached above it."""
    if not isinstance(law, FiniteLaw):
        return _first_band(law, delta)
    count = detached(law, delta)
    return _support_end(bulk(law, count), delta), count > 0


def bulk_edge(law: AbstractSpectralLaw, delta: ScalarLike) -> Scalar:
    """Right end of the bulk of μ_δ.

    Of a `FiniteLaw`, the end of what lies below its spikes (see `detachment`), spikes taken as weightless; of any
    other law, the end of the lowest band of the support. For Marchenko-Pastur with κ0 < 1 that is the band grown from
    the atom at zero, until at some δ it merges with the one of the non-zero eigenvalues.

    Args:
        law: μ0.
        delta: δ > 0.

    Returns:
        Scalar, differentiable in δ and the law except where a spike detaches or bands merge: there it jumps.
    """
    return _bulk(law, as_delta(law, delta))[0]


def collapse_margin(law: AbstractSpectralLaw, delta: ScalarLike, epsilon: ScalarLike) -> Scalar:
    """ε minus the end of the support: positive iff every eigenvalue of S is zero. Differentiable in all arguments."""
    return jnp.asarray(epsilon, law.dtype) - support_end(law, delta)


def bleed_out_margin(law: AbstractSpectralLaw, delta: ScalarLike, epsilon: ScalarLike) -> Scalar:
    """ε minus the end of the bulk: negative iff a part of the bulk is positive in S. Differentiable as `bulk_edge`."""
    return jnp.asarray(epsilon, law.dtype) - bulk_edge(law, delta)


@eqx.filter_jit
def _phase_index(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar) -> Int[Array, ""]:
    edge, above = _bulk(law, delta)
    positive_bulk = jnp.where(above, 3, 1)
    index = jnp.where(edge > epsilon, positive_bulk, 2)
    return jnp.where(_support_end(law, delta) <= epsilon, 0, index).astype(jnp.int32)


def phase_index(law: AbstractSpectralLaw, delta: ScalarLike, epsilon: ScalarLike) -> Int[Array, ""]:
    """Index into `PHASES`; an integer without derivative, works under `jit` and `vmap`.

    0 rank_collapse: nothing of μ_δ lies above ε.
    1 bleed_out: the bulk reaches above ε, and nothing is detached from it.
    2 outliers_only: the bulk ends at or below ε, and something lies above.
    3 outliers_and_bulk: it reaches above ε, and spikes, or another band of a continuous law, lie detached above it.

    Args:
        law: μ0.
        delta: δ > 0.
        epsilon: ε.

    Source: theory of the tied head, section 6; arXiv:2509.24914.
    """
    arguments = (law, as_delta(law, delta), jnp.asarray(epsilon, law.dtype))
    return _phase_index(*jax.lax.stop_gradient(arguments))


def phase_name(law: AbstractSpectralLaw, delta: ScalarLike, epsilon: ScalarLike) -> str:
    """The name in `PHASES` of the phase of η ReLU(S0 + δZ - ε); on the host. See `phase_index`."""
    return PHASES[int(phase_index(law, delta, epsilon))]
