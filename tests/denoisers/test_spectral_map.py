"""The soft threshold of eigenvalues: values, divergence, and derivatives where eigenvalues repeat."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from amp_attention.denoisers import soft_threshold_divided_differences, soft_threshold_spectrum

LAM, GAMMA = jnp.array(0.3), jnp.array(0.7)
SPECTRA = {
    "distinct": [-1.0, -0.2, 0.1, 0.5, 0.9, 2.0],
    "repeated": [-1.0, 0.1, 0.1, 0.8, 0.8, 0.8],
    "all above": [0.9] * 6,
    "all below": [0.2] * 6,
    "zero": [0.0] * 6,
}


def rotated(eigenvalues, seed=0):
    O, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(eigenvalues),) * 2))
    return jnp.asarray(O @ np.diag(eigenvalues) @ O.T)


def symmetric(seed, d=6):
    M = np.random.default_rng(seed).standard_normal((d, d))
    return jnp.asarray(M + M.T)


def multiple_of_identity(eigenvalues):
    return len(set(eigenvalues)) == 1


def matrix_with(eigenvalues):
    """Exactly c I where all eigenvalues agree: a rotation would already split them."""
    return eigenvalues[0] * jnp.eye(len(eigenvalues)) if multiple_of_identity(eigenvalues) else rotated(eigenvalues)


def symmetric_basis(d):
    """Orthonormal basis of the symmetric matrices."""
    basis = []
    for i in range(d):
        for j in range(i, d):
            E = np.zeros((d, d))
            E[i, j] = E[j, i] = 1 if i == j else np.sqrt(0.5)
            basis.append(E)
    return jnp.asarray(np.stack(basis))


@pytest.mark.parametrize("theta", [0.3, 0.0, -0.7])
def test_divided_differences_are_the_quotients(theta):
    b = np.array([-1.3, -0.2, 0.05, 0.4, 1.7])
    f = np.maximum(b - theta, 0)
    gaps = b[:, None] - b[None, :] + np.eye(5)
    expected = (f[:, None] - f[None, :]) / gaps + np.diag(b > theta)
    np.testing.assert_allclose(
        soft_threshold_divided_differences(jnp.asarray(b), jnp.array(theta)), expected, atol=1e-14
    )


def test_divided_differences_do_not_cancel():
    # One unit in the last place apart: the quotient of differences would be 0/ulp or wildly rounded.
    one = np.nextafter(1.0, 2.0)
    D = soft_threshold_divided_differences(jnp.array([1.0, one, 0.1, np.nextafter(0.1, 1)]), jnp.array(0.3))
    np.testing.assert_array_equal(D[:2, :2], np.ones((2, 2)))
    np.testing.assert_array_equal(D[2:, 2:], np.zeros((2, 2)))
    D = soft_threshold_divided_differences(jnp.array([0.3 + 1e-13, 0.3 - 3e-13]), jnp.array(0.3))
    np.testing.assert_allclose(D[0, 1], 0.25, rtol=1e-3)  # limited by the representation of the eigenvalues


def test_a_tie_at_the_kink_counts_as_below():
    D = soft_threshold_divided_differences(jnp.array([0.3, 0.3, 0.8]), jnp.array(0.3))
    np.testing.assert_array_equal(D, np.array([[0, 0, 1], [0, 0, 1], [1, 1, 1.0]]))


@settings(max_examples=50)
@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.floats(-3, 3))
def test_divided_differences_are_symmetric_slopes(b, theta):
    D = np.asarray(soft_threshold_divided_differences(jnp.asarray(b), jnp.asarray(theta)))
    np.testing.assert_array_equal(D, D.T)
    assert np.all((D >= 0) & (D <= 1))


@pytest.mark.parametrize("name", SPECTRA)
def test_S_solves_the_proximal_problem(name):
    """argmin over S ⪰ 0 of Γ‖S − B/Γ‖²/2 + λ Tr S: the multiplier ΓS − B + λI is ⪰ 0 and orthogonal to S."""
    B = matrix_with(SPECTRA[name])
    S, _, eigenvalues = soft_threshold_spectrum(B, LAM, GAMMA)
    multiplier = GAMMA * S - B + LAM * jnp.eye(6)
    assert np.min(np.linalg.eigvalsh(S)) > -1e-14
    assert np.min(np.linalg.eigvalsh(multiplier)) > -1e-14
    np.testing.assert_allclose(multiplier @ S, np.zeros((6, 6)), atol=1e-14)
    np.testing.assert_allclose(np.linalg.eigvalsh(S), eigenvalues, atol=1e-14)


@pytest.mark.parametrize("name", SPECTRA)
def test_V_is_the_trace_of_the_derivative(name):
    B = matrix_with(SPECTRA[name])
    along = lambda E: jnp.sum(E * jax.jvp(lambda B: soft_threshold_spectrum(B, LAM, GAMMA)[0], (B,), (E,))[1])  # noqa: E731
    trace = jnp.sum(jax.vmap(along)(symmetric_basis(6)))
    np.testing.assert_allclose(soft_threshold_spectrum(B, LAM, GAMMA)[1], trace / 36, rtol=1e-12, atol=1e-15)


def difference(f, x, dx, h=1e-6):
    return jax.tree.map(lambda a, b: (a - b) / (2 * h), f(x + h * dx), f(x - h * dx))


@pytest.mark.parametrize("name", SPECTRA)
def test_derivatives_match_finite_differences(name):
    B, dB = matrix_with(SPECTRA[name]), symmetric(1)
    functions = [
        (lambda B: soft_threshold_spectrum(B, LAM, GAMMA), B, dB),
        (lambda lam: soft_threshold_spectrum(B, lam, GAMMA), LAM, jnp.array(1.0)),
        (lambda Gamma: soft_threshold_spectrum(B, LAM, Gamma), GAMMA, jnp.array(1.0)),
    ]
    for f, x, dx in functions:
        (dS, dV, _), (S, V, _) = jax.jvp(f, (x,), (dx,))[1], difference(f, x, dx)
        np.testing.assert_allclose(dS, S, atol=1e-7)
        np.testing.assert_allclose(dV, V, atol=1e-7)


def test_derivatives_of_distinct_eigenvalues_match_finite_differences():
    f = lambda B: soft_threshold_spectrum(B, LAM, GAMMA)[2]  # noqa: E731
    B, dB = matrix_with(SPECTRA["distinct"]), symmetric(1)
    np.testing.assert_allclose(jax.jvp(f, (B,), (dB,))[1], difference(f, B, dB), atol=1e-7)


@pytest.mark.parametrize("name", SPECTRA)
def test_forward_and_reverse_agree_and_are_finite(name):
    B, dB, weights = matrix_with(SPECTRA[name]), symmetric(1), symmetric(2)

    def f(B, lam, Gamma):
        S, V, eigenvalues = soft_threshold_spectrum(B, lam, Gamma)
        return jnp.sum(weights * S) + 3 * V + jnp.sum(eigenvalues**2)

    primals, tangents = (B, LAM, GAMMA), (dB, jnp.array(0.4), jnp.array(-0.2))
    forward = jax.jvp(f, primals, tangents)[1]
    gradients = jax.grad(f, argnums=(0, 1, 2))(*primals)
    assert all(np.all(np.isfinite(g)) for g in gradients)
    np.testing.assert_allclose(
        forward, sum(jnp.sum(g * t) for g, t in zip(gradients, tangents, strict=True)), rtol=1e-10
    )


def test_derivative_stays_finite_when_an_eigenvalue_sits_on_the_threshold():
    tangents = jax.jvp(soft_threshold_spectrum, (0.3 * jnp.eye(4), LAM, GAMMA), (symmetric(1, 4), LAM, GAMMA))[1]
    assert all(np.all(np.isfinite(t)) for t in tangents)


def test_only_the_symmetric_part_is_read():
    B, skew = symmetric(3), jnp.asarray(np.triu(np.ones((6, 6)), 1) - np.tril(np.ones((6, 6)), -1))
    f = lambda B: soft_threshold_spectrum(B, LAM, GAMMA)[0]  # noqa: E731
    np.testing.assert_allclose(f(B + skew), f(B), atol=1e-13)
    np.testing.assert_allclose(jax.jvp(f, (B,), (skew,))[1], np.zeros((6, 6)), atol=1e-13)


def test_batches_and_float32():
    batch = jnp.stack([symmetric(i) for i in range(3)]).astype(jnp.float32)
    f = lambda B: soft_threshold_spectrum(B, LAM.astype(B.dtype), GAMMA.astype(B.dtype))  # noqa: E731
    S, V, _ = jax.jit(jax.vmap(f))(batch)
    assert S.dtype == V.dtype == jnp.float32
    for i in range(3):
        np.testing.assert_allclose(S[i], f(batch[i].astype(float))[0], atol=1e-4)
