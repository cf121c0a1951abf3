"""Runs that fail, alone and beside others; heavy damping."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.amp import solve_amp
from amp_attention.data import Data, generate_data
from amp_attention.objective import training_objective
from amp_attention.problem import attention_problem

# Few samples and little regularisation: the undamped iteration overshoots by more at every step.
FEW = attention_problem(0.02, 1e-3)
D = 30
NUMBERS = ("objective", "train_error", "q", "m", "trace", "V", "gradient_norm")


def with_lam(problem, lam):
    return eqx.tree_at(lambda p: p.denoiser.lam, problem, jnp.asarray(lam))


@pytest.fixture(scope="module")
def few():
    """n = 18 samples in d = 30."""
    return generate_data(jax.random.key(0), FEW, D)


def large(S):
    """The matrix scaled to Tr S²/d = 10."""
    return S * jnp.sqrt(10 * S.shape[0] / jnp.sum(S**2))


def random_start(_):
    W = jax.random.normal(jax.random.key(9), (D, D))
    return large(W @ W.T)


@pytest.mark.parametrize(
    ("start", "expected"), [(large, "diverged"), (random_start, "left_domain"), (lambda _: None, "diverged")]
)
def test_an_undamped_run_that_runs_away_says_so(few, start, expected):
    """α = 0.02, λ̃ = 1e-3, from q = 10 and from 0: the value is the last iterate, with numbers that belong to it."""
    data, S0 = few
    solution = solve_amp(FEW, data, S0=S0, start=start(S0), damping=0.0)
    value, steps = solution.value, int(solution.stats["iterations"])
    assert result_name(solution.result) == expected and steps < 20
    for name in ("S", *NUMBERS):
        assert np.all(np.isfinite(getattr(value, name))), name
    assert value.q <= 1e12
    np.testing.assert_allclose(value.objective, training_objective(FEW, value.S, data), rtol=1e-12)
    # The step that could not be taken is counted, and has left the iterate as it was.
    np.testing.assert_array_equal(value.history.q[steps - 1], value.q)
    if steps > 1:
        np.testing.assert_array_equal(value.history.q[steps - 1], value.history.q[steps - 2])


def test_derivatives_of_a_run_that_ran_away_are_nan(few):
    data, _ = few
    slope = jax.grad(lambda lam: solve_amp(with_lam(FEW, lam), data, damping=0.0).value.objective)(jnp.asarray(1e-3))
    assert np.isnan(slope)


def test_damping_is_found_where_undamped_runs_do_not_converge(few):
    """The same samples at λ̃ = 0.1, from q = 10 and from 0."""
    (data, S0), problem = few, with_lam(FEW, 0.1)
    plain = solve_amp(problem, data, S0=S0, start=large(S0), damping=0.0)
    assert result_name(plain.result) != "successful"
    found = [solve_amp(problem, data, S0=S0, start=start) for start in (None, large(S0))]
    assert all(solution.successful and solution.value.gradient_norm <= 1e-8 for solution in found)
    np.testing.assert_allclose(found[1].value.objective, found[0].value.objective, rtol=1e-6)


MOST = 4000  # steps: enough for a damping of 0.99, too few for 0.999


@pytest.fixture(scope="module")
def easy():
    """Samples on which every damping converges, n = 144 in d = 12, and what the undamped iteration finds."""
    problem = attention_problem(1.0, 0.3)
    data, _ = generate_data(jax.random.key(3), problem, 12)
    return problem, data, solve_amp(problem, data, damping=0.0, max_steps=MOST)


def assert_same_point(found, plain):
    """Within ten times the tolerance."""
    for name in ("S", "V", "objective"):
        np.testing.assert_allclose(getattr(found.value, name), getattr(plain.value, name), atol=10 * 1e-8)


@pytest.mark.parametrize("damping", [0.9, 0.99, 0.999])
def test_heavy_damping_ends_at_the_same_point_or_says_that_it_did_not(easy, damping):
    problem, data, plain = easy
    assert plain.successful
    found = solve_amp(problem, data, damping=damping, max_steps=MOST)
    if damping == 0.999:
        assert result_name(found.result) == "max_steps_reached" and found.stats["residual"] > 1e-8
    else:
        assert found.successful and int(found.stats["iterations"]) > 2 / (1 - damping)
        assert_same_point(found, plain)


@pytest.mark.slow
def test_the_heaviest_damping_ends_at_the_same_point(easy):
    problem, data, plain = easy
    found = solve_amp(problem, data, damping=0.999, max_steps=40_000)
    assert found.successful
    assert_same_point(found, plain)


def test_lanes_that_fail_spoil_no_other(easy):
    """Under vmap over λ̃, start and a token: NaN in each of them, and a start beyond all bounds."""
    problem, data, _ = easy
    S0 = jnp.eye(12)

    def solve(lam, start, token):
        changed = Data(data.X.at[7, 0, 0].set(token), data.y)
        return solve_amp(with_lam(problem, lam), changed, S0=S0, start=start)

    lams = jnp.array([0.3, jnp.nan, 0.3, 0.6, 0.1])
    starts = jnp.stack([0 * S0, 0 * S0, 1e7 * S0, S0, 0 * S0])
    tokens = jnp.array([0.5, 0.5, 0.5, 0.5, jnp.nan])
    together = jax.vmap(solve)(lams, starts, tokens)
    alone = [solve(*arguments) for arguments in zip(lams, starts, tokens, strict=True)]
    names = [result_name(solution.result) for solution in alone]
    assert names[0] == names[3] == "successful" and names[1] == names[4] == "nonfinite"
    assert names[2] in ("diverged", "left_domain")
    np.testing.assert_array_equal(together.successful, [name == "successful" for name in names])
    np.testing.assert_array_equal(together.stats["iterations"], [s.stats["iterations"] for s in alone])
    assert np.all(np.isfinite(together.value.S))
    np.testing.assert_array_equal(together.value.S[4], 0)  # the start: no step could be taken
    assert alone[0].stats["iterations"] != alone[3].stats["iterations"]
    for lane in (0, 3):
        for name in ("S", *NUMBERS):
            expected = getattr(alone[lane].value, name)
            np.testing.assert_allclose(getattr(together.value, name)[lane], expected, rtol=1e-10, atol=1e-10)
