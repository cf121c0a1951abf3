"""Digests tell apart what is different, and nothing else."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._solution import RESULTS
from amp_attention.amp import AMP
from amp_attention.checkpoints import digest, file_digest
from amp_attention.data import DrawnTokens, MappedTokens, device_mesh, generate_data
from amp_attention.problem import attention_problem


def test_a_digest_tells_what_is_different():
    problem = attention_problem()
    X = jnp.arange(12.0).reshape(2, 2, 3)
    different = [
        problem,
        attention_problem(lam=0.05 * (1 + 1e-15)),
        attention_problem(smoothing=0.03),
        attention_problem(dtype=jnp.float32),
        attention_problem(tokens=3),
        X,
        X.reshape(2, 3, 2),
        X.astype(jnp.float32),
        X.at[1, 1, 2].add(1e-12),
        DrawnTokens(jax.random.key(0), 5, 2, 3),
        DrawnTokens(jax.random.key(1), 5, 2, 3),
        DrawnTokens(jax.random.key(0), 6, 2, 3),
        AMP(),
        AMP(damping=0.5),
        [1, 2],
        [[1], 2],
        (1, 2),
        {"a": 1},
        None,
        RESULTS.diverged,
        RESULTS.successful,
        jnp.sin,
        jax.ShapeDtypeStruct((2,), jnp.float32),
    ]
    digests = [digest(entry) for entry in different]
    assert len(set(digests)) == len(digests)
    assert digests[0] == digest(attention_problem()) and digests[5] == digest(jnp.array(X))


def test_a_digest_tells_when_a_file_has_changed(tmp_path):
    """By its content, whatever its times say."""
    file = tmp_path / "tokens.npy"
    np.save(file, np.zeros((4, 2, 3)))
    facts, first, content = file.stat(), digest(MappedTokens(file)), file_digest(file)
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(0, 0))
    assert digest(MappedTokens(file)) == first and file_digest(file) == content
    np.save(file, np.ones((4, 2, 3)))
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert digest(MappedTokens(file)) != first and file_digest(file) != content


def test_a_digest_reads_large_arrays_in_blocks(monkeypatch):
    X = jnp.arange(1000.0).reshape(10, 4, 25)
    whole, changed = digest(X), digest(X.at[7, 0, 0].add(1))
    monkeypatch.setattr("amp_attention.checkpoints._fingerprints._BLOCK", 1700)  # two rows
    assert digest(X) == whole and digest(X.at[7, 0, 0].add(1)) == changed != whole


def test_a_digest_reads_every_device():
    four, _ = generate_data(jax.random.key(0), attention_problem(), 5, 12, mesh=device_mesh(4))
    again, _ = generate_data(jax.random.key(0), attention_problem(), 5, 12, mesh=device_mesh(4))
    assert digest(four) == digest(again)
    for sample in (0, 4, 11):
        assert digest(dataclasses.replace(four, X=four.X.at[sample, 0, 0].add(1.0))) != digest(four)
