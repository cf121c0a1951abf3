import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.numerics.quadrature import gauss_legendre, tanh_sinh


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_gauss_legendre_is_exact_for_polynomials(n):
    t, weight = gauss_legendre(n)
    assert jnp.all((t > 0) & (t < 1)) and jnp.all(jnp.diff(t) > 0) and jnp.all(weight > 0)
    for k in range(2 * n):
        np.testing.assert_allclose(jnp.sum(weight * t**k), 1 / (k + 1), rtol=1e-12)
    # ... and not one degree further.
    if n <= 2:
        assert abs(jnp.sum(weight * t ** (2 * n)) - 1 / (2 * n + 1)) > 1e-3


def test_tanh_sinh_at_branch_points():
    near, far, weight = tanh_sinh(80)
    np.testing.assert_allclose(near + far, 1, rtol=1e-15)
    np.testing.assert_allclose(jnp.sum(weight), 1, rtol=1e-13)
    np.testing.assert_allclose(jnp.sum(weight * jnp.sqrt(near * far)), np.pi / 8, rtol=1e-13)
    np.testing.assert_allclose(jnp.sum(weight * near**0.1 * jnp.log(far)), -0.9659560305285148, rtol=1e-10)
    # Distances from 1 far below the rounding of 1 itself.
    assert far[-1] < 1e-13 and near[0] < 1e-13


def test_rules_follow_the_type_asked_for():
    for values in (*gauss_legendre(5, jnp.float32), *tanh_sinh(5, jnp.float32)):
        assert values.dtype == jnp.float32


def test_wrong_arguments_are_named():
    for call, name in (
        (lambda: gauss_legendre(0), "n"),
        (lambda: tanh_sinh(1), "n"),
        (lambda: tanh_sinh(5, reach=0.0), "reach"),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be"):
            call()
