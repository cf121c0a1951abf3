"""Result codes and the container every solver returns."""

from typing import Any, Generic, TypeVar

import equinox as eqx
import equinox.internal as eqxi
import numpy as np

from amp_attention._typing import Array, Bool

Value = TypeVar("Value")


class RESULTS(eqxi.Enumeration):
    """How a solver ended. Convergence only: whether the fixed point is stable is a field of its own."""

    successful = "converged to the requested tolerance"
    max_steps_reached = (
        "the most iterations allowed were reached before the tolerance; raise it, or loosen the tolerance"
    )
    nonfinite = "a non-finite number appeared; the data may contain NaN or infinities"
    diverged = "the iterates grew without bound; add damping or start closer to the solution"
    left_domain = "the iterate left the domain of the equations (an overlap out of range)"
    singular_jacobian = "the linearised equations are singular at the solution"
    integration_error = "the error of the integration exceeds the tolerance; use more nodes, or smoothing"
    refused_by_memory = "the estimated memory exceeds what is available"


class Solution(eqx.Module, Generic[Value]):
    """What a solver found.

    Attributes:
        value: the solution, a pytree of the solver's own.
        result: an item of `RESULTS`; one per lane under `vmap`.
        stats: counts, residuals and timings of the run.
    """

    value: Value
    result: RESULTS
    stats: dict[str, Any]

    @property
    def successful(self) -> Bool[Array, "..."]:
        """Whether the solver converged; derivatives and error bars have meaning only where it did."""
        return self.result == RESULTS.successful


_NAMES = list(RESULTS._name_to_item)
_MESSAGES = list(RESULTS._index_to_message)


def result_name(result: RESULTS) -> str:
    """The name of one concrete result, for tables and files: `successful`, `max_steps_reached`, ..."""
    return _NAMES[int(np.asarray(result._value))]


def result_message(result: RESULTS) -> str:
    """The sentence that explains one concrete result and what to do about it."""
    return _MESSAGES[int(np.asarray(result._value))]
