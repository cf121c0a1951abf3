"""Test error of an estimate at finite d, by Monte Carlo over fresh samples."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._typing import Array, Float, PRNGKeyArray, ScalarLike
from amp_attention.data import CHUNK, DrawnTokens, drawn_labels, scores
from amp_attention.numerics.validation import MOST_SAMPLES, non_negative, random_key, square_matrix, whole_number
from amp_attention.problem import AttentionProblem, cast


@eqx.filter_jit
def _moments(problem, S, S0, variance, key, count: int, size: int):
    """Mean and standard error of the squared error over count·size samples, one entry a predictor."""
    target, channel = problem.target, problem.channel
    head = channel.head
    d, dtype = S.shape[0], S.dtype

    token_key, label_key = jax.random.split(key)
    tokens = DrawnTokens(token_key, count * size, head.tokens, d, dtype)

    def chunk_errors(start):
        X = tokens.take(start, size)
        y, z = drawn_labels(target, label_key, start, scores(S0, X)), scores(S, X)
        labels = [head(z)] if variance is None else [channel.predict(z, variance), head(z)]
        return jnp.stack([jnp.sum(((y - label) ** 2).reshape(-1, size), axis=0) for label in labels])

    def body(carry, index):
        # Chan's update of mean and sum of squared deviations: the naive Σx² − (Σx)² cancels in float32.
        mean, scatter = carry
        errors = chunk_errors(index * size)
        chunk_mean = jnp.mean(errors, axis=1)
        shift = chunk_mean - mean
        done = index.astype(dtype)
        within = jnp.sum((errors - chunk_mean[:, None]) ** 2, axis=1)
        scatter = scatter + within + shift**2 * size * done / (done + 1)
        return (mean + shift / (done + 1), scatter), None

    zero = jnp.zeros(1 if variance is None else 2, dtype)
    (mean, scatter), _ = jax.lax.scan(body, (zero, zero), jnp.arange(count, dtype=jnp.int32))
    total = count * size
    return mean, jnp.sqrt(scatter / max(total - 1, 1) / total)


def measure_test_error(
    problem: AttentionProblem,
    S: Float[Array, "d d"],
    S0: Float[Array, "d d"],
    key: PRNGKeyArray,
    samples: int = 100_000,
    chunk: int = CHUNK,
    *,
    variance: ScalarLike | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """E Σ (y − head(z(S)))² over all entries of the output, on fresh samples whose labels carry the target's noise.

    Tokens are drawn chunk by chunk and never stored; memory does not grow with `samples`. Each sample has its own key.

    Args:
        problem: target and channel are read.
        S: the estimate.
        S0: the target matrix.
        key: random key, independent of that of the training data.
        samples: number of fresh samples, rounded up to whole chunks of at most `chunk`.
        chunk: samples held at once.
        variance: V of the estimate, ≥ 0, where what the channel predicts of S and V is wanted too, on the same samples.

    Returns:
        Mean and its standard error; with a variance each has two entries, for the channel's prediction (of a posterior
        channel the posterior mean of the label) and for the label of S.

    Raises:
        ValueError: for arguments out of range or of shapes that do not fit.

    Source: arXiv:2509.24914; for T = 1 the mean is 2‖S − S0‖²_F/d + Δ.
    """
    samples, chunk = whole_number("samples", samples, 1, MOST_SAMPLES // 2), whole_number("chunk", chunk, 1)
    random_key("key", key)
    d = np.shape(S)[-1] if np.ndim(S) else 1
    for name, matrix in {"S": S, "S0": S0}.items():
        square_matrix(name, matrix, d)
    count = -(-samples // chunk)
    size = -(-samples // count)
    if variance is not None:
        variance = non_negative("variance", variance).astype(S.dtype)
    mean, error = _moments(cast(problem, S.dtype), S, S0.astype(S.dtype), variance, key, count, size)
    return (mean[0], error[0]) if variance is None else (mean, error)
