"""The store of a sweep: what it keeps, when it writes, and what it refuses."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.checkpoints import CheckpointError, read_to_resume
from amp_attention.experiments import NOT_STORED, SweepStore, _store

SWEEP = {"command": "sweep", "seed": 0}


class Interrupted(Exception):
    """In place of a signal."""


def never(*_):
    raise AssertionError("nothing is to be computed")


def sweep(store, computed, most=10, count=5):
    """Numbers each of which depends on the one before; the one after `most` computed ones fails."""
    value = jnp.asarray(1.0)

    def compute():
        if len(computed) == most:
            raise Interrupted
        computed.append(float(value))
        return {"value": 2 * value / 3, "record": [float(value), None, "text", np.arange(3)]}

    for i in range(count):
        found = store.step(f"number {i}", compute)
        value = found["value"]
        yield found


def same(a, b):
    return all(
        x["value"] == y["value"]
        and x["record"][:3] == y["record"][:3]
        and np.array_equal(x["record"][3], y["record"][3])
        for x, y in zip(a, b, strict=True)
    )


def test_a_sweep_goes_on_with_the_next_step(tmp_path):
    plain, before, after = list(sweep(NOT_STORED, [])), [], []
    with pytest.raises(Interrupted), SweepStore(tmp_path / "sweep", SWEEP) as store:
        list(sweep(store, before, most=3))
    with SweepStore(tmp_path / "sweep", SWEEP, resume=True) as store:
        resumed = list(sweep(store, after))
    assert before + after == [point["record"][0] for point in plain]
    assert same(resumed, plain) and all(isinstance(point["value"], jax.Array) for point in resumed)
    with SweepStore(tmp_path / "sweep", SWEEP, resume=True) as store:
        assert same(sweep(store, [], most=0), plain)


def test_what_ended_for_lack_of_memory_is_computed_again(tmp_path):
    """It alone: what was found after it stays."""
    file, failing = tmp_path / "sweep", {"record": {"result": "refused_by_memory", "message": "MemoryError"}}
    with SweepStore(file, SWEEP) as store:
        for name, result in (("a", {"result": "successful"}), ("b", failing), ("c", [1.0])):
            store.step(name, lambda result=result: result)
    for expected in (2.0, None):
        with SweepStore(file, SWEEP, resume=True) as store:
            assert store.step("a", never) == {"result": "successful"}
            assert store.step("b", (lambda: {"q": 2.0}) if expected else never) == {"q": 2.0}
            assert store.step("c", never) == [1.0]


def written(file, *, steps=3):
    with SweepStore(file, SWEEP) as store:
        list(sweep(store, [], count=steps))
    return file.read_bytes()


def test_a_file_that_is_there_is_refused_and_left_as_it_is(tmp_path):
    file = tmp_path / "sweep"
    content = written(file)
    for change, resume, message in (
        (content, False, "exists; to go on from it, pass resume=True"),
        (content[:-1], True, "is a truncated checkpoint"),
        (content.replace(b"text", b"next", 1), True, "is a damaged checkpoint"),
        (b"my diary\n", True, "is not a checkpoint of amp-attention"),
        (b"", True, "is not a checkpoint of amp-attention"),
    ):
        file.write_bytes(change)
        with pytest.raises(CheckpointError, match=message):
            SweepStore(file, SWEEP, resume=resume)
        assert file.read_bytes() == change
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="of another run: seed is 0 there and 1 here"):
        SweepStore(file, SWEEP | {"seed": 1}, resume=True)
    assert file.read_bytes() == content


def test_the_steps_of_another_sweep_are_refused(tmp_path):
    written(tmp_path / "sweep")
    with (
        pytest.raises(CheckpointError, match="of another sweep: number 0 is there, letter 0 here"),
        SweepStore(tmp_path / "sweep", SWEEP, resume=True) as store,
    ):
        store.step("letter 0", never)


def test_a_path_that_cannot_be_written_is_known_at_once(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written"):
        SweepStore(tmp_path / "absent" / "sweep", SWEEP)
    with pytest.raises(ValueError, match="every must be"):
        SweepStore(tmp_path / "sweep", SWEEP, every=0)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_what_was_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    content = written(tmp_path / "sweep")
    with (
        monkeypatch.context() as patch,
        pytest.raises(CheckpointError, match="cannot be written: No space left on device"),
        SweepStore(tmp_path / "sweep", SWEEP, every=1e-9, resume=True) as store,
    ):
        patch.setattr("os.fsync", full)
        list(sweep(store, []))
    assert (tmp_path / "sweep").read_bytes() == content


@pytest.fixture
def clock(monkeypatch):
    """A clock of our own, in a list of one number."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def writes_of(clock, monkeypatch, store, steps, seconds, writing=0.0):
    """How often steps of so many seconds are written, where a write takes `writing`, and what a kill may cost."""
    write, sizes, latest = _store.write_checkpoint, [0], [0.0]

    def slow(path, fingerprint, payload):
        clock[0] += writing
        sizes.append(payload.count(b"\n") + 1)
        latest.append(clock[0])
        return write(path, fingerprint, payload)

    def compute():
        clock[0] += seconds
        return 0

    monkeypatch.setattr(_store, "write_checkpoint", slow)
    with store:
        for i in range(steps):
            store.step(str(i), compute)
    assert sizes[-1] == steps
    return len(sizes) - 1, max(np.diff(latest))


