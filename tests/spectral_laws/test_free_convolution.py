import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from spectral_law_cases import CASES, brute_force_root, each, semicircle_above

from amp_attention.spectral_laws import FiniteLaw, FreeConvolution, J, MarchenkoPastur, Semicircle

GAP = [case for case in CASES if case.slug in ("marchenko_pastur_0.3", "marchenko_pastur_1.0", "repeated")]


@jax.jit
def above(law, delta, epsilon):
    return FreeConvolution(law, delta).above(epsilon)


@jax.jit
def overlap(law, delta, epsilon):
    return FreeConvolution(law, delta).tangent_overlap(epsilon)


@jax.jit
def nodes(law, delta):
    return FreeConvolution(law, delta).nodes()


@jax.jit
def roots(law, delta, x):
    return FreeConvolution(law, delta).subordination(x)


def cuts(law, delta):
    """Points below, in, between, at and above the bands."""
    edges = np.asarray(FreeConvolution(law, delta).edges())
    inside = edges[:, 0] + 0.3 * (edges[:, 1] - edges[:, 0])
    outside = [edges[0, 0] - 1.0, edges[-1, 1] + 1.0]
    return np.concatenate([inside, edges.ravel() + 1e-3 * delta, (edges[:-1, 1] + edges[1:, 0]) / 2, outside, [0.0]])


# Subordination


@pytest.mark.parametrize("delta", [1e-3, 0.1, 1.0, 10.0])
@each()
def test_subordination_solves_its_equation_on_the_curve(case, delta):
    x = jnp.asarray(cuts(case.law, delta))
    w = roots(case.law, delta, x)
    assert jnp.all(w.imag >= 0)
    residual = w + delta**2 * case.law.cauchy(w) - x.astype(complex)
    scale = delta + case.support[1] - case.support[0] + np.abs(x)
    np.testing.assert_array_less(np.abs(residual) / scale, 1e-13)
    # Where v = 0 only a root with ψ' >= 0 is on the boundary of the domain; the others are spurious.
    slope = 1 + delta**2 * case.law.cauchy_prime(w)
    assert jnp.all((w.imag > 0) | (slope.real >= 0))


