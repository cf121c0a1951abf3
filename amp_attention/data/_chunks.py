"""One loop over chunks of samples.

Whole-array products are bound by memory traffic: a chunk of about a thousand samples stays in cache while its scores
or its part of the adjoint are computed, and no temporary is larger than a chunk.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from amp_attention._typing import Array, Bool, Int
from amp_attention.data._tokens import AbstractTokens

CHUNK = 1000  # samples whose tokens stay in cache
Carry = TypeVar("Carry")
Out = TypeVar("Out")


class Chunk(eqx.Module):
    """Samples `start`, ..., `start + size − 1` of n, where a source of tokens calls the first of the n `first`.

    The last chunk is moved back to end at n instead of padding the data, so it may repeat samples of the one before:
    `fresh` marks the samples that no earlier chunk has seen, and `masked` must be applied before a sum over samples.
    """

    start: Int[Array, ""]
    fresh: Bool[Array, " c"]
    first: Int[Array, ""]
    size: int = eqx.field(static=True)

    def take(self, array: Array | AbstractTokens, axis: int = 0) -> Array:
        """The chunk's part of an array whose axis `axis` runs over all samples, or of a source of tokens."""
        if isinstance(array, AbstractTokens):
            return array.take(self.first + self.start, self.size)
        return jax.lax.dynamic_slice_in_dim(array, self.start, self.size, axis)

    def masked(self, array: Array) -> Array:
        """`array` (samples last) with the samples of earlier chunks set to 0, whatever is stored there."""
        return jnp.where(self.fresh, array, jnp.zeros_like(array))


def chunk_sizes(n: int, chunk: int = CHUNK) -> tuple[int, int]:
    """Number of chunks and their common size, as even as possible: fewer samples than chunks are visited twice."""
    count = -(-n // min(chunk, n))
    return count, -(-n // count)


def fold_chunks(
    body: Callable[[Carry, Chunk], tuple[Carry, Out]], init: Carry, n: int, *, chunk: int = CHUNK
) -> tuple[Carry, Out]:
    """carry ← body(carry, chunk) over all samples, in order, collecting per-sample outputs.

    ```python
    def body(total, chunk):
        z = scores(S, chunk.take(X))
        values = loss.values(z, ...)
        return total + jnp.sum(chunk.masked(values)), values


    total, values = fold_chunks(body, jnp.zeros(()), n)
    ```

    The body is rematerialised in reverse mode: what is kept between chunks is the carry, never a chunk's temporaries.

    Args:
        body: called on the carry and a `Chunk`; returns the new carry and a pytree of arrays with samples last.
        init: first carry.
        n: number of samples, ≥ 1; need not be a multiple of `chunk`.
        chunk: largest number of samples seen at once.

    Returns:
        The last carry, and the outputs of all samples in order, samples last.
    """
    count, size = chunk_sizes(n, chunk)
    if count == 1:
        return body(init, Chunk(jnp.int32(0), jnp.ones(n, bool), jnp.int32(0), n))

    @partial(jax.checkpoint, prevent_cse=False)
    def scanned(carry, index):
        start = jnp.minimum(index * size, n - size)
        fresh = start + jnp.arange(size, dtype=jnp.int32) >= index * size
        return body(carry, Chunk(start, fresh, jnp.int32(0), size))

    carry, outputs = jax.lax.scan(scanned, init, jnp.arange(count, dtype=jnp.int32))
    return carry, jax.tree.map(lambda out: _join(out, n), outputs)


def _join(stacked, n):
    """(count, ..., size) to (..., n): the last chunk contributes only its fresh samples."""
    count, size = stacked.shape[0], stacked.shape[-1]
    done = (count - 1) * size
    body = jnp.moveaxis(stacked[:-1], 0, -2)
    return jnp.concatenate([body.reshape(*body.shape[:-2], done), stacked[-1][..., size - (n - done) :]], axis=-1)
