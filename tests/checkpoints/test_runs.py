"""When a run writes its state, and what it refuses before anything is computed."""

import os
import time

import jax.numpy as jnp
import pytest

from amp_attention.checkpoints import Checkpoint, CheckpointError, run_in_bursts

RUN = {"engine": "amp", "d": 30, "tolerance": 1e-8, "shape": (2, 3)}


def never(*_):
    raise AssertionError("nothing is to be computed")


@pytest.mark.parametrize("path", ["absent/run", "file/run", "x" * 300])
def test_a_path_that_cannot_be_written_is_known_before_anything_is_computed(tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="cannot be written"):
        run_in_bursts(Checkpoint(tmp_path / path), RUN, lambda: (jnp.zeros(3),), never, never)
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_no_file_is_said(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path, "is a folder, not"), (tmp_path / "pipe", "is a device or a pipe, not")):
        for resume in (False, True):
            with pytest.raises(CheckpointError, match=message):
                run_in_bursts(Checkpoint(path, resume=resume), RUN, never, never, never)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be a finite number of seconds > 0, got 0"),
        ({"every": -1.0}, "every must be"),
        ({"every": float("nan")}, "every must be"),
        ({"every": float("inf")}, "every must be"),
        ({"every": "60"}, "every must be"),
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"steps": 2.5}, "steps must be"),
        ({"steps": True}, "steps must be"),
    ],
)
def test_wrong_intervals_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Checkpoint("run", **arguments)


def count_to(file, end, monkeypatch, seconds, **options):
    """Run a counter whose iterations take `seconds` of a clock of our own; returns the bursts and the writes."""
    clock, bursts, writes = [0.0], [], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def advance(count, until):
        until = min(until, end)
        bursts.append(until - int(count[0]))
        clock[0] += seconds * bursts[-1] + (10 if len(bursts) == 1 else 0)  # compilation
        return (jnp.asarray(until),)

    def progress(count):
        if file.exists() and (not writes or writes[-1] != file.stat().st_ino):
            writes.append(file.stat().st_ino)
        return int(count[0]), int(count[0]) >= end

    last = run_in_bursts(Checkpoint(file, **options), RUN, lambda: (jnp.asarray(0),), advance, progress)
    assert int(last[0]) == sum(bursts) == end
    return bursts, len(writes)


def test_bursts_fill_the_interval(tmp_path, monkeypatch):
    """60 s hold 600 iterations of 0.1 s, and 10000 take 1000 s."""
    bursts, writes = count_to(tmp_path / "run", 10_000, monkeypatch, 0.1)
    assert bursts[:2] == [1, 1] and max(bursts) <= 600 and len(bursts) < 60
    assert 16 <= writes <= 18


def test_no_interval_is_too_short(tmp_path, monkeypatch):
    bursts, writes = count_to(tmp_path / "run", 20, monkeypatch, 0.1, every=1e-9)
    assert bursts == [1] * 20 and writes == 20


def test_intervals_of_steps(tmp_path, monkeypatch):
    assert count_to(tmp_path / "run", 20, monkeypatch, 0.1, steps=7) == ([7, 7, 6], 3)
