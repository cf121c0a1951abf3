"""What the settings of every engine have in common, and their checks."""

from dataclasses import dataclass
from typing import Any

from amp_attention.numerics.validation import LARGEST_SEED, fraction, positive, whole_number


@dataclass(frozen=True, kw_only=True)
class SolverSettings:
    """Settings of any engine.

    Attributes:
        seed: of all that is random.
        tolerance: that the engine stops at; None for the engine's default.
        max_iterations: None for the engine's default.
        damping: weight of the old iterate; None for automatic.
        kappa: student width p/d.
        devices: number of devices.

    Raises:
        ValueError: for numbers out of range.
    """

    seed: int = 0
    tolerance: float | None = None
    max_iterations: int | None = None
    damping: float | None = None
    kappa: float = 1.0
    devices: int = 1

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, 0, LARGEST_SEED)
        whole_number("devices", self.devices, 1)
        positive("kappa", self.kappa)
        checks: dict[str, Any] = {"tolerance": positive, "damping": fraction, "max_iterations": _at_least_one}
        for name, check in checks.items():
            if getattr(self, name) is not None:
                check(name, getattr(self, name))


def _at_least_one(name: str, value: int) -> None:
    whole_number(name, value, 1)
