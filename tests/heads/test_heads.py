"""Softmax and linear heads: outputs, invariances, fibres."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.heads import LinearHead, SoftmaxHead
from amp_attention.numerics.packing import packed_size, unpack


@pytest.mark.parametrize("tokens", [2, 3, 5])
@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
class TestSoftmax:
    def test_is_the_row_wise_softmax_of_the_score_matrix(self, tokens, beta):
        z = jax.random.normal(jax.random.key(0), (packed_size(tokens), 4))
        y = SoftmaxHead(tokens, beta)(z)
        expected = np.exp(beta * np.array(unpack(z)))
        np.testing.assert_allclose(y, expected / expected.sum(axis=1, keepdims=True), rtol=1e-12)

    def test_projection_is_the_nearest_point_of_the_fibre(self, tokens, beta):
        head = SoftmaxHead(tokens, beta)
        key = jax.random.key(1)
        z = jax.random.normal(key, (head.scores, 8))
        omega = jax.random.normal(jax.random.fold_in(key, 1), z.shape)
        point = head.project(omega, head(z))
        np.testing.assert_allclose(head(point), head(z), rtol=1e-9, atol=1e-12)
        # Nearest: what is left is orthogonal to the one direction along which the fibre runs.
        shift = jnp.linalg.svd(jnp.asarray(head.directions), full_matrices=True)[0][:, -1]
        np.testing.assert_allclose(shift @ (omega - point), 0, atol=1e-9)

    def test_output_depends_on_its_directions_only(self, tokens, beta):
        head = SoftmaxHead(tokens, beta)
        assert head.constraints == (tokens**2 + tokens - 2) // 2
        projector = jnp.asarray(head.directions @ head.directions.T)
        z = jax.random.normal(jax.random.key(2), (head.scores, 3))
        np.testing.assert_allclose(head(projector @ z), head(z), rtol=1e-12)
        jacobian = jax.jacfwd(head)(z[:, 0]).reshape(-1, head.scores)
        assert np.linalg.matrix_rank(jacobian, tol=1e-8) == head.constraints


def test_saturated_labels_have_finite_preimages():
    head = SoftmaxHead(2, 1e3)
    z = jnp.array([[3.0], [0.0], [-3.0]])
    y = head(z)
    assert jnp.min(y) == 0.0
    assert jnp.all(jnp.isfinite(head.preimage(y)))
    assert jnp.all(jnp.isfinite(head.project(z, y)))


def test_linear_head_is_the_score_itself():
    head = LinearHead()
    z = jnp.array([[1.0, -2.0]])
    np.testing.assert_allclose(head(z), np.sqrt(2) * z[0])
    np.testing.assert_allclose(head.project(jnp.zeros_like(z), head(z)), z)
    assert head.constraints == 1


@pytest.mark.parametrize(("tokens", "beta"), [(1, 1.0), (2.5, 1.0), (2, 0.0), (2, -1.0), (2, np.nan), (2, np.inf)])
def test_bad_arguments_are_named(tokens, beta):
    with pytest.raises(ValueError, match=r"(tokens|beta) must be .*, got"):
        SoftmaxHead(tokens, beta)
