"""Checkpoint files: written whole or not at all, refused when they are not this run's; and runs that were killed."""

import contextlib
import dataclasses
import errno
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention._solution import RESULTS
from amp_attention.amp import AMP
from amp_attention.checkpoints import (
    Checkpoint,
    CheckpointError,
    PointStore,
    digest,
    document_from_bytes,
    document_to_bytes,
    read_checkpoint,
    run_in_bursts,
    tree_from_bytes,
    tree_to_bytes,
    write_checkpoint,
)
from amp_attention.data import DrawnTokens, MappedTokens, device_mesh, generate_data, replicated
from amp_attention.problem import attention_problem

RUN = {"engine": "amp", "d": 30, "tolerance": 1e-8, "shape": (2, 3)}
PAYLOAD = bytes(range(256)) * 8


def same_bits(a, b):
    """Whether two pytrees have the same structure and the same bits."""
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    bits = lambda x: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)  # noqa: E731
    alike = lambda x, y: (x.dtype, x.shape, bits(x).tobytes()) == (y.dtype, y.shape, bits(y).tobytes())  # noqa: E731
    return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))


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
    monkeypatch.setattr("amp_attention.checkpoints._version", lambda: "99.0")
    with pytest.raises(CheckpointError, match=r"was written by version .* of amp-attention, this is version 99\.0"):
        read_checkpoint(written, RUN)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (RUN | {"d": 40, "tolerance": 1.0}, "of another run: d is 30 there and 40 here"),
        (RUN | {"extra": True}, "of another run: extra is nothing there and True here"),
        ({"engine": "amp", "d": 30, "tolerance": 1e-8}, r"of another run: shape is \[2, 3\] there and nothing here"),
        (RUN | {"tolerance": 1e-8 * (1 + 1e-15)}, "of another run: tolerance is"),
    ],
)
def test_that_of_another_run_is_refused(written, run, message):
    content = written.read_bytes()
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(written, run)
    assert written.read_bytes() == content


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


@pytest.mark.parametrize("path", ["absent/run", "file/run", "x" * 300])
def test_a_path_that_cannot_be_written_is_known_before_anything_is_computed(tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="cannot be written"):
        run_in_bursts(Checkpoint(tmp_path / path), RUN, lambda: (jnp.zeros(3),), never, never)
    assert os.listdir(tmp_path) == ["file"]


class State(eqx.Module):
    array: jax.Array
    key: jax.Array
    legacy: jax.Array
    result: RESULTS
    half: jax.Array
    host: np.ndarray
    count: int
    name: str = eqx.field(static=True)


def a_state(seed):
    """One of every kind of leaf; NaN with a payload, infinities and signed zeros among the numbers."""
    special = np.array([np.nan, -np.inf, -0.0, 5e-324, 1 + seed], np.float64)
    special.view(np.int64)[0] += seed
    result = RESULTS.where(jnp.asarray(seed == 1), RESULTS.diverged, RESULTS.successful)
    key = jax.random.split(jax.random.key(seed, impl="rbg"), 3)
    half = jnp.asarray(seed / 3, jnp.bfloat16)
    return State(jnp.array(special), key, jax.random.PRNGKey(seed), result, half, special, seed, "fixed")


def test_every_kind_of_leaf_survives():
    state = a_state(1)
    back = tree_from_bytes(tree_to_bytes(state), a_state(0))
    arrays = lambda s: (s.array, s.key, s.legacy, s.half, s.host)  # noqa: E731
    assert same_bits(arrays(back), arrays(state)) and not same_bits(arrays(back), arrays(a_state(0)))
    assert (back.result == RESULTS.diverged) and (back.count, back.name) == (1, "fixed")
    assert jax.random.key_impl(back.key) == jax.random.key_impl(state.key)
    np.testing.assert_array_equal(jax.random.bits(back.key[2]), jax.random.bits(state.key[2]))


def test_arrays_divided_over_devices_come_back_where_they_were():
    data, _ = generate_data(jax.random.key(0), attention_problem(), 5, 10, mesh=device_mesh(4))
    tree = (data.lanes(3) + 1, data.X, replicated(jnp.arange(3.0), data.mesh))
    back = tree_from_bytes(tree_to_bytes(tree), jax.tree.map(jnp.zeros_like, tree))
    assert same_bits(back, tree)
    like = jax.tree.map(jnp.zeros_like, tree)
    assert [x.sharding for x in back] == [x.sharding for x in like]


