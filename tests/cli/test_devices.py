"""The same answers on several devices, from several processes, and without storing the tokens."""

import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from amp_attention.cli import run

SMALL = ("--d", "12", "--test-samples", "2000")
NODES = ("--nodes", "256", "--replicas", "4")
NUMBERS = ("train_objective", "squared_error", "m", "q", "trace", "test_error")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    assert run(["amp", *SMALL, "--out", str(folder), "--quiet"]) == 0
    return json.loads((folder / "amp.json").read_text())["points"][0]


def check_same(point, expected):
    for name in NUMBERS:
        np.testing.assert_allclose(point[name], expected[name], rtol=1e-9)


@pytest.mark.parametrize("options", [("--devices", "2"), ("--token-source", "key")])
def test_amp(answer, alone, options):
    found = answer("amp", *SMALL, *options, "--quiet")
    assert found.status == 0
    check_same(found.points[0], alone)


def test_the_points_of_state_evolution(answer):
    grid = ("state-evolution", "--alpha", "0.4,0.5,0.6", "--lam", "0.1", *NODES, "--quiet")
    one, two = answer(*grid), answer(*grid, "--devices", "2")
    assert one.status == two.status == 0
    assert [point["alpha"] for point in two.points] == [0.4, 0.5, 0.6]
    for a, b in zip(one.points, two.points, strict=True):
        for name in ("Sigma", "m", "q", "test_error", "free_entropy", "replicon"):
            np.testing.assert_allclose(a[name], b[name], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("amp", "--devices", "5"), "--devices must be at most 4, the number of cpu devices, got 5."),
        (("amp", "--devices", "0"), "--devices must be"),
        (("amp", "--devices", "5000"), "--devices must be at most 64 on this machine, got 5000."),
        (("tune", "--devices", "2"), "--devices must be left out where no samples are drawn, got --devices 2."),
        (("spectrum", "--devices", "2"), "--devices must be left out where no samples are drawn"),
        (("tune", "--distributed"), "--distributed must be left out where no samples are drawn, got --distributed."),
        (("amp", "--token-source", "disk"), "--token-source"),
    ],
)
def test_refusals(capsys, arguments, sentence):
    assert run([*arguments]) == 2
    assert sentence in capsys.readouterr().err


VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (("foo", "2", "0"), "JAX_COORDINATOR_ADDRESS must be HOST:PORT with a port from 1 to 65535, got 'foo'."),
        ((":1234", "2", "0"), "JAX_COORDINATOR_ADDRESS must be HOST:PORT"),
        (("foo:99999", "2", "0"), "JAX_COORDINATOR_ADDRESS must be HOST:PORT"),
        (("foo:1234", "0", "0"), "JAX_NUM_PROCESSES must be a whole number >= 1, got '0'."),
        (("foo:1234", "2", "x"), "JAX_PROCESS_ID must be a whole number >= 0 and < JAX_NUM_PROCESSES = 2, got 'x'."),
        (("foo:1234", "2", "2"), "JAX_PROCESS_ID must be a whole number >= 0 and < JAX_NUM_PROCESSES = 2, got '2'."),
        (("foo:1234", "2", "-1"), "JAX_PROCESS_ID must be a whole number >= 0"),
    ],
)
def test_names_of_processes_that_are_refused(capsys, monkeypatch, values, sentence):
    for name, value in zip(VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("jax.distributed.initialize", lambda **_: pytest.fail("joined"))
    assert run(["amp", *SMALL, "--distributed"]) == 2
    assert capsys.readouterr().err.startswith(f"amp-attention: {sentence}")


@pytest.mark.parametrize(("options", "said"), [((), ["waiting for 2 processes at [::1]:1234"]), (("--quiet",), [])])
def test_a_process_says_that_it_waits(capsys, monkeypatch, options, said):
    for name, value in zip(VARIABLES, ("[::1]:1234", "2", "1"), strict=True):
        monkeypatch.setenv(name, value)

    def initialize(**given):
        assert given == {"coordinator_address": "[::1]:1234", "num_processes": 2, "process_id": 1}
        raise RuntimeError("Nobody came.")

    monkeypatch.setattr("jax.distributed.initialize", initialize)
    assert run(["amp", *SMALL, "--distributed", *options]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:-1] == said and "found no other processes: Nobody came." in lines[-1]


def pair(*options):
    """Two processes of one device each, of `amp` with an option or two for each: (first, second)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "amp_attention.cli", "amp", *SMALL, "--distributed", "--json", "--quiet"]

    def start(index):
        names = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(index)}
        variables = os.environ | names | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
        own = [str(option(index) if callable(option) else option) for option in options]
        pipe = subprocess.PIPE
        return subprocess.Popen([*command, *own], stdout=pipe, stderr=pipe, text=True, env=variables)

    return start(0), start(1)


def answers(processes, status=0):
    """What both have printed on stdout and on stderr."""
    found = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [status, status], found
    return found


def test_two_processes(alone, tmp_path):
    """Each holds half of the samples; the first prints one document, the second nothing, and only the first writes."""
    (document, _), (nothing, _) = answers(pair("--out", lambda index: tmp_path / str(index)))
    assert nothing == "" and not (tmp_path / "1").exists() and (tmp_path / "0" / "amp.json").exists()
    check_same(json.loads(document)["points"][0], alone)


def test_processes_with_different_options_are_refused():
    for _, errors in answers(pair("--alpha", lambda index: (0.3, 0.4)[index]), status=2):
        assert "--distributed must be with the same options in all processes, got different ones." in errors


def test_two_killed_processes_are_resumed(alone, tmp_path):
    """Both killed in the middle of the run, then a run of other options refused by both, then the same run ended."""
    kept = ("--checkpoint", tmp_path / "run")
    processes = pair(*kept, "--checkpoint-every", "1e-6")
    while not (tmp_path / "run.0").exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.001)
    for process in processes:
        process.kill()
        process.communicate()
    there = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith(".part")}
    assert set(there) == {"run", "run.0"}
    for _, errors in answers(pair(*kept, "--resume", "--seed", "3"), status=2):
        assert "is a checkpoint of another run: --seed is 0 there and 3 here." in errors
    assert {name: (tmp_path / name).read_bytes() for name in there} == there
    (document, _), _ = answers(pair(*kept, "--resume"))
    check_same(json.loads(document)["points"][0], alone)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_process_alone_among_several(tmp_path):
    """Without the others there is one sentence and status 2."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COORD")}
    command = [sys.executable, "-m", "amp_attention.cli", "amp", "--d", "12", "--distributed"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert "--distributed found no other processes" in done.stderr and "Traceback" not in done.stderr
