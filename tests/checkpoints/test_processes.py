"""Runs killed and resumed in another process, and runs of several processes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np

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
    "lbfgs": lambda checkpoint: train(problem, data, key=jax.random.key(1), S0=S0, checkpoint=checkpoint),
    "adam": lambda checkpoint: train(
        problem, data, key=jax.random.key(1), S0=S0, optimizer="adam", max_steps=200, checkpoint=checkpoint
    ),
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


def test_killed_runs_end_as_if_nothing_had_happened(same_bits, tmp_path):
    """AMP and training, each killed with SIGKILL in the middle and resumed in a new process."""
    engines, before, unfinished = ("amp", "lbfgs", "adam"), (), {}
    for engine in engines:
        kill_after_writes(computing(tmp_path, *before, f"{engine}:start"), tmp_path / engine, 12)
        before, unfinished[engine] = (f"{engine}:resume",), (tmp_path / engine).read_bytes()
    finished(computing(tmp_path, *before, *(f"{engine}:plain" for engine in engines)))
    for engine in engines:
        assert (tmp_path / engine).read_bytes() != unfinished[engine]
        assert not (tmp_path / f"{engine}-start.npz").exists()
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
