"""Training with checkpoints: the same weights whatever interrupts it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from amp_attention._solution import result_name
from amp_attention.checkpoints import Checkpoint, CheckpointError
from amp_attention.data import Data, device_mesh, generate_data, shard
from amp_attention.erm import _train, train
from amp_attention.problem import attention_problem

PROBLEM = attention_problem(0.5, 0.1, tokens=1)
DATA, S0 = generate_data(jax.random.key(0), PROBLEM, 12)
MOMENTUM = optax.chain(optax.trace(0.9), optax.scale(-1e-3))
OPTIMIZERS = {"lbfgs": "lbfgs", "adam": "adam", "own": MOMENTUM}


def run(checkpoint=None, problem=PROBLEM, data=DATA, **options):
    options = {"key": jax.random.key(1), "S0": S0, "max_steps": 60} | options
    return train(problem, data, checkpoint=checkpoint, **options)


def same_bits(a, b):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(a) == len(b) and all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(a, b, strict=True)
    )


class Interrupted(Exception):
    """In place of SIGKILL."""


def interrupt_after(bursts, monkeypatch):
    """The next burst but so many never returns; returns the list that counts them."""
    advance, done = _train._advance, []

    def interrupted(*arguments):
        if len(done) == bursts:
            raise Interrupted
        done.append(1)
        return advance(*arguments)

    monkeypatch.setattr(_train, "_advance", interrupted)
    return done


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_neither_bursts_nor_interruptions_change_anything(tmp_path, monkeypatch, name):
    options = {"optimizer": OPTIMIZERS[name]}
    plain, file = run(**options), tmp_path / "run"
    assert plain.stats["iterations"] == 60
    for i, interval in enumerate(({"steps": 1}, {"steps": 7}, {"every": 1e-3}, {})):
        assert same_bits(run(Checkpoint(tmp_path / str(i), **interval), **options), plain)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(6, patch)
        run(Checkpoint(file, steps=5), **options)
    bursts = interrupt_after(1000, monkeypatch)
    assert same_bits(run(Checkpoint(file, steps=1, resume=True), **options), plain)
    assert len(bursts) == 60 - 6 * 5  # not from the start again


def test_a_run_to_the_minimum(tmp_path, monkeypatch):
    """The end is a state, too: going on from it returns at once."""
    plain, file = run(max_steps=500), tmp_path / "run"
    assert plain.successful
    assert same_bits(run(Checkpoint(file, steps=9), max_steps=500), plain)
    content = file.read_bytes()
    interrupt_after(0, monkeypatch)
    assert same_bits(run(Checkpoint(file, resume=True), max_steps=500), plain)
    with pytest.raises(CheckpointError, match="exists; to go on from it, ask to resume"):
        run(Checkpoint(file), max_steps=500)
    assert file.read_bytes() == content


def test_nan_in_the_data(tmp_path):
    bad = Data(DATA.X.at[0, 0, 0].set(jnp.nan), DATA.y)
    failed = run(Checkpoint(tmp_path / "run", steps=1), data=bad)
    assert result_name(failed.result) == "nonfinite" and failed.stats["iterations"] == 0
    assert np.all(np.isfinite(failed.value.W))
    assert same_bits(run(Checkpoint(tmp_path / "run", resume=True), data=bad), failed)


OTHERS = {
    "problem": {"problem": attention_problem(0.5, 0.1 * (1 + 1e-15), tokens=1)},
    "data": {"data": Data(DATA.X.at[-1, -1, -1].add(1e-12), DATA.y)},
    "start": {"key": jax.random.key(2)},
    "width": {"width": 11},
    "tolerance": {"tolerance": 1e-6},
    "max_steps": {"max_steps": 61},
    "learning_rate": {"learning_rate": 0.2},
    "optimizer": {"optimizer": MOMENTUM},
    "devices": {"data": shard(DATA, device_mesh(2))},
}


@pytest.mark.parametrize("name", OTHERS)
def test_that_of_another_run_is_refused_and_left_as_it_is(tmp_path, monkeypatch, name):
    file = tmp_path / "run"
    interrupt_after(0, monkeypatch)
    with pytest.raises(Interrupted):
        run(Checkpoint(file))
    content = file.read_bytes()
    with pytest.raises(CheckpointError, match=f"is a checkpoint of another run: {name} is"):
        run(Checkpoint(file, resume=True), **OTHERS[name])
    assert file.read_bytes() == content


def test_optimisers_of_another_structure_are_told_apart(tmp_path, monkeypatch):
    interrupt_after(0, monkeypatch)
    with pytest.raises(Interrupted):
        run(Checkpoint(tmp_path / "run"), optimizer=MOMENTUM)
    with pytest.raises(CheckpointError, match="of another run: optimizer is"):
        run(Checkpoint(tmp_path / "run", resume=True), optimizer=optax.sgd(1e-3))


def test_samples_divided_over_devices(tmp_path, monkeypatch):
    three = shard(Data(DATA.X[:-1], DATA.y[:-1]), device_mesh(3))
    plain, file = run(data=three), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(6, patch)
        run(Checkpoint(file, steps=3), data=three)
    assert same_bits(run(Checkpoint(file, resume=True), data=three), plain)


def test_there_is_nothing_to_write_under_a_transformation(tmp_path):
    checkpoint = Checkpoint(tmp_path / "run")
    objective = lambda lam: run(checkpoint, attention_problem(0.5, lam, tokens=1)).value.objective  # noqa: E731
    for attempt in (lambda: jax.jit(objective)(0.1), lambda: jax.vmap(objective)(jnp.asarray([0.1, 0.2]))):
        with pytest.raises(ValueError, match="checkpoint must be None under jit, grad or vmap"):
            attempt()
    assert not checkpoint.path.exists()
