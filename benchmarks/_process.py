"""Measurements in processes of their own: environment, compiled programs and peak memory are theirs alone.

A function of a module of this folder is named in a request on the command line, and what it returns is printed as JSON.
"""

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_ANSWER = "answer: "
_FLAGS = "--xla_llvm_disable_expensive_passes=true"  # of the command line, see `prepare`


def fresh(
    function: Callable[..., dict],
    *,
    dtype: str = "float32",
    guard: bool = True,
    cpu_devices: int = 1,
    environment: dict[str, str] | None = None,
    timeout: float = 1200.0,
    **arguments: Any,
) -> dict:
    """What a function returns in a new process.

    Args:
        function: of a module of this folder; arguments and result are JSON.
        dtype: float64 switches x64 on.
        guard: prepare the process as the command line does (compilation cache, one BLAS thread); nothing is set
            otherwise.
        cpu_devices: virtual CPU devices, which exist only if asked for before JAX starts.
        environment: variables set besides.
        timeout: seconds after which the process is ended.
        **arguments: of the function.

    Raises:
        RuntimeError: with the end of its error stream where the process fails.
        subprocess.TimeoutExpired: where it does not end in time.
    """
    request = {
        "module": f"benchmarks.{Path(inspect.getfile(function)).stem}",
        "function": function.__name__,
        "dtype": dtype,
        "guard": guard,
        "arguments": arguments,
    }
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"
    if cpu_devices > 1:
        flags += f" --xla_force_host_platform_device_count={cpu_devices}"
    variables = os.environ | {"XLA_FLAGS": flags.strip()} | (environment or {})
    command = [sys.executable, "-m", "benchmarks._process", json.dumps(request)]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=timeout
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    if done.returncode or not answers:
        raise RuntimeError(f"{request['function']} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(answers[-1].removeprefix(_ANSWER))


def _main(request: dict) -> None:
    if request["guard"]:
        from amp_attention._cli.environment import prepare

        prepare(request["dtype"])
    function = getattr(importlib.import_module(request["module"]), request["function"])
    print(_ANSWER + json.dumps(function(**request["arguments"])))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
