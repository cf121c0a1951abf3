"""Training by gradients, and AMP against it: two independent routes to one minimum."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from amp_attention._solution import result_name
from amp_attention.amp import solve_amp
from amp_attention.data import Data, generate_data
from amp_attention.erm import tied_matrix, train, training_objective
from amp_attention.problem import attention_problem, cast

CASES = {
    "standard": (attention_problem(0.5, 0.05, noise=0.5), 60),
    "stalling": (attention_problem(0.5, 0.03, kappa0=0.3, beta0=2.0, beta=1.0, noise=0.2), 60),
    "weak-signal": (attention_problem(0.5, 1.0), 60),
    "collapsed": (attention_problem(0.5, 3.0), 60),
    "three-tokens": (attention_problem(0.3, 0.05, tokens=3, noise=0.3), 30),
    "mismatched-beta": (attention_problem(0.5, 0.03, kappa0=0.3, noise=0.0, beta0=1.0, beta=2.0), 60),
}
LARGE = {
    "standard": (CASES["standard"][0], 100),
    "stalling": (CASES["stalling"][0], 80),
    "three-tokens": (CASES["three-tokens"][0], 60),
    "mismatched-beta": (attention_problem(0.6, 0.03, kappa0=0.3, noise=0.0, beta0=1.0, beta=2.0), 80),
    "five-tokens": (attention_problem(0.1, 0.05, tokens=5), 40),
}
SMALL = attention_problem(0.5, 0.1)


def assert_same_minimum(problem, d):
    data, S0 = generate_data(jax.random.key(1), problem, d)
    amp, trained = solve_amp(problem, data, S0=S0), train(problem, data, key=jax.random.key(2), S0=S0)
    assert amp.successful and trained.successful
    assert amp.value.gradient_norm <= 1e-8 and trained.value.gradient_norm <= 1e-7
    np.testing.assert_allclose(amp.value.objective, trained.value.objective, rtol=1e-9)
    assert jnp.sum((amp.value.S - trained.value.S) ** 2) / d < 1e-10
    for name in ("train_error", "trace", "m", "squared_error", "zero_fraction"):
        np.testing.assert_allclose(getattr(amp.value, name), getattr(trained.value, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_amp_and_lbfgs_find_the_same_minimum(name):
    assert_same_minimum(*CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_amp_and_lbfgs_find_the_same_minimum_at_larger_sizes(name):
    assert_same_minimum(*LARGE[name])


def convex_problem(d):
    """Single tokens, labels and their dense sensing matrices, drawn with NumPy: shares no code with the package."""
    rng = np.random.default_rng(0)
    n, width = round(0.3 * d**2), d // 4
    W, X, noise = rng.standard_normal((d, width)), rng.standard_normal((n, d)), rng.standard_normal(n)
    A = (np.einsum("ni,nj->nij", X, X) - np.eye(d)) / np.sqrt(d)
    y = np.einsum("nij,ij->n", A, W @ W.T / np.sqrt(width * d)) + np.sqrt(0.5) * noise
    return A.reshape(n, -1), X, y


def proximal_gradient(A, y, d, lam, steps=2000):
    """Accelerated proximal gradient for Σ(⟨A, S⟩ − y)² + dλ Tr S over S ⪰ 0; returns its least value."""
    step = 0.5 / np.linalg.norm(A, 2) ** 2
    S = momentum = np.zeros(d * d)
    t, best = 1.0, np.inf
    for _ in range(steps):
        gradient = 2 * A.T @ (A @ momentum - y) + d * lam * np.eye(d).ravel()
        b, O = np.linalg.eigh((momentum - step * gradient).reshape(d, d))
        new = ((O * np.maximum(b, 0)) @ O.T).ravel()
        t, previous = (1 + np.sqrt(1 + 4 * t**2)) / 2, t
        momentum, S = new + (previous - 1) / t * (new - S), new
        best = min(best, np.sum((A @ S - y) ** 2) + d * lam * np.trace(S.reshape(d, d)))
    return best


PUBLISHED = {20: 28.27314, 40: 125.136}


@pytest.mark.parametrize("d", [20, pytest.param(40, marks=pytest.mark.slow)])
def test_convex_problem_of_a_single_token(d):
    """One minimum: AMP, L-BFGS, an independent proximal gradient and a published value agree."""
    A, X, y = convex_problem(d)
    data = Data(jnp.asarray(X)[:, None], jnp.asarray(y))
    problem = attention_problem(0.3, 0.1, tokens=1)
    amp, trained = solve_amp(problem, data), train(problem, data, key=jax.random.key(0))
    oracle = proximal_gradient(A, y, d, 0.1)
    np.testing.assert_allclose(oracle, PUBLISHED[d], rtol=1e-5)
    for solution in (amp, trained):
        assert solution.successful
        np.testing.assert_allclose(d**2 * solution.value.objective, oracle, rtol=1e-8)


def test_published_values_are_those_of_the_reference_file():
    path = Path(__file__).parents[3] / "shared" / "reference" / "systems.json"
    if not path.exists():
        pytest.skip("the reference file is not in this checkout")
    rows = json.loads(path.read_text())["convex_oracle_T1"]
    assert {row["d"]: row["objective"] for row in rows} == PUBLISHED


@pytest.fixture(scope="module")
def small():
    return generate_data(jax.random.key(0), SMALL, 12)


@pytest.fixture(scope="module")
def minimum(small):
    return solve_amp(SMALL, small[0], S0=small[1]).value


@pytest.mark.parametrize("optimizer", ["adam", optax.chain(optax.scale_by_adam(), optax.scale(-0.03))])
def test_other_optimisers_approach_the_minimum(small, minimum, optimizer):
    solution = train(SMALL, small[0], key=jax.random.key(0), optimizer=optimizer, max_steps=1500, tolerance=1e-4)
    assert solution.value.objective >= minimum.objective
    np.testing.assert_allclose(solution.value.objective, minimum.objective, rtol=1e-5)


@pytest.mark.parametrize("width", [3, 20])
def test_width(small, minimum, width):
    """A width that binds costs objective; more than d gains nothing."""
    solution = train(SMALL, small[0], key=jax.random.key(0), width=width)
    value = solution.value
    assert solution.successful and value.W.shape == (12, width)
    np.testing.assert_allclose(value.S, tied_matrix(value.W))
    rank = round(12 * (1 - float(minimum.zero_fraction)))
    if width >= rank:
        np.testing.assert_allclose(value.objective, minimum.objective, rtol=1e-10)
    else:
        assert value.objective > minimum.objective and value.gradient_norm > 1e-3


def test_weight_decay_is_the_penalty_on_the_weights(small):
    """d λ̃ Tr S = λ‖W‖² with λ̃ = √κ λ, κ = p/d."""
    W = jax.random.normal(jax.random.key(0), (12, 30))
    weight_decay = 0.2
    problem = attention_problem(0.5, np.sqrt(30 / 12) * weight_decay)
    penalty = problem.denoiser.objective(tied_matrix(W))
    np.testing.assert_allclose(12**2 * penalty, weight_decay * jnp.sum(W**2), rtol=1e-12)


def test_too_few_steps_are_reported(small):
    solution = train(SMALL, small[0], key=jax.random.key(0), max_steps=3)
    assert result_name(solution.result) == "max_steps_reached" and solution.stats["iterations"] == 3


def test_nan_in_the_data_is_a_result(small):
    bad = Data(small[0].X.at[0, 0, 0].set(jnp.nan), small[0].y)
    solution = train(SMALL, bad, key=jax.random.key(0))
    assert result_name(solution.result) == "nonfinite"
    assert np.all(np.isfinite(solution.value.W))


def test_float32_agrees_with_float64(small, minimum):
    solution = train(SMALL, cast(small[0], jnp.float32), key=jax.random.key(0))
    assert solution.successful and solution.value.S.dtype == jnp.float32
    np.testing.assert_allclose(solution.value.objective, minimum.objective, rtol=1e-4)
    assert jnp.sum((solution.value.S - minimum.S.astype(jnp.float32)) ** 2) / 12 < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "newton"}, "optimizer must be one of lbfgs, adam"),
        ({"width": 0}, "width must be"),
        ({"tolerance": -1.0}, "tolerance must be"),
        ({"S0": jnp.eye(3)}, "S0 must have shape"),
    ],
)
def test_wrong_arguments_are_refused(small, arguments, message):
    with pytest.raises(ValueError, match=message):
        train(SMALL, small[0], key=jax.random.key(0), **arguments)


def test_gradient_in_the_weights_matches_differences(small):
    data, W = small[0], jax.random.normal(jax.random.key(0), (12, 12))
    objective = eqx.filter_jit(lambda W: training_objective(SMALL, tied_matrix(W), data))
    dW, h = jax.random.normal(jax.random.key(1), (12, 12)), 1e-6
    expected = (objective(W + h * dW) - objective(W - h * dW)) / (2 * h)
    np.testing.assert_allclose(jnp.sum(jax.grad(objective)(W) * dW), expected, rtol=1e-7)