@pytest.mark.parametrize(
    "like", [(jnp.zeros(4),), (jnp.zeros(3, jnp.float32),), (jnp.zeros(3), jnp.zeros(3)), (), (jax.random.key(0),)]
)
def test_a_state_of_another_kind_is_refused(like):
    with pytest.raises(CheckpointError, match="the state in the checkpoint is not one of this run"):
        tree_from_bytes(tree_to_bytes((jnp.zeros(3),)), like)


def test_records_survive():
    record = {
        "q": 0.1 + 0.2,
        "unknown": float("nan"),
        "repeats": [{"result": "diverged", "message": "Γ ≤ 0", "stable": None, "n": 3}, (1, True)],
        "array": {"S": np.arange(6.0).reshape(2, 3)[:, ::-1], "single": np.float32(0.1), "jax": jnp.arange(3)},
    }
    back = document_from_bytes(document_to_bytes(record))
    assert back["q"] == record["q"] and np.isnan(back["unknown"])
    assert back["repeats"] == [record["repeats"][0], [1, True]]
    np.testing.assert_array_equal(back["array"]["S"], record["array"]["S"])
    assert back["array"]["single"] == np.float32(0.1) and back["array"]["single"].dtype == np.float32
    np.testing.assert_array_equal(back["array"]["jax"], [0, 1, 2])
    with pytest.raises(TypeError):
        document_to_bytes({"function": never})


def moved(tmp_path):
    """The same tokens in a file, once touched."""
    file = tmp_path / "tokens.npy"
    np.save(file, np.zeros((4, 2, 3)))
    first = digest(MappedTokens(file))
    assert digest(MappedTokens(file)) == first
    os.utime(file, ns=(0, 0))
    return first, digest(MappedTokens(file))


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
    first, second = moved(tmp_path)
    assert first != second


def test_a_digest_reads_large_arrays_in_blocks(monkeypatch):
    X = jnp.arange(1000.0).reshape(10, 4, 25)
    whole, changed = digest(X), digest(X.at[7, 0, 0].add(1))
    monkeypatch.setattr("amp_attention.checkpoints._BLOCK", 1700)  # two rows
    assert digest(X) == whole and digest(X.at[7, 0, 0].add(1)) == changed != whole


def test_a_digest_reads_every_device():
    four, _ = generate_data(jax.random.key(0), attention_problem(), 5, 12, mesh=device_mesh(4))
    again, _ = generate_data(jax.random.key(0), attention_problem(), 5, 12, mesh=device_mesh(4))
    assert digest(four) == digest(again)
    for sample in (0, 4, 11):
        assert digest(dataclasses.replace(four, X=four.X.at[sample, 0, 0].add(1.0))) != digest(four)


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


def test_points_of_a_sweep_are_kept(tmp_path):
    store = PointStore(tmp_path / "a" / "sweep", {"seed": 0})
    assert store.get("alpha=0.5") is None
    store.put("alpha=0.5", b"first")
    store.put("alpha=1/2, d=3 \n", b"")
    again = PointStore(tmp_path / "a" / "sweep", {"seed": 0}, resume=True)
    assert (again.get("alpha=0.5"), again.get("alpha=1/2, d=3 \n"), again.get("other")) == (b"first", b"", None)
    again.put("alpha=0.5", b"second")
    assert again.get("alpha=0.5") == b"second"


def test_another_sweep_is_refused(tmp_path):
    store = PointStore(tmp_path, {"seed": 0})
    store.put("one", PAYLOAD)
    with pytest.raises(CheckpointError, match="exists; to go on from it, ask to resume"):
        PointStore(tmp_path, {"seed": 0})
    with pytest.raises(CheckpointError, match="of another run: seed is 0 there and 1 here"):
        PointStore(tmp_path, {"seed": 1}, resume=True)
    (point,) = tmp_path.glob("*.point")
    point.write_bytes(point.read_bytes()[:-1])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    again = PointStore(tmp_path, {"seed": 0}, resume=True)
    for attempt in (lambda: again.get("one"), lambda: again.put("one", b"new")):
        with pytest.raises(CheckpointError, match="is a truncated checkpoint"):
            attempt()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_written_is_known_at_once(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="sweep cannot be written: Not a directory"):
        PointStore(tmp_path / "file" / "sweep", {})
    with unwritable(tmp_path), pytest.raises(CheckpointError, match="cannot be written: Permission denied"):
        PointStore(tmp_path / "sweep", {})
    assert os.listdir(tmp_path) == ["file"]


