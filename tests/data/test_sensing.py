"""Scores and their adjoint against explicit sensing matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.data import adjoint, scores


def sensing_matrices(x):
    """A_ab of one sample from its definition, a ≤ b row by row: the oracle, with n K d² numbers."""
    T, d = x.shape
    matrices = []
    for a in range(T):
        for b in range(a, T):
            delta = float(a == b)
            A = np.outer(x[a], x[b]) + np.outer(x[b], x[a]) - 2 * delta * np.eye(d)
            matrices.append(A / (2 * np.sqrt(d) * np.sqrt(1 + delta)))
    return np.stack(matrices)


def problem(T, n=4, d=6):
    rng = np.random.default_rng(T)
    X, S = rng.standard_normal((n, T, d)), rng.standard_normal((d, d))
    return X, S + S.T, rng.standard_normal((T * (T + 1) // 2, n))


@pytest.mark.parametrize("T", [1, 2, 3, 5])
def test_scores_are_traces_with_the_sensing_matrices(T):
    X, S, _ = problem(T)
    expected = np.stack([[np.sum(A * S) for A in sensing_matrices(x)] for x in X], axis=1)
    np.testing.assert_allclose(scores(jnp.asarray(S), jnp.asarray(X)), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("T", [1, 2, 3, 5])
def test_adjoint_is_the_sum_of_sensing_matrices(T):
    X, _, g = problem(T)
    expected = sum(g[k, i] * A for i, x in enumerate(X) for k, A in enumerate(sensing_matrices(x)))
    np.testing.assert_allclose(adjoint(jnp.asarray(g), jnp.asarray(X)), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("T", [1, 2, 3])
def test_adjoint_identity_with_chunks_that_do_not_divide_n(T):
    X, S, g = (jnp.asarray(x) for x in problem(T, n=2345, d=7))
    M = adjoint(g, X)
    np.testing.assert_array_equal(M, M.T)
    np.testing.assert_allclose(jnp.sum(g * scores(S, X)), jnp.sum(M * S), rtol=1e-11)


@pytest.mark.parametrize("T", [2, 5])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_scores_read_the_symmetric_part_and_their_derivative_is_the_adjoint(T, d):
    X, S, g = problem(T, d=d)
    rotation = np.triu(np.ones((d, d)), 1)
    X, S, g, rotation = (jnp.asarray(x) for x in (X, S, g, rotation - rotation.T))
    np.testing.assert_allclose(scores(S + rotation, X), scores(S, X), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(jax.grad(lambda S: jnp.sum(g * scores(S, X)))(S), adjoint(g, X), rtol=1e-12, atol=1e-13)


def test_variance_of_the_scores_is_q():
    """Each score has variance Tr(S²)/d; 7σ bound on the mean of 20000 squares, false alarm below 1e-9."""
    d = 30
    X = jax.random.normal(jax.random.key(0), (20_000, 2, d))
    S = jax.random.normal(jax.random.key(1), (d, d))
    S = S + S.T
    q = jnp.sum(S**2) / d
    np.testing.assert_allclose(jnp.mean(scores(S, X) ** 2, axis=1) / q, np.ones(3), atol=7 * np.sqrt(4 / 20_000))


@pytest.mark.parametrize("shape", [(2, 4), (3, 5), (3,)])
def test_mismatched_scores_are_refused(shape):
    with pytest.raises(ValueError, match=r"g must have shape \(T\(T\+1\)/2, n\) = \(3, 4\)"):
        adjoint(jnp.zeros(shape), jnp.zeros((4, 2, 6)))


@pytest.mark.parametrize("shape", [(5, 5), (6, 5), (6,)])
def test_mismatched_matrices_are_refused(shape):
    with pytest.raises(ValueError, match=r"S must have shape \(6, 6\) for tokens of dimension 6, got"):
        scores(jnp.zeros(shape), jnp.zeros((4, 2, 6)))
