"""Newton's method for one number on the host, kept inside a bracket."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class BracketedNewton:
    """Steps towards a root of an increasing function f: f < 0 at `low`, f > 0 at `high`.

    A Newton step that would leave the bracket goes to its end if f has not been evaluated there, else to the middle.

    Attributes:
        low, high: the bracket.
        low_known, high_known: whether f has been evaluated at the end, or is only assumed to have its sign.
        longest: longest step.
    """

    low: float
    high: float
    low_known: bool = False
    high_known: bool = False
    longest: float = float("inf")

    def narrowed(self, t: float, value: float) -> "BracketedNewton":
        """The bracket once f(t) = `value` is known."""
        if value < 0:
            return replace(self, low=t, low_known=True)
        return replace(self, high=t, high_known=True) if value > 0 else self

    def next(self, t: float, value: float, slope: float) -> float:
        """Where to evaluate f after f(t) = `value`, f'(t) = `slope`; downhill by the longest step if slope ≤ 0."""
        downhill = self.longest if value < 0 else -self.longest
        step = -value / slope if slope > 0 else downhill
        target = t + min(max(step, -self.longest), self.longest)
        if target <= self.low:
            return (self.low + self.high) / 2 if self.low_known else self.low
        if target >= self.high:
            return (self.low + self.high) / 2 if self.high_known else self.high
        return target
