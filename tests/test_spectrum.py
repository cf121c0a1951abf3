"""The law of the learned matrix, its outliers and phases, and distances of eigenvalues from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import FiniteLaw, FreeConvolution, MarchenkoPastur, Semicircle
from amp_attention.spectrum import (
    PHASES,
    LearnedSpectrum,
    bleed_out_margin,
    bulk_edge,
    collapse_margin,
    detached,
    detachment,
    distances,
    learned_spectrum,
    phase_index,
    phase_name,
    support_end,
)
from amp_attention.state_evolution import solve_state_evolution, state_evolution_nodes

N = 60  # atoms of every list but a few: one compilation for all


def listed(*spikes):
    """N eigenvalues of equal weight, all zero but the given ones."""
    return FiniteLaw(np.r_[np.zeros(N - len(spikes)), spikes])


LOW_RANK = listed(2.0, 3.0)
RANDOM = FiniteLaw(np.random.default_rng(0).normal(size=N) ** 2)
SPECTRUM = LearnedSpectrum(MarchenkoPastur(0.5), 0.5, 0.3, 0.8)
CASES = [
    pytest.param(SPECTRUM, id="one-band"),
    pytest.param(LearnedSpectrum(MarchenkoPastur(0.1), 0.05, 0.02, 0.8), id="two-bands"),
    pytest.param(LearnedSpectrum(Semicircle(1.0), 0.5, 0.0, 2.0), id="semicircle"),
    pytest.param(LearnedSpectrum(LOW_RANK, 1.0, 1.0, 0.8), id="low-rank"),
    pytest.param(LearnedSpectrum(LOW_RANK, 1.0, 2.5, 1.0), id="outliers-only"),
]


def integrate(spectrum, low, high, n=256):
    """∫ density over [low, high] within one band, Gauss-Legendre in the angle."""
    t, weight = np.polynomial.legendre.leggauss(n)
    angle = np.pi / 2 * t
    s = (low + high) / 2 + (high - low) / 2 * np.sin(angle)
    return float(np.sum(weight * np.asarray(spectrum.density(s)) * np.cos(angle)) * np.pi / 4 * (high - low))


def distribution(spectrum, s):
    """At a shape that is compiled already."""
    return spectrum.distribution(np.resize(s, 256))[: len(s)]


# The law


@pytest.mark.parametrize("spectrum", CASES)
def test_density_and_atom_have_mass_one(spectrum):
    bands = spectrum.bands()
    mass = sum(integrate(spectrum, low, high) for low, high in bands)
    assert mass + float(spectrum.atom) == pytest.approx(1, abs=1e-7)
    assert (bands[:, 0] >= 0).all()
    assert (bands[1:, 0] > bands[:-1, 1]).all()
    outside = np.r_[-1.0, 0.0, (bands[1:, 0] + bands[:-1, 1]) / 2, bands[-1, 1] + 0.1]
    np.testing.assert_array_equal(spectrum.density(np.resize(outside, 256)), 0)


@pytest.mark.parametrize("spectrum", CASES)
def test_distribution_is_the_cumulative_integral(spectrum):
    below = float(spectrum.atom)
    for low, high in spectrum.bands():
        points = low + (high - low) * np.array([0.0, 0.1, 0.5, 0.9, 1.0])
        expected = [below + integrate(spectrum, low, s) for s in points]
        np.testing.assert_allclose(distribution(spectrum, points), expected, atol=1e-8)
        below = expected[-1]
    assert below == pytest.approx(1, abs=1e-7)
    ends = distribution(spectrum, [-1e-9, 0.0, 1e-12, high, high + 1])
    np.testing.assert_allclose(ends, [0, spectrum.atom, spectrum.atom, 1, 1], atol=1e-8)


@pytest.mark.parametrize("spectrum", CASES)
def test_quadrature_has_the_moments_of_the_law(spectrum):
    above = FreeConvolution(spectrum.law, spectrum.delta).above(spectrum.epsilon)
    s, weight = spectrum.quadrature()
    assert (np.diff(s) > 0).all() and s[0] > 0
    moments = [np.sum(weight * s**k) for k in range(3)]
    expected = [above.rank_fraction, spectrum.eta * above.trace, spectrum.eta**2 * above.J]
    np.testing.assert_allclose(moments, expected, atol=1e-8)


@pytest.mark.parametrize("spectrum", CASES)
def test_grid_is_the_density_with_gaps_between_bands(spectrum):
    s, density = spectrum.grid(per_band=256)
    bands = spectrum.bands()
    assert s.size == 257 * len(bands)
    np.testing.assert_array_equal(np.isnan(s), np.isnan(density))
    pieces = s.reshape(-1, 257)[:, :-1]
    np.testing.assert_allclose(pieces[:, [0, -1]], bands, atol=1e-12)
    assert (np.diff(pieces) > 0).all()
    assert np.nanmin(density) >= 0
    inner = np.full(256, pieces[0, 1:4].tolist() + [1.0] * 253)
    np.testing.assert_allclose(density[1:4], spectrum.density(inner)[:3], rtol=1e-9)


def test_functions_keep_the_shape_of_their_argument():
    s = np.linspace(0.1, 4, 256)
    for function in (SPECTRUM.density, SPECTRUM.distribution):
        np.testing.assert_array_equal(function(s.reshape(2, 128)).ravel(), function(s))
        assert function(np.zeros((2, 0))).shape == (2, 0)
        assert function(1.0).shape == ()


def test_derivative_of_the_distribution_is_the_density():
    def mass(s, epsilon):
        return LearnedSpectrum(SPECTRUM.law, SPECTRUM.delta, epsilon, SPECTRUM.eta).distribution(s).sum()

    s = jnp.linspace(0.1, 3, 256)
    slope, shift = jax.grad(mass, (0, 1))(s, SPECTRUM.epsilon)
    np.testing.assert_allclose(slope, SPECTRUM.density(s), rtol=1e-8)
    assert float(shift) == pytest.approx(float(SPECTRUM.eta * jnp.sum(slope)), rel=1e-12)


def test_learned_spectrum_of_a_collapsed_or_inadmissible_point():
    nothing = LearnedSpectrum(MarchenkoPastur(0.5), 0.5, 9.0, 0.8)
    assert float(nothing.atom) == 1
    assert nothing.bands().shape == (0, 2)
    assert [x.shape for x in (*nothing.grid(), *nothing.quadrature())] == [(0,)] * 4
    for name, arguments in {"delta": (0.0, 1.0, 1.0), "epsilon": (1.0, -1.0, 1.0), "eta": (1.0, 1.0, 0.0)}.items():
        with pytest.raises(ValueError, match=name):
            LearnedSpectrum(LOW_RANK, *arguments)


# Outliers


def test_low_rank_outliers_are_exact():
    found = LearnedSpectrum(LOW_RANK, 1.5, 0.7, 0.8).outliers()
    s = np.array([3.0, 2.0])
    np.testing.assert_array_equal(found.target_eigenvalue, s)
    np.testing.assert_allclose(found.value, 0.8 * (s + 1.5**2 / s - 0.7), rtol=1e-14)
    np.testing.assert_allclose(found.overlap, np.sqrt(1 - 1.5**2 / s**2), rtol=1e-14)


def test_only_outliers_above_the_threshold_are_visible():
    lower = 2 + 1 / 2
    np.testing.assert_array_equal(LearnedSpectrum(LOW_RANK, 1.0, lower, 1.0).outliers().target_eigenvalue, [3.0])
    shown = LearnedSpectrum(LOW_RANK, 1.0, lower - 1e-9, 1.0).outliers()
    np.testing.assert_array_equal(shown.target_eigenvalue, [3.0, 2.0])
    assert shown.value[1] == pytest.approx(1e-9, abs=1e-14)
    assert LearnedSpectrum(LOW_RANK, 1.0, 5.0, 1.0).outliers().value.shape == (0,)


def test_outliers_of_sampled_matrices():
    """Means over 16 draws at d = 400 within 5 standard errors (false alarm 6e-7 each) and a bias of 2/d."""
    d, delta, spikes, draws = 400, 1.0, np.array([3.0, 2.0]), 16
    rng = np.random.default_rng(1)
    values, overlaps = [], []
    for _ in range(draws):
        gauss = rng.normal(size=(d, d))
        matrix = delta * (gauss + gauss.T) / np.sqrt(2 * d)
        matrix[[0, 1], [0, 1]] += spikes
        eigenvalues, vectors = np.linalg.eigh(matrix)
        values.append(eigenvalues[-2:][::-1])
        overlaps.append([vectors[0, -1] ** 2, vectors[1, -2] ** 2])
    found = LearnedSpectrum(LOW_RANK, delta, 0.0, 1.0).outliers()
    for measured, expected in ((values, found.value), (overlaps, found.overlap**2)):
        error = np.std(measured, axis=0, ddof=1) / np.sqrt(draws)
        assert (error < 0.03).all()
        np.testing.assert_array_less(np.abs(np.mean(measured, axis=0) - expected), 5 * error + 2 / d)


def test_a_low_rank_spike_detaches_exactly_at_delta():
    single = listed(2.0)
    for delta in (1.9, 2.0, 2.1):
        assert float(detachment(single, delta, 1)) == pytest.approx(1 - delta**2 / 4, abs=1e-15)
    assert LearnedSpectrum(single, 2.0 - 1e-6, 0.0, 1.0).outliers().value.shape == (1,)
    assert LearnedSpectrum(single, 2.0 + 1e-6, 0.0, 1.0).outliers().value.shape == (0,)
    assert [int(detached(listed(2.0, 3.0), delta)) for delta in (1.0, 2.2, 3.1)] == [2, 1, 0]


def test_detachment_is_the_integral_over_what_lies_below():
    weights = np.random.default_rng(2).uniform(1, 2, N)
    law = FiniteLaw(RANDOM.eigenvalues, weights)
    s, w = np.asarray(law.eigenvalues)[::-1], np.asarray(law.weights)[::-1]
    for k in (1, 2, 17, N - 1):
        expected = 1 - 0.3**2 * np.sum(w[k:] / (s[k - 1] - s[k:]) ** 2) / np.sum(w[k:])
        assert float(detachment(law, 0.3, k)) == pytest.approx(expected, rel=1e-12)
    assert float(detachment(law, 0.3, N)) == -np.inf
    every = jax.jit(jax.vmap(lambda k: detachment(law, 0.3, k)))(jnp.arange(1, N + 1))
    assert int(detached(law, 0.3)) == 1 + int(np.flatnonzero(np.asarray(every) > 0)[-1])


def test_outliers_of_a_full_list_agree_with_brute_force():
    delta = 0.1
    s = np.asarray(RANDOM.eigenvalues)[::-1]
    count = int(detached(RANDOM, delta))
    assert 3 <= count < N - 5
    below = s[s < s[count - 1]]
    found = LearnedSpectrum(RANDOM, delta, 0.5, 1.0).outliers()
    y = s[:count] + delta**2 * np.mean(1 / (s[:count, None] - below), axis=1)
    c = 1 - delta**2 * np.mean(1 / (s[:count, None] - below) ** 2, axis=1)
    gap = s[:count, None] - s
    mixing = delta**2 * np.sum(np.where(gap == 0, 0, 1 / np.where(gap == 0, 1, gap) ** 2), axis=1) / N
    seen = y > 0.5
    np.testing.assert_allclose(found.value, (y - 0.5)[seen], rtol=1e-12)
    np.testing.assert_allclose(found.overlap, np.where(mixing < 1, np.sqrt(c), np.nan)[seen], rtol=1e-12)


def test_close_eigenvalues_detach_together_and_mix():
    pair = listed(3.0, 3.0001)
    assert detachment(pair, 1.0, 1) < 0 < detachment(pair, 1.0, 2)
    found = LearnedSpectrum(pair, 1.0, 0.0, 1.0).outliers()
    np.testing.assert_allclose(found.value, [3.0001 + 1 / 3.0001, 3 + 1 / 3], rtol=1e-14)
    assert np.isnan(found.overlap).all()


def test_repeated_eigenvalues_are_counted_and_do_not_mix():
    found = LearnedSpectrum(listed(3.0, 3.0), 1.0, 0.0, 1.0).outliers()
    np.testing.assert_allclose(found.value, [10 / 3] * 2, rtol=1e-14)
    np.testing.assert_allclose(found.overlap, np.sqrt([8 / 9] * 2), rtol=1e-14)
    heavy = LearnedSpectrum(FiniteLaw([0.0, 3.0], [0.9, 0.1]), 1.0, 0.0, 1.0).outliers()
    np.testing.assert_allclose([heavy.value, heavy.overlap], [[10 / 3], [np.sqrt(8 / 9)]], rtol=1e-14)


@pytest.mark.parametrize("law", [FiniteLaw([1.5]), listed(), FiniteLaw(np.full(N, 1.5)), MarchenkoPastur(0.1)])
def test_nothing_detaches_without_a_bulk_below(law):
    spectrum = LearnedSpectrum(law, 0.05, 0.0, 1.0)
    assert spectrum.outliers().value.shape == (0,)
    assert int(detached(law, spectrum.delta)) == 0
    if isinstance(law, FiniteLaw):
        position = float(law.moment(1))
        assert float(bulk_edge(law, 0.05)) == pytest.approx(position + 0.1, rel=1e-14)
        assert float(support_end(law, 0.05)) == pytest.approx(position + 0.1, rel=1e-14)
        assert float(detachment(law, 0.05, 1)) == -np.inf


def test_detachment_refuses_what_it_has_no_answer_for():
    with pytest.raises(ValueError, match="law must be a FiniteLaw"):
        detachment(MarchenkoPastur(0.5), 1.0, 1)
    for k in (0, N + 1):
        with pytest.raises(ValueError, match="k must be"):
            detachment(LOW_RANK, 1.0, k)


def test_many_eigenvalues_take_little_memory():
    law = FiniteLaw.power_law(1.5, 10_000)
    s = np.asarray(law.eigenvalues)[::-1]
    found = LearnedSpectrum(law, 0.3, 0.3, 1.0).outliers()
    count = found.value.size
    assert 40 < count < 60
    np.testing.assert_array_equal(found.target_eigenvalue, s[:count])
    below = s[count:]
    np.testing.assert_allclose(found.value[0], s[0] + 0.09 * np.mean(1 / (s[0] - below)) - 0.3, rtol=1e-10)


# Edges and phases


@pytest.mark.parametrize("delta", [0.5, 1.9])
def test_bulk_of_a_low_rank_target_is_a_semicircle(delta):
    assert float(bulk_edge(LOW_RANK, delta)) == pytest.approx(2 * delta, rel=1e-14)
    assert float(support_end(LOW_RANK, delta)) > 3


def test_bulk_edge_is_the_end_of_what_lies_below_the_spikes():
    delta = 0.1
    count = int(detached(RANDOM, delta))
    edges = FreeConvolution(FiniteLaw(RANDOM.eigenvalues[: N - count]), delta).edges()
    assert float(bulk_edge(RANDOM, delta)) == pytest.approx(float(edges[-1, 1]), rel=1e-13)
    assert int(detached(RANDOM, 10.0)) == 0
    assert float(bulk_edge(RANDOM, 10.0)) == pytest.approx(float(support_end(RANDOM, 10.0)), rel=1e-14)


@pytest.mark.parametrize("law", [RANDOM, LOW_RANK, MarchenkoPastur(0.1), MarchenkoPastur(2.0), Semicircle(1.0)])
def test_support_ends_at_the_last_edge(law):
    for delta in (0.1, 1.0):
        edges = np.asarray(FreeConvolution(law, delta).edges())
        assert float(support_end(law, delta)) == pytest.approx(edges[-1, 1], rel=1e-13)


def test_first_band_of_a_continuous_law():
    law = MarchenkoPastur(0.1)
    for delta, merged in ((0.1, False), (2.0, True)):
        edges = np.asarray(FreeConvolution(law, delta).edges())
        assert merged == (edges[0, 1] == edges[1, 0])
        assert float(bulk_edge(law, delta)) == pytest.approx(edges[1 if merged else 0, 1], rel=1e-13)
    # An atom of mass 1 - κ0 next to nothing grows into a semicircle of that share of the variance.
    assert float(bulk_edge(law, 1e-4)) == pytest.approx(2e-4 * np.sqrt(0.9), rel=1e-3)
    assert float(bulk_edge(Semicircle(1.0), 0.75)) == pytest.approx(2 * 1.25, rel=1e-13)


def differences(function, x, step=1e-5):
    return (function(x + step) - function(x - step)) / (2 * step)


@pytest.mark.parametrize("margin", [collapse_margin, bleed_out_margin])
@pytest.mark.parametrize("kappa0", [0.1, 0.8])
def test_margins_have_the_derivatives_of_their_differences(margin, kappa0):
    def of_law(kappa0, delta, epsilon):
        return margin(MarchenkoPastur(kappa0), delta, epsilon)

    point = jnp.asarray([kappa0, 0.3, 0.4])
    slopes = jax.jit(jax.grad(lambda x: of_law(*x)))(point)
    assert float(slopes[2]) == 1
    for i in range(3):
        moved = lambda x, i=i: float(of_law(*point.at[i].set(x)))  # noqa: E731
        assert float(slopes[i]) == pytest.approx(differences(moved, float(point[i])), rel=1e-7)


@pytest.mark.parametrize("function", [support_end, bulk_edge, lambda law, delta: detachment(law, delta, 2)])
def test_edges_and_detachment_of_a_list_have_derivatives(function):
    s = RANDOM.eigenvalues

    def along(t, delta):
        return function(FiniteLaw(s + t * jnp.sin(3 * s)), delta)

    value, slopes = jax.jit(jax.value_and_grad(along, (0, 1)))(jnp.asarray(0.0), jnp.asarray(0.3))
    assert float(value) == pytest.approx(float(function(RANDOM, 0.3)), rel=1e-14)
    forward = jax.jit(jax.jacfwd(along, (0, 1)))(jnp.asarray(0.0), jnp.asarray(0.3))
    np.testing.assert_allclose(slopes, forward, rtol=1e-12)
    assert float(slopes[0]) == pytest.approx(differences(lambda t: float(along(t, 0.3)), 0.0), rel=1e-6)
    assert float(slopes[1]) == pytest.approx(differences(lambda delta: float(along(0.0, delta)), 0.3), rel=1e-6)


LISTED = [((1.0, 5.0), 0), ((4.0, 3.0), 1), ((1.0, 2.2), 2), ((1.0, 1.0), 3)]
SMOOTH = [((0.3, 6.5), 0), ((1.5, 1.0), 1), ((0.05, 0.15), 2), ((0.05, 0.02), 3)]


@pytest.mark.parametrize(("law", "points"), [(LOW_RANK, LISTED), (MarchenkoPastur(0.1), SMOOTH)])
def test_phases(law, points):
    arguments = [jnp.asarray(values) for values in zip(*(point for point, _ in points), strict=True)]
    index = jax.jit(jax.vmap(lambda delta, epsilon: phase_index(law, delta, epsilon)))(*arguments)
    np.testing.assert_array_equal(index, [phase for _, phase in points])
    for (delta, epsilon), phase in points:
        assert phase_name(law, delta, epsilon) == PHASES[phase]
        assert (float(collapse_margin(law, delta, epsilon)) >= 0) == (phase == 0)
        assert (float(bleed_out_margin(law, delta, epsilon)) < 0) == (phase in (1, 3))
        assert (float(LearnedSpectrum(law, delta, epsilon, 1.0).atom) == 1) == (phase == 0)


@pytest.fixture(scope="module")
def phases_of_problems():
    """Solved problems whose δ and ε are chosen: for T = 1 they and the noise fix α and λ̃ in closed form."""
    found = {}
    for (delta, epsilon), phase in LISTED:
        above = FreeConvolution(LOW_RANK, delta).above(epsilon)
        noise = 2 * delta**2
        alpha = (above.error + noise / 2) / (2 * delta**2)
        problem = attention_problem(alpha, 4 * epsilon * (alpha - above.D1), tokens=1, law=LOW_RANK, noise=noise)
        solution = solve_state_evolution(problem, state_evolution_nodes(problem, nodes=4, replicas=1))
        found[phase] = learned_spectrum(problem, solution.value), (delta, epsilon)
    return found


@pytest.mark.parametrize("phase", range(4))
def test_a_problem_in_each_phase(phases_of_problems, phase):
    spectrum, expected = phases_of_problems[phase]
    np.testing.assert_allclose([spectrum.delta, spectrum.epsilon], expected, rtol=1e-6)
    assert float(spectrum.eta) == pytest.approx(1)
    assert spectrum.phase() == PHASES[phase]
    assert spectrum.outliers().value.size == (0, 0, 2, 2)[phase]


# Distances


def quantiles(spectrum, d):
    """At levels (i - ½)/d, from the integrated density."""
    s, weight = spectrum.quadrature()
    middle = float(spectrum.atom) + np.cumsum(weight) - weight / 2
    levels = (np.arange(d) + 0.5) / d
    return np.where(levels <= float(spectrum.atom), 0.0, np.interp(levels, middle, s))


@pytest.mark.parametrize("spectrum", CASES)
def test_quantiles_of_the_law_are_close_to_it(spectrum):
    found = [distances(quantiles(spectrum, d), spectrum) for d in (100, 1000)]
    width = spectrum.bands()[-1, 1]
    for d, distance in zip((100, 1000), found, strict=True):
        # Half a jump of F_emp, and the error of the interpolation above.
        assert 0.4 / d < distance["ks"] < 0.5 / d + 2e-4
        assert distance["wasserstein"] < 0.5 * width / d
    assert found[1]["wasserstein"] < 0.3 * found[0]["wasserstein"]


def test_eigenvalues_of_sampled_matrices_approach_the_law():
    """Mean distance of 4 draws each: at d = 400 less than half of that at d = 50 (they fall as 1/d)."""
    rng = np.random.default_rng(3)

    def draw(d):
        factor, gauss = rng.normal(size=(d, d // 2)), rng.normal(size=(d, d))
        noisy = factor @ factor.T / (d / 2 * d) ** 0.5 + 0.5 * (gauss + gauss.T) / np.sqrt(2 * d)
        return 0.8 * np.maximum(np.linalg.eigvalsh(noisy) - 0.3, 0)

    means = {}
    for d in (50, 400):
        found = [distances(draw(d), SPECTRUM) for _ in range(4)]
        means[d] = {name: np.mean([distance[name] for distance in found]) for name in found[0]}
    for name in ("wasserstein", "ks"):
        assert means[400][name] < 0.5 * means[50][name]
        assert means[400][name] < 0.02


def test_distances_of_shifted_and_missing_eigenvalues():
    values = quantiles(SPECTRUM, 2000)
    F = float(SPECTRUM.atom)
    shifted = distances(np.where(values > 0, values + 0.3, 0), SPECTRUM)
    assert shifted["wasserstein"] == pytest.approx(0.3 * (1 - F), abs=1e-3)
    zero = distances(np.zeros(10), SPECTRUM)
    s, weight = SPECTRUM.quadrature()
    assert zero["wasserstein"] == pytest.approx(np.sum(weight * s), rel=1e-8)
    assert zero["ks"] == pytest.approx(1 - F, rel=1e-8)


def test_distances_from_a_collapsed_law():
    nothing = LearnedSpectrum(MarchenkoPastur(0.5), 0.5, 9.0, 0.8)
    assert distances(np.zeros(10), nothing) == {"wasserstein": 0.0, "ks": 0.0}
    some = distances(np.array([0.0, 2.0, 0.0, 1.0]), nothing)
    assert some == {"wasserstein": pytest.approx(0.75), "ks": pytest.approx(0.5)}


def test_rounding_is_zero_and_order_does_not_matter():
    values = quantiles(SPECTRUM, 100)
    noisy = np.where(values > 0, values, np.random.default_rng(4).normal(size=100) * 1e-9)
    assert distances(noisy[::-1], SPECTRUM) == pytest.approx(distances(values, SPECTRUM), rel=1e-12)


def test_both_sides_of_a_jump_count():
    """All eigenvalues at one x: F(x-) before the jump, 1 - F(x) after it."""
    for x in (0.5, 2.0):
        below = float(distribution(SPECTRUM, [x])[0])
        assert distances(np.full(7, x), SPECTRUM)["ks"] == pytest.approx(max(below, 1 - below), rel=1e-9)


@pytest.mark.parametrize("values", [np.zeros(0), np.zeros((2, 2)), np.array([1.0, np.nan])])
def test_distances_refuse_what_is_not_a_list(values):
    with pytest.raises(ValueError, match="eigenvalues must be"):
        distances(values, SPECTRUM)
