"""Sums over all samples, chunk by chunk on every device: the one loop behind everything that reads the data."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from amp_attention._typing import Array, Bool, Float, Int
from amp_attention.data._chunks import Chunk, chunk_sizes, fold_chunks
from amp_attention.data._data import Data
from amp_attention.data._tokens import AbstractTokens
from amp_attention.numerics.devices import AXIS, along_samples
from amp_attention.numerics.lanes import lane_count
from amp_attention.numerics.packing import packed_size

Shared = TypeVar("Shared")
Sums = TypeVar("Sums")
Outputs = TypeVar("Outputs")


class Samples(eqx.Module):
    """The samples of one chunk.

    Attributes:
        X: tokens.
        y: labels, samples last.
        start: index of the first one among all samples.
        lanes: the chunk's part of the per-sample arrays that the pass was given, samples last.
        counted: False for samples that are there to fill up the chunk. `masked` must be applied before a sum.
    """

    X: Float[Array, "c T d"]
    y: Float[Array, "... c"]
    lanes: tuple[Array, ...]
    start: Int[Array, ""]
    counted: Bool[Array, " c"]

    def masked(self, array: Array) -> Array:
        """`array` (samples last) with 0 for samples that do not count, whatever is stored there."""
        return jnp.where(self.counted, array, jnp.zeros_like(array))


def sum_over_samples(
    body: Callable[[Shared, Samples], tuple[Sums, Outputs]],
    shared: Shared,
    data: Data,
    *lanes: Float[Array, "... n"],
    chunk: int | None = None,
) -> tuple[Sums, Outputs]:
    """Σ of what `body` returns for each chunk of samples, and its per-sample outputs.

    ```python
    def body(S, samples):
        values = loss.values(scores(S, samples.X), samples.y)
        return jnp.sum(samples.masked(values)), values


    total, values = sum_over_samples(body, S, data)
    ```

    On a mesh every device passes over its own samples and the sums are added up between devices; outputs stay where
    their samples are.

    Args:
        body: called on `shared` and `Samples`; returns a pytree of sums over them and a pytree of arrays with samples
            last. It must not close over arrays, which would not be on every device.
        shared: pytree of what `body` reads besides the samples.
        data: the samples.
        *lanes: per-sample arrays, samples last, of the length of `data.y`.
        chunk: largest number of samples seen at once; by default what the K×K matrices of their problems allow.

    Returns:
        The sums, and the outputs of all samples in order (and of those that fill up a mesh).
    """
    chunk = lane_count(packed_size(data.T)) if chunk is None else chunk
    devices = 1 if data.mesh is None else data.mesh.size
    rows = data.y.shape[0] // devices
    sums, outputs = eqx.filter_eval_shape(body, shared, _example(data, lanes, chunk_sizes(rows, chunk)[1]))
    if data.mesh is None:
        return _fold(partial(body, shared), sums, data, data.X, data.y, lanes, None, chunk)
    arrays, rest = eqx.partition(shared, eqx.is_array)

    def on_device(arrays, X, y, lanes):
        first = jax.lax.axis_index(AXIS) * rows
        here = partial(body, eqx.combine(arrays, rest))
        local, outputs = _fold(here, sums, data, X, y, lanes, first, chunk)
        return jax.lax.psum(local, AXIS), outputs

    return jax.shard_map(
        on_device,
        mesh=data.mesh,
        in_specs=(
            PartitionSpec(),
            PartitionSpec() if isinstance(data.X, AbstractTokens) else along_samples(3, 0),
            along_samples(data.y.ndim, 0),
            tuple(along_samples(lane.ndim, -1) for lane in lanes),
        ),
        out_specs=(PartitionSpec(), jax.tree.map(lambda x: along_samples(x.ndim, -1), outputs)),
        check_vma=False,
    )(arrays, data.X, data.y, lanes)


def _example(data: Data, lanes, size: int) -> Samples:
    """Shapes of a chunk of `size` samples."""
    shape: Any = jax.ShapeDtypeStruct
    X, start = shape((size, data.T, data.d), data.dtype), shape((), np.int32)
    lanes = tuple(shape((*lane.shape[:-1], size), lane.dtype) for lane in lanes)
    return Samples(X, shape((*data.y.shape[1:], size), data.y.dtype), lanes, start, shape((size,), bool))


def _fold(body, sums, data: Data, X, y, lanes, first, chunk: int):
    """The pass over the samples of one device; `first` is the index of the first of them, None without a mesh."""
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), sums)

    def step(total, part: Chunk):
        counted = part.fresh
        if first is not None:
            part = eqx.tree_at(lambda p: p.first, part, first)
            counted = counted & (first + part.start + jnp.arange(part.size, dtype=jnp.int32) < data.n)
        parts = tuple(part.take(lane, -1) for lane in lanes)
        samples = Samples(part.take(X), jnp.moveaxis(part.take(y), 0, -1), parts, part.first + part.start, counted)
        sums, outputs = body(samples)
        return jax.tree.map(jnp.add, total, sums), outputs

    return fold_chunks(step, zeros, y.shape[0], chunk=chunk)
