"""Marchenko-Pastur law: the target S0 = W0 W0ᵀ/√(p0 d) of a random teacher."""

import math

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Complex, Float, PRNGKeyArray, Scalar
from amp_attention.numerics.bisection import bisect
from amp_attention.numerics.validation import positive, whole_number
from amp_attention.spectral_laws._complex import as_complex, reciprocal, root, scaled
from amp_attention.spectral_laws._law import AbstractSpectralLaw, as_float, is_concrete


class MarchenkoPastur(AbstractSpectralLaw):
    r"""Law of S0 = W0 W0ᵀ/√(p0 d), W0 in R^{d×p0} with standard normal entries, κ0 = p0/d.

    Q0 = 1 + κ0, mean √κ0. With c = 1/κ0 and x = √κ0 w, w follows the Marchenko-Pastur law of ratio c: density
    $\sqrt{(w-\lambda_-)(\lambda_+-w)}/(2\pi c w)$, $\lambda_\pm = (1\pm\sqrt c)^2$, and an atom 1-κ0 at 0 if κ0 < 1.

    Args:
        kappa0: width of the teacher over its dimension, positive scalar.
    """

    kappa0: Scalar

    def __init__(self, kappa0):
        self.kappa0 = positive("kappa0", kappa0)

    def _edges(self) -> tuple[Scalar, Scalar]:
        """√κ0 λ±, written without 1/κ0."""
        root = jnp.sqrt(self.kappa0)
        return (1 - root) ** 2 / root, (1 + root) ** 2 / root

    def _transform(self, z: Complex[Array, "..."]) -> tuple[Complex[Array, "..."], Complex[Array, "..."]]:
        """G0 and the root r = √(w-λ₋)√(w-λ₊), both as functions of w = z/√κ0 and in its units."""
        c = 1 / self.kappa0
        w = scaled(jnp.sqrt(c), z)
        r = root(w - as_complex((1 - jnp.sqrt(c)) ** 2)) * root(w - as_complex((1 + jnp.sqrt(c)) ** 2))
        p = w + as_complex(c - 1)
        # (p - r)/(2cw) = 2/(p + r): divide by p + r where it does not cancel, else multiply by p - r.
        add = p.real * r.real + p.imag * r.imag >= 0
        inverse = reciprocal(jnp.where(add, p + r, scaled(c, w)))
        return jnp.where(add, 2 * inverse, (p - r) * inverse / 2), r

    def cauchy(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return scaled(1 / jnp.sqrt(self.kappa0), self._transform(z)[0])

    def cauchy_prime(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return self.cauchy_pair(z)[1]

    def cauchy_pair(self, z: Complex[Array, "..."]) -> tuple[Complex[Array, "..."], Complex[Array, "..."]]:
        """The derivative per unit w is -g(1-cg)/r, from differentiating c w g² - (w-1+c) g + 1 = 0."""
        g, r = self._transform(z)
        c = 1 / self.kappa0
        return scaled(jnp.sqrt(c), g), scaled(-c, g * (1 - scaled(c, g)) * reciprocal(r))

    def moment(self, k: int) -> Scalar:
        """Narayana sum κ0^{k/2} Σ_r κ0^{-r} C(k,r) C(k-1,r)/(r+1)."""
        if whole_number("k", k, 0) == 0:
            return jnp.ones_like(self.kappa0)
        terms = [math.comb(k, r) * math.comb(k - 1, r) // (r + 1) * self.kappa0 ** (k / 2 - r) for r in range(k)]
        return sum(terms[1:], terms[0])

    def components(self) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
        """The atom at zero and the bulk; for κ0 >= 1, where there is no atom, a point of no mass at the left edge."""
        low, high = self._edges()
        first = jnp.where(self.kappa0 < 1, jnp.zeros_like(low), low)
        return jnp.stack([first, low]), jnp.stack([first, high])

    def atom(self) -> Scalar:
        return jnp.where(self.kappa0 < 1, 1 - self.kappa0, jnp.zeros_like(self.kappa0))

    def _position(self, angle: Float[Array, "..."]) -> Float[Array, "..."]:
        """w = 1 + c - 2√c cos(angle), as the left edge plus what is to the right of it."""
        root = 1 / jnp.sqrt(self.kappa0)
        return (1 - root) ** 2 + 4 * root * jnp.sin(angle / 2) ** 2

    def _distribution(self, angle: Float[Array, "..."]) -> Float[Array, "..."]:
        """Bulk mass left of `_position(angle)`."""
        c = 1 / self.kappa0
        root = jnp.sqrt(c)
        turn = jnp.arctan2((1 + root) * jnp.sin(angle / 2), jnp.abs(1 - root) * jnp.cos(angle / 2))
        return (2 * root * jnp.sin(angle) + (1 + c) * angle - 2 * jnp.abs(1 - c) * turn) / (2 * jnp.pi * c)

    def quantiles(self, levels: Float[Array, " d"]) -> Float[Array, " d"]:
        """Bisection of the closed distribution function, in the angle; zero at levels within the atom."""
        bulk = as_float(levels, self.dtype) - self.atom()
        fixed, target = jax.lax.stop_gradient((self, bulk))
        angle = bisect(lambda t: fixed._distribution(t) < target, 0 * bulk, 0 * bulk + jnp.pi)
        # One Newton step carries the derivative; at the very ends of the bulk the slope vanishes.
        slope = 2 * jnp.sin(angle) ** 2 / (jnp.pi * fixed._position(angle))
        safe = slope > jnp.finfo(slope.dtype).eps
        step = (self._distribution(angle) - bulk) / jnp.where(safe, slope, jnp.ones_like(slope))
        x = jnp.sqrt(self.kappa0) * self._position(angle - jnp.where(safe, step, jnp.zeros_like(step)))
        return jnp.where(bulk > 0, x, jnp.zeros_like(x))

    def sample(self, key: PRNGKeyArray, d: int) -> Float[Array, "d d"]:
        """W0 W0ᵀ/√(p0 d) with p0 = max(1, round(κ0 d)); κ0 fixes a shape here and must be concrete."""
        if not is_concrete(self.kappa0):
            raise ValueError("kappa0 must be a concrete number in sample (it fixes the width), got a traced value")
        width = max(1, round(float(self.kappa0) * whole_number("d", d, 1)))
        factor = jax.random.normal(key, (d, width), dtype=self.dtype)
        return jnp.matmul(factor, factor.T, precision="highest") / math.sqrt(width * d)
