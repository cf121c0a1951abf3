"""AMP with checkpoints: the same numbers whatever interrupts it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import result_name
from amp_attention.amp import _loop, solve_amp
from amp_attention.checkpoints import Checkpoint, CheckpointError
from amp_attention.data import Data, device_mesh, generate_data, shard
from amp_attention.problem import attention_problem

PROBLEM = attention_problem(0.5, 0.1, tokens=1)
DATA, S0 = generate_data(jax.random.key(0), PROBLEM, 12)


def solve(checkpoint=None, problem=PROBLEM, data=DATA, **options):
    return solve_amp(problem, data, **({"S0": S0} | options), checkpoint=checkpoint)


def same_bits(a, b):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(a) == len(b) and all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(a, b, strict=True)
    )


@pytest.fixture(scope="module")
def plain():
    return solve()


class Interrupted(Exception):
    """In place of SIGKILL."""


def interrupt_after(bursts, monkeypatch):
    """The next burst but so many never returns; returns the list that counts them."""
    advance, done = _loop._advance, []

    def interrupted(*arguments):
        if len(done) == bursts:
            raise Interrupted
        done.append(1)
        return advance(*arguments)

    monkeypatch.setattr(_loop, "_advance", interrupted)
    return done


@pytest.mark.parametrize("interval", [{"steps": 1}, {"steps": 7}, {"steps": 1000}, {"every": 1e-3}, {}])
def test_bursts_change_nothing(plain, tmp_path, interval):
    assert plain.successful and plain.stats["iterations"] > 100
    assert same_bits(solve(Checkpoint(tmp_path / "run", **interval)), plain)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (5, 40)])
def test_an_interruption_changes_nothing(plain, tmp_path, monkeypatch, before, after):
    file = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(6, patch)
        solve(Checkpoint(file, steps=before))
    bursts = interrupt_after(1000, monkeypatch)
    assert same_bits(solve(Checkpoint(file, steps=after, resume=True)), plain)
    assert len(bursts) == -(-(int(plain.stats["iterations"]) - 6 * before) // after)  # not from the start again


def test_a_finished_run_returns_at_once(plain, tmp_path, monkeypatch):
    file = tmp_path / "run"
    solve(Checkpoint(file, resume=True))  # no file yet: it starts
    content = file.read_bytes()
    interrupt_after(0, monkeypatch)
    assert same_bits(solve(Checkpoint(file, resume=True)), plain)
    with pytest.raises(CheckpointError, match="exists; to go on from it, ask to resume"):
        solve(Checkpoint(file))
    assert file.read_bytes() == content


def test_runs_that_do_not_converge(tmp_path):
    short = solve(Checkpoint(tmp_path / "short", steps=4), max_steps=10)
    assert result_name(short.result) == "max_steps_reached" and short.stats["iterations"] == 10
    assert same_bits(short, solve(max_steps=10))
    assert same_bits(solve(Checkpoint(tmp_path / "short", resume=True), max_steps=10), short)
    bad = Data(DATA.X.at[0, 0, 0].set(jnp.nan), DATA.y)
    failed = solve(Checkpoint(tmp_path / "bad"), data=bad)
    assert result_name(failed.result) == "nonfinite"
    assert same_bits(solve(Checkpoint(tmp_path / "bad", resume=True), data=bad), failed)


OTHERS = {
    "problem": {"problem": attention_problem(0.5, 0.1 * (1 + 1e-15), tokens=1)},
    "data": {"data": Data(DATA.X, DATA.y.at[-1].add(1e-12))},
    "S0": {"S0": None},
    "start": {"start": S0},
    "damping": {"damping": 0.5},
    "tolerance": {"tolerance": 1e-7},
    "max_steps": {"max_steps": 501},
    "devices": {"data": shard(DATA, device_mesh(2))},
}


@pytest.mark.parametrize("name", OTHERS)
def test_that_of_another_run_is_refused_and_left_as_it_is(tmp_path, monkeypatch, name):
    file = tmp_path / "run"
    interrupt_after(0, monkeypatch)
    with pytest.raises(Interrupted):
        solve(Checkpoint(file))
    content = file.read_bytes()
    with pytest.raises(CheckpointError, match=f"is a checkpoint of another run: {name} is"):
        solve(Checkpoint(file, resume=True), **OTHERS[name])
    assert file.read_bytes() == content


def test_samples_divided_over_devices(tmp_path, monkeypatch):
    """Three devices, of which the last one has fewer samples that count."""
    three = shard(Data(DATA.X[:-1], DATA.y[:-1]), device_mesh(3))
    plain, file = solve(data=three), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(6, patch)
        solve(Checkpoint(file, steps=3), data=three)
    resumed = solve(Checkpoint(file, resume=True), data=three)
    assert plain.successful and same_bits(resumed, plain)
    assert resumed.value.state.g.sharding == plain.value.state.g.sharding


def test_a_disk_that_fills_up_leaves_the_last_state(plain, tmp_path, monkeypatch):
    file = tmp_path / "run"

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        advance = _loop._advance
        calls = []

        def fills_up(*arguments):
            calls.append(1)
            if len(calls) == 5:
                patch.setattr("os.fsync", full)
            return advance(*arguments)

        patch.setattr(_loop, "_advance", fills_up)
        with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
            solve(Checkpoint(file, steps=2))
    assert len(calls) == 5
    assert same_bits(solve(Checkpoint(file, resume=True)), plain)


def test_there_is_nothing_to_write_under_a_transformation(tmp_path):
    checkpoint = Checkpoint(tmp_path / "run")
    objective = lambda lam: solve(checkpoint, attention_problem(0.5, lam, tokens=1)).value.objective  # noqa: E731
    for attempt in (
        lambda: jax.grad(objective)(0.1),
        lambda: jax.jit(objective)(0.1),
        lambda: jax.vmap(objective)(jnp.asarray([0.1, 0.2])),
        lambda: jax.jit(lambda: solve(checkpoint).value.objective)(),
    ):
        with pytest.raises(ValueError, match="checkpoint must be None under jit, grad or vmap"):
            attempt()
    assert not checkpoint.path.exists()
