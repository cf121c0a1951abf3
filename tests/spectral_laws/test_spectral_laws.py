import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from spectral_law_cases import CASES, each

from amp_attention.spectral_laws import FiniteLaw, MarchenkoPastur, Semicircle

CONTINUOUS = [case for case in CASES if case.density is not None]
LISTS = [case for case in CASES if case.density is None]


@each()
def test_moments_are_exact(case):
    for k, value in enumerate(case.moments):
        np.testing.assert_allclose(case.law.moment(k), value, rtol=1e-13, atol=1e-15)


@each()
def test_cauchy_transform_has_the_moments_of_the_law(case):
    # (1/2πi)∮ z^k G0 dz = ∫x^k μ0 on a circle around the support; the trapezoid rule is exact to rounding.
    centre, radius = sum(case.support) / 2, 1.5 * max(case.support[1] - case.support[0], 0.1)
    angle = (np.arange(200) + 0.5) * np.pi / 200
    z = centre + radius * np.exp(1j * angle)
    values = np.asarray(case.law.cauchy(jnp.asarray(z))) * (z - centre)
    for k in range(5):
        moment = np.mean(z**k * values).real
        np.testing.assert_allclose(moment, case.moments[k], rtol=1e-12, atol=1e-12)


@each()
def test_derivative_of_the_cauchy_transform(case):
    x = np.linspace(case.support[0] - 1, case.support[1] + 1, 7)
    z = jnp.asarray((x[:, None] + 1j * np.array([1e-3, 0.3, 4.0])[None, :]).ravel())
    step = 1e-6
    expected = jax.jvp(case.law.cauchy, (z,), (jnp.ones_like(z),))[1]
    value, slope = case.law.cauchy_pair(z)
    np.testing.assert_allclose(slope, expected, rtol=1e-10)
    np.testing.assert_allclose(case.law.cauchy_prime(z), expected, rtol=1e-10)
    np.testing.assert_allclose(value, case.law.cauchy(z), rtol=1e-14)
    far = z[2::3]
    difference = (case.law.cauchy(far + step) - case.law.cauchy(far - step)) / (2 * step)
    np.testing.assert_allclose(case.law.cauchy_prime(far), difference, rtol=1e-7)


@each()
def test_real_arguments_outside_the_support(case):
    left, right = case.support
    x = jnp.asarray([left - 3, left - 1e-3, right + 1e-3, right + 3])
    value = case.law.cauchy(jax.lax.complex(x, jnp.zeros_like(x)))
    np.testing.assert_array_equal(jnp.sign(value.real), [-1, -1, 1, 1])
    np.testing.assert_allclose(value.imag, 0, atol=1e-15)
    # Herglotz: the limit from above agrees.
    above = case.law.cauchy(jax.lax.complex(x, jnp.full_like(x, 1e-12)))
    np.testing.assert_allclose(value.real, above.real, rtol=1e-7)


@each(CONTINUOUS)
def test_density_from_the_boundary_value(case):
    left, right = (np.asarray(end)[-1] for end in case.law.components())
    x = np.linspace(left, right, 12)[1:-1]
    value = -case.law.cauchy(jnp.asarray(x + 1e-14j)).imag / np.pi
    np.testing.assert_allclose(value, case.density(x), rtol=1e-10)


@pytest.mark.parametrize("x", [1e3, 1e8, -1e8])
@each()
def test_no_cancellation_far_away(case, x):
    value = case.law.cauchy(jnp.asarray(complex(x, 0.0)))
    np.testing.assert_allclose(value.real * x, 1 + case.moments[1] / x + case.moments[2] / x**2, rtol=1e-7)


@each()
def test_components_and_atom(case):
    left, right = case.law.components()
    assert left.shape == right.shape and jnp.all(left <= right) and jnp.all(right[:-1] <= left[1:])
    np.testing.assert_allclose((left[0], right[-1]), case.support, atol=1e-15)
    np.testing.assert_allclose(case.law.atom(), case.atom, atol=1e-15)


