"""Replicon by two replicas, growth of random perturbations, spectral radius of the linearised step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.amp import AMP, solve_amp
from amp_attention.data import adjoint, generate_data, scores
from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import FiniteLaw, MarchenkoPastur
from amp_attention.stability import (
    conjugate_gap,
    goe,
    linearised_spectral_radius,
    overlap_gap,
    replicon_by_replicas,
    replicon_growth,
)
from amp_attention.state_evolution import solve_state_evolution, state_evolution_nodes
from amp_attention.state_evolution._fixed_point import report

STANDARD = attention_problem(0.5, 0.05, noise=0.5)
STALLING = attention_problem(0.5, 0.03, kappa0=0.3, beta0=2.0, beta=1.0, noise=0.2)
ATOMS = FiniteLaw([0.0, 0.0, 0.3, 1.0, 2.5])
REPORT = eqx.filter_jit(report)


def solved(problem):
    nodes = state_evolution_nodes(problem, 4096, 8)
    solution = solve_state_evolution(problem, nodes)
    assert solution.successful
    return solution.value, nodes


# Two replicas. The identity holds node by node and at any overlaps, so that few nodes and rounded overlaps are enough.

NEAR_SOLUTIONS = {
    "softmax": (STANDARD, (1.25, 1.054, 0.836)),
    "three-tokens": (attention_problem(0.3, 0.05, tokens=3, noise=0.3), (0.93, 1.144, 0.925)),
    "linear-head": (attention_problem(0.8, 0.1, tokens=1, law=ATOMS), (0.1, 1.2, 1.1)),
    "two-temperatures": (STALLING, (0.9, 0.8, 0.5)),
    "full-rank": (attention_problem(3.0, 1e-3, law=MarchenkoPastur(3.0), noise=0.01), (0.4, 3.9, 3.9)),
}


@pytest.mark.parametrize("slug", NEAR_SOLUTIONS)
def test_replicas_give_the_replicon(slug):
    problem, overlaps = NEAR_SOLUTIONS[slug]
    nodes = state_evolution_nodes(problem, 256, 4)
    point = REPORT(problem, jnp.asarray(overlaps), nodes)
    assert 0.05 < point.replicon < 2
    np.testing.assert_allclose(replicon_by_replicas(problem, point, nodes), point.replicon, rtol=1e-10)


def test_full_rank_and_rank_collapse():
    """R2 = 1 at zero fraction 0, R2 = 0 at 1."""
    problem, overlaps = NEAR_SOLUTIONS["full-rank"]
    assert REPORT(problem, jnp.asarray(overlaps), state_evolution_nodes(problem, 256, 4)).zero_fraction < 1e-12
    collapsed = attention_problem(0.5, 2.0, noise=0.5)
    nodes = state_evolution_nodes(collapsed, 256, 4)
    point = REPORT(collapsed, jnp.zeros(3), nodes)
    assert point.zero_fraction == 1 and point.replicon == 0
    assert replicon_by_replicas(collapsed, point, nodes) == 0


@pytest.mark.slow
def test_replicas_give_the_replicon_at_solved_points():
    for problem in [problem for problem, _ in NEAR_SOLUTIONS.values()] + [attention_problem(0.5, 0.05, law=ATOMS)]:
        point, nodes = solved(problem)
        np.testing.assert_allclose(replicon_by_replicas(problem, point, nodes), point.replicon, rtol=1e-10)


@pytest.fixture(scope="module")
def near():
    problem, overlaps = NEAR_SOLUTIONS["softmax"]
    nodes = state_evolution_nodes(problem, 256, 4)
    return problem, REPORT(problem, jnp.asarray(overlaps), nodes), nodes


def test_the_overlap_map_is_even_with_the_replicon_as_its_curvature(near):
    problem, point, nodes = near
    gap = jax.jit(lambda s: overlap_gap(problem, point, nodes, s))
    start, s = gap(0.0), 0.02
    np.testing.assert_allclose(gap(s), gap(-s), rtol=1e-12)
    first, second = ((gap(x) - start) / x**2 for x in (s, 2 * s))
    np.testing.assert_allclose((4 * first - second) / 3, point.replicon, rtol=1e-5)


def test_replicas_of_a_quadratic_loss():
    """ℓ = 2(z − z0)²: g = −4(ω − z0)/(1 + 4Σ), so that q̂ − q̂12 = 2α (4/(1 + 4Σ))² (q − q12) at every distance."""
    problem, overlaps = NEAR_SOLUTIONS["linear-head"]
    nodes = state_evolution_nodes(problem, 256, 4)
    point = REPORT(problem, jnp.asarray(overlaps), nodes)
    for s in (0.01, 0.1, 0.9):
        expected = 2 * 0.8 * (4 / (1 + 4 * overlaps[0])) ** 2 * s**2
        np.testing.assert_allclose(conjugate_gap(problem, point, nodes, jnp.asarray(s)), expected, rtol=1e-12)


def test_other_parts_are_refused(near):
    _, point, nodes = near
    other = eqx.tree_at(lambda p: p.denoiser, STANDARD, STANDARD.channel)
    with pytest.raises(TypeError, match="denoiser must be NuclearNorm"):
        replicon_by_replicas(other, point, nodes)


# One instance


def found(problem, d, seed):
    data, _ = generate_data(jax.random.key(seed), problem, d)
    solution = solve_amp(problem, data)
    assert solution.successful
    return data, solution.value.state


@pytest.fixture(scope="module")
def small():
    return found(STANDARD, 30, 0)


def step_by_hand(problem, data, S, V, g):
    """The undamped AMP step in full: S, V, g, and Γ."""
    y = jnp.moveaxis(data.y, 0, -1)
    step = problem.channel.apply(scores(S, data.X) - V * g, y, V)
    Gamma = -jnp.sum(step.divergence) / data.d**2
    new = problem.denoiser.apply(adjoint(step.g, data.X) / data.d + Gamma * S, Gamma)
    return new.S, new.V, step.g, Gamma


def test_growth_is_that_of_a_small_difference(small):
    """Central differences of the step itself; Γ is kept by rescaling the field that leaves the channel."""
    data, state = small
    key, d = jax.random.key(3), 30
    y, Gamma = jnp.moveaxis(data.y, 0, -1), state.Gamma

    @jax.jit
    def moved(S):
        g = STANDARD.channel.apply(scores(S, data.X) - state.V * state.g, y, state.V).g
        return STANDARD.denoiser.apply(adjoint(g, data.X) / d + Gamma * S, Gamma).S

    result = replicon_growth(STANDARD, data, state, key, 3)
    for k, value in zip(jax.random.split(key, 3), result.values, strict=True):
        v = goe(k, d, state.S.dtype)
        change = (moved(state.S + 1e-6 * v) - moved(state.S - 1e-6 * v)) / 2e-6
        np.testing.assert_allclose(value, jnp.sum(change**2) / jnp.sum(v**2), rtol=1e-4)
    np.testing.assert_allclose(result.mean, jnp.mean(result.values))
    np.testing.assert_allclose(result.standard_error, np.std(result.values, ddof=1) / np.sqrt(3))


def test_directions_are_goe():
    v = goe(jax.random.key(0), 300)
    np.testing.assert_array_equal(v, v.T)
    # Tr v²/d = 1 + 1/d ± 2/d: within 8 standard deviations.
    np.testing.assert_allclose(jnp.sum(v**2) / 300, 1, atol=0.06)


def test_nothing_grows_at_a_collapsed_estimate():
    problem = attention_problem(0.5, 2.0, noise=0.5)
    data, state = found(problem, 30, 0)
    assert replicon_growth(problem, data, state, jax.random.key(0), 3).mean == 0
    assert linearised_spectral_radius(problem, data, state, jax.random.key(0)) == 0


def test_growth_is_near_the_replicon():
    """R = .428 here: within an offset of 2/d and five times the scatter over instances of d = 40, .016."""
    data, state = found(STALLING, 40, 0)
    growth = replicon_growth(STALLING, data, state, jax.random.key(1))
    assert growth.values.shape == (16,)
    assert 0 < growth.standard_error < 0.05 * growth.mean
    assert abs(growth.mean - 0.428) < 2 / 40 + 5 * 0.016


@pytest.mark.slow
def test_growth_tends_to_the_replicon(capsys):
    """Within an offset of 2/d and five standard errors, of the instances and of the theory.

    False-alarm rate below 2e-2, that of Student's t for four instances, the fewest.
    """
    point = solve_state_evolution(STALLING, state_evolution_nodes(STALLING, 1 << 16, 8)).value
    gaps = {}
    for d, count in ((50, 8), (100, 6), (200, 4)):
        means = []
        for seed in range(count):
            data, state = found(STALLING, d, seed)
            means.append(float(replicon_growth(STALLING, data, state, jax.random.key(seed)).mean))
        error = np.hypot(np.std(means, ddof=1) / np.sqrt(count), point.errors.replicon)
        gaps[d] = np.mean(means) - point.replicon
        with capsys.disabled():
            print(f"\nd = {d}: growth − R = {gaps[d]:.4f} ± {error:.4f}", end="")
        assert abs(gaps[d]) < 2 / d + 5 * error
    assert abs(gaps[200]) < abs(gaps[50])


def dense_radius(problem, data, state):
    """Eigenvalues of the whole Jacobian in an orthonormal basis of symmetric matrices, V and g."""
    d = data.d
    rows, columns = np.triu_indices(d)
    scale = jnp.asarray(np.where(rows == columns, 1.0, np.sqrt(0.5)))

    def unfold(x):
        S = jnp.zeros((d, d)).at[rows, columns].set(x * scale)
        return S + S.T - jnp.diag(jnp.diagonal(S))

    def step(vector):
        x, V, g = vector[: rows.size], vector[rows.size], vector[rows.size + 1 :]
        S, V, g, _ = step_by_hand(problem, data, unfold(x), V, g.reshape(state.g.shape))
        return jnp.concatenate([S[rows, columns] / scale, V[None], g.ravel()])

    vector = jnp.concatenate([state.S[rows, columns] / scale, state.V[None], state.g.ravel()])
    np.testing.assert_allclose(step(vector), vector, atol=1e-6)
    return np.max(np.abs(np.linalg.eigvals(jax.jit(jax.jacfwd(step))(vector))))


def test_spectral_radius_of_the_whole_jacobian():
    data, state = found(STALLING, 12, 1)
    expected = dense_radius(STALLING, data, state)
    assert expected > 0.2
    radius = linearised_spectral_radius(STALLING, data, state, jax.random.key(0))
    np.testing.assert_allclose(radius, expected, rtol=2e-3)
    assert radius == linearised_spectral_radius(STALLING, data, state, jax.random.key(0))


@eqx.filter_jit
def undamped_distances(problem, data, state, key, steps=30):
    """‖S_t − S‖_F of the undamped iteration from a perturbed fixed point."""
    solver = AMP(damping=0.0)
    start = solver.init(problem, data, state)
    start = eqx.tree_at(lambda s: s.S, start, state.S + 1e-4 * goe(key, data.d))

    def step(current, _):
        current, _ = solver.step(problem, data, current)
        return current, jnp.linalg.norm(current.S - state.S)

    return jax.lax.scan(step, start, length=steps)[1]


@pytest.mark.parametrize("lam, seed, converges", [(0.1, 2, True), (0.05, 2, False)])
def test_spectral_radius_is_the_rate_of_the_undamped_iteration(lam, seed, converges):
    """Away from the fixed point as well as towards it."""
    problem = eqx.tree_at(lambda p: p.denoiser.lam, STANDARD, jnp.asarray(lam))
    data, state = found(problem, 30, seed)
    radius = linearised_spectral_radius(problem, data, state, jax.random.key(0))
    distances = undamped_distances(problem, data, state, jax.random.key(1))
    np.testing.assert_allclose(radius, (distances[29] / distances[9]) ** (1 / 20), rtol=0.01)
    assert (radius < 1) == converges


def test_spectral_radius_that_is_not_found_is_nan(small):
    data, state = small
    radius = linearised_spectral_radius(STANDARD, data, state, jax.random.key(0), tolerance=1e-15, max_restarts=1)
    assert np.isnan(radius)
