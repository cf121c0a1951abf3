"""Data from outside: what is refused, and with which words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.data import Data, check_memory, estimated_memory, load_npz, whiteness

X = np.random.default_rng(0).standard_normal((5, 2, 3))
Y = np.full((5, 2, 2), 0.5)


def replaced(array, value):
    array = array.copy()
    array[3].flat[0] = value
    return array


def test_sizes():
    data = Data(jnp.asarray(X), jnp.asarray(Y))
    data.check()
    assert (data.n, data.T, data.d, data.alpha) == (5, 2, 3, 5 / 9)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (X[0], Y, r"X must have shape \(n, T, d\)"),
        (X[:0], Y[:0], "n, T, d >= 1"),
        (X, Y[:4], r"y must have shape \(5, 2, 2\).*got \(4, 2, 2\)"),
        (X, Y[:, 0], r"y must have shape \(5, 2, 2\)"),
        (X[:, :1], Y[:, :1, :1], r"y must have shape \(5,\)"),
    ],
)
def test_shapes_that_do_not_belong_together(X, y, message):
    with pytest.raises(ValueError, match=message):
        Data(jnp.asarray(X), jnp.asarray(y))


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (replaced(X, np.nan), Y, "X must have finite numbers only; 1 of 5 samples do not, the first is sample 3"),
        (replaced(X, np.inf), Y, "X must have finite"),
        (X, replaced(Y, np.nan), "y must have finite"),
        (X, replaced(Y, -0.1), "y must have no negative entries"),
        (X, replaced(Y, 0.503), "y must have rows that sum to 1 within 1e-3"),
    ],
)
def test_values_that_no_head_produces(X, y, message):
    with pytest.raises(ValueError, match=message):
        Data(jnp.asarray(X), jnp.asarray(y)).check()


def test_labels_of_a_single_token_are_any_numbers():
    data = Data(jnp.asarray(X[:, :1]), jnp.asarray([-3.0, 0, 1, 2, 10]))
    data.check()
    assert data.T == 1 and data.y.shape == (5,)


def test_file_round_trip(tmp_path):
    np.savez(tmp_path / "data.npz", X=X.astype(np.float32), y=Y)
    data = load_npz(tmp_path / "data.npz")
    assert data.X.dtype == data.y.dtype == jnp.float64
    np.testing.assert_array_equal(data.X, X.astype(np.float32))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "y missing"),
        ({"tokens": X, "y": Y}, "X missing"),
        ({"X": X.astype(complex), "y": Y}, "X must be an array of real numbers"),
        ({"X": X, "y": Y[:4]}, "y must have shape"),
        ({"X": replaced(X, np.nan), "y": Y}, "X must have finite"),
        ({"X": X, "y": 2 * Y}, "rows that sum to 1"),
    ],
)
def test_bad_files(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_npz(tmp_path / "data.npz")


def test_files_that_are_no_archives(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "single.npy", X)
    for name, message in (
        ("text.npz", "cannot be read"),
        ("absent.npz", "cannot be read"),
        ("single.npy", "single array"),
    ):
        with pytest.raises(ValueError, match=message):
            load_npz(tmp_path / name)


def test_white_tokens_pass_and_others_do_not():
    X = jax.random.normal(jax.random.key(0), (3000, 2, 20))
    white = whiteness(X)
    assert not white.far_from_white
    # ‖C − I‖_F has its expected size to 10 %: it is a sum over 40·41/2 nearly independent entries.
    np.testing.assert_allclose(white.covariance, white.covariance_expected, rtol=0.1)
    assert whiteness(1.2 * X).far_from_white
    assert whiteness(X + 0.5).far_from_white
    repeated = X.at[:, 1].set(X[:, 0])  # each position is white, the sample is not
    assert whiteness(repeated).far_from_white
    few = whiteness(X[:50])
    assert few.covariance > 0.5 and not few.far_from_white


def test_memory_estimate_is_exact_integer_arithmetic():
    assert estimated_memory(10**9, 3, 10**6) > 10**9 * 3 * 10**6 * 8 > 2**31
    assert estimated_memory(1000, 2, 50, np.float32) * 2 == estimated_memory(1000, 2, 50, np.float64)


def test_too_large_problems_are_refused():
    with pytest.raises(ValueError, match=r"n = 5000 samples .* GiB are available; refused before allocating"):
        check_memory(5000, 2, 100, available=10**6)
    with pytest.raises(ValueError, match="refused before allocating"):
        check_memory(10**12, 2, 10**6)
    check_memory(100, 2, 10)