@pytest.mark.parametrize("kappa0", [0.01, 0.5, 1 - 1e-9, 1.0, 1 + 1e-9, 30.0])
def test_marchenko_pastur_count_of_components_is_static(kappa0):
    left, right = MarchenkoPastur(kappa0).components()
    assert left.shape == right.shape == (2,)
    assert left[1] < right[1] and left[0] == right[0] <= left[1]


@each(CONTINUOUS)
def test_quantiles_invert_the_distribution_function(case):
    left, right = (float(end[-1]) for end in case.law.components())
    levels = case.atom + (1 - case.atom) * np.array([1e-6, 0.1, 0.5, 0.99])
    x = np.asarray(case.law.quantiles(jnp.asarray(levels)))
    for level, point in zip(levels, x, strict=True):
        # The substitution removes the square-root ends.
        top = np.arcsin(np.sqrt((point - left) / (right - left)))
        mass = quad(
            lambda t: case.density(left + (right - left) * np.sin(t) ** 2) * (right - left) * np.sin(2 * t), 0, top
        )[0]
        np.testing.assert_allclose(case.atom + mass, level, rtol=1e-8)
    if case.atom:
        np.testing.assert_array_equal(case.law.quantiles(jnp.asarray([0.01, 0.9 * case.atom])), 0)


def test_quantiles_of_a_list():
    law = FiniteLaw([2.0, -1.0, 0.5], [1.0, 1.0, 2.0])
    np.testing.assert_array_equal(
        law.quantiles(jnp.asarray([0.1, 0.25, 0.26, 0.75, 0.76, 0.9999])), [-1, -1, 0.5, 0.5, 2, 2]
    )
    values = jnp.asarray(np.random.default_rng(0).normal(size=300))
    levels = jnp.asarray((np.arange(300) + 0.5) / 300)
    np.testing.assert_array_equal(FiniteLaw(values).quantiles(levels), jnp.sort(values))


@each()
def test_samples_have_the_law(case):
    # Sampled second moments scatter by less than 3/d here (GOE, Wishart) and quantiles are off by O(1/d):
    # 5 % at d = 200 is more than 10 standard deviations away.
    matrix = case.law.sample(jax.random.key(1), 200)
    np.testing.assert_array_equal(matrix, matrix.T)
    spectrum = np.linalg.eigvalsh(np.asarray(matrix))
    scale = case.moments[2]
    np.testing.assert_allclose(np.mean(spectrum), case.moments[1], atol=0.05 * np.sqrt(scale))
    np.testing.assert_allclose(np.mean(spectrum**2), scale, rtol=0.05)
    quantiles = case.law.quantiles(jnp.asarray((np.arange(200) + 0.5) / 200))
    np.testing.assert_allclose(np.mean(np.abs(spectrum - np.asarray(quantiles))), 0, atol=0.05 * np.sqrt(scale))


def test_sampled_lists_have_exactly_their_eigenvalues_and_random_vectors():
    law = FiniteLaw.power_law(1.2, 30)
    first, second = (law.sample(jax.random.key(seed), 30) for seed in (0, 1))
    np.testing.assert_allclose(np.linalg.eigvalsh(np.asarray(first)), law.eigenvalues, atol=1e-13)
    assert jnp.linalg.norm(first - second) > 0.5 * jnp.linalg.norm(first)


@pytest.mark.parametrize("kappa0, d, width", [(0.25, 20, 5), (1e-4, 20, 1), (0.13, 20, 3)])
def test_sampled_teacher_has_the_rounded_width(kappa0, d, width):
    matrix = MarchenkoPastur(kappa0).sample(jax.random.key(0), d)
    assert np.linalg.matrix_rank(np.asarray(matrix)) == width


def test_sampled_teacher_needs_a_concrete_width():
    with pytest.raises(ValueError, match="kappa0 must be a concrete number"):
        jax.jit(lambda kappa0: MarchenkoPastur(kappa0).sample(jax.random.key(0), 4))(0.5)


