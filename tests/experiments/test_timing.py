import time

import jax
import jax.numpy as jnp
from hypothesis import given, strategies as st

from amp_attention.experiments import timed
from amp_attention.experiments._timing import union_length

spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda p: (min(p), max(p))), max_size=12)


@given(spans)
def test_union_counts_each_moment_once(spans):
    covered = {moment for low, high in spans for moment in range(low, high)}
    assert union_length(spans) == len(covered)


def test_compilation_is_counted_apart_and_once():
    @jax.jit
    def function(x):
        return jnp.cos(x @ x) @ x

    x = jnp.ones((8, 8))
    _, first = timed(function, x)
    _, second = timed(function, x)
    assert first.compile_seconds > 0
    assert second.compile_seconds == 0
    assert 0 < second.seconds < 1


def test_the_wait_belongs_to_the_seconds():
    _, timing = timed(lambda: time.sleep(0.02))
    assert timing.seconds >= 0.02
    assert timing.compile_seconds == 0
