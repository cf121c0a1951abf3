"""Several processes do as the first one does, the only one that reads and writes."""

import hashlib
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from amp_attention.checkpoints._files import CheckpointError, CheckpointWriteError


def agreed(number: bool | int) -> int:
    """The first process's number, in all of them."""
    if jax.process_count() == 1:
        return int(number)
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def same_everywhere(data: bytes) -> bool:
    """Whether all processes have the same bytes."""
    if jax.process_count() == 1:
        return True
    digest = np.frombuffer(hashlib.sha256(data).digest(), np.uint8).astype(np.int32)
    found = np.asarray(multihost_utils.process_allgather(digest))
    return bool(np.all(found == found[:1]))


def _from_first_process(data: bytes) -> bytes:
    size = agreed(len(data))
    if size == 0:
        return b""
    mine = np.frombuffer(data, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine)).astype(np.uint8).tobytes()


def by_first_process(action: Callable[[], bytes | None]) -> bytes:
    """What an action gives in the first process, the only one that does it; its failure is one of all processes."""
    if jax.process_count() == 1:
        return action() or b""
    answer, failure, unwritten = b"", "", False
    if jax.process_index() == 0:
        try:
            answer = action() or b""
        except CheckpointError as error:
            failure, unwritten = str(error), isinstance(error, CheckpointWriteError)
    failure = _from_first_process(failure.encode()).decode()
    if failure:
        raise (CheckpointWriteError if agreed(unwritten) else CheckpointError)(failure)
    return _from_first_process(answer)