def test_power_law():
    law = FiniteLaw.power_law(1.5, 7)
    np.testing.assert_allclose(law.eigenvalues[::-1], np.sqrt(7) * np.arange(1, 8) ** -1.5, rtol=1e-14)
    np.testing.assert_allclose(FiniteLaw.power_law(0.6, 50, normalise=True).moment(2), 1, rtol=1e-14)
    slope = jax.jacfwd(lambda gamma: FiniteLaw.power_law(gamma, 7).moment(1))(1.5)
    i = np.arange(1, 8)
    np.testing.assert_allclose(slope, -np.mean(np.sqrt(7) * i**-1.5 * np.log(i)), rtol=1e-12)


def test_order_of_the_list_does_not_matter():
    law = FiniteLaw([1.0, -2.0, 5.0], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(law.eigenvalues, [-2.0, 1.0, 5.0])
    np.testing.assert_allclose(law.weights, np.array([2, 1, 3]) / 6)
    np.testing.assert_allclose(FiniteLaw([1, 2]).weights, 0.5)


@pytest.mark.parametrize(
    "build, name",
    [
        (lambda: MarchenkoPastur(0.0), "kappa0"),
        (lambda: MarchenkoPastur(-1.0), "kappa0"),
        (lambda: MarchenkoPastur(float("nan")), "kappa0"),
        (lambda: Semicircle(0.0), "variance"),
        (lambda: Semicircle(float("inf")), "variance"),
        (lambda: FiniteLaw([]), "eigenvalues"),
        (lambda: FiniteLaw([[1.0]]), "eigenvalues"),
        (lambda: FiniteLaw([1.0, float("nan")]), "eigenvalues"),
        (lambda: FiniteLaw([1.0, 2.0], [1.0]), "weights"),
        (lambda: FiniteLaw([1.0, 2.0], [1.0, 0.0]), "weights"),
        (lambda: FiniteLaw.power_law(float("nan"), 3), "gamma"),
        (lambda: FiniteLaw.power_law(1.0, 0), "d"),
    ],
)
def test_wrong_arguments_are_named(build, name):
    with pytest.raises(ValueError, match=rf"^{name} must "):
        build()


@each()
def test_laws_work_under_jit_vmap_and_in_float32(case):
    z = jnp.asarray([0.3 + 0.2j, -1.0 + 1j])
    expected = case.law.cauchy(z)
    np.testing.assert_allclose(jax.jit(lambda law, z: law.cauchy(z))(case.law, z), expected, rtol=1e-13)
    np.testing.assert_allclose(jax.vmap(case.law.cauchy)(z), expected, rtol=1e-13)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), case.law)
    np.testing.assert_allclose(eqx.filter_vmap(lambda law: law.moment(2))(stacked), case.moments[2], rtol=1e-13)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), case.law)
    result = single.cauchy(z.astype(jnp.complex64))
    assert result.dtype == jnp.complex64 and single.dtype == jnp.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    for value in (single.moment(2), single.atom(), *single.components(), single.quantiles(jnp.asarray([0.3, 0.7]))):
        assert value.dtype == jnp.float32
    assert single.sample(jax.random.key(0), 5).dtype == jnp.float32


@pytest.mark.parametrize("kappa0", [0.3, 1.0, 3.0])
def test_derivatives_in_kappa0(kappa0):
    z = jnp.asarray([0.3 + 0.2j, -1.0 + 1j])
    levels = jnp.asarray([0.75, 0.9])

    def parts(kappa0):
        law = MarchenkoPastur(kappa0)
        value = law.cauchy(z)
        return jnp.concatenate([value.real, value.imag, law.quantiles(levels), law.moment(3)[None]])

    step = 1e-6
    difference = (parts(kappa0 + step) - parts(kappa0 - step)) / (2 * step)
    np.testing.assert_allclose(jax.jacfwd(parts)(kappa0), difference, rtol=2e-7, atol=1e-8)
    np.testing.assert_allclose(jax.jacrev(parts)(kappa0), jax.jacfwd(parts)(kappa0), rtol=1e-12, atol=1e-14)
