"""The finished runs of a sweep at finite d in one file, and the state of the run under way beside it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amp_attention.checkpoints import (
    Checkpoint,
    CheckpointError,
    document_from_bytes,
    document_to_bytes,
    read_checkpoint,
    write_checkpoint,
)
from amp_attention.experiments._runs import FiniteRun


class RunStore:
    """Where a sweep keeps what it has done: each run as it finishes, the one under way every so many seconds.

    The file at `path` holds the finished runs, `path` with a number appended the state of the engine in the run of
    that number. Both are written whole or not at all. As for `Checkpoint`, a file that is there is refused without
    `resume`, and with it one of another sweep, or a damaged one; it is left as it is.

    Args:
        path: file; its folder must exist.
        fingerprint: of the sweep, in JSON's types: all that its runs depend on besides their keys.
        every: seconds between two writes of the run under way, > 0.
        resume: go on from what is there.

    Raises:
        CheckpointError: when the file must not be used or cannot be written.
    """

    def __init__(self, path: Path, fingerprint: Mapping[str, Any], every: float = 60.0, resume: bool = False):
        self.path, self.fingerprint, self.every = Path(path), dict(fingerprint), every
        self._runs: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            if not resume:
                raise CheckpointError(f"{self.path} exists; resume from it, or choose another name")
            self._runs = document_from_bytes(read_checkpoint(self.path, self.fingerprint))
        self._write()
        for number in range(len(self._runs)):
            self._state(number).unlink(missing_ok=True)

    def run(self, key: str, compute: Callable[[Checkpoint], FiniteRun]) -> FiniteRun:
        """The stored run of this key, or the one that `compute` makes, which may be interrupted and resumed."""
        if key not in self._runs:
            number = len(self._runs)
            run = compute(Checkpoint(self._state(number), every=self.every, resume=True))
            self._runs[key] = vars(run)
            self._write()
            self._state(number).unlink(missing_ok=True)
        return FiniteRun(**self._runs[key])

    def __contains__(self, key: str) -> bool:
        """Whether the run of this key has finished."""
        return key in self._runs

    def _state(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _write(self) -> None:
        write_checkpoint(self.path, self.fingerprint, document_to_bytes(self._runs))
