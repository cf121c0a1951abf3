"""Every test runs in float64 with strict promotion; warnings are errors (pyproject.toml)."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("EQX_ON_ERROR", "nan")  # programs with error callbacks cannot be cached
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# A third less compilation, and no slower at the sizes of tests; and four devices to divide samples over.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_force_host_platform_device_count=4",
)

import jax
import pytest
import scipy.linalg  # noqa: F401  (loads the OpenBLAS that the next lines limit)
import threadpoolctl
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # the first example compiles
settings.load_profile("untimed")
threadpoolctl.threadpool_limits(1, "blas")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

MAPPINGS = Path("/proc/self/maps")  # of memory; compiled programs take several each, and Linux allows 65530


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs() -> Iterator[None]:
    """After a module that leaves many of them behind, before the process runs out of mappings and crashes."""
    yield
    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
