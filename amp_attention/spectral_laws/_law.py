"""What every spectral law of a target matrix S0 offers."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

from amp_attention._typing import Array, Complex, Float, PRNGKeyArray, Scalar


def as_float(value, dtype=None) -> Float[Array, "..."]:
    """`value` as a floating array of `dtype`; integers become the default floating type."""
    value = jnp.asarray(value)
    if dtype is None:
        dtype = value.dtype if jnp.issubdtype(value.dtype, jnp.floating) else jnp.zeros(()).dtype
    return value.astype(dtype)


def is_concrete(value) -> bool:
    """False under a transformation, where a value cannot be looked at and checks are skipped."""
    return not isinstance(value, Tracer)


def symmetric_from_spectrum(key: PRNGKeyArray, eigenvalues: Float[Array, " d"]) -> Float[Array, "d d"]:
    """Haar-rotated diagonal matrix: O diag(s) Oᵀ with O uniform on the orthogonal group.

    O is the Q factor of a Gaussian matrix. It is Haar up to the signs of its columns, which cancel here.
    """
    d = eigenvalues.shape[0]
    basis = jnp.linalg.qr(jax.random.normal(key, (d, d), dtype=eigenvalues.dtype))[0]
    matrix = jnp.matmul(basis * eigenvalues[None, :], basis.T, precision="highest")
    return (matrix + matrix.T) / 2


class AbstractSpectralLaw(eqx.Module):
    """Limiting eigenvalue distribution μ0 of the symmetric d×d target S0, normalised as Q0 = ∫x²μ0 = Tr(S0²)/d.

    Subclasses hold their physical numbers as arrays, so that sweeps vmap over them, and define the abstract
    methods. The density must be analytic inside every component of the support.
    """

    @property
    def dtype(self) -> jnp.dtype:
        """Floating type of the law's numbers; everything derived from the law is computed in it."""
        return jax.tree.leaves(self)[0].dtype

    @abc.abstractmethod
    def cauchy(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        """Cauchy transform G0(z) = ∫μ0(dx)/(z-x).

        Args:
            z: Im z >= 0, any shape; on the real axis, outside the support (inside it, the limit from above
                where that exists).

        Returns:
            Complex array of the shape of z.
        """

    def cauchy_prime(self, z: Complex[Array, "..."]) -> Complex[Array, "..."]:
        """Derivative G0'(z) = -∫μ0(dx)/(z-x)², same domain as `cauchy`."""
        return jax.jvp(self.cauchy, (z,), (jnp.ones_like(z),))[1]

    def cauchy_pair(self, z: Complex[Array, "..."]) -> tuple[Complex[Array, "..."], Complex[Array, "..."]]:
        """G0 and G0' at once; overridden where they share work."""
        return self.cauchy(z), self.cauchy_prime(z)

    @abc.abstractmethod
    def moment(self, k: int) -> Scalar:
        """∫x^k μ0(dx), exact; k >= 0."""

    @abc.abstractmethod
    def components(self) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Left and right ends of the connected components of the support, ascending; an atom has equal ends.

        N does not depend on the values of the physical numbers.
        """

    @abc.abstractmethod
    def atom(self) -> Scalar:
        """Mass at zero, μ0({0})."""

    @abc.abstractmethod
    def quantiles(self, levels: Float[Array, " d"]) -> Float[Array, " d"]:
        """Inverse distribution function: smallest x with μ0((-∞, x]) >= level, for levels in (0, 1)."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, d: int) -> Float[Array, "d d"]:
        """Random symmetric d×d matrix whose spectrum tends to μ0 as d → ∞."""
