"""AMP on one instance: fixed points, stopping, failures, compilation."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.amp import AMP, solve_amp
from amp_attention.channels import AbstractLoss, ERMChannel, SquaredLoss
from amp_attention.data import Data, adjoint, generate_data, scores
from amp_attention.heads import LinearHead, SoftmaxHead
from amp_attention.objective import training_objective
from amp_attention.problem import attention_problem, cast
from amp_attention.state_evolution import solve_lowest, state_evolution_nodes

STANDARD = attention_problem(0.5, 0.05)
STALLING = attention_problem(0.5, 0.03, kappa0=0.3, beta0=2.0, beta=1.0, noise=0.2)
STEP = eqx.filter_jit(lambda solver, problem, data, state: solver.step(problem, data, state))
TERMINATE = eqx.filter_jit(lambda solver, *arguments: solver.terminate(*arguments))
OBJECTIVE = eqx.filter_jit(training_objective)


@pytest.fixture(scope="module")
def small():
    """n = 450 samples in d = 30."""
    return generate_data(jax.random.key(0), STANDARD, 30)


@pytest.fixture(scope="module")
def solved(small):
    data, S0 = small
    return solve_amp(STANDARD, data, S0=S0)


def with_lam(problem, lam):
    return eqx.tree_at(lambda p: p.denoiser.lam, problem, jnp.asarray(lam, problem.alpha.dtype))


def test_fixed_point_satisfies_the_equations(small, solved):
    """At a fixed point the proximal points are the scores, g = −∇ℓ there, and S is the denoised B."""
    (data, _), state = small, solved.value.state
    z = scores(state.S, data.X)
    g = -STANDARD.channel.loss.gradient(z, jnp.moveaxis(data.y, 0, -1))
    np.testing.assert_allclose(state.g, g, atol=1e-7)
    np.testing.assert_allclose(state.z, z, atol=1e-7)
    step = STANDARD.denoiser.apply(adjoint(g, data.X) / data.d + state.Gamma * state.S, state.Gamma)
    np.testing.assert_allclose(step.S, state.S, atol=1e-7)
    np.testing.assert_allclose(step.V, state.V, rtol=1e-6)


def test_estimate_reports_what_it_says(small, solved):
    (data, S0), value, d = small, solved.value, 30
    assert solved.successful
    assert value.gradient_norm <= 1e-8 and solved.stats["residual"] <= 1e-8
    np.testing.assert_allclose(value.objective, OBJECTIVE(STANDARD, value.S, data), rtol=1e-14)
    np.testing.assert_allclose(value.train_error + 0.05 * value.trace, value.objective, rtol=1e-14)
    np.testing.assert_allclose(value.q, jnp.sum(value.S**2) / d, rtol=1e-14)
    np.testing.assert_allclose(value.m, jnp.sum(value.S * S0) / d, rtol=1e-14)
    np.testing.assert_allclose(value.squared_error, jnp.sum((value.S - S0) ** 2) / d, rtol=1e-14)
    np.testing.assert_allclose(value.zero_fraction, np.mean(np.linalg.eigvalsh(value.S) < 1e-6))


def test_minimum_lies_below_its_neighbours(small, solved):
    """A descent check that knows no gradient: PSD perturbations of S of size 1e-3 cost at least nothing."""
    (data, _), S = small, solved.value.S
    for seed in range(8):
        W = jax.random.normal(jax.random.key(seed), (30, 3)) * 1e-2
        assert OBJECTIVE(STANDARD, S + W @ W.T, data) >= solved.value.objective
        shrunk = (jnp.eye(30) - W @ W.T) @ S @ (jnp.eye(30) - W @ W.T)
        assert OBJECTIVE(STANDARD, shrunk, data) >= solved.value.objective


def test_history_is_complete_and_blank_beyond_the_last_step(solved):
    history, steps = solved.value.history, int(solved.stats["iterations"])
    for entry in jax.tree.leaves(history):
        assert entry.shape == (500,)
        assert np.all(np.isfinite(entry[:steps])) and np.all(np.isnan(entry[steps:]))
    np.testing.assert_allclose(history.q[steps - 1], solved.value.q)
    assert history.residual[steps - 1] <= 1e-8 < history.residual[steps - 3]  # the last step looks at all minima


def test_stepping_by_hand_is_the_same_iteration(small, solved):
    data, solver = small[0], AMP()
    state = solver.init(STANDARD, data)
    for i in range(12):
        state, info = STEP(solver, STANDARD, data, state)
        done, result, gradient_norm = TERMINATE(solver, STANDARD, data, state, info)
        np.testing.assert_allclose(info.residual, solved.value.history.residual[i], rtol=1e-9)
        np.testing.assert_allclose(jnp.sum(state.S**2) / 30, solved.value.history.q[i], rtol=1e-9)
        assert not done and np.isinf(gradient_norm) and result_name(result) == "successful"


def test_first_step_is_one_of_gradient_descent(small):
    """From S = g = V = 0: B = −(1/d)∇Σℓ at 0, which labels alone determine."""
    data, solver = small[0], AMP()
    state, _ = STEP(solver, STANDARD, data, solver.init(STANDARD, data))
    gradient = 30 * jax.grad(lambda S: OBJECTIVE(with_lam(STANDARD, 0.0), S, data))(jnp.zeros((30, 30)))
    np.testing.assert_allclose(state.S, STANDARD.denoiser.apply(-gradient, state.Gamma).S, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_damping_is_found_where_plain_steps_stall(seed):
    """κ0 = 0.3, β0 = 2, β = 1, Δ = 0.2, α = 0.5, λ̃ = 0.03, where most instances at small d do not converge plainly."""
    data, _ = generate_data(jax.random.key(seed), STALLING, 30)
    solution = solve_amp(STALLING, data)
    assert solution.successful and solution.value.gradient_norm <= 1e-8
    assert solution.stats["damping"] > 0


def test_plain_steps_do_stall_there():
    """What makes the test above one of the automatic damping."""
    stalled = [
        solve_amp(STALLING, generate_data(jax.random.key(s), STALLING, 30)[0], damping=0.0, max_steps=200)
        for s in range(2)
    ]
    for solution in stalled:
        assert result_name(solution.result) == "max_steps_reached" and solution.stats["residual"] > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("d", [40, 60, 80])
@pytest.mark.parametrize("seed", range(4))
def test_damping_is_found_at_larger_sizes(d, seed):
    data, _ = generate_data(jax.random.key(seed), STALLING, d)
    assert solve_amp(STALLING, data).successful


def test_fixed_damping_reaches_the_same_minimum(small, solved):
    damped = solve_amp(STANDARD, small[0], S0=small[1], damping=0.5)
    assert damped.successful
    np.testing.assert_array_equal(damped.value.history.damping[: int(damped.stats["iterations"])], 0.5)
    np.testing.assert_allclose(damped.value.S, solved.value.S, atol=1e-6)


@pytest.mark.parametrize("damping", [-0.1, 1.0, np.nan])
def test_damping_out_of_range_is_refused(small, damping):
    with pytest.raises(ValueError, match="damping must be"):
        solve_amp(STANDARD, small[0], damping=damping)


def test_start_of_another_solution(small, solved):
    """From the converged state one step suffices; from a matrix the same minimum is found."""
    data, S0 = small
    again = solve_amp(STANDARD, data, S0=S0, start=solved.value.state)
    assert again.successful and again.stats["iterations"] <= 2
    informed = solve_amp(STANDARD, data, S0=S0, start=S0)
    assert informed.value.history.m[0] != solved.value.history.m[0]
    np.testing.assert_allclose(informed.value.objective, solved.value.objective, rtol=1e-12)


def test_rank_collapse_ends_at_zero_exactly(small):
    solution = solve_amp(with_lam(STANDARD, 3.0), small[0])
    assert solution.successful and solution.value.gradient_norm == 0
    np.testing.assert_array_equal(solution.value.S, 0)
    assert solution.value.zero_fraction == 1


def test_weak_signal_is_not_mistaken_for_collapse(small):
    """λ̃ = 1: S = 0 has a vanishing gradient in W but is no minimum."""
    data, _ = small
    problem = with_lam(STANDARD, 1.0)
    solution = solve_amp(problem, data)
    assert solution.successful
    assert solution.value.q > 1e-3
    assert solution.value.objective < OBJECTIVE(problem, jnp.zeros((30, 30)), data)


def test_objective_derivative_in_lam_is_the_trace(small):
    """Envelope theorem at the minimum: d(d⁻²L)/dλ̃ = Tr S/d."""
    h = 1e-4
    lower, middle, upper = (solve_amp(with_lam(STANDARD, 0.05 + s), small[0]).value for s in (-h, 0.0, h))
    np.testing.assert_allclose((upper.objective - lower.objective) / (2 * h), middle.trace, rtol=1e-5)


@pytest.mark.slow
def test_five_tokens():
    problem = attention_problem(0.2, 0.05, tokens=5)
    solution = solve_amp(problem, generate_data(jax.random.key(0), problem, 24)[0])
    assert solution.successful and solution.value.gradient_norm <= 1e-8


def test_float32_agrees_with_float64(small, solved):
    data = cast(small[0], jnp.float32)
    solution = solve_amp(STANDARD, data, S0=small[1])
    assert solution.successful and solution.value.S.dtype == jnp.float32
    assert solution.value.gradient_norm <= 1e-5
    for name in ("objective", "q", "m", "V", "Gamma", "trace"):
        np.testing.assert_allclose(getattr(solution.value, name), getattr(solved.value, name), rtol=1e-3)


class CountingLoss(SquaredLoss):
    """Counts how often Python traces it."""

    traces: ClassVar[list] = []

    def values(self, z, y):
        self.traces.append(z.shape)
        return super().values(z, y)


def test_other_numbers_of_the_same_shapes_do_not_compile_again(small):
    data, _ = small

    def solve(lam, beta, tolerance):
        problem = eqx.tree_at(lambda p: p.channel, STANDARD, ERMChannel(CountingLoss(SoftmaxHead(2, beta))))
        return solve_amp(with_lam(problem, lam), data, tolerance=tolerance)

    solve(0.05, 1.0, 1e-3)
    first = len(CountingLoss.traces)
    assert first > 0
    solve(0.1, 1.5, 1e-4)
    assert len(CountingLoss.traces) == first


def test_nan_in_the_data_is_a_result_and_keeps_the_last_finite_iterate(small):
    data, S0 = small
    bad = Data(data.X.at[7, 0, 0].set(jnp.nan), data.y)
    solution = solve_amp(STANDARD, bad, S0=S0)
    assert result_name(solution.result) == "nonfinite"
    assert np.all(np.isfinite(solution.value.S))


class Concave(AbstractLoss):
    """Curvature −0.2, whose Γ is negative."""

    head: LinearHead = LinearHead()

    def __call__(self, z, y):
        return jnp.sum(-0.1 * z**2) + 0 * jnp.sum(y)


def test_negative_curvature_leaves_the_domain():
    problem = attention_problem(0.5, 0.05, tokens=1)
    data, S0 = generate_data(jax.random.key(0), problem, 12)
    concave = eqx.tree_at(lambda p: p.channel, problem, ERMChannel(Concave()))
    solution = solve_amp(concave, data, start=S0)
    assert result_name(solution.result) == "left_domain"
    np.testing.assert_array_equal(solution.value.S, S0)


def test_too_few_steps_are_reported():
    problem = attention_problem(0.5, 0.05, tokens=1)
    solution = solve_amp(problem, generate_data(jax.random.key(0), problem, 12)[0], max_steps=3)
    assert result_name(solution.result) == "max_steps_reached"
    assert solution.stats["iterations"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tolerance": 0.0}, "tolerance must be"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"S0": jnp.eye(3)}, r"S0 must have shape \(30, 30\)"),
        ({"start": jnp.eye(3)}, r"start must have shape \(30, 30\)"),
    ],
)
def test_wrong_arguments_are_refused(small, arguments, message):
    with pytest.raises(ValueError, match=message):
        solve_amp(STANDARD, small[0], **arguments)


def test_wrong_number_of_tokens_is_refused(small):
    with pytest.raises(ValueError, match="data must have T = 3"):
        solve_amp(attention_problem(tokens=3), small[0])


def test_step_is_differentiable_forward_and_reverse(small, solved):
    """Direction in S at fixed V and g, as the empirical replicon needs it."""
    data, solver, state = small[0], AMP(damping=0.0), solved.value.state
    state = eqx.tree_at(lambda s: s.control, state, solver.init(STANDARD, data).control)

    @jax.jit
    def step(S):
        return solver.step(STANDARD, data, eqx.tree_at(lambda s: s.S, state, S))[0].S

    keys = jax.random.split(jax.random.key(0), 2)
    dS, weights = (M + M.T for M in (jax.random.normal(key, (30, 30)) for key in keys))
    forward = jax.jvp(step, (state.S,), (dS,))[1]
    h = 1e-6
    np.testing.assert_allclose(forward, (step(state.S + h * dS) - step(state.S - h * dS)) / (2 * h), atol=1e-5)
    reverse = jax.vjp(step, state.S)[1](weights)[0]
    np.testing.assert_allclose(jnp.sum(weights * forward), jnp.sum(reverse * dS), rtol=1e-9)


@pytest.mark.slow
def test_sixteen_tokens():
    """K = 136 scores a sample: AMP ends at a stationary point, near what state evolution predicts."""
    problem = attention_problem(0.05, 0.01, tokens=16)
    data, S0 = generate_data(jax.random.key(0), problem, 24)
    solution = solve_amp(problem, data, S0=S0)
    assert solution.successful and solution.value.gradient_norm <= 1e-8
    theory = solve_lowest(problem, state_evolution_nodes(problem, 64, 4))
    assert theory.successful
    np.testing.assert_allclose(solution.value.squared_error, theory.value.squared_error, rtol=0.3)
