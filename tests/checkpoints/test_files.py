"""Checkpoint files: written whole or not at all, refused when they are not this run's."""

import contextlib
import errno
import os
import re
import resource

import pytest

from amp_attention.checkpoints import (
    Checkpoint,
    CheckpointError,
    CheckpointWriteError,
    read_checkpoint,
    run_in_bursts,
    write_checkpoint,
)

RUN = {"engine": "amp", "d": 30, "tolerance": 1e-8, "shape": (2, 3)}
PAYLOAD = bytes(range(256)) * 8


@pytest.fixture
def written(tmp_path):
    file = tmp_path / "run"
    write_checkpoint(file, RUN, PAYLOAD)
    return file


def test_what_was_written_is_read(written):
    assert read_checkpoint(written, RUN) == PAYLOAD
    write_checkpoint(written, RUN, b"")
    assert read_checkpoint(written, RUN) == b""
    assert os.listdir(written.parent) == ["run"]


def test_a_link_stays_a_link(written):
    link = written.with_name("link")
    link.symlink_to(written)
    write_checkpoint(link, RUN, b"new")
    assert link.is_symlink() and read_checkpoint(written, RUN) == b"new"


def test_two_processes_do_not_mix_what_they_write(written):
    fcntl = pytest.importorskip("fcntl")
    with open(written.with_name(".run.part"), "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CheckpointWriteError, match="run is being written by another process"):
            write_checkpoint(written, RUN, b"new")
        assert os.listdir(written.parent).count(".run.part") == 1
    assert read_checkpoint(written, RUN) == PAYLOAD
    write_checkpoint(written, RUN, b"new")
    assert read_checkpoint(written, RUN) == b"new"


def edited(content, old, new):
    assert content.count(old) >= 1
    return content.replace(old, new, 1)


def flipped(content, position):
    changed = bytearray(content)
    changed[position] ^= 1
    return bytes(changed)


NOT_CHECKPOINTS = {
    "empty": (lambda c: b"", "is not a checkpoint of amp-attention"),
    "text": (lambda c: b"a diary\nof no importance\n", "is not a checkpoint of amp-attention"),
    "binary": (lambda c: bytes(range(256)) * 20, "is not a checkpoint of amp-attention"),
    "zeros": (lambda c: bytes(5000), "is not a checkpoint of amp-attention"),
    "half-a-first-line": (lambda c: c[:20], "is not a checkpoint of amp-attention"),
    "only-the-first-line": (lambda c: c[: c.index(b"\n") + 1], "is a truncated checkpoint: it ends in its header"),
    "half-a-header": (lambda c: c[:100], "is a truncated checkpoint: it ends in its header"),
    "only-the-header": (lambda c: c[: -len(PAYLOAD)], "is a truncated checkpoint: 0 of 2048 bytes are there"),
    "one-byte-short": (lambda c: c[:-1], "is a truncated checkpoint: 2047 of 2048 bytes are there"),
    "one-byte-long": (lambda c: c + b"x", "is a damaged checkpoint"),
    "flipped-in-the-payload": (lambda c: flipped(c, -1000), "is a damaged checkpoint: its content"),
    "flipped-in-the-fingerprint": (lambda c: edited(c, b'"d": 30', b'"d": 31'), "is a damaged checkpoint: its content"),
    "header-is-no-json": (lambda c: edited(c, b'{"finger', b"{'finger"), "is a damaged checkpoint: its header"),
    "header-is-a-list": (lambda c: b"amp-attention checkpoint 1\n[]\n", "is a damaged checkpoint: its header"),
    "header-lacks-an-entry": (lambda c: edited(c, b'"bytes"', b'"bites"'), "is a damaged checkpoint: its header"),
    "header-of-another-kind": (lambda c: edited(c, b": 2048", b": null"), "is a damaged checkpoint: its header"),
    "other-format": (
        lambda c: edited(c, b"checkpoint 1", b"checkpoint 2"),
        "is a checkpoint of format 2, this version",
    ),
}


@pytest.mark.parametrize("name", NOT_CHECKPOINTS)
def test_other_files_are_refused_and_left_as_they_are(written, name):
    change, message = NOT_CHECKPOINTS[name]
    content = change(written.read_bytes())
    written.write_bytes(content)
    for resume, expected in ((True, f"^{re.escape(str(written))} {message}"), (False, "exists")):
        with pytest.raises(CheckpointError, match=expected):
            run_in_bursts(Checkpoint(written, resume=resume), RUN, never, never, never)
    assert written.read_bytes() == content
    assert os.listdir(written.parent) == ["run"]


def never(*_):
    raise AssertionError("nothing is to be computed")


def test_that_of_another_version_is_refused(written, monkeypatch):
    monkeypatch.setattr("amp_attention.checkpoints._files._version", lambda: "99.0")
    with pytest.raises(CheckpointError, match=r"was written by version .* of amp-attention, this is version 99\.0"):
        read_checkpoint(written, RUN)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (RUN | {"d": 40, "tolerance": 1.0}, "of another run: d is 30 there and 40 here"),
        (RUN | {"extra": True}, "of another run: extra is absent there and True here"),
        ({"engine": "amp", "d": 30, "tolerance": 1e-8}, "of another run: shape is 2,3 there and absent here"),
        (RUN | {"tolerance": 1e-8 * (1 + 1e-15)}, "of another run: tolerance is"),
        (RUN | {"engine": "train", "d": 40}, "of another run: of the engine amp there and of the engine train here$"),
        (
            RUN | {"tolerance": None, "d": 40},
            "run: d is 30 there and 40 here; tolerance is 1e-08 there and not given here$",
        ),
    ],
)
def test_that_of_another_run_is_refused(written, run, message):
    content = written.read_bytes()
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(written, run)
    assert written.read_bytes() == content


