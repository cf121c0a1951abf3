"""What has to be set before JAX is imported or before it computes; only the command line does this."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from amp_attention._cli.parsing import UsageError


def cache_folder() -> Path:
    """The user's cache folder, by the convention of the platform."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "amp-attention" / "jax"


def prepare(dtype: str, devices: int | None = None, distributed: bool = False) -> None:
    """Floating-point type, compilation cache, one BLAS thread, and the devices.

    Compiled programs are kept between runs (JAX_COMPILATION_CACHE_DIR overrides where). jnp.linalg.eigh on CPUs runs in
    SciPy's OpenBLAS, whose threads fight with XLA's: with one thread it is never slower and often ten times faster.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    # A quarter less compilation at the same speed of what is compiled.
    os.environ.setdefault("XLA_FLAGS", "--xla_llvm_disable_expensive_passes=true")
    os.environ.setdefault("EQX_ON_ERROR", "nan")  # programs with error callbacks cannot be cached

    import jax
    import scipy.linalg  # noqa: F401  (loads the OpenBLAS that the next line limits)
    import threadpoolctl

    threadpoolctl.threadpool_limits(1, "blas")
    jax.config.update("jax_enable_x64", dtype == "float64")
    if distributed:
        _join()
        _keep_stdout_for_the_first()
    elif devices is not None and devices > 1:
        with suppress(RuntimeError):  # too late: the devices are there already
            jax.config.update("jax_num_cpu_devices", devices)
    if devices is not None and devices > len(jax.devices()):
        most, kind = len(jax.devices()), jax.default_backend()
        raise UsageError(f"--devices must be at most {most}, the number of {kind} devices, got {devices}.")


def _join() -> None:
    """Become one of several processes, which JAX finds by itself under SLURM, Open MPI and on cloud pods."""
    import jax

    named = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
    try:
        given: dict[str, Any] = {
            name: int(os.environ[variable]) for name, variable in named.items() if variable in os.environ
        }
        jax.distributed.initialize(**given)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"--distributed found no other processes: {error} Start under SLURM, mpirun or on a cloud pod, or set "
            f"JAX_COORDINATOR_ADDRESS, {' and '.join(named.values())}."
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
