"""What engines at finite d leave behind."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class FiniteRun:
    """One engine on one instance.

    Attributes:
        record: the numbers by name.
        S: the learned matrix; None if the engine raised or matrices are not kept.
        eigenvalues: of S, ascending.
        history: of AMP, q, m and V over iterations 0, 1, ...
    """

    record: dict[str, Any]
    S: np.ndarray | None = None
    eigenvalues: np.ndarray | None = None
    history: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class FinitePoint:
    """All repeats of one engine at one problem: `record` for files, `runs` with their arrays."""

    record: dict[str, Any]
    runs: list[FiniteRun]
