"""Losses and proximal steps at very low temperature: ties, labels at corners, gaps of 10³ between scores."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.channels import AbstractLoss, ERMChannel, SquaredLoss
from amp_attention.heads import SoftmaxHead

Z = np.array(
    [
        [0.0, 1e3, -1e3, 1e-9, 1.0, 3.0],
        [0.0, 0.0, 0.0, 0.0, 2.0, -3.0],
        [0.0, -1e3, 1e3, 0.0, 0.5, 1e3],
        [0.0, 1e3, 1e3, 0.0, 5.0, 7.0],
        [0.0, 1e3, -1e3, 1e-9, -2.0, 7.0],
        [0.0, 0.0, 1e3, 0.0, 1.0, -1e3],
    ]
)
TAKEN = {2: [0, 1, 3], 3: range(6)}  # rows of Z that are the scores of T tokens


class Distance(AbstractLoss):
    """The squared distance, differentiated automatically."""

    head: SoftmaxHead

    def __call__(self, z, y):
        return jnp.sum((y - self.head(z)) ** 2)


@pytest.fixture(params=[1e3, 1e4, 1e5, 1e6])
def beta(request):
    return request.param


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("tokens", [2, 3])
class TestLowTemperature:
    def lanes(self, tokens, beta, dtype):
        """Head, scores, and labels of other scores."""
        head = SoftmaxHead(tokens, jnp.asarray(beta, dtype))
        z = jnp.asarray(Z[list(TAKEN[tokens])], dtype)
        return head, z, head(jnp.flip(z, axis=1))

    @pytest.mark.parametrize("kind", [SquaredLoss, Distance])
    def test_loss_gradient_and_hessian_are_finite(self, tokens, beta, dtype, kind):
        head, z, y = self.lanes(tokens, beta, dtype)
        found = eqx.filter_jit(lambda loss, z, y: loss.derivatives(z, y))(kind(head), z, y)
        for part in jax.tree.leaves(found):
            assert part.dtype == dtype and np.all(np.isfinite(part))
        # Between the outputs of two corners: 2 for each row that differs, or a tie's share of it.
        assert np.all(found.values <= 2 * tokens + 1e-5)
        slope = np.max(np.abs(found.gradient[:, 4]))  # gaps of 0.4 and more: nothing but rounding
        assert slope <= 8 * jnp.finfo(dtype).eps * beta

    def test_proximal_steps_and_their_derivatives_are_finite_and_no_worse_than_their_starts(self, tokens, beta, dtype):
        head, omega, y = self.lanes(tokens, beta, dtype)
        loss = SquaredLoss(head)

        @jax.jit
        def step(omega, variance):
            return ERMChannel(loss).apply(omega, y, variance)

        value = lambda z, variance: jnp.sum((z - omega) ** 2, axis=0) / 2 + variance * loss.values(z, y)  # noqa: E731
        for variance in jnp.asarray([0.0, 1e-3, 1.0, 1e3], dtype):
            found, moved = jax.jvp(step, (omega, variance), (jnp.ones_like(omega), jnp.ones_like(variance)))
            for part in jax.tree.leaves((found, moved)):
                assert np.all(np.isfinite(part))
            lowest = jnp.minimum(value(omega, variance), value(head.project(omega, y), variance))
            rounding = 64 * jnp.finfo(dtype).eps * (1 + lowest)
            assert np.all(value(found.z, variance) <= lowest + rounding)

    def test_random_scores_of_any_size_have_finite_steps(self, tokens, beta, dtype):
        """Ties, gaps of 10³ and rounded scores, up to a Σ whose product with the Hessian leaves no digit of 1 + ΣH."""
        rng = np.random.default_rng(0)
        head = SoftmaxHead(tokens, jnp.asarray(beta, dtype))
        z, other = rng.normal(size=(2, head.scores, 400))
        z[:, :50] = 0
        z[:, 50:100] *= 1e3
        z[:, 100:140] = np.round(z[:, 100:140])
        z, y = jnp.asarray(z, dtype), head(jnp.asarray(other, dtype))
        for variance in jnp.asarray([1e-3, 1.0, 1e2, 1e6], dtype):
            for part in jax.tree.leaves(ERMChannel(SquaredLoss(head)).apply(z, y, variance)):
                assert np.all(np.isfinite(part))
