"""The rotation-invariant denoiser on matrices and at d → ∞."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.denoisers import PosteriorMean
from amp_attention.spectral_laws import FiniteLaw, FreeConvolution, MarchenkoPastur, Semicircle

D = 0.4


def observed(law, d):
    """S0 and S0 + √D Z."""
    keys = jax.random.split(jax.random.key(0))
    Z = jax.random.normal(keys[0], (d, d)) / np.sqrt(2 * d)
    S0 = law.sample(keys[1], d)
    return S0, S0 + jnp.sqrt(D) * (Z + Z.T)


def test_reaches_the_least_error_on_a_large_matrix():
    law, Gamma = MarchenkoPastur(0.5), jnp.asarray(1 / (2 * D))
    S0, R = observed(law, 400)
    step = PosteriorMean(law).apply(Gamma * R, Gamma)
    np.testing.assert_allclose(jnp.sum((step.S - S0) ** 2) / 400, step.V, rtol=0.02)
    np.testing.assert_allclose(step.V, FreeConvolution(law, np.sqrt(D)).mmse(), rtol=1e-12)
    np.testing.assert_allclose(jnp.linalg.eigvalsh(step.S), step.eigenvalues, atol=1e-10)
    for factor in (0.95, 1.05):  # no other amount of shrinkage is better
        assert jnp.sum((factor * step.S - S0) ** 2) > jnp.sum((step.S - S0) ** 2)


def test_a_semicircle_is_shrunk_linearly():
    """For a Gaussian S0 the posterior mean is R/(1 + D), and mmse = D/(1 + D)."""
    law = Semicircle(1.0)
    convolution = FreeConvolution(law, np.sqrt(D))
    x = jnp.linspace(-1.5, 1.5, 7)
    np.testing.assert_allclose(convolution.posterior_mean(x), x / (1 + D), atol=1e-12)
    np.testing.assert_allclose(convolution.mmse(), D / (1 + D), rtol=1e-12)


def test_eigenvalues_beyond_the_support_count_as_its_ends():
    law, Gamma = MarchenkoPastur(0.5), jnp.asarray(1 / (2 * D))
    left, right = FreeConvolution(law, np.sqrt(D)).edges()[jnp.asarray([0, -1]), jnp.asarray([0, 1])]
    found = PosteriorMean(law).apply(Gamma * jnp.diag(jnp.stack([left - 3, right + 5])), Gamma)
    ends = FreeConvolution(law, np.sqrt(D)).posterior_mean(jnp.stack([left, right]))
    np.testing.assert_allclose(found.eigenvalues, ends, atol=1e-7)
    assert np.all(np.diff(FreeConvolution(law, np.sqrt(D)).posterior_mean(jnp.linspace(left, right, 50))) > 0)


@pytest.mark.parametrize("kappa0", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("noise", [0.01, 0.5, 3.0, 50.0])
def test_duality_of_noise_and_width(kappa0, noise):
    """mmse(κ0, D) = D mmse(κ0 D, 1/D), of Marchenko–Pastur laws."""
    mmse = lambda kappa0, D: FreeConvolution(MarchenkoPastur(kappa0), jnp.sqrt(D)).mmse()  # noqa: E731
    np.testing.assert_allclose(mmse(kappa0, noise), noise * mmse(kappa0 * noise, 1 / noise), rtol=1e-12)


def test_limits_and_derivative_of_the_least_error():
    law = MarchenkoPastur(0.5)
    mmse = jax.jit(lambda D: PosteriorMean(law).mmse(D))
    np.testing.assert_allclose(mmse(1e-6) / 1e-6, 2 * 0.5 - 0.25, rtol=1e-3)
    np.testing.assert_allclose(mmse(1e6), 1, rtol=1e-5)
    slope, step = jax.grad(mmse)(0.5), 1e-4
    np.testing.assert_allclose(slope, (mmse(0.5 + step) - mmse(0.5 - step)) / (2 * step), rtol=1e-6)


def test_starts_at_the_mean_of_the_prior():
    S, V = PosteriorMean(FiniteLaw(jnp.asarray([0.0, 1.0, 5.0]))).start(4)
    np.testing.assert_allclose(S, 2 * np.eye(4))
    np.testing.assert_allclose(V, np.var([0.0, 1.0, 5.0]))


def test_is_no_penalty():
    prior = PosteriorMean(MarchenkoPastur(0.5))
    for call in (lambda: prior.objective(jnp.eye(2)), lambda: prior.moments(prior.law, *jnp.ones(3))):
        with pytest.raises(TypeError, match="denoiser must be a penalty, such as NuclearNorm, got PosteriorMean"):
            call()