SWEEP = {
    "command": "amp",
    "files": {"X.npy": "aa", "y.npy": "bb"},
    "problem": {"lam": [i / 10 for i in range(20)], "noise": 0.5},
    "settings": {"seed": 0, "d": 9, "devices": None, "dtype": "float64"},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": SWEEP["settings"] | {"seed": 1}}, "is a checkpoint of another run: seed is 0 there and 1 here$"),
        ({"problem": {"lam": [0.1], "noise": 0.5}}, r"run: lam is 0\.0,\.\.\.,1\.9 \(20 values\) there and 0\.1 here$"),
        ({"problem": {"lam": [7.0] * 20, "noise": 0.5}}, r"run: lam\[0\] is 0\.0 there and 7\.0 here$"),
        (
            {"settings": {"seed": 1, "d": 8, "devices": 2, "dtype": "float32"}},
            "devices is not .* 2 here; 1 more differ$",
        ),
        ({"files": {"X.npy": "aa", "y.npy": "cc"}}, r"^y\.npy has changed since the checkpoint .*run was written$"),
        ({"files": {"X.npy": "a", "y.npy": "b"}, "problem": {}}, r"^X\.npy and y\.npy have changed since"),
        (
            {"files": {"Z.npy": "aa", "y.npy": "bb"}},
            r"run: Z\.npy is absent there and aa here; X\.npy is aa there and absent",
        ),
    ],
)
def test_only_what_differs_is_said(tmp_path, change, message):
    write_checkpoint(tmp_path / "run", SWEEP, PAYLOAD)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path / "run", SWEEP | change)


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="absent cannot be read: No such file"):
        read_checkpoint(tmp_path / "absent", RUN)
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        read_checkpoint(tmp_path, RUN)


@contextlib.contextmanager
def files_of_at_most(size):
    """The kernel ends a write in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_ends_in_the_middle_loses_nothing(written):
    before = written.read_bytes()
    with files_of_at_most(2**16), pytest.raises(CheckpointError, match="run cannot be written: File too large"):
        write_checkpoint(written, RUN, bytes(2**20))
    assert written.read_bytes() == before and os.listdir(written.parent) == ["run"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_loses_nothing(written, monkeypatch, call):
    """Some file systems find out as late as this."""

    def fails(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = written.read_bytes()
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(CheckpointError, match="run cannot be written: No space left on device"):
        write_checkpoint(written, RUN, b"new")
    assert written.read_bytes() == before and os.listdir(written.parent) == ["run"]


@contextlib.contextmanager
def unwritable(folder):
    user = os.geteuid()
    folder.chmod(0o500)
    if user == 0:  # whom permissions do not bind
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        folder.chmod(0o700)


def test_an_unwritable_folder_loses_nothing(written):
    before = written.read_bytes()
    with unwritable(written.parent), pytest.raises(CheckpointError, match="cannot be written: Permission denied"):
        write_checkpoint(written, RUN, b"new")
    assert written.read_bytes() == before and os.listdir(written.parent) == ["run"]
