"""--checkpoint and --resume: nothing is lost, nothing is overwritten, nothing is computed twice."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from amp_attention.checkpoints import CheckpointWriteError, read_checkpoint, write_checkpoint
from amp_attention.cli import run
from amp_attention.experiments import Steps, SweepStore

SMALL = ("--d", "12", "--test-samples", "2000", "--quiet")
GRID = (*SMALL, "--lam", "0.05,0.2", "--repeats", "2")


CLOCK = ("seconds", "seconds_per_iteration", "compile_seconds")


def numbers(value):
    """A document without what depends on the clock."""
    if isinstance(value, list):
        return [numbers(entry) for entry in value]
    return {n: numbers(v) for n, v in value.items() if n not in CLOCK} if isinstance(value, dict) else value


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
        (file, [*GRID], "exists; to go on from it add --resume, else give another path."),
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


NODES = ("--nodes", "256", "--replicas", "4", "--quiet")
SINGLE = ("--nodes", "256", "--replicas", "1", "--quiet")
FINITE = ("--d", "12", "--test-samples", "2000")
SWEEPS = {  # after so many steps they are interrupted
    "state-evolution": (1, *NODES, "--alpha", "0.4,0.5,0.6", "--lam", "0.1", "--devices", "2"),
    "sensitivity": (3, *SINGLE, "--lam", "0.1,0.2"),
    "tune": (5, *NODES, "--alpha", "0.4,0.5", "--lam", "0.01,0.1,0.03"),
    "spectrum": (4, *NODES, "--alpha", "0.2,0.5", *FINITE),
    "phase-diagram": (2, *NODES, "--alpha", "0.1", "--lam", "0.05,1"),
    "compare": (4, *NODES, "--lam", "0.05,0.2", *FINITE, "--without", "train", "--bound", "bayes"),
}
FINITE_DERIVATIVE = (2, *SINGLE, "--lam", "0.1", "--finite-d", *FINITE)


@pytest.fixture
def steps(monkeypatch):
    """A context that lists the steps that are computed, not read; those beyond `most` are interrupted."""

    @contextlib.contextmanager
    def computed(most=None):
        names = []

        def counting(step):
            def counted(store, name, compute):
                def computed():
                    if len(names) == most:
                        raise KeyboardInterrupt
                    names.append(name)
                    return compute()

                return step(store, name, computed)

            return counted

        with monkeypatch.context() as patch:
            for kind in (Steps, SweepStore):
                patch.setattr(kind, "step", counting(kind.step))
            yield names

    return computed


@pytest.mark.parametrize(("command", "sweep"), [*SWEEPS.items(), ("sensitivity", FINITE_DERIVATIVE)])
def test_every_sweep_goes_on_with_the_next_step(answer, steps, tmp_path, command, sweep):
    """The document is that of an undisturbed sweep, and so are the figures."""
    most, *options = sweep
    arguments, file, out = (command, *options), tmp_path / "points", tmp_path / "out"
    kept = ("--checkpoint", str(file), "--checkpoint-every", "1e-6")
    with steps() as every:
        plain = answer(*arguments, "--out", tmp_path / "plain")
    with steps(most) as before:
        assert run([*arguments, *kept]) == 130
    with steps() as after:
        resumed = answer(*arguments, *kept, "--resume", "--out", out)
    assert before + after == every and len(before) == most
    assert numbers(resumed.document) == numbers(plain.document)
    pictures = sorted(path.name for path in out.glob("*.png"))
    assert pictures == sorted(path.name for path in (tmp_path / "plain").glob("*.png")) and pictures
    for name in pictures:
        assert (out / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    with steps() as nothing:
        assert answer(*arguments, *kept, "--resume").points == resumed.points
    assert nothing == [] and [path.name for path in tmp_path.glob("points*")] == ["points"]


def test_other_options_and_another_target_file_are_refused(capsys, steps, tmp_path):
    target, file = tmp_path / "S0.npy", tmp_path / "points"
    np.save(target, np.linspace(0, 2, 8))
    arguments = ["state-evolution", "--target", str(target), "--lam", "0.3", *NODES, "--checkpoint", str(file)]
    with steps(0):
        assert run(arguments) == 130
    before = file.read_bytes()
    capsys.readouterr()
    other = ["tune", "--lam", "0.3", "--checkpoint", str(file)]
    for options, words in (
        ([*arguments, "--seed", "3"], "is a checkpoint of another run: --seed is 0 there and 3 here.\n"),
        (other, "of another run: of the command state-evolution there and of the command tune here.\n"),
        (arguments, "S0.npy has changed since the checkpoint"),
    ):
        if options is arguments:
            np.save(target, np.linspace(0, 3, 8))
        assert run([*options, "--resume"]) == 2
        sentence = capsys.readouterr().err
        assert sentence.startswith("amp-attention: --checkpoint: ") and words in sentence
        assert file.read_bytes() == before


def test_a_killed_sweep_of_theory_is_resumed_bit_equal(answer, tmp_path):
    """SIGKILL in the middle; another process ends with the same document."""
    options = ("--nodes", "256", "--replicas", "4", "--alpha", "0.2:0.6:60", "--lam", "0.1", "--quiet")
    file = tmp_path / "points"
    command = [sys.executable, "-m", "amp_attention.cli", "state-evolution", *options, "--checkpoint", str(file)]
    process = subprocess.Popen([*command, "--checkpoint-every", "1e-6"], stdout=subprocess.DEVNULL)
    while not file.exists() or file.read_bytes().count(b"fixed point") < 3:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    stored = file.read_bytes().count(b"fixed point")
    assert 3 <= stored < 60
    resumed = answer("state-evolution", *options, "--checkpoint", file, "--resume")
    plain = answer("state-evolution", *options)
    assert resumed.status == plain.status == 0 and numbers(resumed.document) == numbers(plain.document)


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
        (("phase-diagram", "--checkpoint", "f", "--resume", "--distributed"), "--distributed must be left out"),
        (("tune", "--resume"), "--resume must be left out without --checkpoint."),
        (("thresholds", "--checkpoint", "f"), "--checkpoint"),
        (("amp", "--checkpoint", "s.npy", "--save-estimate", "s.npy"), "--save-estimate must be another file than"),
        (("amp", "--checkpoint", "f", "--out", "f"), "--checkpoint must be another file than those of --out, got 'f'."),
        (
            ("train", "--checkpoint", "train.json", "--out", "."),
            "--checkpoint must be another file than those of --out",
        ),
    ],
)
def test_refusals(capsys, arguments, sentence):
    assert run([*arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_disk_that_fills_up_is_no_wrong_argument(capsys, tmp_path, monkeypatch):
    def fails(*_):
        raise CheckpointWriteError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SweepStore, "run", fails)
        assert run(["amp", *SMALL, "--checkpoint", str(tmp_path / "runs")]) == 1
    assert capsys.readouterr().err == "amp-attention: --checkpoint: the disk is full.\n"


def test_an_unwritable_place(capsys, tmp_path):
    (tmp_path / "taken").mkdir()
    for options in ([], ["--resume"]):
        assert run(["amp", *SMALL, "--checkpoint", str(tmp_path / "taken"), *options]) == 2
        assert "taken is a folder, not a checkpoint file." in capsys.readouterr().err
    write_checkpoint(tmp_path / "mine", {"a": 1}, b"kept")
    assert run(["amp", *SMALL, "--checkpoint", str(tmp_path / "mine"), "--resume"]) == 2
    assert read_checkpoint(tmp_path / "mine", {"a": 1}) == b"kept"
