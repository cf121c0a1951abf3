"""Softmax heads at very low temperature, where they are a maximum: ties, and gaps of 10³ between scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.heads import SoftmaxHead
from amp_attention.numerics.packing import pack, unpack

# Symmetric score matrices h: all tied, two tied of three, gaps of ±10³, a gap far below the temperature, a small one.
SCORES = np.array(
    [
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[5, 5, -5], [5, 5, -5], [-5, -5, 5]],
        [[1e3, -1e3, 0], [-1e3, 0, 1e3], [0, 1e3, 1e3]],
        [[0, 1e-12, 0], [1e-12, 0, 0], [0, 0, 0]],
        [[1, 2, 3], [2, 5, 4], [3, 4, 6]],
    ],
    float,
)
HARD = np.array(
    [
        [[1 / 3] * 3] * 3,
        [[1 / 2, 1 / 2, 0], [1 / 2, 1 / 2, 0], [0, 0, 1]],
        [[1, 0, 0], [0, 0, 1], [0, 1 / 2, 1 / 2]],
        [[1 / 3] * 3] * 3,
        [[0, 0, 1], [0, 1, 0], [0, 0, 1]],
    ]
)


@pytest.fixture(params=[1e3, 1e4, 1e5, 1e6])
def beta(request):
    return request.param


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
class TestHardMaximum:
    def head_and_scores(self, beta, dtype):
        z = pack(jnp.moveaxis(jnp.asarray(SCORES), 0, -1))
        return SoftmaxHead(3, jnp.asarray(beta, dtype)), z.astype(dtype)

    def test_is_uniform_over_the_largest_scores(self, beta, dtype):
        """Where the rounding of √2 z, of 1e-16 or 1e-7 relative, is no gap in units of the temperature."""
        head, _ = self.head_and_scores(beta, dtype)
        h = jnp.moveaxis(jnp.asarray(SCORES, dtype), 0, -1)
        np.testing.assert_allclose(jax.nn.softmax(head.beta * h, axis=1), np.moveaxis(HARD, 0, -1), atol=1e-6)

    def test_of_packed_scores(self, beta, dtype):
        """Ties of equal components alone: a diagonal and an off-diagonal score may part by rounding, times β."""
        head, z = self.head_and_scores(beta, dtype)
        y = np.moveaxis(np.asarray(head(z)), -1, 0)
        np.testing.assert_allclose(y.sum(axis=-1), 1, atol=1e-6)
        exact = np.asarray(np.moveaxis(unpack(z), -1, 0), float) == SCORES.astype(dtype)  # √2 (h/√2) = h was met
        rows = np.all(exact, axis=-1)
        assert rows.sum() >= 6
        np.testing.assert_allclose(y[rows], HARD[rows], atol=1e-6)

    def test_derivatives_are_finite_and_vanish_away_from_ties(self, beta, dtype):
        head, z = self.head_and_scores(beta, dtype)
        z = z.T
        first = jax.vmap(jax.jacfwd(head))(z)
        second = jax.vmap(jax.jacfwd(jax.jacrev(head)))(z)
        in_beta = jax.vmap(lambda z: jax.jacfwd(lambda beta: SoftmaxHead(3, beta)(z))(head.beta))(z)
        for derivative in (first, second, in_beta):
            assert derivative.dtype == dtype and np.all(np.isfinite(derivative))
        np.testing.assert_array_equal(first[4], 0)  # gaps of 1 and more, in units of 1e-3 and less
        assert np.all(np.max(np.abs(first[0]), axis=(0, 1)) > 0.1 * beta)  # at a tie the slope is β p(1 − p)

    def test_labels_have_finite_preimages_with_the_same_output(self, beta, dtype):
        """But where a row of zeros hides which of its scores was how low."""
        head, z = self.head_and_scores(beta, dtype)
        y = head(z)
        point = head.project(jnp.zeros_like(z), y)
        assert np.all(np.isfinite(point)) and np.all(np.isfinite(head.preimage(y)))
        known = jnp.array([0, 1, 3, 4])
        np.testing.assert_allclose(head(point)[..., known], y[..., known], atol=2e-4 if dtype == jnp.float32 else 1e-9)
