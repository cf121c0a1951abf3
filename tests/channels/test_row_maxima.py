"""Where the maxima of the rows of a symmetric normal matrix are: counts of labels, and probabilities."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.channels._row_maxima import kinds_of_columns, parents_first, row_maxima_probability
from amp_attention.numerics.gaussian_nodes import gaussian_nodes
from amp_attention.numerics.packing import packed_size, unpack


def possible(tokens):
    """Labels without a cycle of three or more rows, whose maxima would have to grow along it."""
    every = itertools.product(range(tokens), repeat=tokens)
    return np.asarray([columns for columns in every if not grows(columns)]).T


def grows(columns):
    """Whether following the columns from some row comes back to it after three or more steps."""
    for start in range(len(columns)):
        row, path = start, []
        while row not in path:
            path.append(row)
            row = columns[row]
        if len(path) - path.index(row) > 2:
            return True
    return False


@pytest.mark.parametrize(("tokens", "kinds"), [(2, 3), (3, 6), (4, 16)])
def test_kinds_count_every_possible_label_once(tokens, kinds):
    examples, counts = kinds_of_columns(tokens)
    assert len(examples) == kinds and counts.sum() == possible(tokens).shape[1]
    assert not any(grows(tuple(columns)) for columns in examples)


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_parents_come_first(tokens):
    columns = possible(tokens)
    order, renamed = (np.asarray(x) for x in parents_first(jnp.asarray(columns)))
    for old, new, names in zip(columns.T, renamed.T, order.T, strict=True):
        assert sorted(names) == list(range(tokens))
        for t in range(tokens):
            assert names[new[t]] == old[names[t]]
            is_root = new[t] == t or new[new[t]] == t
            assert is_root or new[t] < t


@pytest.mark.parametrize("tokens", [2, 3])
def test_probabilities_are_those_of_sampled_labels(tokens):
    """Of all labels together, within 5σ of 400 000 draws and 5e-4; they sum to 1."""
    columns, n, variance = possible(tokens), 400_000, 0.7
    keys = jax.random.split(jax.random.key(1), 2)
    omega = jax.random.normal(keys[0], (packed_size(tokens), 1))
    uniform = jax.scipy.special.ndtr(jnp.asarray(gaussian_nodes(tokens, 4096, 1)[0].T))[:, :, None]
    lanes = jnp.broadcast_to(omega, (omega.shape[0], columns.shape[1]))
    Z, _ = row_maxima_probability(lanes, jnp.asarray(columns), jnp.asarray(variance), uniform)
    z = omega + np.sqrt(variance) * jax.random.normal(keys[1], (omega.shape[0], n))
    drawn = jnp.argmax(unpack(z), axis=1)
    measured = jnp.stack([jnp.mean(jnp.all(drawn == column[:, None], axis=0).astype(float)) for column in columns.T])
    assert jnp.all(jnp.abs(Z - measured) <= 5 * jnp.sqrt(Z * (1 - Z) / n) + 5e-4)
    np.testing.assert_allclose(jnp.sum(Z), 1, atol=1e-3)


def test_the_slope_is_the_derivative_of_the_probability():
    """Both are averages over the same points, of different functions: equal up to the error of these."""
    columns = jnp.asarray(possible(3))
    omega = jax.random.normal(jax.random.key(2), (6, columns.shape[1]))
    uniform = jax.scipy.special.ndtr(jnp.asarray(gaussian_nodes(3, 16_384, 1)[0].T))[:, :, None]
    probability = lambda omega: row_maxima_probability(omega, columns, jnp.asarray(0.5), uniform)  # noqa: E731
    Z, slope = probability(omega)
    _, pull = jax.vjp(lambda omega: probability(omega)[0], omega)
    np.testing.assert_allclose(slope, pull(jnp.ones_like(Z))[0], atol=2e-3)


def test_the_slope_is_continuous():
    """A jump of one point among 64 would be of order 1/64."""
    columns = jnp.broadcast_to(jnp.asarray([0, 1, 2])[:, None], (3, 20_001))
    omega = jnp.zeros((6, 20_001)).at[0].set(jnp.linspace(-1, 1, 20_001))
    uniform = jax.scipy.special.ndtr(jnp.asarray(gaussian_nodes(3, 64, 1)[0].T))[:, :, None]
    _, slope = row_maxima_probability(omega, columns, jnp.asarray(0.5), uniform)
    assert jnp.max(jnp.abs(jnp.diff(slope, axis=1))) < 2e-4
