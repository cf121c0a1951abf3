r"""Eigenvalues of a finite list that leave the bulk of S0 + δZ (Baik, Ben Arous and Péché).

The eigenvalues s_1 ≥ s_2 ≥ ... of S0 are spikes of vanishing weight on a bulk, the atoms below them. With bulk_k the
atoms strictly below s_k, of mass 1, s_k detaches iff $\delta^2 \int bulk_k(dx)/(s_k-x)^2 < 1$, that is iff
ψ(u) = u + δ²∫bulk_k(dx)/(u-x), which takes a spike of S0 to an eigenvalue of S0 + δZ, still increases at s_k. The
spikes are s_1..s_K, K the largest k that detaches; one bulk, the atoms strictly below s_K, then serves all of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, Int, Scalar, ScalarLike
from amp_attention.numerics.validation import positive, whole_number
from amp_attention.spectral_laws import AbstractSpectralLaw, FiniteLaw
from amp_attention.spectral_laws._complex import as_complex

SCANNED = 512  # of the largest eigenvalues, the ones among which spikes are looked for


@dataclass(frozen=True)
class Outliers:
    """Isolated positive eigenvalues of the learned S, from the largest; NumPy arrays of one shape (k,).

    Attributes:
        value: η(y - ε), y the position in S0 + δZ.
        overlap: |cosine| between the eigenvector and its direction in S0, in (0, 1); NaN where it mixes with others.
        target_eigenvalue: s, of S0.
    """

    value: np.ndarray
    overlap: np.ndarray
    target_eigenvalue: np.ndarray


class Spikes(NamedTuple):
    """The `SCANNED` largest eigenvalues, descending; only the first `number` are spikes and have a meaning.

    Attributes:
        eigenvalue: s_k.
        position: y_k = ψ(s_k).
        squared_overlap: ψ'(s_k) = 1 - δ²∫bulk(dx)/(s_k-x)².
        mixing: δ² Σ weight_j/(s_k-s_j)² over all atoms with s_j ≠ s_k; not resolved from 1 on.
        number: K.
    """

    eigenvalue: Float[Array, " M"]
    position: Float[Array, " M"]
    squared_overlap: Float[Array, " M"]
    mixing: Float[Array, " M"]
    number: Int[Array, ""]


def as_delta(law: AbstractSpectralLaw, delta: ScalarLike) -> Scalar:
    """δ, checked, in the type of the law; before `jit`, which would compile anew for every Python float."""
    return positive("delta", delta).astype(law.dtype)


def _inverse_square(law: FiniteLaw, s: Scalar, where: Array) -> tuple[Scalar, Scalar]:
    """Σ weight/(s-x)² over the chosen atoms, and their mass."""
    gap = jnp.where(where, s - law.eigenvalues, jnp.ones_like(law.eigenvalues))
    weights = jnp.where(where, law.weights, jnp.zeros_like(law.weights))
    return jnp.sum(weights / gap**2), jnp.sum(weights)


@eqx.filter_jit
def _detachment(law: FiniteLaw, delta: Scalar, k: Int[Array, ""]) -> Scalar:
    s = law.eigenvalues[law.eigenvalues.shape[0] - k]
    total, mass = _inverse_square(law, s, law.eigenvalues < s)
    bulk = jnp.where(mass > 0, mass, jnp.ones_like(mass))
    return jnp.where(mass > 0, 1 - delta**2 * total / bulk, jnp.full_like(mass, -jnp.inf))


def detachment(law: FiniteLaw, delta: ScalarLike, k: int | Int[Array, ""]) -> Scalar:
    r"""$1 - \delta^2 \int bulk_k(dx)/(s_k-x)^2$: positive iff the k-th eigenvalue detaches, zero on the boundary.

    For a target of low rank it is 1 - δ²/s_k². Not monotone in k: the first of two close eigenvalues can be bound by
    the second while both leave the rest.

    Args:
        law: a list of N eigenvalues.
        delta: δ > 0.
        k: 1..N, counted from the largest eigenvalue; may be traced.

    Returns:
        Scalar, at most 1, differentiable in the eigenvalues, the weights and δ. -inf if no atom lies below s_k.

    Source: arXiv:2509.24914 (the outliers of the learned weights).
    """
    if not isinstance(law, FiniteLaw):
        raise ValueError(f"law must be a FiniteLaw, got {type(law).__name__}: other laws have no single eigenvalues")
    if isinstance(k, int) and whole_number("k", k, 1) > law.eigenvalues.shape[0]:
        raise ValueError(f"k must be at most {law.eigenvalues.shape[0]}, the number of eigenvalues, got {k}")
    return _detachment(law, as_delta(law, delta), jnp.asarray(k))


def _scan(law: FiniteLaw) -> Int[Array, " M"]:
    return jnp.arange(1, min(law.eigenvalues.shape[0], SCANNED) + 1, dtype=jnp.int32)


@eqx.filter_jit
def _detached(law: FiniteLaw, delta: Scalar) -> Int[Array, ""]:
    law, delta = jax.lax.stop_gradient((law, delta))
    ks = _scan(law)
    margins = jax.lax.map(lambda k: _detachment(law, delta, k), ks)
    return jnp.max(jnp.where(margins > 0, ks, jnp.zeros_like(ks)))


def detached(law: AbstractSpectralLaw, delta: ScalarLike) -> Int[Array, ""]:
    """K, the largest k for which `detachment` is positive; 0 if there is none, and for every law but a `FiniteLaw`.

    Looks at the 512 largest eigenvalues, one at a time: detachment is not monotone in k, so that no bisection finds
    the last one, and memory stays O(N). Carries no derivative.
    """
    return _detached(law, as_delta(law, delta)) if isinstance(law, FiniteLaw) else jnp.zeros((), jnp.int32)


def bulk(law: FiniteLaw, count: Int[Array, ""]) -> FiniteLaw:
    """The atoms strictly below s_count, of mass 1; `law` itself for count = 0.

    The atoms that are cut stay in the list, without weight and at the largest eigenvalue that is kept: shapes and
    order do not change, and the end of the support is that of the bulk.
    """
    index = law.eigenvalues.shape[0] - jnp.maximum(count, 1)
    kept = (law.eigenvalues < law.eigenvalues[index]) | (count == 0)
    top = jax.lax.stop_gradient(jnp.max(jnp.where(kept, law.eigenvalues, jnp.full_like(law.eigenvalues, -jnp.inf))))
    weights = jnp.where(kept, law.weights, jnp.zeros_like(law.weights))
    fields = (jnp.where(kept, law.eigenvalues, top), weights / jnp.sum(weights))
    return eqx.tree_at(lambda law: (law.eigenvalues, law.weights), law, fields)


@eqx.filter_jit
def spikes(law: FiniteLaw, delta: Scalar) -> Spikes:
    """Every spike with its position and overlap; memory O(N)."""
    count = _detached(law, delta)
    below = bulk(law, count)

    def at(k):
        s = law.eigenvalues[law.eigenvalues.shape[0] - k]
        g, g_prime = below.cauchy_pair(as_complex(s))
        others, _ = _inverse_square(law, s, law.eigenvalues != s)
        return s, s + delta**2 * g.real, 1 + delta**2 * g_prime.real, delta**2 * others

    eigenvalue, position, squared, mixing = jax.lax.map(at, _scan(law))
    return Spikes(eigenvalue, position, squared, mixing, count)


def outliers(law: AbstractSpectralLaw, delta: Scalar, epsilon: Scalar, eta: Scalar) -> Outliers:
    """See `LearnedSpectrum.outliers`; on the host."""
    if not isinstance(law, FiniteLaw):
        return Outliers(*np.zeros((3, 0)))
    found = spikes(law, delta)
    s, y, squared, mixing = (np.asarray(value, float)[: int(found.number)] for value in found[:4])
    seen = y > float(epsilon)
    # A squared overlap of zero within rounding is one on the boundary; ψ' > 0 above s_K.
    overlap = np.where(mixing < 1, np.sqrt(np.maximum(squared, 0)), np.nan)
    return Outliers((float(eta) * (y - float(epsilon)))[seen], overlap[seen], s[seen])
