"""What has to be set before JAX is imported or before it computes; only the command line does this."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder, by the convention of the platform."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "amp-attention" / "jax"


def prepare(dtype: str) -> None:
    """Floating-point type, compilation cache, and one BLAS thread.

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
