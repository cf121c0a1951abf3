"""Tokens in memory, redrawn from their key and read from a file are the same tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.data import (
    Data,
    DrawnTokens,
    MappedTokens,
    adjoint,
    generate_data,
    load_npy,
    scores,
    sum_over_samples,
    whiteness,
)
from amp_attention.problem import attention_problem

N, D = 1203, 7  # more than one chunk, of uneven length
PROBLEM, KEY = attention_problem(), jax.random.key(4)


@pytest.fixture(scope="module")
def stored():
    return generate_data(KEY, PROBLEM, D, N)


@pytest.fixture(scope="module")
def sources(stored, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    data, _ = stored
    np.save(folder / "X.npy", data.X)
    np.save(folder / "y.npy", data.y)
    drawn, _ = generate_data(KEY, PROBLEM, D, N, stored=False)
    return {"drawn": drawn, "mapped": load_npy(folder / "X.npy", folder / "y.npy")}


@pytest.mark.parametrize("kind", ["drawn", "mapped"])
def test_the_same_samples_and_sums(stored, sources, kind):
    (data, S0), other = stored, sources[kind]
    assert (other.n, other.T, other.d, other.dtype) == (data.n, data.T, data.d, data.dtype)
    np.testing.assert_array_equal(other.X.take(jnp.int32(1000), 203), data.X[1000:])
    np.testing.assert_array_equal(other.y, data.y)
    z = scores(S0, data.X)
    np.testing.assert_array_equal(scores(S0, other.X), z)
    np.testing.assert_array_equal(adjoint(z, other.X), adjoint(z, data.X))
    np.testing.assert_array_equal(whiteness(other.X).covariance, whiteness(data.X).covariance)


@pytest.mark.parametrize("kind", ["drawn", "mapped"])
def test_a_pass_sees_the_same(stored, sources, kind):
    data, S0 = stored

    def body(S, samples):
        z = scores(S, samples.X)
        return jnp.sum(samples.masked(samples.y[0, 1] * z[0])), (z, samples.lanes[0] + 1)

    lane = jnp.arange(N, dtype=float)
    expected = sum_over_samples(body, S0, data, lane)
    found = sum_over_samples(body, S0, sources[kind], lane)
    for one, two in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(expected[1][0], scores(S0, data.X))
    np.testing.assert_array_equal(expected[1][1], lane + 1)
    np.testing.assert_allclose(expected[0], jnp.sum(data.y[:, 0, 1] * scores(S0, data.X)[0]), rtol=1e-12)


def test_a_sample_depends_on_its_index_alone():
    """Not on the number of samples, on the chunk it is drawn in, or on jit."""
    few, many = (DrawnTokens(KEY, n, 2, D) for n in (20, 50))
    drawn = jax.jit(lambda start: many.take(start, 10))(jnp.int32(5))
    np.testing.assert_array_equal(few.take(5, 10), drawn)
    np.testing.assert_array_equal(many.take(8, 1)[0], drawn[3])
    data = [generate_data(KEY, PROBLEM, D, n)[0] for n in (20, 50)]
    np.testing.assert_array_equal(data[0].y, data[1].y[:20])


def test_drawn_tokens_are_white():
    """n = 2000 samples: ‖C − I‖ has the size expected of white tokens to 10 %."""
    found = whiteness(DrawnTokens(jax.random.key(1), 2000, 2, 20))
    np.testing.assert_allclose(found.covariance, found.covariance_expected, rtol=0.1)


def test_no_key_is_used_twice():
    with jax.debug_key_reuse(True):
        data, _ = generate_data(jax.random.key(0), PROBLEM, D, 30)
    assert data.n == 30


def test_a_file_is_converted_and_never_read_beyond_its_end(tmp_path):
    X = np.arange(2 * 3 * 4, dtype=np.int16).reshape(2, 3, 4)
    np.save(tmp_path / "X.npy", X)
    tokens = MappedTokens(tmp_path / "X.npy", np.float32)
    assert tokens.dtype == np.float32 and tokens.shape == X.shape
    np.testing.assert_array_equal(tokens.take(1, 3), X[[1, 1, 1]])
    np.save(tmp_path / "X.npy", -X)  # another file of the same name
    np.testing.assert_array_equal(MappedTokens(tmp_path / "X.npy").take(0, 2), -X)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 4)), r"shape \(n, T, d\).*got float64 of shape \(3, 4\)"),
        (np.ones((3, 0, 4)), "n, T, d >= 1"),
        (np.ones((3, 2, 4), complex), "got complex128"),
        (np.asfortranarray(np.ones((3, 2, 4))), "in Fortran order"),
        (np.array([[[object()]]]), "cannot be read"),
    ],
)
def test_files_that_are_no_tokens(tmp_path, array, message):
    np.save(tmp_path / "X.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        MappedTokens(tmp_path / "X.npy")


def test_other_files_are_refused(tmp_path):
    X = np.ones((5, 2, 3))
    X[3, 0, 0] = np.nan
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.full((5, 2, 2), 0.5))
    np.savez(tmp_path / "X.npz", X=X)
    with pytest.raises(ValueError, match=r"cannot be read as a \.npy array"):
        MappedTokens(tmp_path / "absent.npy")
    with pytest.raises(ValueError, match=r"single \.npy array, got an archive"):
        MappedTokens(tmp_path / "X.npz")
    with pytest.raises(
        ValueError, match="X must have finite numbers only; 1 of 5 samples do not, the first is sample 3"
    ):
        load_npy(tmp_path / "X.npy", tmp_path / "y.npy")
    with pytest.raises(ValueError, match=r"y must have shape \(5, 2, 2\)"):
        Data(MappedTokens(tmp_path / "X.npy"), jnp.ones((4, 2, 2)))
