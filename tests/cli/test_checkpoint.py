"""--checkpoint and --resume: nothing is lost, nothing is overwritten, nothing is computed twice."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from amp_attention.checkpoints import read_checkpoint, write_checkpoint
from amp_attention.cli import run

SMALL = ("--d", "12", "--test-samples", "2000", "--quiet")
GRID = (*SMALL, "--lam", "0.05,0.2", "--repeats", "2")


def numbers(document):
    """The points without what depends on the clock."""
    clock = ("seconds", "seconds_per_iteration", "compile_seconds")
    without = lambda entry, names: {name: value for name, value in entry.items() if name not in names}  # noqa: E731
    runs = [without(run, clock) for point in document["points"] for run in point["runs"]]
    return [without(point, ("runs",)) for point in document["points"]], runs


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed sweep, with a checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    file = folder / "runs.checkpoint"
    assert run(["amp", *GRID, "--checkpoint", str(file), "--out", str(folder / "out")]) == 0
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["runs.checkpoint"]
    return file, json.loads((folder / "out" / "amp.json").read_text())


def test_a_finished_sweep_is_read_and_not_run(answer, whole, monkeypatch):
    file, document = whole
    monkeypatch.setattr("amp_attention.experiments._finite.run_engine", None)
    found = answer("amp", *GRID, "--checkpoint", file, "--resume")
    assert found.status == 0 and numbers(found.document) == numbers(document)
    assert found.points == document["points"]


def test_a_file_that_is_there_is_never_overwritten(capsys, whole, tmp_path):
    file, _ = whole
    before = file.read_bytes()
    other = [*GRID[:-1], "3"]
    cases = [
        (file, [*GRID], "exists"),
        (file, [*other, "--resume"], "repeats"),
    ]
    for name, content in (("text", b"hello\n"), ("short", before[:-10]), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        cases.append((tmp_path / name, [*GRID, "--resume"], name))
    for path, options, word in cases:
        content = path.read_bytes()
        assert run(["amp", *options, "--checkpoint", str(path)]) == 2
        sentence = capsys.readouterr().err
        assert sentence.startswith("amp-attention: --checkpoint: ") and word in sentence and "Traceback" not in sentence
        assert path.read_bytes() == content


def test_a_sweep_goes_on_where_it_stopped(answer, whole, monkeypatch, tmp_path):
    """The third of four runs fails for good: the two before it are kept, and only two are run afterwards."""
    from amp_attention.experiments import _finite

    file, calls, engine = tmp_path / "runs.checkpoint", [], _finite.run_engine

    def counting(*arguments):
        calls.append(arguments[4])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return engine(*arguments)

    monkeypatch.setattr(_finite, "run_engine", counting)
    assert run(["amp", *GRID, "--checkpoint", str(file)]) == 130
    found = answer("amp", *GRID, "--checkpoint", file, "--resume")
    assert len(calls) == 5 and found.status == 0
    assert numbers(found.document) == numbers(whole[1])


@pytest.mark.slow
def test_a_killed_process_is_resumed_bit_equal(answer, tmp_path):
    """SIGKILL in the middle of a run; a new process ends with the same document."""
    options = ("--d", "60", "--alpha", "2", "--test-samples", "1000", "--quiet", "--repeats", "2")
    file = tmp_path / "runs.checkpoint"
    command = [sys.executable, "-m", "amp_attention.cli", "amp", *options, "--checkpoint", str(file)]
    process = subprocess.Popen([*command, "--checkpoint-every", "0.01"], env=os.environ.copy())
    state = tmp_path / "runs.checkpoint.0"
    for _ in range(3000):
        if state.exists() and state.stat().st_mtime_ns > file.stat().st_mtime_ns + 10**8:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert state.exists()
    resumed = answer("amp", *options, "--checkpoint", file, "--resume")
    undisturbed = answer("amp", *options)
    assert resumed.status == 0 and numbers(resumed.document) == numbers(undisturbed.document)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("amp", "--resume"), "--resume must be left out without --checkpoint."),
        (("train", "--checkpoint-every", "5"), "--checkpoint-every must be left out without --checkpoint."),
        (("amp", "--checkpoint", "f", "--checkpoint-every", "0"), "--checkpoint-every"),
        (("amp", "--checkpoint", "no/such/folder/f"), "--checkpoint must be in an existing folder"),
        (("amp", "--checkpoint", "f", "--distributed"), "--checkpoint must be left out beside --distributed."),
        (("sensitivity", "--finite-d", "--checkpoint", "f"), "--checkpoint must be left out for sensitivity, got f."),
    ],
)
def test_refusals(capsys, arguments, sentence):
    assert run([*arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_an_unwritable_place(capsys, tmp_path):
    (tmp_path / "taken").mkdir()
    assert run(["amp", *SMALL, "--checkpoint", str(tmp_path / "taken"), "--resume"]) == 2
    assert "--checkpoint" in capsys.readouterr().err
    write_checkpoint(tmp_path / "mine", {"a": 1}, b"kept")
    assert run(["amp", *SMALL, "--checkpoint", str(tmp_path / "mine"), "--resume"]) == 2
    assert read_checkpoint(tmp_path / "mine", {"a": 1}) == b"kept"
