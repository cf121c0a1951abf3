"""A finite list of eigenvalues: power laws, measured spectra."""

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Complex, Float, PRNGKeyArray, Scalar
from amp_attention.numerics.validation import finite, real_array, whole_number
from amp_attention.spectral_laws._law import AbstractSpectralLaw, as_float, is_concrete, symmetric_from_spectrum


def _real(name: str, values) -> Array:
    """A list or an array as an array; ValueError unless its entries are real numbers."""
    array = real_array(values)
    if array is None:
        raise ValueError(f"{name} must be a list of real numbers, got {values}")
    return jnp.asarray(array)


class FiniteLaw(AbstractSpectralLaw):
    """Sum of atoms, μ0 = Σ_i weight_i δ(x - s_i).

    Args:
        eigenvalues: s_i, shape (N,), any order, finite; repeated values are allowed. Stored ascending.
        weights: masses, shape (N,), positive; divided by their sum. Equal masses 1/N if omitted.
    """

    eigenvalues: Float[Array, " N"]
    weights: Float[Array, " N"]

    def __init__(self, eigenvalues, weights=None):
        values = as_float(_real("eigenvalues", eigenvalues))
        if values.ndim != 1 or values.shape[0] == 0:
            raise ValueError(f"eigenvalues must be a non-empty list of shape (N,), got shape {values.shape}")
        if is_concrete(values) and not jnp.isfinite(values).all():
            raise ValueError(f"eigenvalues must be finite, got {eigenvalues}")
        if weights is None:
            masses = jnp.ones_like(values)
        else:
            masses = as_float(_real("weights", weights), values.dtype)
            if masses.shape != values.shape:
                raise ValueError(f"weights must have the shape {values.shape} of eigenvalues, got {masses.shape}")
            if is_concrete(masses) and not (jnp.isfinite(masses) & (masses > 0)).all():
                raise ValueError(f"weights must be positive and finite, got {weights}")
        order = jnp.argsort(values)
        self.eigenvalues = values[order]
        self.weights = masses[order] / jnp.sum(masses)

    @classmethod
    def power_law(cls, gamma, d: int, normalise: bool = False) -> "FiniteLaw":
        """s_i = √d i^-γ, i = 1..d, differentiable in γ.

        Args:
            gamma: exponent γ, scalar.
            d: number of eigenvalues, at least 1.
            normalise: divide by √Q0, so that Q0 = 1.
        """
        d = whole_number("d", d, 1)
        gamma = finite("gamma", gamma)
        values = jnp.exp(-gamma * jnp.log(jnp.arange(1, d + 1, dtype=gamma.dtype)))
        scale = jnp.sqrt(jnp.mean(values**2)) if normalise else d**-0.5
        return cls(values / scale)

    def _offsets(self, z: Complex[Array, "..."]):
        """u - s_i, v and 1/|z - s_i|², the atoms on a new last axis."""
        gap = z.real[..., None] - self.eigenvalues.reshape((1,) * z.ndim + (-1,))
        height = z.imag[..., None]
        return gap, height, 1 / (gap**2 + height**2)

    def _sum(self, terms: Float[Array, "... N"]) -> Float[Array, "..."]:
        return jnp.sum(terms * self.weights.reshape((1,) * (terms.ndim - 1) + (-1,)), axis=-1)

    def cauchy(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return self.cauchy_pair(z)[0]

    def cauchy_prime(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return self.cauchy_pair(z)[1]

    def cauchy_pair(self, z: Complex[Array, "..."]) -> tuple[Complex[Array, "..."], Complex[Array, "..."]]:
        """Σ 1/(z-s) and -Σ 1/(z-s)², with v outside the sum: Im G0 keeps its relative accuracy near the real axis."""
        gap, height, inverse = self._offsets(z)
        across, along = gap * inverse, height * inverse
        value = jax.lax.complex(self._sum(across), -z.imag * self._sum(inverse))
        return value, jax.lax.complex(self._sum(along**2 - across**2), 2 * z.imag * self._sum(across * inverse))

    def moment(self, k: int) -> Scalar:
        return self._sum(self.eigenvalues ** whole_number("k", k, 0))

    def components(self) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        return self.eigenvalues, self.eigenvalues

    def atom(self) -> Scalar:
        return self._sum((self.eigenvalues == 0).astype(self.dtype))

    def quantiles(self, levels: Float[Array, " d"]) -> Float[Array, " d"]:
        """At levels (i-½)/N and equal masses, exactly the N eigenvalues."""
        index = jnp.searchsorted(jnp.cumsum(self.weights), as_float(levels, self.dtype))
        return self.eigenvalues[jnp.minimum(index, self.eigenvalues.shape[0] - 1)]

    def sample(self, key: PRNGKeyArray, d: int) -> Float[Array, "d d"]:
        """Haar-rotated matrix with eigenvalues `quantiles((i-½)/d)`: at d = N and equal masses, exactly the list."""
        levels = (jnp.arange(whole_number("d", d, 1), dtype=self.dtype) + 0.5) / d
        return symmetric_from_spectrum(key, self.quantiles(levels))
