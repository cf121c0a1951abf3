"""Numbers of samples and estimates of memory, at any size."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from amp_attention.data import check_memory, estimated_memory, sample_size


@given(st.floats(1e-12, 1e6), st.integers(1, 10**6))
def test_sample_size_is_the_nearest_whole_number(alpha, d):
    n = sample_size(alpha, d)
    assert isinstance(n, int) and n >= 1
    assert n == 1 or abs(n - alpha * d**2) <= 0.5 + 1e-15 * n


@given(st.integers(1, 2**40), st.integers(1, 64), st.integers(1, 2**20), st.sampled_from([np.float32, np.float64]))
def test_memory_is_an_exact_number_that_grows_with_every_size(n, tokens, d, dtype):
    needed = estimated_memory(n, tokens, d, dtype)
    assert isinstance(needed, int) and needed > n * tokens * d * np.dtype(dtype).itemsize
    for larger in ((n + 1, tokens, d), (n, tokens + 1, d), (n, tokens, d + 1)):
        assert estimated_memory(*larger, dtype) > needed
    assert estimated_memory(n, tokens, d, dtype, stored=False) < needed
    with pytest.raises(ValueError, match="refused before allocating"):
        check_memory(n, tokens, d, dtype, available=needed // 2 - 1)
