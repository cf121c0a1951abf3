r"""Free convolution of a spectral law with a semicircle: the spectrum of S0 + δZ, Z from the GOE."""

import equinox as eqx
import jax.numpy as jnp

from amp_attention._typing import Array, Complex, Float, Scalar, ScalarLike
from amp_attention.numerics.validation import instance_of, positive, whole_number
from amp_attention.spectral_laws import _biane
from amp_attention.spectral_laws._above import Above, integrals_above
from amp_attention.spectral_laws._contour import HalfLines, half_lines
from amp_attention.spectral_laws._law import AbstractSpectralLaw
from amp_attention.spectral_laws._replica_overlap import replica_overlap
from amp_attention.spectral_laws._subordination import subordinate
from amp_attention.spectral_laws._tangent_overlap import tangent_overlap


class FreeConvolution(eqx.Module):
    r"""μ_δ = μ0 ⊞ semicircle of variance δ², the law of S0 + δZ with Z a GOE matrix (entries of variance 1/d).

    Args:
        law: μ0.
        delta: δ, positive scalar, in the units of S0.

    Source: Biane, Indiana Univ. Math. J. 46 (1997) 705; the use made of it, arXiv:2509.24914.
    """

    law: AbstractSpectralLaw
    delta: Scalar

    def __init__(self, law: AbstractSpectralLaw, delta: ScalarLike):
        instance_of("law", law, AbstractSpectralLaw, "a spectral law")
        self.law = law
        self.delta = positive("delta", delta).astype(law.dtype)

    @eqx.filter_jit
    def subordination(self, x: Float[Array, "..."]) -> Complex[Array, "..."]:
        """Boundary point w = u + i v(u), v >= 0, with ψ(w) = w + δ²G0(w) = x.

        Args:
            x: real, any shape.

        Returns:
            Complex array of the shape of x; real values (v = 0) outside the support. Differentiable twice in x, δ
            and the law, except at band edges, where the derivative is infinite and left out.
        """
        return subordinate(self.law, self.delta, jnp.asarray(x, self.law.dtype))

    def density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Density of μ_δ at x, -Im G0(w)/π."""
        w = self.subordination(x)
        # G0(w) = (x - w)/δ², so that Im G0 = -v/δ²: no second evaluation of the law, and never negative.
        return w.imag / (jnp.pi * self.delta**2)

    def principal_value(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """h(x) = PV ∫μ_δ(dy)/(x-y) = Re G0(w)."""
        return self.law.cauchy(self.subordination(x)).real

    @eqx.filter_jit
    def edges(self) -> Float[Array, "M 2"]:
        """Intervals that cover the support of μ_δ, one per component of supp μ0, ascending.

        Neighbours that have merged share a common end, so that M does not depend on δ.
        """
        return _biane.edges(self.law, self.delta)

    @eqx.filter_jit
    def nodes(self, per_cell: int | None = None) -> tuple[Float[Array, " k"], Float[Array, " k"], Float[Array, " k"]]:
        """Quadrature on the real axis, ∫f dμ_δ ≈ Σ weight f(x), for f smooth on the support.

        Args:
            per_cell: nodes for each component of supp μ0; by default enough for eight digits.

        Returns:
            x (ascending), weight, and the principal value h at x.
        """
        per_cell = None if per_cell is None else whole_number("per_cell", per_cell, 1)
        return _biane.nodes(self.law, self.delta, per_cell)

    @eqx.filter_jit
    def posterior_mean(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        r"""The eigenvalues ξ(x) = x - 2δ²h(x) of the mean of S0 given S0 + δZ, whose eigenvalues are x.

        Eigenvalues outside the support of μ_δ, which a finite matrix can have, count as those at its ends.

        Args:
            x: real, any shape.

        Source: Bun et al., IEEE Trans. Inf. Theory 62 (2016) 7475; arXiv:2506.01582.
        """
        ends = self.edges()
        inside = jnp.clip(jnp.asarray(x, self.law.dtype), ends[0, 0], ends[-1, 1])
        return 2 * self.subordination(inside).real - inside

    @eqx.filter_jit
    def mmse(self, per_cell: int | None = None) -> Scalar:
        r"""E‖S0 - E[S0 | S0 + δZ]‖²/d at d → ∞, differentiable in δ and the law.

        $$\delta^2 - 4\delta^4 \int h^2 d\mu_\delta = \mathrm{Var}(\mu_0) - \int (\xi - k)^2 d\mu_\delta$$

        with k the mean of μ0: the form whose terms are smaller is taken, since they cancel.

        Args:
            per_cell: see `nodes`.

        Source: Bun et al., IEEE Trans. Inf. Theory 62 (2016) 7475; arXiv:2506.01582.
        """
        x, weight, h = self.nodes(per_cell)
        noise, mean = self.delta**2, self.law.moment(1)
        variance = self.law.moment(2) - mean**2
        little = noise - 4 * noise**2 * jnp.sum(weight * h**2)
        much = variance - jnp.sum(weight * (x - 2 * noise * h - mean) ** 2)
        return jnp.where(noise < variance, little, much)

    @eqx.filter_jit
    def above(self, epsilon: ScalarLike) -> Above:
        """Integrals over x > ε, see `Above`; each differentiable twice in δ, ε and the law.

        rank_fraction and zero_fraction have no derivative at a band edge.
        """
        epsilon, lines = self._lines(epsilon)
        return integrals_above(self.law, self.delta, epsilon, lines)

    def _lines(self, epsilon: ScalarLike) -> tuple[Scalar, HalfLines]:
        """ε as an array, and the integration paths that part there."""
        epsilon = jnp.asarray(epsilon, self.law.dtype)
        return epsilon, half_lines(self.law, self.delta, subordinate(self.law, self.delta, epsilon))

    @eqx.filter_jit
    def tangent_overlap(self, epsilon: ScalarLike) -> Scalar:
        r"""The factor R2 of the replicon, with F the zero fraction.

        $$R_2 = (1-F)^2 + 2\iint_{x>\epsilon>y} \Big(\frac{x-\epsilon}{x-y}\Big)^2 \mu_\delta(dx)\,\mu_\delta(dy)$$

        It is the mean square of the derivative of X ↦ ReLU(X - ε) at S0 + δZ in a random symmetric direction, between 0
        and 1. Differentiable in δ, ε and the law, except at band edges.
        """
        return self.above_and_overlap(epsilon)[1]

    @eqx.filter_jit
    def above_and_overlap(self, epsilon: ScalarLike) -> tuple[Above, Scalar]:
        """`above` and `tangent_overlap`, which share their integration paths."""
        epsilon, lines = self._lines(epsilon)
        above = integrals_above(self.law, self.delta, epsilon, lines)
        return above, tangent_overlap(self.law, self.delta, epsilon, lines, above.rank_fraction)

    @eqx.filter_jit
    def replica_overlap(self, epsilon: ScalarLike, gap: ScalarLike) -> Scalar:
        r"""(1/d) Tr ReLU(X1 - ε) ReLU(X2 - ε) for X_i = S0 + δ Z_i, where Z1 and Z2 have the correlation 1 - gap/δ².

        J at gap = 0, and independent noises at gap = δ²; its derivative in the gap at 0 is minus `tangent_overlap`.

        Args:
            epsilon: ε.
            gap: δ² minus the overlap of the two noises, 0 <= gap <= δ².

        Returns:
            Scalar, differentiable in gap (also at 0), δ, ε and the law, except at band edges.
        """
        dtype = self.law.dtype
        return replica_overlap(self.law, self.delta, jnp.asarray(epsilon, dtype), jnp.asarray(gap, dtype))


def J(law: AbstractSpectralLaw, delta: ScalarLike, epsilon: ScalarLike) -> Scalar:
    r"""$J(\delta,\epsilon) = \int_\epsilon^\infty (x-\epsilon)^2 \mu_\delta(dx)$.

    ∂J/∂δ = 4δ D1 and ∂J/∂ε = -2 trace in the names of `Above`; automatic derivatives agree, to second order and in
    every mode.
    """
    return FreeConvolution(law, delta).above(epsilon).J
