"""White tokens labelled by a target."""

import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Float, PRNGKeyArray
from amp_attention.data._data import Data
from amp_attention.data._memory import check_memory
from amp_attention.data._sensing import scores
from amp_attention.numerics.validation import positive, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.targets import Target


def sample_size(alpha: float, d: int) -> int:
    """n = α d² rounded to the nearest whole number, at least 1; the effective α is n/d²."""
    return max(1, round(float(positive("alpha", alpha)) * whole_number("d", d, 1) ** 2))


def generate_tokens(key: PRNGKeyArray, n: int, tokens: int, d: int, dtype=None) -> Float[Array, "n T d"]:
    """x_a ~ N(0, I_d), independent."""
    return jax.random.normal(key, (n, tokens, d), jnp.result_type(float) if dtype is None else dtype)


def generate_data(
    key: PRNGKeyArray, problem: AttentionProblem | Target, d: int, n: int | None = None
) -> tuple[Data, Float[Array, "d d"]]:
    """A target matrix S0 drawn from its law, white tokens, and their noisy labels.

    Three independent subkeys draw S0, tokens and noise, so the same key gives the same target whatever n.

    Args:
        key: random key.
        problem: a problem, or a target alone.
        d: embedding dimension, ≥ 1.
        n: number of samples; `sample_size(problem.alpha, d)` by default, where a problem is given.

    Returns:
        The data, in the dtype of the target, and S0.

    Raises:
        ValueError: for numbers out of range, or data that do not fit in memory.
    """
    target = problem if isinstance(problem, Target) else problem.target
    d = whole_number("d", d, 1)
    if n is None:
        if isinstance(problem, Target):
            raise ValueError("n must be given with a target alone, since only a problem has an alpha")
        n = sample_size(float(problem.alpha), d)
    n = whole_number("n", n, 1)
    dtype = target.noise.dtype
    check_memory(n, target.head.tokens, d, dtype)

    target_key, token_key, label_key = jax.random.split(key, 3)
    S0 = target.law.sample(target_key, d).astype(dtype)
    X = generate_tokens(token_key, n, target.head.tokens, d, dtype)
    y = target.labels(label_key, scores(S0, X))
    return Data(X, jnp.moveaxis(y, -1, 0)), S0
