"""What has to be set before JAX is imported or before it computes; only the command line does this."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from amp_attention._cli.parsing import UsageError
from amp_attention._cli.streams import say

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


_MOST_CPU_DEVICES = 64  # on a small machine, for a look at how samples are divided


def cache_folder() -> Path:
    """The user's cache folder, by the convention of the platform."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "amp-attention" / "jax"


def prepare(dtype: str, devices: int | None = None, distributed: bool = False, quiet: bool = False) -> None:
    """Floating-point type, compilation cache, one BLAS thread, and the devices.

    Compiled programs are kept between runs (JAX_COMPILATION_CACHE_DIR overrides where). jnp.linalg.eigh on CPUs runs in
    SciPy's OpenBLAS, whose threads fight with XLA's: with one thread it is never slower and often ten times faster.
    """
    named = named_processes(os.environ) if distributed else {}
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    # A quarter less compilation at the same speed of what is compiled.
    os.environ.setdefault("XLA_FLAGS", "--xla_llvm_disable_expensive_passes=true")
    os.environ.setdefault("EQX_ON_ERROR", "nan")  # programs with error callbacks cannot be cached

    try:
        import jax
    except ValueError as error:  # of its environment variables
        raise UsageError(f"JAX does not start: {error}.") from None
    import scipy.linalg  # noqa: F401  (loads the OpenBLAS that the next line limits)
    import threadpoolctl

    threadpoolctl.threadpool_limits(1, "blas")
    jax.config.update("jax_enable_x64", dtype == "float64")
    if distributed:
        _join(named, quiet)
        _keep_stdout_for_the_first()
    elif devices is not None and devices > 1:
        most = max(_MOST_CPU_DEVICES, os.cpu_count() or 1)  # each has threads of its own
        if devices > most:
            raise UsageError(f"--devices must be at most {most} on this machine, got {devices}.")
        with suppress(RuntimeError):  # too late: the devices are there already
            jax.config.update("jax_num_cpu_devices", devices)
    try:
        jax.devices()
    except RuntimeError as error:
        raise UsageError(f"JAX finds no devices: {' '.join(str(error).split())[:300]}") from None
    if devices is not None and devices > len(jax.devices()):
        most, kind = len(jax.devices()), jax.default_backend()
        raise UsageError(f"--devices must be at most {most}, the number of {kind} devices, got {devices}.")


def named_processes(variables: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `jax.distributed.initialize` that the environment gives, which may be none, some or all.

    Raises:
        UsageError: for a value that JAX could not use.
    """
    found: dict[str, Any] = {}
    if ADDRESS in variables:
        found["coordinator_address"] = address = variables[ADDRESS]
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise UsageError(f"{ADDRESS} must be HOST:PORT with a port from 1 to 65535, got {address!r}.")
    if COUNT in variables:
        found["num_processes"] = _whole(COUNT, variables[COUNT], 1, None)
    if INDEX in variables:
        found["process_id"] = _whole(INDEX, variables[INDEX], 0, found.get("num_processes"))
    return found


def _whole(name: str, text: str, least: int, end: int | None) -> int:
    value = int(text) if text.strip().isdecimal() else -1
    if value < least or (end is not None and value >= end):
        below = "" if end is None else f" and < {COUNT} = {end}"
        raise UsageError(f"{name} must be a whole number >= {least}{below}, got {text!r}.")
    return value


def _join(named: Mapping[str, Any], quiet: bool) -> None:
    """Become one of several processes, which JAX finds by itself under SLURM, Open MPI and on cloud pods."""
    import jax

    if not quiet and {"coordinator_address", "num_processes"} <= named.keys():
        say(f"waiting for {named['num_processes']} processes at {named['coordinator_address']}")
    try:
        jax.distributed.initialize(**named)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"--distributed found no other processes: {error} Start under SLURM, mpirun or on a cloud pod, or set "
            f"{ADDRESS}, {COUNT} and {INDEX}."
        ) from None


def _keep_stdout_for_the_first() -> None:
    """The answer of the first process goes to stdout and nothing else: what libraries print goes to stderr."""
    answers = os.dup(1) if is_first_process() else os.open(os.devnull, os.O_WRONLY)
    sys.stdout.flush()
    os.dup2(2, 1)
    sys.stdout = os.fdopen(answers, "w", encoding="utf-8")


def is_first_process() -> bool:
    """Whether this process is the one that prints and writes."""
    import jax

    return jax.process_index() == 0
