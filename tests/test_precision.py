"""Precision: when x64 is switched on, and sizes beyond 32 bits."""

import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.amp import AMP
from amp_attention.amp._amp import channel_pass
from amp_attention.data import Data, DrawnTokens, check_memory, estimated_memory, sample_size
from amp_attention.objective import training_objective
from amp_attention.problem import attention_problem

# Every engine once; the bytes of what they find.
PROGRAM = """
import sys
import amp_attention
from amp_attention import amp, boundaries, channels, data, erm, experiments, generalisation, problem, spectrum
from amp_attention import stability, state_evolution, thresholds, tuning
import jax
if sys.argv[1] == "after":
    jax.config.update("jax_enable_x64", True)
import numpy as np
p = problem.attention_problem(0.5, 0.3, law=amp_attention.spectral_laws.FiniteLaw([0.0, 0.5, 2.0]), noise=0.2)
nodes = state_evolution.state_evolution_nodes(p, 32, 2)
theory = state_evolution.solve_lowest(p, nodes, max_steps=20)
drawn, S0 = data.generate_data(jax.random.key(0), p, 6)
found = amp.solve_amp(p, drawn, S0=S0, max_steps=20)
trained = erm.train(p, drawn, key=jax.random.key(1), max_steps=5)
errors = generalisation.measure_test_error(p, found.value.S, S0, jax.random.key(2), 100)
limits = thresholds.thresholds(p.target)
leaves = [x for x in jax.tree.leaves((p, nodes, theory.value, drawn, S0, found.value, trained.value, errors, limits))]
for leaf in leaves:
    print(leaf.dtype, np.asarray(leaf).tobytes().hex()[:4096])
"""


def printed(when: str) -> list[str]:
    environment = dict(os.environ, JAX_ENABLE_X64="1" if when == "before" else "0")
    done = subprocess.run([sys.executable, "-c", PROGRAM, when], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_x64_switched_on_after_import_is_x64():
    """Bit for bit; nothing in the package was made in float32 when it was imported."""
    after, before = printed("after"), printed("before")
    assert len(after) > 50 and after == before
    assert not any(line.startswith("float32") for line in after)
    assert sum(line.startswith("float64") for line in after) > 50


D, N = 2000, 4_000_000


def test_sizes_are_exact_however_large():
    assert sample_size(1.0, D) == N
    assert sample_size(0.3, 10**6) == 3 * 10**11
    for tokens in (2, 5):
        stored = N * tokens * D
        assert stored > 2**31
        needed = estimated_memory(N, tokens, D, np.float32)
        assert needed > 4 * stored and isinstance(needed, int)
        without = estimated_memory(N, tokens, D, np.float32, stored=False)
        assert needed - without == 4 * stored
        check_memory(N, tokens, D, np.float32, available=needed)
        with pytest.raises(ValueError, match=rf"n = {N} samples of T = {tokens} tokens in d = {D}"):
            check_memory(N, tokens, D, np.float32, available=needed - 1)


@pytest.mark.parametrize("tokens", [2, 5])
@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_passes_over_more_than_two_to_the_31_numbers_can_be_written_down(tokens, x64, stored):
    """α = 1, d = 2000, traced and never allocated, in both precisions: no size on the way overflows an index."""
    dtype = np.dtype(np.float64 if x64 else np.float32)
    with jax.enable_x64(x64):
        problem = attention_problem(1.0, 0.05, tokens=tokens)
        shape = (N, tokens, D)
        X = jax.ShapeDtypeStruct(shape, dtype) if stored else DrawnTokens(jax.random.key(0), *shape)
        y = jax.ShapeDtypeStruct((N, tokens, tokens), dtype)

        def iteration(X, y):
            data = Data(X, y)
            state = AMP().init(problem, data)
            return channel_pass(problem, data, state), training_objective(problem, state.S, data)

        found, objective = eqx.filter_eval_shape(iteration, X, y)
    assert found.field.shape == (D, D) and found.g.shape == (tokens * (tokens + 1) // 2, N)
    assert {leaf.dtype for leaf in jax.tree.leaves((found, objective))} == {dtype}


def test_the_last_of_four_million_samples_is_its_own():
    """Its key is that of its index, although d T n is beyond 32 bits; so in jit, and with 32-bit integers."""
    key = jax.random.key(5)
    tokens = DrawnTokens(key, N, 5, D, np.float32)
    last = tokens.take(jnp.int32(N - 2), 2)
    expected = jax.random.normal(jax.random.fold_in(key, N - 1), (5, D), jnp.float32)
    np.testing.assert_array_equal(last[1], expected)
    np.testing.assert_array_equal(jax.jit(lambda start: tokens.take(start, 2))(jnp.int32(N - 2)), last)
    assert not np.any(last[0] == last[1])


def test_more_samples_than_indices_are_refused():
    tokens = DrawnTokens(jax.random.key(0), 2**31, 2, 4)
    with pytest.raises(ValueError, match="n must be a whole number >= 1 and <= 2147483647, got 2147483648"):
        Data(tokens, jax.ShapeDtypeStruct((2**31, 2, 2), tokens.dtype))
