"""What a sweep has computed so far in one file, from which the same sweep goes on."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amp_attention._solution import RESULTS, result_name
from amp_attention.checkpoints import (
    Checkpoint,
    CheckpointError,
    agreed,
    by_first_process,
    document_from_bytes,
    document_to_bytes,
    read_to_resume,
    write_checkpoint,
)

LATEST = 1.0  # seconds of finished work that a killed process may lose
SHARE = 10  # times the duration of a write that pass before the next: long sweeps do not spend their time on writing


class Steps:
    """The steps of a sweep, computed when they are asked for and kept nowhere.

    A step is a dictionary, a list or a number (see `document_to_bytes`). Where it takes long and was computed before,
    `SweepStore` has it at once.
    """

    def step(self, name: str, compute: Callable[[], Any]) -> Any:
        """What `compute` gives; `name` says what it is."""
        return compute()

    def run(self, name: str, compute: Callable[[Checkpoint | None], Any]) -> Any:
        """The same for an engine at finite d, which may be interrupted in the middle."""
        return self.step(name, lambda: compute(None))

    def close(self) -> None:
        """Nothing is lost after this."""

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *_) -> None:
        self.close()


NOT_STORED = Steps()


class SweepStore(Steps):
    """The steps of a sweep in a file, as they finish: started again, the same sweep computes only what is missing.

    ```python
    fingerprint = run_fingerprint("state-evolution", float, problems=problems, settings=settings)
    with SweepStore("sweep.checkpoint", fingerprint, resume=True) as store:
        points = list(state_evolution_sweep(problems, settings, store=store))
    ```

    A sweep asks for its steps in an order that depends on nothing but its arguments, and each step on nothing but these
    and the steps before it. Hence a sweep that is led again through its stored steps stands where it was interrupted,
    with the same starts for what is left, and ends with the same numbers bit by bit.

    The file at `path` holds the finished steps, `path` with the number of a step appended the state of the engine that
    runs in it. Both are written whole or not at all. As for `Checkpoint`, a file that is there is refused without
    `resume`, and with it that of another sweep, or a damaged one; it is left as it is. The finished steps are written
    at most once a second, and when the context ends. With several processes the first one reads and writes.

    A step that ended for lack of memory is computed again when the sweep is continued, perhaps on a larger machine.

    Args:
        path: file; its folder must exist.
        fingerprint: of the sweep, in JSON's types: all that its steps depend on.
        every: seconds between two writes of the engine under way, > 0; of finished steps too, where it is below 1.
        resume: go on from what is there.

    Raises:
        CheckpointError: when the file must not be used or cannot be written.
    """

    def __init__(self, path: Path | str, fingerprint: Mapping[str, Any], every: float = 60.0, resume: bool = False):
        self.path, self.fingerprint, self.every = Path(path), dict(fingerprint), every
        checkpoint = Checkpoint(path, every=every, resume=resume)
        found = by_first_process(lambda: read_to_resume(checkpoint, self.fingerprint))
        self._new = not found  # no file was there
        self._lines = found.split(b"\n") if found else []  # a step each, with its name
        self._position = 0  # of the next step
        self._left: list[Path] = []  # states of engines whose steps have finished
        self._write()

    def step(self, name: str, compute: Callable[[], Any]) -> Any:
        """What is stored, or what `compute` gives.

        Raises:
            CheckpointError: when another step is stored in this place, or the file cannot be written.
        """
        stored = self._lines[self._position] if self._position < len(self._lines) else None
        if stored is None or _ran_out_of_memory(stored):
            result = compute()
            self._lines[self._position : self._position + 1] = [document_to_bytes([name, result])]
            self._written = min(self._written, self._position)
            if agreed(time.monotonic() >= self._next):
                self._write()
        else:
            there, result = document_from_bytes(stored)
            if there != name:
                raise CheckpointError(f"{self.path} is a checkpoint of another sweep: {there} is there, {name} here")
        self._position += 1
        return result

    def run(self, name: str, compute: Callable[[Checkpoint | None], Any]) -> Any:
        """What is stored, or what `compute` gives; the engine writes its state to the checkpoint that it is given.

        Raises:
            CheckpointError: as `step`, or when a file of that state is there and is not this engine's. A store that has
                just been created, and has no step yet, is then removed.
        """
        state = self.path.with_name(f"{self.path.name}.{self._position}")
        try:
            result = self.step(name, lambda: compute(Checkpoint(state, every=self.every, resume=True)))
        except CheckpointError:
            if self._new and not self._lines:
                _remove(self.path)
            raise
        self._left.append(state)
        self._tidy()
        return result

    def close(self) -> None:
        """Write what is not written yet."""
        if self._written < len(self._lines):
            self._write()
        self._tidy()

    def _write(self) -> None:
        began = time.monotonic()
        by_first_process(lambda: write_checkpoint(self.path, self.fingerprint, b"\n".join(self._lines)))
        self._written, ended = len(self._lines), time.monotonic()
        self._next = ended + max(min(LATEST, self.every), SHARE * (ended - began))

    def _tidy(self) -> None:
        """Remove the states of engines that have finished, once the file has what they found."""
        while self._left and self._written == len(self._lines):
            _remove(self._left.pop())


def _ran_out_of_memory(line: bytes) -> bool:
    """Whether a step ended so: it, or the run or point in it."""
    refused = result_name(RESULTS.refused_by_memory)

    def found(value: Any) -> bool:
        if isinstance(value, Mapping):
            return value.get("result") == refused or any(map(found, value.values()))
        return isinstance(value, list) and any(map(found, value))

    return refused.encode() in line and found(document_from_bytes(line))


def _remove(path: Path) -> None:
    by_first_process(lambda: path.unlink(missing_ok=True))
