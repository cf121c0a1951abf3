"""Every test runs in float64 with strict promotion; warnings are errors (pyproject.toml)."""

import os
from pathlib import Path

os.environ.setdefault("EQX_ON_ERROR", "nan")  # programs with error callbacks cannot be cached
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# A quarter less compilation, and no slower at the sizes of tests.
os.environ.setdefault("XLA_FLAGS", "--xla_llvm_disable_expensive_passes=true")

import jax
import scipy.linalg  # noqa: F401  (loads the OpenBLAS that the next lines limit)
import threadpoolctl

threadpoolctl.threadpool_limits(1, "blas")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