def test_finished_steps_are_written_once_a_second(tmp_path, clock, monkeypatch):
    writes, longest = writes_of(clock, monkeypatch, SweepStore(tmp_path / "sweep", SWEEP), 2000, 0.01)
    assert 18 <= writes <= 21 and longest < 1.02


def test_each_step_is_written_where_it_takes_long_or_that_is_asked_for(tmp_path, clock, monkeypatch):
    assert writes_of(clock, monkeypatch, SweepStore(tmp_path / "a", SWEEP), 20, 1.5)[0] == 20
    assert writes_of(clock, monkeypatch, SweepStore(tmp_path / "b", SWEEP, every=1e-3), 20, 0.01)[0] == 20


def test_little_time_is_spent_on_writing(tmp_path, clock, monkeypatch):
    """Of a large file, whose every write takes two seconds."""
    writes, _ = writes_of(clock, monkeypatch, SweepStore(tmp_path / "sweep", SWEEP), 500, 1.0, writing=2.0)
    assert 2.0 * writes < 0.11 * clock[0]


def test_a_foreign_state_of_an_engine_leaves_nothing_new(tmp_path):
    """Unless steps have finished before it, which are kept."""
    for position, kept in ((0, ["sweep.0"]), (1, ["sweep", "sweep.0", "sweep.1"])):
        (tmp_path / f"sweep.{position}").write_text("mine")
        with (
            pytest.raises(CheckpointError, match=rf"sweep\.{position} is not a checkpoint of amp-attention"),
            SweepStore(tmp_path / "sweep", SWEEP) as store,
        ):
            if position:
                store.step("first", lambda: 1)
            store.run("engine", lambda checkpoint: read_to_resume(checkpoint, SWEEP))
        assert sorted(file.name for file in tmp_path.iterdir()) == kept
        assert (tmp_path / f"sweep.{position}").read_text() == "mine"


def test_the_state_of_an_engine_is_kept_until_its_step_is_written(tmp_path, clock):
    """A run that is interrupted finds its own state again; the files of others stay."""
    (tmp_path / "sweep.1").write_text("mine")
    found = []

    def engine(checkpoint):
        found.append(checkpoint.path.read_text() if checkpoint.path.exists() else None)
        checkpoint.path.write_text("half")
        if len(found) == 1:
            raise Interrupted
        return {"S": np.eye(2)}

    with pytest.raises(Interrupted), SweepStore(tmp_path / "sweep", SWEEP) as store:
        store.run("engine", engine)
    assert (tmp_path / "sweep.0").read_text() == "half"
    with SweepStore(tmp_path / "sweep", SWEEP, resume=True) as store:
        store.run("engine", engine)
        assert (tmp_path / "sweep.0").exists()  # not a second has passed
        store.step("another", lambda: 0)
    assert found == [None, "half"]
    with SweepStore(tmp_path / "sweep", SWEEP, resume=True) as store:
        np.testing.assert_array_equal(store.run("engine", never)["S"], np.eye(2))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["sweep", "sweep.1"]
    assert (tmp_path / "sweep.1").read_text() == "mine"
