"""Thresholds against known values, quadrature, other laws and finite differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

from amp_attention.bayes import solve_bayes
from amp_attention.heads import HardmaxHead, LinearHead, SoftmaxHead
from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import FiniteLaw, FreeConvolution, MarchenkoPastur, Semicircle
from amp_attention.targets import Target
from amp_attention.thresholds import (
    bayes_recovery_threshold,
    interpolates,
    interpolation_threshold,
    rank_fraction,
    recovery_threshold,
    threshold_gradients,
    thresholds,
    weak_recovery_threshold,
)

EIGENVALUES = np.array([0.0, 0.0, 0.5, 1.2, 1.2, 3.0])


def interpolation(kappa0, noise):
    return interpolation_threshold(MarchenkoPastur(kappa0), noise, 2)


def finite_interpolation(eigenvalues, noise):
    return interpolation_threshold(FiniteLaw(eigenvalues), noise, 2)


def recovery(kappa0):
    return recovery_threshold(kappa0, 2)


INTERPOLATION_SLOPES = jax.jit(jax.grad(interpolation, (0, 1)))
RECOVERY_SLOPE = jax.jit(jax.grad(recovery))


def central(f, x, h):
    """Fourth order."""
    return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h)


# Interpolation.


@pytest.mark.parametrize(("noise", "expected"), [(0.1, 0.17249990), (0.5, 0.15348210), (1.0, 0.14555053)])
def test_interpolation_values(noise, expected):
    law = MarchenkoPastur(0.5)
    np.testing.assert_allclose(interpolation_threshold(law, noise, 2), expected, atol=1e-7)
    three = interpolation_threshold(law, noise, SoftmaxHead(3).constraints)
    np.testing.assert_allclose(10 * three, 4 * expected, atol=4e-7)  # α_interp 2 C_T is the same number


def test_interpolation_solves_its_equation_on_the_real_axis():
    # Q0 + Δ/2 = J − (δ/2) ∂₁J with ε = 0, by quadrature along Biane's curve instead of contours.
    law, noise = FiniteLaw(EIGENVALUES), 0.3
    convolve = eqx.filter_jit(lambda delta: FreeConvolution(law, delta).nodes(100))

    def integrals(delta):
        x, weight, h = (np.asarray(value) for value in convolve(jnp.asarray(delta)))
        positive = np.maximum(x, 0)
        return np.sum(weight * positive**2), np.sum(weight * positive * h)

    def excess(delta):
        J, D1 = integrals(delta)
        return J - 2 * delta**2 * D1 - float(law.moment(2)) - noise / 2

    delta = brentq(excess, 0.1, 10, xtol=1e-10)
    np.testing.assert_allclose(finite_interpolation(EIGENVALUES, noise), integrals(delta)[1] / 2, rtol=1e-6)


@pytest.mark.parametrize("kappa0", [0.1, 0.5, 1.0, 2.0])
def test_little_noise_leaves_the_tangent_cone(kappa0):
    # (1 − (1−r)²/2)/(2 C_T), the statistical dimension of the tangent cone of PSD matrices at S0. Approached like
    # Δ^{1/3} (Δ^{2/5} at κ0 = 1, faster beyond): the gap falls by 10 when Δ does by 10³, at least.
    limit = (1 - (1 - min(kappa0, 1)) ** 2 / 2) / 4
    gaps = np.array([limit - float(interpolation(kappa0, noise)) for noise in (1e-4, 1e-7, 1e-10)])
    assert np.all(gaps > 0)
    assert np.all(gaps[1:] < 0.13 * gaps[:-1])
    assert gaps[-1] < 1e-4
    if kappa0 < 1:
        assert gaps[-1] > 1e-7 and limit > recovery(kappa0) + 1e-3  # more than noiseless recovery needs
        extrapolated = gaps[2] - (gaps[1] - gaps[2]) / (10 - 1)
        assert abs(extrapolated) < 0.02 * gaps[2]
    else:
        np.testing.assert_allclose(limit, recovery(kappa0), rtol=1e-12)


def test_interpolation_is_monotone_and_needs_no_temperature():
    by_noise = [float(interpolation(0.5, noise)) for noise in np.geomspace(1e-6, 1e3, 10)]
    by_width = [float(interpolation(kappa0, 0.5)) for kappa0 in np.geomspace(0.01, 10, 10)]
    assert np.all(np.diff(by_noise) < 0) and np.all(np.diff(by_width) > 0)
    for scale in (0.3, 4.0):  # β0/β: S0 → s S0, Δ → s² Δ
        scaled = finite_interpolation(scale * EIGENVALUES, scale**2 * 0.3)
        np.testing.assert_allclose(scaled, finite_interpolation(EIGENVALUES, 0.3), rtol=1e-12)


def test_target_without_trace_is_no_easier_than_noise():
    # A random half space of matrices is PSD-feasible up to n = d²/4 equations.
    np.testing.assert_allclose(interpolation_threshold(Semicircle(1.5), 0.5, 1), 0.25, atol=1e-6)


@pytest.mark.parametrize(("kappa0", "noise"), [(0.5, 0.5), (0.02, 0.1), (1.0, 0.5), (3.0, 2.0), (0.5, 1e-6)])
def test_interpolation_slopes(kappa0, noise):
    slopes = INTERPOLATION_SLOPES(kappa0, noise)
    numerical = (
        central(lambda k: interpolation(k, noise), kappa0, 2e-3 * kappa0),
        central(lambda n: interpolation(kappa0, n), noise, 2e-3 * noise),
    )
    np.testing.assert_allclose(slopes, numerical, rtol=1e-6)


def test_interpolation_forward_is_reverse():
    point = (jnp.asarray(0.5), jnp.asarray(0.5))
    forward = jax.jit(jax.jacfwd(interpolation, (0, 1)))(*point)
    np.testing.assert_allclose(forward, INTERPOLATION_SLOPES(*point), rtol=1e-11)


@pytest.mark.slow
def test_interpolation_curvature():
    hessian = np.array(jax.jit(jax.hessian(interpolation, (0, 1)))(0.5, 0.5))
    numerical = [
        central(lambda k: np.array(INTERPOLATION_SLOPES(k, 0.5)), 0.5, 2e-3),
        central(lambda n: np.array(INTERPOLATION_SLOPES(0.5, n)), 0.5, 2e-3),
    ]
    np.testing.assert_allclose(hessian, numerical, rtol=1e-6)


def test_interpolation_slopes_in_eigenvalues_also_repeated_ones():
    slopes = np.asarray(jax.jit(jax.grad(finite_interpolation))(jnp.asarray(EIGENVALUES), 0.3))
    shift = np.eye(6)
    value = eqx.filter_jit(finite_interpolation)
    numerical = [central(lambda t: value(EIGENVALUES + t * shift[i], 0.3), 0.0, 1e-3) for i in range(6)]  # noqa: B023
    np.testing.assert_allclose(slopes, numerical, rtol=1e-6)
    np.testing.assert_allclose(slopes[[0, 3]], slopes[[1, 4]], rtol=1e-12)


@pytest.mark.slow
def test_list_of_quantiles_tends_to_the_law():
    def gap(count):
        quantiles = MarchenkoPastur(0.5).quantiles((np.arange(count) + 0.5) / count)
        law = FiniteLaw(quantiles)
        np.testing.assert_allclose(recovery_threshold(law, 2), recovery(0.5), rtol=1e-12)
        return abs(float(interpolation_threshold(law, 0.5, 2) - interpolation(0.5, 0.5)))

    gaps = [gap(count) for count in (40, 160)]
    assert gaps[1] < 0.2 * gaps[0] and gaps[1] < 1e-6


# Recovery.


@pytest.mark.parametrize(
    ("kappa0", "expected"),
    [(0.01, 0.011571), (0.1, 0.078786), (0.3, 0.163577), (0.5, 0.211087), (0.9, 0.248703), (1.0, 0.25), (3.0, 0.25)],
)
def test_recovery_values(kappa0, expected):
    np.testing.assert_allclose(recovery(kappa0), expected, atol=1e-6)
    np.testing.assert_allclose(recovery_threshold(MarchenkoPastur(kappa0), 5), 0.4 * recovery(kappa0), rtol=1e-14)


@pytest.mark.parametrize("kappa0", [1e-3, 0.05, 0.5, 0.99])
def test_recovery_against_quadrature(kappa0):
    def moment(c, k):
        density = lambda s: s**k * (s - c) * np.sqrt(4 - s**2) / (2 * np.pi)  # noqa: E731
        return quad(density, c, 2, epsabs=1e-15, epsrel=1e-12)[0]

    c = brentq(lambda c: (1 - kappa0) * moment(c, 0) - c * kappa0, 0, 2, xtol=1e-14)
    wanted = (1 - (1 - kappa0) ** 2 + (1 - kappa0) ** 2 * moment(c, 1)) / 4
    np.testing.assert_allclose(recovery(kappa0), wanted, rtol=1e-10)


@pytest.mark.parametrize("kappa0", [1e-6, 0.01, 0.3, 0.9, 0.999])
def test_recovery_slope(kappa0):
    step = 2e-3 * min(kappa0, 1 - kappa0)
    np.testing.assert_allclose(RECOVERY_SLOPE(kappa0), central(recovery, kappa0, step), rtol=1e-6, atol=1e-9)


def test_recovery_is_smooth_up_to_its_limits():
    small, near = 1e-12, 1 - 1e-6
    np.testing.assert_allclose(recovery(small) / small, 1.5, rtol=1e-3)  # 3/C_T
    np.testing.assert_allclose(RECOVERY_SLOPE(small), 1.5, rtol=1e-3)
    np.testing.assert_allclose(RECOVERY_SLOPE(near), (1 - near) / 4, rtol=1e-3)
    np.testing.assert_array_equal([RECOVERY_SLOPE(1.0), RECOVERY_SLOPE(2.5)], 0)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(recovery))(0.5), RECOVERY_SLOPE(0.5), rtol=1e-13)
    curvature = jax.jit(jax.hessian(recovery))
    np.testing.assert_allclose(curvature(0.5), central(RECOVERY_SLOPE, 0.5, 1e-3), rtol=1e-8)
    values = np.array([recovery(kappa0) for kappa0 in np.linspace(0.01, 1, 12)])
    bayes = np.array([bayes_recovery_threshold(kappa0, 2) for kappa0 in np.linspace(0.01, 1, 12)])
    assert np.all(np.diff(values) > 0) and np.all(np.diff(values, 2) < 0)
    assert np.all(values[:-1] > bayes[:-1])


def test_bayes_recovery():
    kappa0 = jnp.asarray([0.3, 0.9, 1.0, 2.0])
    value, slope = jax.vmap(jax.value_and_grad(lambda k: bayes_recovery_threshold(MarchenkoPastur(k), 2)))(kappa0)
    np.testing.assert_allclose(value, [0.51 / 4, 0.99 / 4, 0.25, 0.25], rtol=1e-14)
    np.testing.assert_allclose(slope, [0.35, 0.05, 0, 0], atol=1e-14)


@pytest.mark.parametrize(
    ("head", "noise", "expected"),
    [
        (SoftmaxHead(2), 0.0, 1 / 4),
        (SoftmaxHead(3), 0.0, 1 / 10),
        (SoftmaxHead(2), 0.5, 1.25 / 4),
        (LinearHead(), 0.0, 1 / 2),
        (HardmaxHead(2), 0.0, 0.4034106),
    ],
)
def test_weak_recovery(head, noise, expected):
    found = weak_recovery_threshold(Target(MarchenkoPastur(1e-3), head, noise))
    np.testing.assert_allclose(found, expected, rtol=2e-7)


@pytest.mark.parametrize(("ratio", "independent"), [(0.9, None), (1.2, 0.948212), (1.5, 0.745512), (1.8, 0.357307)])
def test_narrow_targets_are_learned_from_the_weak_threshold_to_twice_of_it(ratio, independent):
    """E → a(2 − a) for 1 ≤ a ≤ 2, a = α/κ0 in units of the threshold.

    Values at κ0 = 1e-3 from the density as the root of its cubic equation, by the trapezoidal rule.
    """
    kappa0 = 1e-3
    target = Target(MarchenkoPastur(kappa0), SoftmaxHead(2), 0.0)
    E = solve_bayes(target, ratio * kappa0 * weak_recovery_threshold(target)).value.squared_error
    np.testing.assert_allclose(E, 1 if ratio < 1 else ratio * (2 - ratio), atol=0.02)
    if independent is not None:
        np.testing.assert_allclose(E, independent, atol=1e-6)


def test_a_hardmax_sets_no_equations():
    with pytest.raises(ValueError, match=r"target\.head must be a softmax or linear head, got HardmaxHead"):
        thresholds(Target(MarchenkoPastur(0.5), HardmaxHead(2), 0.0))


def test_rank_fraction():
    law = FiniteLaw(EIGENVALUES, np.array([1.0, 2.0, 1.0, 1.0, 1.0, 2.0]))
    np.testing.assert_allclose(rank_fraction(law), 5 / 8, rtol=1e-14)
    np.testing.assert_allclose(rank_fraction(MarchenkoPastur(1e-12)), 1e-12, rtol=1e-14)
    assert rank_fraction(Semicircle(1.0)) == 1 and rank_fraction(2.0) == 1


# All of one target.


def test_batches_over_kappa0():
    kappa0 = jnp.asarray([0.1, 0.5, 1.0, 2.0])
    both = jax.jit(jax.vmap(lambda k: (interpolation(k, 0.5), recovery_threshold(MarchenkoPastur(k), 2))))(kappa0)
    one_by_one = [[f(k) for k in kappa0] for f in (lambda k: interpolation(k, 0.5), recovery)]
    np.testing.assert_allclose(both, one_by_one, rtol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_what_has_no_meaning_is_nan_and_has_no_derivative(noise):
    target = Target(MarchenkoPastur(0.5), SoftmaxHead(2), noise)
    found, slopes = thresholds(target), threshold_gradients(target)
    quiet, nan = noise == 0, np.nan
    wanted = [nan if quiet else 0.15348210, 0.21108749 if quiet else nan, 0.1875]
    np.testing.assert_allclose(jax.tree.leaves(found), wanted, atol=1e-7)
    interpolation_slopes = (nan, nan) if quiet else INTERPOLATION_SLOPES(0.5, noise)
    in_width = [interpolation_slopes[0], RECOVERY_SLOPE(0.5) if quiet else nan, 0.25]
    np.testing.assert_allclose(jax.tree.leaves(slopes.kappa0), in_width, rtol=1e-11)
    np.testing.assert_allclose(jax.tree.leaves(slopes.noise), [interpolation_slopes[1], nan, nan], rtol=1e-11)
    # The same forward, number by number.
    along_kappa0, along_noise = forward_slopes(target)
    np.testing.assert_allclose(jax.tree.leaves(along_kappa0), in_width, rtol=1e-11)
    np.testing.assert_allclose(jax.tree.leaves(along_noise), [interpolation_slopes[1], nan, nan], rtol=1e-11)


@eqx.filter_jit
def forward_slopes(target):
    """Derivatives of `thresholds` in κ0 and Δ."""
    places = (lambda t: t.law.kappa0, lambda t: t.noise)
    return [
        jax.jacfwd(lambda x, place=place: thresholds(eqx.tree_at(place, target, x)))(place(target)) for place in places
    ]


def test_law_without_kappa0_has_no_derivative_in_it():
    target = Target(FiniteLaw(EIGENVALUES), LinearHead(), 0.3)
    slopes = threshold_gradients(target)
    assert slopes.kappa0 is None
    wanted = central(lambda n: 2 * finite_interpolation(EIGENVALUES, n), 0.3, 1e-3)
    np.testing.assert_allclose(slopes.noise.interpolation, wanted, rtol=1e-6)


def test_a_wide_target_has_no_recovery_from_noisy_labels_and_no_slope_of_it():
    """The value at κ0 ≥ 1 does not depend on κ0, so that only the lack of meaning can make the slope NaN."""
    slopes = threshold_gradients(Target(MarchenkoPastur(1.5), SoftmaxHead(2), 0.5))
    assert np.isnan(slopes.kappa0.recovery) and np.isnan(slopes.noise.recovery)
    assert slopes.kappa0.bayes == 0 and np.isfinite(slopes.kappa0.interpolation)
    quiet = threshold_gradients(Target(MarchenkoPastur(1.5), SoftmaxHead(2), 0.0))
    assert quiet.kappa0.recovery == 0


def test_which_problems_interpolate():
    assert interpolates(attention_problem(alpha=0.1534, lam=0.0))
    assert not interpolates(attention_problem(alpha=0.1536, lam=0.0))
    assert not interpolates(attention_problem(alpha=0.1, lam=1e-3))
    assert interpolates(attention_problem(alpha=0.5, lam=0.0, noise=0.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: interpolation_threshold(MarchenkoPastur(0.5), -0.1, 2),
            "noise must be a finite number >= 0, got -0.1",
        ),
        (
            lambda: interpolation_threshold(MarchenkoPastur(0.5), 0.1, 0),
            "constraints must be a whole number >= 1, got 0",
        ),
        (lambda: interpolation_threshold(0.5, 0.1, 2), "law must be a spectral law, got 0.5"),  # pyright: ignore
        (lambda: recovery_threshold(0.0, 2), "rank_fraction must be a finite number > 0, got 0.0"),
        (lambda: recovery_threshold(0.5, 1.5), "constraints must be a whole number >= 1, got 1.5"),  # pyright: ignore
        (lambda: bayes_recovery_threshold(-1.0, 2), "rank_fraction must be a finite number > 0, got -1.0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message
