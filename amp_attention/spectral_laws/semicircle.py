"""Semicircle law: a target without structure."""

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Complex, Float, PRNGKeyArray, Scalar
from amp_attention.numerics.bisection import bisect
from amp_attention.numerics.validation import positive, whole_number
from amp_attention.spectral_laws._complex import as_complex, reciprocal, root
from amp_attention.spectral_laws._law import AbstractSpectralLaw, as_float


class Semicircle(AbstractSpectralLaw):
    r"""Wigner's semicircle, $\rho(x) = \sqrt{4\sigma^2 - x^2}/(2\pi\sigma^2)$ on [-2σ, 2σ]; the limit of GOE matrices.

    Args:
        variance: σ² = Q0, positive scalar.
    """

    variance: Scalar

    def __init__(self, variance):
        self.variance = positive("variance", variance)

    def _root(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        """√(z-2σ)√(z+2σ): one root per edge puts the cut on the support."""
        edge = as_complex(2 * jnp.sqrt(self.variance))
        return root(z - edge) * root(z + edge)

    def cauchy(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        """2/(z + √(z²-4σ²)); the sum never cancels."""
        return 2 * reciprocal(z + self._root(z))

    def cauchy_prime(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return self.cauchy_pair(z)[1]

    def cauchy_pair(self, z: Complex[Array, "..."]) -> tuple[Complex[Array, "..."], Complex[Array, "..."]]:
        across = self._root(z)
        value = 2 * reciprocal(z + across)
        return value, -value * reciprocal(across)

    def moment(self, k: int) -> Scalar:
        """Catalan numbers: variance^(k/2) C_(k/2) for even k, zero for odd k."""
        if whole_number("k", k, 0) % 2:
            return jnp.zeros_like(self.variance)
        catalan = 1
        for j in range(k // 2):
            catalan = catalan * 2 * (2 * j + 1) // (j + 2)
        return catalan * self.variance ** (k // 2)

    def components(self) -> tuple[Float[Array, " 1"], Float[Array, " 1"]]:
        edge = 2 * jnp.sqrt(self.variance)[None]
        return -edge, edge

    def atom(self) -> Scalar:
        return jnp.zeros_like(self.variance)

    def quantiles(self, levels: Float[Array, " d"]) -> Float[Array, " d"]:
        levels = as_float(levels, self.dtype)
        angle = bisect(lambda t: (t - jnp.sin(t) * jnp.cos(t)) / jnp.pi < levels, 0 * levels, 0 * levels + jnp.pi)
        return -2 * jnp.sqrt(self.variance) * jnp.cos(jax.lax.stop_gradient(angle))

    def sample(self, key: PRNGKeyArray, d: int) -> Float[Array, "d d"]:
        """GOE(d): entries of variance σ²/d off the diagonal and 2σ²/d on it."""
        d = whole_number("d", d, 1)
        gauss = jax.random.normal(key, (d, d), dtype=self.dtype)
        return jnp.sqrt(self.variance / (2 * d)) * (gauss + gauss.T)
