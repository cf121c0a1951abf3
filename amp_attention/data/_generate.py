"""White tokens labelled by a target."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from amp_attention._typing import Array, Float, PRNGKeyArray
from amp_attention.data._chunks import CHUNK, chunk_sizes
from amp_attention.data._data import Data, filled
from amp_attention.data._memory import check_memory
from amp_attention.data._samples import Samples, sum_over_samples
from amp_attention.data._sensing import scores
from amp_attention.data._tokens import AbstractTokens, DrawnTokens, sample_normals
from amp_attention.numerics.devices import AXIS, along_samples, check_mesh, replicated
from amp_attention.numerics.validation import instance_of, positive, random_key, whole_number
from amp_attention.problem import AttentionProblem
from amp_attention.targets import Target


def sample_size(alpha: float, d: int) -> int:
    """n = α d² rounded to the nearest whole number, at least 1; the effective α is n/d²."""
    positive("alpha", alpha)
    return max(1, round(float(alpha) * whole_number("d", d, 1) ** 2))


def drawn_labels(
    target: Target, key: PRNGKeyArray, start: Array | int, z: Float[Array, "K n"]
) -> Float[Array, "... n"]:
    """Labels of the scores z of samples `start`, ..., each with the noise of its own key."""
    return target.labels(z, sample_normals(key, start, z.shape[1], z.shape[:1], z.dtype).T)


def _stored(tokens: AbstractTokens, mesh: Mesh | None) -> Float[Array, "n T d"]:
    """All tokens of a source as an array, filled in place, each device its own."""
    rows = filled(tokens.shape[0], mesh)

    def fill(tokens, first, n):
        count, size = chunk_sizes(n, CHUNK)

        def body(index, X):
            start = jnp.minimum(index * size, n - size)
            part = tokens.take(first + start, size)
            return jax.lax.dynamic_update_slice_in_dim(X, part, start, 0)

        return jax.lax.fori_loop(jnp.int32(0), jnp.int32(count), body, jnp.zeros((n, *tokens.shape[1:]), tokens.dtype))

    if mesh is None:
        return fill(tokens, jnp.int32(0), rows)
    local = rows // mesh.size
    on_device = lambda tokens: fill(tokens, jax.lax.axis_index(AXIS) * local, local)  # noqa: E731
    specs = PartitionSpec(), along_samples(3, 0)
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)(tokens)


@eqx.filter_jit
def _draw(tokens: AbstractTokens, target: Target, S0, label_key, mesh: Mesh | None, stored: bool) -> Data:
    n, T, _ = tokens.shape
    X = _stored(tokens, mesh) if stored else tokens
    rows = filled(n, mesh)
    unlabelled = Data(X, jnp.zeros((rows,) if T == 1 else (rows, T, T), tokens.dtype), n=n, mesh=mesh)

    def body(shared, samples: Samples):
        target, S0, label_key = shared
        return (), drawn_labels(target, label_key, samples.start, scores(S0, samples.X))

    _, y = sum_over_samples(body, (target, S0, label_key), unlabelled)
    return Data(X, jnp.moveaxis(y, -1, 0), n=n, mesh=mesh)


def generate_data(
    key: PRNGKeyArray,
    problem: AttentionProblem | Target,
    d: int,
    n: int | None = None,
    *,
    stored: bool = True,
    mesh: Mesh | None = None,
) -> tuple[Data, Float[Array, "d d"]]:
    """A target matrix S0 drawn from its law, white tokens, and their noisy labels.

    Three independent subkeys draw S0, tokens and noise, and each sample has its own key: the same key gives the same
    target and the same samples whatever n is, on whatever devices, stored or not.

    Args:
        key: random key.
        problem: a problem, or a target alone.
        d: embedding dimension, ≥ 1.
        n: number of samples; `sample_size(problem.alpha, d)` by default, where a problem is given.
        stored: keep the tokens in memory; otherwise they are redrawn at every pass over the data (`DrawnTokens`).
        mesh: devices that the samples are divided over, of `device_mesh`.

    Returns:
        The data, in the dtype of the target, and S0.

    Raises:
        ValueError: for arguments of another kind or out of range, or data that do not fit in memory.
    """
    random_key("key", key)
    instance_of("problem", problem, (AttentionProblem, Target), "an AttentionProblem or a Target")
    instance_of("stored", stored, bool, "True or False")
    check_mesh(mesh)
    target = problem if isinstance(problem, Target) else problem.target
    d = whole_number("d", d, 1)
    if n is None:
        if isinstance(problem, Target):
            raise ValueError("n must be given with a target alone, since only a problem has an alpha, got None")
        n = sample_size(float(problem.alpha), d)
    n = whole_number("n", n, 1)
    dtype = target.noise.dtype
    check_memory(n, target.head.tokens, d, dtype, stored=stored, devices=1 if mesh is None else mesh.size)

    target_key, token_key, label_key = jax.random.split(key, 3)
    S0 = target.law.sample(target_key, d).astype(dtype)
    tokens = DrawnTokens(token_key, n, target.head.tokens, d, dtype)
    data = _draw(*replicated((tokens, target, S0, label_key), mesh), mesh, stored)
    return data, replicated(S0, mesh)
