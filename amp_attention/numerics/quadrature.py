"""Nodes and weights of fixed quadrature rules, as host constants of the unit interval.

The rules are computed once with numpy in double precision; callers cast them to the type of their physical
numbers. Fixed nodes compile in a fraction of the time of an adaptive rule and keep results differentiable.
"""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from amp_attention._typing import Array, Float


@lru_cache(maxsize=64)
def _gauss_legendre(n: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (nodes + 1) / 2, weights / 2


@lru_cache(maxsize=64)
def _tanh_sinh(n: int, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t = np.linspace(-reach, reach, n)
    g = np.pi / 2 * np.sinh(t)
    slope = np.pi / 2 * np.cosh(t) * (2 * reach / (n - 1))
    # Distances to either end as e^g / (2 cosh g): subtracting from 1 would lose every node near the right end.
    left, right = 1 / (1 + np.exp(-2 * g)), 1 / (1 + np.exp(2 * g))
    return left, right, 2 * left * right * slope


def gauss_legendre(n: int, dtype: DTypeLike = float) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    r"""Gauss-Legendre rule on [0, 1]: $\int_0^1 f \approx \sum_k w_k f(t_k)$.

    Args:
        n: number of nodes, at least 1; exact for polynomials of degree 2n-1.
        dtype: floating type of the result.

    Returns:
        Nodes, ascending in (0, 1), and weights, which sum to one.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    nodes, weights = _gauss_legendre(int(n))
    return jnp.asarray(nodes, dtype=dtype), jnp.asarray(weights, dtype=dtype)


def tanh_sinh(
    n: int, dtype: DTypeLike = float, reach: float = 3.0
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
    r"""Double-exponential rule on [0, 1], for integrands with branch points at both ends.

    $t = 1/(1+e^{-\pi \sinh \tau})$ with $\tau$ equally spaced on [-reach, reach].

    Args:
        n: number of nodes, at least 2.
        dtype: floating type of the result.
        reach: range of $\tau$; the outermost node lies $e^{-\pi \sinh(\mathrm{reach})}$ from its end, and what
            lies beyond is dropped. 3 (2e-14) suits bounded integrands.

    Returns:
        Distances of the nodes from 0, distances from 1 (both free of cancellation), and weights.

    Source: Takahasi and Mori, Publ. RIMS 9 (1974) 721.
    """
    if n < 2:
        raise ValueError(f"n must be at least 2, got {n}")
    if not reach > 0:
        raise ValueError(f"reach must be positive, got {reach}")
    left, right, weights = _tanh_sinh(int(n), float(reach))
    return (
        jnp.asarray(left, dtype=dtype),
        jnp.asarray(right, dtype=dtype),
        jnp.asarray(weights, dtype=dtype),
    )
