"""Overlap of two soft-thresholded matrices with correlated noises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_chebyu
from spectral_law_cases import CASES, each

from amp_attention.spectral_laws import FiniteLaw, FreeConvolution, MarchenkoPastur, Semicircle

ATOMS = FiniteLaw([3.0, 0.0, 0.0, -1.0, 1.0, 1.0])
CHOSEN = [case for case in CASES if case.slug in ("marchenko_pastur_0.3", "marchenko_pastur_3.0", "repeated")]


@jax.jit
def overlap_and_slope(law, delta, epsilon, gap):
    f = lambda gap: FreeConvolution(law, delta).replica_overlap(epsilon, gap)  # noqa: E731
    return jax.jvp(f, (gap,), (1.0,))


def overlap(*arguments):
    return overlap_and_slope(*arguments)[0]


@jax.jit
def closed(law, delta, epsilon):
    convolution = FreeConvolution(law, delta)
    return convolution.above(epsilon).J, convolution.tangent_overlap(epsilon)


def cuts(law, delta):
    """Points in, between, just inside and outside the bands."""
    edges = np.asarray(FreeConvolution(law, delta).edges())
    inside = edges[:, 0] + 0.3 * (edges[:, 1] - edges[:, 0])
    outside = [edges[0, 0] - 1.0, edges[-1, 1] + 1.0]
    return np.concatenate([inside, edges[:, 0] + 1e-3 * delta, (edges[:-1, 1] + edges[1:, 0]) / 2, outside])


@pytest.mark.parametrize("delta", [0.02, 0.7, 10.0])
@each(CHOSEN)
def test_coinciding_replicas(case, delta):
    """J at gap 0, with slope −R2: two integrals that are taken over other contours."""
    for epsilon in cuts(case.law, delta):
        J, R2 = closed(case.law, delta, epsilon)
        scale = case.moments[2] + delta**2 + epsilon**2
        value, slope = overlap_and_slope(case.law, delta, epsilon, 0.0)
        np.testing.assert_allclose(value, J, atol=1e-11 * scale)
        np.testing.assert_allclose(slope, -R2, atol=1e-9)


def chebyshev_coefficients(radius, epsilon, order):
    """∫(x−ε)₊ U_k(x/R) of the semicircle of radius R, by 2000 Gauss–Legendre nodes in the angle."""
    t, weight = np.polynomial.legendre.leggauss(2000)
    top = np.arccos(np.clip(epsilon / radius, -1, 1))
    angle = top * (t + 1) / 2
    weight = weight * top / np.pi * np.sin(angle) ** 2 * (radius * np.cos(angle) - epsilon)
    return np.array([np.sum(weight * eval_chebyu(k, np.cos(angle))) for k in range(order)])


@pytest.mark.parametrize("epsilon", [-3.0, -1.0, 0.0, 0.9, 1.99])
def test_semicircles(epsilon):
    """Without target: Tr U_k(X1/2) U_l(X2/2)/d → δ_kl ρᵏ for GOE matrices of correlation ρ."""
    a = chebyshev_coefficients(2.0, epsilon, 400)
    for gap in (0.1, 0.5, 1.0):
        expected = np.sum(a**2 * (1 - gap) ** np.arange(400))
        np.testing.assert_allclose(overlap(FiniteLaw([0.0] * 6), 1.0, epsilon, gap), expected, atol=1e-11)


@pytest.mark.parametrize("gap", [0.05, 0.3])
def test_common_noise_is_a_part_of_the_target(gap):
    """The semicircle S0 of variance .7, and S0 + √c Z0 as the target of independent noises: two laws, one overlap."""
    delta, epsilon = 0.6, 0.4
    common = Semicircle(0.7 + delta**2 - gap)
    expected = overlap(common, np.sqrt(gap), epsilon, gap)
    np.testing.assert_allclose(overlap(Semicircle(0.7), delta, epsilon, gap), expected, rtol=1e-10)


@pytest.mark.parametrize("delta, epsilon", [(1.5, 1.0), (2.0, -0.3)])
def test_independent_noises(delta, epsilon):
    """Σ weight_i F(s_i)² at gap δ², F(s) = E[(x−ε)₊ | s] from the conditional density −Im 1/(w(x) − s)/π."""
    convolution = FreeConvolution(ATOMS, delta)
    top = float(convolution.edges()[-1, 1])
    t, weight = np.polynomial.legendre.leggauss(600)
    # All of x > ε is one band here, with a square-root edge at its top.
    root, weight = (t + 1) / 2, weight * (t + 1) / 2 * (top - epsilon)
    x = top - (top - epsilon) * root**2
    w = np.asarray(convolution.subordination(jnp.asarray(x)))[:, None]
    density = -np.imag(1 / (w - np.asarray(ATOMS.eigenvalues))) / np.pi
    F = np.sum((weight * (x - epsilon))[:, None] * density, axis=0)
    np.testing.assert_allclose(overlap(ATOMS, delta, epsilon, delta**2), np.mean(F**2), rtol=1e-10)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_sampled_matrices(share):
    """Ten pairs at d = 300, within five standard errors and an offset of 1/d: false-alarm rate below 1e-3."""
    d, delta, epsilon, pairs = 300, 0.7, 0.5, 10
    gap, rng = share * delta**2, np.random.default_rng(8)

    def goe():
        matrix = rng.normal(size=(d, d))
        return (matrix + matrix.T) / np.sqrt(2 * d)

    def soft(matrix):
        b, O = np.linalg.eigh(matrix)
        return (O * np.maximum(b - epsilon, 0)) @ O.T

    teacher = np.asarray(MarchenkoPastur(0.5).quantiles(jnp.asarray((np.arange(d) + 0.5) / d)))
    found = []
    for _ in range(pairs):
        shared = np.diag(teacher) + np.sqrt(delta**2 - gap) * goe()
        found.append(np.sum(soft(shared + np.sqrt(gap) * goe()) * soft(shared + np.sqrt(gap) * goe())) / d)
    error = np.std(found, ddof=1) / np.sqrt(pairs)
    expected = overlap(MarchenkoPastur(0.5), delta, epsilon, gap)
    assert abs(np.mean(found) - expected) < 5 * error + 1 / d
    assert error < 0.01 * expected


def test_decreases_with_the_gap():
    """By Mehler's expansion it is a series in 1 − gap/δ² with coefficients ≥ 0, hence decreasing and convex."""
    values = np.array([overlap(MarchenkoPastur(0.3), 0.7, 0.3, gap) for gap in np.linspace(0, 0.49, 8)])
    assert np.all(np.diff(values) < 0) and np.all(np.diff(values, 2) > 0) and values[-1] > 0