@each(GAP)
def test_subordination_agrees_with_nested_bisection(case):
    x = np.array([case.support[0] + 0.05, np.mean(case.support), case.support[1] - 0.05, case.support[1] + 2])
    expected = [brute_force_root(case, 0.4, point) for point in x]
    np.testing.assert_allclose(roots(case.law, 0.4, jnp.asarray(x)), expected, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize(
    "law",
    [MarchenkoPastur(k) for k in (0.01, 0.1, 0.5, 0.9, 0.99, 1.0, 1.01, 1.5, 3.0, 30.0)]
    + [
        FiniteLaw.power_law(1.5, 400),
        FiniteLaw(np.random.default_rng(0).normal(size=400)),
        FiniteLaw(10.0 ** np.random.default_rng(1).uniform(-6, 3, 100)),
        FiniteLaw([0.0, 1.0, 3.0], [1e-8, 0.5, 0.5]),
    ],
)
def test_subordination_never_jumps(law, delta):
    left, right = law.components()
    edges = np.asarray(FreeConvolution(law, delta).edges()).ravel()
    edges = np.random.default_rng(2).choice(edges, min(60, edges.size), replace=False)
    shifts = np.array([0, 1e-12, -1e-12, 1e-6 * delta, -1e-6 * delta, 1e-3 * delta, -1e-3 * delta])
    x = np.linspace(left[0] - 4 * delta, right[-1] + 4 * delta, 101)
    x = jnp.asarray(np.concatenate([x, [0.0], (edges[:, None] + shifts[None, :]).ravel()]))
    w = roots(law, delta, x)
    residual = w + delta**2 * law.cauchy(w) - x.astype(complex)
    assert jnp.all(jnp.abs(residual) < 1e-11 * (jnp.abs(x) + delta + right[-1] - left[0]))
    on_curve = w.imag > 1e-7 * delta
    slope = 1 + delta**2 * law.cauchy_prime(w)
    # Within 1e-12 of an edge the curve meets the axis at less than 1e-7 δ: those points prove nothing.
    away = jnp.min(jnp.abs(x[:, None] - jnp.asarray(edges)[None, :]), axis=1) > 1e-11
    assert jnp.all(on_curve | (slope.real > -1e-5) | ~away)


# Density, edges, quadrature on the axis


def test_semicircles_add():
    convolution, whole = FreeConvolution(Semicircle(0.7), 1.1), 0.7 + 1.1**2
    edge = 2 * np.sqrt(whole)
    np.testing.assert_allclose(convolution.edges(), [[-edge, edge]], rtol=1e-12)
    x = np.linspace(-edge, edge, 9)[1:-1]
    np.testing.assert_allclose(convolution.density(jnp.asarray(x)), np.sqrt(edge**2 - x**2) / (2 * np.pi * whole))
    np.testing.assert_allclose(convolution.principal_value(jnp.asarray(x)), x / (2 * whole), atol=1e-12)
    np.testing.assert_array_equal(convolution.density(jnp.asarray([-edge - 0.1, edge + 0.1])), 0)


@each(GAP)
def test_density_is_zero_exactly_outside_the_bands(case):
    convolution = FreeConvolution(case.law, 0.02)
    edges = np.asarray(convolution.edges())
    gaps = (edges[:-1, 1] + edges[1:, 0]) / 2
    open_gaps = gaps[edges[1:, 0] - edges[:-1, 1] > 1e-6]
    outside = np.concatenate([open_gaps, [edges[0, 0] - 1e-3, edges[-1, 1] + 1e-3]])
    np.testing.assert_array_equal(convolution.density(jnp.asarray(outside)), 0)
    widths = edges[:, 1] - edges[:, 0]
    inside = edges[widths > 1e-6].mean(axis=1)
    assert jnp.all(convolution.density(jnp.asarray(inside)) > 0)


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_little_noise_leaves_the_density_of_the_teacher(delta):
    case = GAP[0]
    x = np.array([0.7, 1.5, 3.0])
    np.testing.assert_allclose(FreeConvolution(case.law, delta).density(jnp.asarray(x)), case.density(x), rtol=1e-6)
    result = above(case.law, delta, 1.5)
    np.testing.assert_allclose(result.error, above(case.law, 1e-3, 1.5).error, rtol=1e-4)
    np.testing.assert_allclose(
        result.J, case.moments[2] - 2 * 1.5 * case.moments[1] + 2.25 - _below(case, 1.5), rtol=1e-7
    )


def _below(case, cut):
    """∫_{x<cut} (x-cut)² μ0 of a law with an atom at zero and a bulk."""
    left = float(case.law.components()[0][1])
    t, weight = np.polynomial.legendre.leggauss(200)
    x = left + (cut - left) * ((t + 1) / 2) ** 2
    return case.atom * cut**2 + np.sum(weight * (cut - left) * (t + 1) / 2 * case.density(x) * (x - cut) ** 2)


def test_two_atoms_merge_when_delta_reaches_one():
    # mean of 1/(u-x)² over ±1 has its minimum 1 at u = 0
    law = FiniteLaw([-1.0, 1.0])
    apart, merged = (np.asarray(FreeConvolution(law, delta).edges()) for delta in (0.999, 1.001))
    assert apart[0, 1] < -1e-6 and apart[1, 0] > 1e-6
    np.testing.assert_allclose(merged[0, 1], 0, atol=1e-12)
    np.testing.assert_array_equal(merged[0, 1], merged[1, 0])
    # φ(u) = (1+u²)/(1-u²)² = 1/δ² is a quadratic in u².
    s = (2 + 0.25 + np.sqrt((2 + 0.25) ** 2 - 4 * (1 - 0.25))) / 2
    u = np.sqrt(s)
    edge = u + 0.25 * u / (s - 1)
    np.testing.assert_allclose(FreeConvolution(law, 0.5).edges()[1, 1], edge, rtol=1e-12)


def test_edges_of_the_noisy_teacher_match_a_matrix():
    # One 1000×1000 sample: the largest eigenvalue has standard deviation 0.04 (Tracy-Widom), the others below 0.005.
    matrix = np.random.default_rng(3).normal(size=(1000, 1000))
    noise = (matrix + matrix.T) / np.sqrt(2000)
    teacher = np.asarray(MarchenkoPastur(0.5).sample(jax.random.key(0), 1000))
    spectrum = np.linalg.eigvalsh(teacher + 0.1 * noise)
    edges = FreeConvolution(MarchenkoPastur(0.5), 0.1).edges()
    np.testing.assert_allclose(edges[0, 0], spectrum[0], atol=0.02)
    np.testing.assert_allclose(edges[1, 1], spectrum[-1], atol=0.15)
    np.testing.assert_allclose(edges[:, 0][1], spectrum[500], atol=0.02)
    np.testing.assert_allclose(edges[0, 1], spectrum[499], atol=0.02)


@pytest.mark.parametrize("delta", [1e-3, 0.1, 1.0, 10.0])
@each()
def test_quadrature_on_the_axis_has_the_moments(case, delta):
    x, weight, h = nodes(case.law, delta)
    assert jnp.all(weight >= 0) and jnp.all(jnp.diff(x) >= -1e-12)
    second = case.moments[2] + delta**2
    np.testing.assert_allclose(jnp.sum(weight), 1, atol=1e-7)
    np.testing.assert_allclose(jnp.sum(weight * x), case.moments[1], atol=1e-7 * np.sqrt(second))
    np.testing.assert_allclose(jnp.sum(weight * x**2), second, rtol=1e-7)
    # ∫x h μ = 1/2 and ∫h μ = 0 for every law
    np.testing.assert_allclose(jnp.sum(weight * h * x), 0.5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-3, 1e-2, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    "law",
    [MarchenkoPastur(k) for k in (0.01, 0.1, 0.9, 0.99, 1.0, 1.01, 3.0)]
    + [FiniteLaw.power_law(1.5, 400), FiniteLaw(np.random.default_rng(0).normal(size=400))],
)
def test_quadrature_on_the_axis_over_wide_ranges(law, delta):
    x, weight, _ = nodes(law, delta)
    second = float(law.moment(2)) + delta**2
    np.testing.assert_allclose(jnp.sum(weight), 1, atol=1e-7)
    np.testing.assert_allclose(jnp.sum(weight * x), law.moment(1), atol=1e-7 * np.sqrt(second))
    np.testing.assert_allclose(jnp.sum(weight * x**2), second, rtol=1e-7)


# Integrals above ε


@pytest.mark.parametrize("epsilon", [-2.5, -1.9999, -0.3, 0.0, 1.2, 1.99, 2.0 - 1e-9, 3.0])
def test_integrals_of_a_semicircle(epsilon):
    # μ0 = δ_0: μ_1 is the semicircle on [-2, 2], h = x/2, ξ = 0.
    result = above(FiniteLaw([0.0]), 1.0, epsilon)
    moments = [semicircle_above(2.0, epsilon, k) for k in range(3)]
    if epsilon < -2:
        moments = [1.0, -epsilon, 1 + epsilon**2]
    # Relative accuracy as the mass vanishes; what is left is the rounding of ε itself, eps/(1 - ε/2).
    rtol = 1e-12 + 1e-15 / abs(1 - epsilon / 2)
    np.testing.assert_allclose(result.rank_fraction, moments[0], rtol=rtol)
    np.testing.assert_allclose(result.trace, moments[1], rtol=rtol)
    np.testing.assert_allclose(result.J, moments[2], rtol=rtol)
    np.testing.assert_allclose(result.D1, (moments[2] + epsilon * moments[1]) / 2, rtol=rtol)
    np.testing.assert_allclose(result.m, 0, atol=1e-13)
    np.testing.assert_allclose(result.target_trace, 0, atol=1e-13)
    np.testing.assert_allclose(result.error, result.J, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(result.zero_fraction, semicircle_above(2.0, -epsilon, 0), rtol=1e-11, atol=1e-30)


def test_collapse_is_exact():
    beyond = above(MarchenkoPastur(0.5), 0.5, 20.0)
    for name in ("J", "D1", "trace", "rank_fraction", "m", "target_trace"):
        assert getattr(beyond, name) == 0
    assert beyond.zero_fraction == 1 and beyond.error == 1.5
    # Near the edge E of the support rank ∝ (E-ε)^{3/2} and J ∝ (E-ε)^{7/2}.
    edge = FreeConvolution(MarchenkoPastur(0.5), 0.5).edges()[-1, 1]
    near = [above(MarchenkoPastur(0.5), 0.5, edge - gap) for gap in (1e-6, 4e-6)]
    np.testing.assert_allclose(near[1].rank_fraction / near[0].rank_fraction, 8, rtol=1e-4)
    np.testing.assert_allclose(near[1].J / near[0].J, 128, rtol=1e-4)


def test_everything_learned_is_exact():
    law = FiniteLaw([1.0, 2.0, 4.0])
    result = above(law, 1e-5, 1e-6)
    assert result.zero_fraction == 0 and result.rank_fraction == 1
    np.testing.assert_allclose(result.error, 1e-10 + 1e-12, rtol=1e-12)
    np.testing.assert_allclose(result.J, 7 + 1e-10 - 2e-6 * 7 / 3 + 1e-12, rtol=1e-14)
    np.testing.assert_allclose(result.m, 7 - 1e-6 * 7 / 3, rtol=1e-14)


@pytest.mark.parametrize("delta", [0.05, 0.7, 3.0])
@each()
def test_integrals_agree_with_the_quadrature_on_the_axis(case, delta):
    # The cut falls in an open gap or outside, where the quadrature needs no splitting; only a soft kink inside.
    x, weight, h = nodes(case.law, delta)
    xi = x - 2 * delta**2 * h
    edges = np.asarray(FreeConvolution(case.law, delta).edges())
    gaps = np.append((edges[:-1, 1] + edges[1:, 0])[edges[1:, 0] - edges[:-1, 1] > 1e-6] / 2, edges[0, 0] - 0.1)
    for epsilon in gaps:
        result, over = above(case.law, delta, epsilon), x > epsilon
        terms = {
            "J": (x - epsilon) ** 2,
            "D1": (x - epsilon) * h,
            "trace": x - epsilon,
            "rank_fraction": jnp.ones_like(x),
            "m": (x - epsilon) * xi,
            "target_trace": xi,
        }
        for name, term in terms.items():
            np.testing.assert_allclose(
                getattr(result, name),
                jnp.sum(jnp.where(over, weight * term, 0.0)),
                atol=2e-7 * (1 + delta**2),
                err_msg=name,
            )


@pytest.mark.parametrize("delta", [1e-3, 0.1, 1.0, 10.0])
@each()
def test_both_sides_add_up(case, delta):
    for epsilon in cuts(case.law, delta):
        result = above(case.law, delta, epsilon)
        np.testing.assert_allclose(result.rank_fraction + result.zero_fraction, 1, atol=1e-9)
        other = case.moments[2] - 2 * result.m + result.J
        scale = case.moments[2] + delta**2 + epsilon**2
        np.testing.assert_allclose(result.error, other, atol=1e-11 * scale)
        assert result.error > 0 and -1e-9 < result.rank_fraction < 1 + 1e-9


def test_squared_error_in_two_forms():
    result = above(MarchenkoPastur(0.5), 0.7, 0.3)
    for eta in (0.0, 0.4, 1.0, 1.3):
        np.testing.assert_allclose(result.squared_error(eta), 1.5 - 2 * eta * result.m + eta**2 * result.J, rtol=1e-12)
    assert result.squared_error(1.0) == result.error


# Independent values, computed with 200-node elliptic contours in numpy (deterministic equivalents of arXiv:2509.24914).


@pytest.mark.parametrize(
    "gamma, d, delta, epsilon, error, rank_fraction",
    [
        (1.5, 1000, 0.01123236, 0.2500037, 0.002331753, 0.0250),
        (1.0, 1000, 0.4109053, 1.422684, 0.08768633, 0.02416),
        (1.5, 1000, 6.287167e-5, 7.905694e-6, 4.015347e-9, 1.0),
        (1.5, 1000, 2.562837, 3.338458, 0.1654052, None),
        (1.5, 1000, 1.0, 1.9, 0.0353442, None),
        (1.5, 1000, 2.0, 4.5, 0.1034326, None),
        (1.5, 400, 0.3, 0.3, 0.0113633, None),
    ],
)
def test_power_law_targets(gamma, d, delta, epsilon, error, rank_fraction):
    result = above(FiniteLaw.power_law(gamma, d), delta, epsilon)
    np.testing.assert_allclose(result.error, error, rtol=1e-5)
    if rank_fraction is not None:
        np.testing.assert_allclose(result.rank_fraction, rank_fraction, rtol=1e-3)


@pytest.mark.parametrize("noise, alpha", [(0.1, 0.17249990), (0.5, 0.15348210), (1.0, 0.14555053)])
def test_interpolation_threshold(noise, alpha):
    # Q0 + Δ/2 = J - (δ/2)∂₁J at ε = 0, α = ∂₁J/(2δ(T²+T-2)), T = 2, κ0 = 1/2
    law = MarchenkoPastur(0.5)

    def balance(delta):
        result = above(law, delta, 0.0)
        return float(result.J - 2 * delta**2 * result.D1) - 1.5 - noise / 2

    delta = brentq(balance, 0.01, 20, xtol=1e-13)
    np.testing.assert_allclose(2 * above(law, delta, 0.0).D1 / 4, alpha, atol=1e-8)


# Derivatives


@pytest.mark.parametrize("delta, epsilon", [(0.7, 0.3), (0.05, 0.1), (2.0, 1.0), (0.3, 0.0)])
@each()
def test_gradient_of_j(case, delta, epsilon):
    result = above(case.law, delta, epsilon)
    expected = [4 * delta * result.D1, -2 * result.trace]
    np.testing.assert_allclose(_forward(case.law, delta, epsilon), expected, atol=1e-10)
    np.testing.assert_allclose(_reverse(case.law, delta, epsilon), expected, atol=1e-10)


_forward = jax.jit(jax.jacfwd(J, (1, 2)))
_reverse = jax.jit(jax.grad(J, (1, 2)))


@jax.jit
def _hessian(law, delta, epsilon):
    return jax.jacfwd(jax.jacfwd(J, (1, 2)), (1, 2))(law, delta, epsilon)


@each(GAP)
def test_hessian_of_j(case):
    delta, epsilon, step = 0.7, 0.3, 1e-5
    gradient = lambda d, e: np.asarray(_forward(case.law, d, e))  # noqa: E731
    expected = [
        (gradient(delta + step, epsilon) - gradient(delta - step, epsilon)) / (2 * step),
        (gradient(delta, epsilon + step) - gradient(delta, epsilon - step)) / (2 * step),
    ]
    hessian = np.asarray(_hessian(case.law, delta, epsilon))
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-11)
    np.testing.assert_allclose(hessian, expected, atol=1e-8)


def _vector(law, delta, epsilon):
    return jnp.stack(jax.tree.leaves(FreeConvolution(law, delta).above(epsilon)))


@pytest.mark.parametrize("epsilon", [0.3, -0.4])
def test_derivatives_in_kappa0(epsilon):
    f = jax.jit(lambda kappa0: _vector(MarchenkoPastur(kappa0), 0.7, epsilon))
    forward = jax.jit(jax.jacfwd(f))
    for kappa0 in (0.3, 1.0, 3.0):
        step = 1e-5
        expected = (f(kappa0 + step) - f(kappa0 - step)) / (2 * step)
        np.testing.assert_allclose(forward(kappa0), expected, atol=2e-9)


def test_derivatives_in_eigenvalues_repeated_ones_included():
    values, direction = jnp.asarray([0.0, 1.0, 0.0, 3.0, 1.0]), jnp.asarray([0.3, -0.1, 0.5, 1.0, 0.2])
    f = jax.jit(lambda t: _vector(FiniteLaw(values + t * direction), 0.7, 0.3))
    expected = (f(1e-5) - f(-1e-5)) / 2e-5
    np.testing.assert_allclose(jax.jit(jax.jacfwd(f))(0.0), expected, atol=2e-9)
    gradient = jax.jit(jax.grad(lambda s: J(FiniteLaw(s), 0.7, 0.3)))(values)
    np.testing.assert_allclose(jnp.dot(gradient, direction), expected[0], atol=2e-9)
    np.testing.assert_allclose(gradient[0], gradient[2], rtol=1e-12)


def test_derivatives_in_gamma():
    f = jax.jit(lambda gamma: _vector(FiniteLaw.power_law(gamma, 20), 0.4, 0.3))
    expected = (f(1.5 + 1e-5) - f(1.5 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.jit(jax.jacfwd(f))(1.5), expected, atol=5e-9)


def test_every_integral_has_first_and_second_derivatives():
    law = MarchenkoPastur(0.3)
    f = jax.jit(lambda t: _vector(law, 0.7 + 0.3 * t, 0.2 + t))
    first = jax.jit(jax.jacfwd(f))
    second = jax.jit(jax.jacfwd(jax.jacfwd(f)))
    step = 1e-5
    np.testing.assert_allclose(first(0.1), (f(0.1 + step) - f(0.1 - step)) / (2 * step), atol=2e-9)
    np.testing.assert_allclose(second(0.1), (first(0.1 + step) - first(0.1 - step)) / (2 * step), atol=2e-8)


@pytest.mark.parametrize("epsilon", [-30.0, 30.0])
@each(GAP)
def test_derivatives_are_finite_outside_the_support(case, epsilon):
    gradient = np.asarray(_reverse(case.law, 0.7, epsilon))
    assert np.all(np.isfinite(gradient))
    np.testing.assert_allclose(gradient[1], 0 if epsilon > 0 else -2 * (case.moments[1] - epsilon), atol=1e-12)


def test_derivatives_at_a_band_edge_are_not_nan():
    law = FiniteLaw([0.0])
    for value in (*_forward(law, 1.0, 2.0), *_forward(law, 1.0, -2.0)):
        assert jnp.isfinite(value)
    # Here the root falls on the very end of supp μ0, where G0' is infinite.
    teacher = MarchenkoPastur(0.1)
    edges = FreeConvolution(teacher, 1e-3).edges()[1]
    for edge in edges:
        assert jnp.isfinite(roots(teacher, 1e-3, edge))
        assert np.all(np.isfinite(_forward(teacher, 1e-3, edge)))


# Replicon kernel


def double_sum(law, delta, epsilon):
    """R2 from real nodes, for ε in a gap of the support, where the kernel is smooth."""
    x, weight, _ = (np.asarray(part) for part in nodes(law, delta))
    up, down = x > epsilon, x < epsilon
    kernel = ((x[up] - epsilon)[:, None] / (x[up][:, None] - x[down][None, :])) ** 2
    return weight[up].sum() ** 2 + 2 * weight[up] @ kernel @ weight[down]


@pytest.mark.parametrize(
    "law, delta, epsilon",
    [
        (MarchenkoPastur(0.3), 0.02, 0.15),
        (FiniteLaw([0.0, 0.0, 1.0, 5.0]), 0.2, 0.55),
        (FiniteLaw([0.0, 0.0, 1.0, 5.0]), 0.2, 3.0),
    ],
)
def test_tangent_overlap_in_a_gap(law, delta, epsilon):
    assert roots(law, delta, jnp.asarray(epsilon)).imag == 0
    np.testing.assert_allclose(overlap(law, delta, epsilon), double_sum(law, delta, epsilon), atol=1e-8)


def test_tangent_overlap_of_a_semicircle():
    # μ0 = δ_0: Gauss-Legendre in the angles on both sides of ε, an oracle without contours or subordination.
    t, weight = np.polynomial.legendre.leggauss(300)
    for epsilon in (-1.2, 0.0, 0.8, 1.9):
        top = np.arccos(epsilon / 2)
        up, down = top * (t + 1) / 2, top + (np.pi - top) * (t + 1) / 2
        a, b = weight * top / np.pi * np.sin(up) ** 2, weight * (np.pi - top) / np.pi * np.sin(down) ** 2
        x, y = 2 * np.cos(up), 2 * np.cos(down)
        kernel = ((x - epsilon)[:, None] / (x[:, None] - y[None, :])) ** 2
        np.testing.assert_allclose(
            overlap(FiniteLaw([0.0]), 1.0, epsilon), a.sum() ** 2 + 2 * a @ kernel @ b, atol=1e-10
        )


@pytest.mark.parametrize("delta", [1e-3, 0.1, 1.0, 10.0])
@each()
def test_tangent_overlap_lies_between_its_bounds(case, delta):
    for epsilon in cuts(case.law, delta):
        value, rank = overlap(case.law, delta, epsilon), above(case.law, delta, epsilon).rank_fraction
        # 0 < (x-ε)/(x-y) < 1
        assert rank**2 - 1e-8 <= value <= 1 - (1 - rank) ** 2 + 1e-8


def test_tangent_overlap_outside_the_support():
    for law in (MarchenkoPastur(0.3), MarchenkoPastur(3.0), FiniteLaw([1.0, 2.0])):
        assert overlap(law, 0.05, 20.0) == 0
        assert overlap(law, 0.05, -20.0) == 1


def test_tangent_overlap_of_a_matrix():
    # One sample of (1/d²)ΣΣ((S_i-S_j)/(b_i-b_j))² at d = 400; its fluctuations are O(1/d), measured below 0.003.
    d, delta, epsilon = 400, 0.7, 0.3
    noise = np.random.default_rng(5).normal(size=(d, d))
    teacher = np.asarray(MarchenkoPastur(0.5).sample(jax.random.key(2), d))
    b = np.linalg.eigvalsh(teacher + delta * (noise + noise.T) / np.sqrt(2 * d))
    s = np.maximum(b - epsilon, 0)
    with np.errstate(invalid="ignore"):
        quotient = (s[:, None] - s[None, :]) / (b[:, None] - b[None, :])
    np.fill_diagonal(quotient, b > epsilon)
    np.testing.assert_allclose(overlap(MarchenkoPastur(0.5), delta, epsilon), np.mean(quotient**2), atol=0.01)


def test_derivatives_of_the_tangent_overlap():
    f = lambda kappa0, delta, epsilon: FreeConvolution(MarchenkoPastur(kappa0), delta).tangent_overlap(epsilon)  # noqa: E731
    value, point, step = jax.jit(f), (0.5, 0.7, 0.3), 1e-5
    forward, reverse = jax.jit(jax.jacfwd(f, (0, 1, 2)))(*point), jax.jit(jax.grad(f, (0, 1, 2)))(*point)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    for k, derivative in enumerate(forward):
        up, down = (tuple(x + sign * step * (j == k) for j, x in enumerate(point)) for sign in (1, -1))
        np.testing.assert_allclose(derivative, (value(*up) - value(*down)) / (2 * step), atol=1e-8)


# Compatibility


def test_batches_and_single_precision():
    laws = eqx.filter_vmap(MarchenkoPastur)(jnp.asarray([0.3, 1.0, 3.0]))
    delta, epsilon = jnp.asarray([0.5, 1.0, 2.0]), jnp.asarray([0.2, 0.1, 50.0])
    batch = eqx.filter_vmap(lambda law, d, e: FreeConvolution(law, d).above(e))(laws, delta, epsilon)
    for i, kappa0 in enumerate((0.3, 1.0, 3.0)):
        one = above(MarchenkoPastur(kappa0), delta[i], epsilon[i])
        for name in ("J", "D1", "m", "error", "zero_fraction"):
            np.testing.assert_allclose(getattr(batch, name)[i], getattr(one, name), rtol=1e-10, atol=1e-13)


@each(GAP)
def test_single_precision(case):
    law = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), case.law)
    single, double = FreeConvolution(law, 0.5), FreeConvolution(case.law, 0.5)
    result, expected = single.above(0.3), double.above(0.3)
    for name in ("J", "D1", "trace", "rank_fraction", "m", "target_trace", "zero_fraction", "error"):
        value = getattr(result, name)
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, getattr(expected, name), atol=2e-5, err_msg=name)
    assert single.tangent_overlap(0.3).dtype == jnp.float32
    np.testing.assert_allclose(single.tangent_overlap(0.3), double.tangent_overlap(0.3), atol=2e-4)
    x, weight, h = single.nodes()
    assert x.dtype == weight.dtype == h.dtype == single.edges().dtype == jnp.float32
    np.testing.assert_allclose(jnp.sum(weight), 1, atol=1e-3)


@pytest.mark.parametrize("delta", [0.0, -1.0, float("nan")])
def test_delta_must_be_positive(delta):
    with pytest.raises(ValueError, match=r"^delta must "):
        FreeConvolution(MarchenkoPastur(0.5), delta)


@pytest.mark.parametrize("jit", [False, True])
def test_gradient_in_the_threshold_alone(jit):
    law = MarchenkoPastur(0.5)
    slope = jax.grad(lambda epsilon: J(law, 0.5, epsilon))
    expected = -2 * FreeConvolution(law, 0.5).above(0.25).trace
    np.testing.assert_allclose((jax.jit(slope) if jit else slope)(jnp.asarray(0.25)), expected, rtol=1e-10)
