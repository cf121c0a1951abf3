import itertools
import math

import pytest
from hypothesis import given, strategies as st

from amp_attention._cli.parsing import LARGEST_LIST, UsageError, parse_number, parse_values, parse_whole

positive = st.floats(1e-6, 1e6)


@given(st.lists(positive, min_size=1, max_size=20))
def test_comma_lists_come_back(numbers):
    assert parse_values("--lam", ",".join(map(repr, numbers)), "> 0") == tuple(numbers)


@given(positive, positive, st.integers(1, 200), st.booleans())
def test_ranges_have_their_ends_and_their_number_of_values(low, high, count, log):
    found = parse_values("--alpha", f"{low!r}:{high!r}:{count}" + (":log" if log else ""), "> 0")
    assert len(found) == count
    assert found[0] == low
    assert count == 1 or found[-1] == high
    inner = [math.log(x) for x in found] if log else list(found)
    steps = [b - a for a, b in itertools.pairwise(inner)]
    assert all(math.isclose(s, steps[0], rel_tol=1e-6, abs_tol=1e-9 * max(low, high)) for s in steps)


def test_range_of_the_contract():
    assert parse_values("--alpha", "0.1:2:20", "> 0")[1] == pytest.approx(0.2)
    assert parse_values("--alpha", "0.01:1:3:log", "> 0")[1] == pytest.approx(0.1)
    assert parse_values("--alpha", "0.5,1:2:2", "> 0") == (0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "0.1,",
        "0.1:2",
        "0.1:2:",
        "0.1:2:2.5",
        "0.1:2:0",
        "0.1:2:-3",
        "0.1:2:3:cubic",
        "0.1:2:3:lin",
        "1:2:3:log:4",
        "nan",
        "inf",
        "0",
        "-1",
        "0:1:3:log",
        "0.1:inf:3",
        f"0.1:2:{LARGEST_LIST + 1}",
        "1:2:1e30",
    ],
)
def test_wrong_lists_name_the_option(text):
    with pytest.raises(UsageError, match="--alpha"):
        parse_values("--alpha", text, "> 0")


def test_a_logarithmic_range_cannot_start_at_zero_even_where_zero_is_allowed():
    assert parse_values("--lam", "0:1:3", ">= 0") == (0.0, 0.5, 1.0)
    with pytest.raises(UsageError, match="logarithmic"):
        parse_values("--lam", "0:1:3:log", ">= 0")


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("1e5", 100_000), (" 12 ", 12), ("1" * 18, int("1" * 18))])
def test_whole_numbers(text, value):
    assert parse_whole("--d", text, ">= 1") == value


@pytest.mark.parametrize("text", ["2.5", "nan", "inf", "1e400", "1e30", "0", "-1", "x", ""])
def test_wrong_whole_numbers(text):
    with pytest.raises(UsageError, match=r"--d must be a whole number >= 1.*, got"):
        parse_whole("--d", text, ">= 1")


def test_numbers_say_their_range():
    with pytest.raises(UsageError, match=r"--damping must be a finite number in \[0, 1\), got '1'"):
        parse_number("--damping", "1", "in [0, 1)")
