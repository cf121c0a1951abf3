"""The soft threshold of the eigenvalues of a symmetric matrix, with derivatives that survive repeated eigenvalues.

The derivative of f(B) = O f(b) Oᵀ is O (D ∘ Oᵀ dB O) Oᵀ with divided differences D_ij = (f(b_i) − f(b_j))/(b_i − b_j)
(Daleckii–Krein). Differentiating `eigh` instead divides by b_i − b_j and is NaN where eigenvalues repeat: at B = 0, at
B = cI, in any rank-deficient start. For f(b) = (b − θ)₊ every D_ij has a form without cancellation.
"""

import equinox as eqx
import jax.numpy as jnp

from amp_attention._typing import Array, Float, Scalar


def soft_threshold_divided_differences(b: Float[Array, " d"], theta: Scalar) -> Float[Array, "d d"]:
    """D_ij = [(b_i − θ)₊ − (b_j − θ)₊]/(b_i − b_j), free of cancellation.

    1 if both are above θ, 0 if both are below, (b_i − θ)/(b_i − b_j) for b_i above and b_j below. An eigenvalue exactly
    at θ counts as below, so that the derivative at the kink is 0.

    Args:
        b: eigenvalues, in any order.
        theta: the threshold θ.

    Returns:
        The symmetric matrix D, with entries in [0, 1] and 1(b_i > θ) on the diagonal.
    """
    both, weight, _ = _mixed_pairs(b, theta)
    return both.astype(b.dtype) + weight + weight.T


def _mixed_pairs(b, theta):
    """Pairs both above; (b_i − θ)/(b_i − b_j) and the gap b_i − b_j of the pairs with i above and j below.

    The weight is 0 and the gap 1 for all other pairs, and for gaps that underflow.
    """
    above = b > theta
    gap = b[:, None] - b[None, :]
    mixed = above[:, None] & ~above[None, :] & (gap > 0)
    gap = jnp.where(mixed, gap, jnp.ones_like(gap))
    excess = jnp.broadcast_to((b - theta)[:, None], gap.shape)
    weight = jnp.where(mixed, excess, jnp.zeros_like(gap)) / gap
    return above[:, None] & above[None, :], weight, gap


def _half_trace(D):
    """Σ_{i≤j} D_ij."""
    return (jnp.sum(D) + jnp.trace(D)) / 2


def _congruence(O, M):
    """O M Oᵀ."""
    return jnp.matmul(jnp.matmul(O, M, precision="highest"), O.T, precision="highest")


def _threshold(B, lam, Gamma):
    b, O = jnp.linalg.eigh(B)
    # Not b > λ̃: where λ̃ is NaN, so is the result.
    eigenvalues = jnp.where(b <= lam, jnp.zeros_like(b), b - lam) / Gamma
    S = jnp.matmul(O * eigenvalues[None, :], O.T, precision="highest")
    D = soft_threshold_divided_differences(b, lam)
    V = _half_trace(D) / (Gamma * b.size**2)
    return (S, V, eigenvalues), (b, O, D)


@eqx.filter_custom_jvp
def soft_threshold_spectrum(
    B: Float[Array, "d d"], lam: Scalar, Gamma: Scalar
) -> tuple[Float[Array, "d d"], Scalar, Float[Array, " d"]]:
    """S = O diag((b − λ̃)₊/Γ) Oᵀ of B = O diag(b) Oᵀ, its divergence V and its eigenvalues.

    V = (1/d²)[Σ_{i<j} D_ij + Σ_i 1(b_i > λ̃)]/Γ, the trace of dS/dB over symmetric directions, divided by d².

    Differentiable in B, λ̃ and Γ, forward and reverse, also where eigenvalues of B repeat; the derivative never divides
    by the gap of two eigenvalues on the same side of the threshold. At b_i = λ̃ the derivative is that of the side
    below. V has no derivative where an eigenvalue crosses λ̃ (it jumps); what is returned there is finite and one-sided.
    Repeated eigenvalues of S have directional derivatives only: their sums over a group of equal ones are right.
    Second derivatives go through those of `eigh` and need distinct eigenvalues.

    Args:
        B: symmetric matrix; only its symmetric part is read.
        lam: threshold λ̃ ≥ 0.
        Gamma: Γ > 0.

    Returns:
        S, V and the eigenvalues of S in ascending order.

    Source: arXiv:2509.24914; Daleckii–Krein formula.
    """
    return _threshold(B, lam, Gamma)[0]


@soft_threshold_spectrum.def_jvp
def _soft_threshold_jvp(primals, tangents):
    B, lam, Gamma = primals
    zeros = lambda x, t: jnp.zeros_like(x) if t is None else t  # noqa: E731
    dB, dlam, dGamma = (zeros(x, t) for x, t in zip(primals, tangents, strict=True))
    (S, V, eigenvalues), (b, O, D) = _threshold(B, lam, Gamma)

    above = (b > lam).astype(b.dtype)
    rotated = _congruence(O.T, (dB + dB.T) / 2)
    dS = _congruence(O, D * rotated - jnp.diag(dlam * above)) / Gamma - S * (dGamma / Gamma)

    db = jnp.diagonal(rotated)
    d_eigenvalues = above * (db - dlam) / Gamma - eigenvalues * (dGamma / Gamma)

    # D = w of a mixed pair (i above, j below): ∂w/∂b_i = (1 − w)/gap, ∂w/∂b_j = w/gap, ∂w/∂λ̃ = −1/gap.
    _, weight, gap = _mixed_pairs(b, lam)
    mixed = (weight > 0).astype(b.dtype)
    change = mixed * ((1 - weight) * (db - dlam)[:, None] + weight * (db - dlam)[None, :]) / gap
    dV = jnp.sum(change) / (Gamma * b.size**2) - V * (dGamma / Gamma)
    return (S, V, eigenvalues), (dS, dV, d_eigenvalues)