def test_outside_the_support():
    for law in (MarchenkoPastur(0.3), ATOMS):
        for gap in (0.0, 0.1):
            assert overlap_and_slope(law, 0.5, 20.0, gap) == (0, 0)
            value, slope = overlap_and_slope(law, 0.5, -20.0, gap)
            linear = float(law.moment(2)) + 0.25 + 40 * float(law.moment(1)) + 400 - gap
            np.testing.assert_allclose(value, linear, rtol=1e-14)
            assert slope == -1


def test_reverse_derivatives():
    f = lambda *args: FreeConvolution(MarchenkoPastur(args[0]), args[1]).replica_overlap(*args[2:])  # noqa: E731
    value, point, step = jax.jit(f), (0.5, 0.7, 0.3, 0.2), 1e-5
    gradient = jax.jit(jax.grad(f, (0, 1, 2, 3)))(*point)
    for k, derivative in enumerate(gradient):
        up, down = (tuple(x + sign * step * (j == k) for j, x in enumerate(point)) for sign in (1, -1))
        np.testing.assert_allclose(derivative, (value(*up) - value(*down)) / (2 * step), atol=1e-8)
    np.testing.assert_allclose(gradient[3], overlap_and_slope(MarchenkoPastur(0.5), *point[1:])[1], rtol=1e-9)


def test_single_precision():
    law = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), MarchenkoPastur(0.3))
    value = FreeConvolution(law, 0.5).replica_overlap(0.3, 0.1)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, overlap(MarchenkoPastur(0.3), 0.5, 0.3, 0.1), atol=2e-4)
