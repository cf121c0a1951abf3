"""Newton within a bracket: quadratic where Newton is, bisection where it is not."""

import math

import pytest

from amp_attention.numerics.bracketed_newton import BracketedNewton

FUNCTIONS = {
    "cubic": (lambda t: t**3 - 2, lambda t: 3 * t**2, 2 ** (1 / 3)),
    "steep": (lambda t: math.tanh(20 * (t - 0.3)), lambda t: 20 / math.cosh(20 * (t - 0.3)) ** 2, 0.3),
    "wrong-curvature": (lambda t: t - 1.5 * math.sin(t - 0.7) - 0.7, lambda t: 1 - 1.5 * math.cos(t - 0.7), None),
}


def solve(function, slope, bracket, t, most=200):
    for evaluations in range(1, most):
        value = function(t)
        if abs(value) < 1e-13:
            return t, evaluations
        bracket = bracket.narrowed(t, value)
        assert bracket.low <= t <= bracket.high
        t = bracket.next(t, value, slope(t))
    raise AssertionError(f"no root, at {t}")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("start", [-1.9, 0.0, 2.9])
def test_finds_a_root_from_anywhere(name, start):
    function, slope, root = FUNCTIONS[name]
    found, evaluations = solve(function, slope, BracketedNewton(-2.0, 3.0, longest=1.0), start)
    assert abs(function(found)) < 1e-13 and evaluations < 70
    if root is not None:
        assert found == pytest.approx(root, abs=1e-12)


def test_ends_that_are_only_assumed_are_looked_at_before_the_middle():
    bracket = BracketedNewton(0.0, 1.0)
    assert bracket.next(0.5, 10.0, 1.0) == 0.0
    assert bracket.narrowed(0.0, -1.0).next(0.5, 10.0, 1.0) == 0.25 + 0.25
    assert bracket.next(0.5, -10.0, 1.0) == 1.0


def test_without_a_slope_it_goes_downhill_by_the_longest_step():
    bracket = BracketedNewton(-9.0, 9.0, longest=2.0)
    assert bracket.next(0.0, 1.0, -1.0) == -2.0
    assert bracket.next(0.0, -1.0, 0.0) == 2.0
