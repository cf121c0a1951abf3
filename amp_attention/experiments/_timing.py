"""Wall time of a call with compilation counted apart."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

T = TypeVar("T")
_PREFIX = "/jax/core/compile/"
_spans: list[tuple[float, float]] | None = None  # while a call is timed
_listening = False


@dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    Attributes:
        seconds: wall time without compilation.
        compile_seconds: tracing, lowering and compiling (or reading the compilation cache).
    """

    seconds: float
    compile_seconds: float


def _on_event(event: str, duration_secs: float, **_: str | int) -> None:
    if _spans is not None and event.startswith(_PREFIX):
        end = time.perf_counter()
        _spans.append((end - duration_secs, end))


def _listen() -> None:
    global _listening
    if not _listening:
        jax.monitoring.register_event_duration_secs_listener(_on_event)
        _listening = True


def timed(function: Callable[..., T], *args: Any, **kwargs: Any) -> tuple[T, Timing]:
    """Call and wait for the result.

    JAX reports each tracing, lowering and compilation as it ends; the union of these intervals (they nest) is what the
    call spent on compilation, so no engine has to be run twice or compiled by hand.

    Args:
        function: what to call; its result is a pytree.
        *args: passed on.
        **kwargs: passed on.

    Returns:
        The result, ready, and the timing.
    """
    global _spans
    _listen()
    outer, _spans = _spans, []
    start = time.perf_counter()
    try:
        value = jax.block_until_ready(function(*args, **kwargs))
        total = time.perf_counter() - start
        compiling = union_length(_spans)
    finally:
        _spans = outer
    return value, Timing(max(total - compiling, 0.0), compiling)


def union_length(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals (low, high)."""
    length, reached = 0.0, -float("inf")
    for low, high in sorted(spans):
        length += max(high - max(low, reached), 0.0)
        reached = max(reached, high)
    return length