SCRIPT = """
import sys
import jax, numpy as np, scipy.linalg, threadpoolctl

threadpoolctl.threadpool_limits(1, "blas")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
from amp_attention.amp import solve_amp
from amp_attention.checkpoints import Checkpoint
from amp_attention.data import generate_data
from amp_attention.erm import train
from amp_attention.problem import attention_problem

problem = attention_problem(0.5, 0.1, tokens=1)
data, S0 = generate_data(jax.random.key(0), problem, 12)
runs = {
    "amp": lambda checkpoint: solve_amp(problem, data, S0=S0, checkpoint=checkpoint),
    "train": lambda checkpoint: train(problem, data, key=jax.random.key(1), S0=S0, checkpoint=checkpoint),
}
for name in sys.argv[2:]:
    engine, resume = name.split(":")
    checkpoint = Checkpoint(f"{sys.argv[1]}/{engine}", steps=1, resume=resume == "resume")
    solution = runs[engine](None if resume == "plain" else checkpoint)
    np.savez(f"{sys.argv[1]}/{engine}-{resume}.npz", *jax.tree.leaves(solution))
"""


def computing(folder, *runs):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), *runs], stderr=subprocess.PIPE)


def finished(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()


def kill_after_writes(process, file, writes):
    """SIGKILL once the file has been replaced so many times."""
    seen, last = 0, None
    while seen < writes:
        assert process.poll() is None, process.stderr.read().decode()
        with contextlib.suppress(FileNotFoundError):
            facts = file.stat()
            now = facts.st_ino, facts.st_mtime_ns
            seen, last = seen + (now != last), now
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_killed_runs_end_as_if_nothing_had_happened(tmp_path):
    """AMP and training, each killed with SIGKILL in the middle and resumed in a new process."""
    kill_after_writes(computing(tmp_path, "amp:start"), tmp_path / "amp", 12)
    kill_after_writes(computing(tmp_path, "amp:resume", "train:start"), tmp_path / "train", 12)
    unfinished = (tmp_path / "train").read_bytes()
    finished(computing(tmp_path, "train:resume", "amp:plain", "train:plain"))
    assert (tmp_path / "train").read_bytes() != unfinished
    assert not (tmp_path / "amp-start.npz").exists() and not (tmp_path / "train-start.npz").exists()
    for engine in ("amp", "train"):
        with np.load(tmp_path / f"{engine}-resume.npz") as resumed, np.load(tmp_path / f"{engine}-plain.npz") as plain:
            assert same_bits([resumed[name] for name in resumed.files], [plain[name] for name in plain.files])


PROCESS = """
import sys
import jax, jax.numpy as jnp, numpy as np

index, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, index)
from amp_attention.amp import _loop, solve_amp
from amp_attention.checkpoints import Checkpoint, CheckpointError
from amp_attention.data import Data, device_mesh, shard
from amp_attention.problem import attention_problem

problem = attention_problem(0.5, 0.1, tokens=1)
path = f"{folder}/run" if index == 0 else "/no/such/folder"
rng = np.random.default_rng(0)
samples = Data(jnp.asarray(rng.standard_normal((71, 1, 12))), jnp.asarray(rng.standard_normal(71)))
data = shard(samples, device_mesh())
solve = lambda **options: solve_amp(problem, data, max_steps=30, checkpoint=Checkpoint(path, **options))
advance, calls = _loop._advance, []

def interrupted(*arguments):
    calls.append(1)
    if len(calls) == 5:
        raise KeyboardInterrupt
    return advance(*arguments)

_loop._advance = interrupted
try:
    solve(steps=3)
except KeyboardInterrupt:
    pass
_loop._advance = advance
try:
    solve()
except CheckpointError as error:
    assert "exists; to go on from it" in str(error)
else:
    raise AssertionError("not refused")
resumed = jax.tree.leaves(solve(every=1e-3, resume=True))
plain = jax.tree.leaves(solve_amp(problem, data, max_steps=30))
local = lambda x: b"".join(np.asarray(s.data).tobytes() for s in x.addressable_shards)
assert len(plain) == len(resumed) and all(local(x) == local(y) for x, y in zip(plain, resumed))
jax.distributed.shutdown()
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def test_of_several_processes_the_first_reads_and_writes(tmp_path):
    """Two processes of two devices; the second knows no folder to write to."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=2")
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(index), port, str(tmp_path)],
            env=os.environ | {"XLA_FLAGS": flags},
            stderr=subprocess.PIPE,
        )
        for index in range(2)
    ]
    try:
        for process in processes:
            finished(process)
    finally:
        for process in processes:
            process.kill()
    assert sorted(os.listdir(tmp_path)) == ["run"]
