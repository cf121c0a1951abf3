"""Runs that write their state on the way, and go on from it in another process."""

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from amp_attention.checkpoints._files import CheckpointError, read_checkpoint, write_checkpoint
from amp_attention.checkpoints._processes import agreed, by_first_process
from amp_attention.checkpoints._trees import tree_from_bytes, tree_to_bytes

_FASTEST_GROWTH = 2  # of the iterations between two looks at the clock

Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run writes what it has computed, and whether it goes on from what is there.

    Written at the start, so that a path that cannot be written is known at once, then regularly, and at the end. A
    run that goes on where one was interrupted ends with the same numbers, bit by bit, on the same kind of machine with
    the same number of devices; one that had ended returns at once.

    Without `resume` a file that exists is refused before anything is computed. With it a checkpoint of this very run
    (the same problem, data and options) is continued, no file means to start, and any other file is refused and left
    as it is. With several processes the first one reads and writes.

    Args:
        path: file; its folder must exist.
        every: seconds between two writes, > 0; a single iteration is never interrupted.
        steps: iterations between two writes, ≥ 1, in place of `every`.
        resume: go on from the file.

    Raises:
        ValueError: for arguments of another kind or out of range.
    """

    path: str | os.PathLike
    every: float = 60.0
    steps: int | None = None
    resume: bool = False

    def __post_init__(self):
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise ValueError(f"path must be the path of a file, got {self.path!r}")
        if not isinstance(self.resume, bool):
            raise ValueError(f"resume must be True or False, got {self.resume!r}")
        number = isinstance(self.every, (int, float, np.number)) and not isinstance(self.every, bool)
        if not number or not 0 < self.every < math.inf or self.every > sys.float_info.max:
            raise ValueError(f"every must be a finite number of seconds > 0, got {self.every!r}")
        whole = isinstance(self.steps, (int, np.integer)) and not isinstance(self.steps, bool)
        if self.steps is not None and (not whole or self.steps < 1):
            raise ValueError(f"steps must be a whole number >= 1, got {self.steps!r}")


def refuse_traced(checkpoint: Checkpoint | None, tree: Any) -> None:
    """A checkpoint needs numbers: under `jit`, `grad` or `vmap` there are none.

    Raises:
        ValueError: naming the argument.
    """
    if checkpoint is not None and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise ValueError("checkpoint must be None under jit, grad or vmap, where there are no numbers to write")


def run_in_bursts(
    checkpoint: Checkpoint,
    fingerprint: Mapping[str, Any],
    start: Callable[[], Tree],
    advance: Callable[[Tree, int], Tree],
    progress: Callable[[Tree], tuple[int, bool]],
) -> Tree:
    """Run an iteration to its end, writing its state on the way.

    Args:
        checkpoint: where and when.
        fingerprint: of the run.
        start: the state before the first iteration.
        advance: (state, k) ↦ the state after k iterations in all, or at the end if that comes first; it must not
            matter in how many calls it gets there.
        progress: state ↦ (iterations so far, whether this is the end).

    Returns:
        The last state.

    Raises:
        CheckpointError: when the file cannot be used or written.
    """
    found = by_first_process(lambda: read_to_resume(checkpoint, fingerprint))
    first = start()
    state = tree_from_bytes(found, first) if found else first
    if not found:
        _save(checkpoint, fingerprint, state)
    taken, ended = progress(state)
    pace = _Pace(checkpoint)
    while not ended:
        state = _where(advance(state, pace.next_look(taken)), first)
        taken, ended = progress(state)
        if pace.due() or ended:
            _save(checkpoint, fingerprint, state)
            pace.written()
    return state


def _where(tree: Tree, like: Tree) -> Tree:
    """The same arrays on the devices of others, which are the same already unless the compiler chose to move them."""

    def place(leaf, other):
        moved = isinstance(leaf, jax.Array) and other.committed and leaf.sharding != other.sharding
        return jax.device_put(leaf, other.sharding) if moved else leaf

    return jax.tree.map(place, tree, like)


def read_to_resume(checkpoint: Checkpoint, fingerprint: Mapping[str, Any]) -> bytes:
    """What there is to go on from; empty if there is nothing.

    Raises:
        CheckpointError: when there is a file that must not be used.
    """
    if not os.path.lexists(checkpoint.path):
        return b""
    if os.path.isdir(checkpoint.path):
        raise CheckpointError(f"{checkpoint.path} is a folder, not a checkpoint file")
    if os.path.exists(checkpoint.path) and not os.path.isfile(checkpoint.path):
        raise CheckpointError(f"{checkpoint.path} is a device or a pipe, not a checkpoint file")
    if not checkpoint.resume:
        raise CheckpointError(f"{checkpoint.path} exists; to go on from it, pass resume=True, else give another path")
    return read_checkpoint(checkpoint.path, fingerprint)


def _save(checkpoint: Checkpoint, fingerprint: Mapping[str, Any], state: Any) -> None:
    payload = tree_to_bytes(state)
    by_first_process(lambda: write_checkpoint(checkpoint.path, fingerprint, payload))


class _Pace:
    """When to write, and how many iterations to do before the next look at the clock.

    The first burst is a single iteration and compiles; the time of the later ones is that of iterations, and bursts
    grow until one fills what is left of the interval. All processes do as the first one does.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.every, self.steps = float(checkpoint.every), checkpoint.steps
        self.burst = 1 if checkpoint.steps is None else int(checkpoint.steps)
        self.bursts, self.rate = 0, None
        self.began = self.wrote = time.monotonic()

    def next_look(self, taken: int) -> int:
        """The number of iterations in all after which to look again."""
        self.began = time.monotonic()
        if self.steps is None and self.rate is not None:
            affordable = (self.every - (self.began - self.wrote)) * self.rate
            self.burst = max(1, int(min(affordable, _FASTEST_GROWTH * self.burst)))
        return taken + agreed(self.burst)

    def due(self) -> bool:
        """Whether to write now, after a burst."""
        now = time.monotonic()
        self.rate = self.burst / max(now - self.began, 1e-9) if self.bursts else None
        self.bursts += 1
        return bool(agreed(int(self.steps is not None or now - self.wrote >= self.every)))

    def written(self) -> None:
        """Start the next interval."""
        self.wrote = time.monotonic()
