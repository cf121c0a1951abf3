"""Gaussian nodes from scrambled Sobol points."""

import numpy as np
import pytest

from amp_attention.numerics.gaussian_nodes import gaussian_nodes


@pytest.mark.parametrize(("nodes", "replicas", "points"), [(4096, 8, 512), (1000, 8, 128), (1, 1, 1), (100, 1, 128)])
def test_shape_and_rounding_up(nodes, replicas, points):
    assert gaussian_nodes(3, nodes, replicas).shape == (replicas, points, 3)


def test_finite_reproducible_and_independent_between_replicas_and_seeds():
    first = gaussian_nodes(4, 512, 4, seed=3)
    assert np.all(np.isfinite(first))
    assert np.array_equal(first, gaussian_nodes(4, 512, 4, seed=3))
    assert not np.array_equal(first, gaussian_nodes(4, 512, 4, seed=4))
    assert not np.array_equal(first[0], first[1])


def test_means_are_far_more_accurate_than_monte_carlo():
    # E exp(x·1/2) = exp(D/8); plain Monte Carlo at 4096 points errs by about 1e-2 here. Fixed seed.
    x = gaussian_nodes(4, 4096, 8, seed=0)
    estimates = np.exp(x.sum(-1) / 2).mean(axis=1)
    assert abs(estimates.mean() / np.exp(0.5) - 1) < 3e-3
    np.testing.assert_allclose(np.mean(x**2, axis=(0, 1)), 1, atol=5e-3)
