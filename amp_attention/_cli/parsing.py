"""From text to numbers, with one sentence naming option, value and range when it cannot be done.

Nothing here imports JAX: `--help` and most mistakes are answered before it is loaded.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cyclopts import Parameter

LARGEST_LIST = 100_000
LARGEST_WHOLE = 2**63 - 1

RANGES: dict[str, Callable[[float], bool]] = {
    "> 0": lambda x: x > 0,
    ">= 0": lambda x: x >= 0,
    ">= 1": lambda x: x >= 1,
    "in [0, 1)": lambda x: 0 <= x < 1,
}


class UsageError(Exception):
    """Wrong arguments or unreadable input: printed as one sentence, exit status 2."""


class RunError(Exception):
    """What failed while the program ran and is no argument's fault: printed as one sentence, exit status 1."""


def parse_number(name: str, text: str, allowed: str) -> float:
    """One finite real number in the range `allowed`, a key of `RANGES`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not RANGES[allowed](value):
        raise UsageError(f"{name} must be a finite number {allowed}, got {text!r}.")
    return value


def parse_whole(name: str, text: str, allowed: str) -> int:
    """One whole number in the range `allowed`; 1e5 is understood."""
    try:
        whole = int(text)
        valid = True
    except ValueError:
        whole, valid = _whole_float(text)
    if valid and whole > LARGEST_WHOLE:
        raise UsageError(f"{name} must be a whole number {allowed} and <= {LARGEST_WHOLE} (2^63 - 1), got {text!r}.")
    if not valid or not RANGES[allowed](whole):
        raise UsageError(f"{name} must be a whole number {allowed}, got {text!r}.")
    return whole


def _whole_float(text: str) -> tuple[int, bool]:
    try:
        value = float(text)
    except ValueError:
        return 0, False
    valid = math.isfinite(value) and value == int(value) and abs(value) < 2**53
    return (int(value), True) if valid else (0, False)


def parse_values(name: str, text: str, allowed: str) -> tuple[float, ...]:
    """A list: `0.1,0.2,0.5`, `0.1:2:20` (20 values, linear) or `0.1:2:20:log`; the two forms mix by commas.

    Args:
        name: the option, for the error message.
        text: what the user typed.
        allowed: the range of every value, a key of `RANGES`.

    Returns:
        The values, in the order given.

    Raises:
        UsageError: a value is not a finite number in range, or the list has more than 100 000 values.
    """
    values: list[float] = []
    for part in text.split(","):
        values += _range(name, part, allowed) if ":" in part else [parse_number(name, part, allowed)]
    if len(values) > LARGEST_LIST:
        raise UsageError(f"{name} must be a list of at most {LARGEST_LIST} values, got {len(values)}.")
    return tuple(values)


def _range(name: str, text: str, allowed: str) -> list[float]:
    form = f"{name} must be a list like 0.1,0.2, 0.1:2:20 or 0.1:2:20:log, got {text!r}."
    pieces = text.split(":")
    if len(pieces) not in (3, 4) or pieces[3:] not in ([], ["log"]):
        raise UsageError(form)
    low, high = parse_number(name, pieces[0], allowed), parse_number(name, pieces[1], allowed)
    count = parse_whole(f"{name} (number of values in {text!r})", pieces[2], ">= 1")
    if count > LARGEST_LIST:
        raise UsageError(f"{name} must be a list of at most {LARGEST_LIST} values, got {text!r}.")
    if pieces[3:] != ["log"]:
        return _linear(low, high, count)
    if low <= 0 or high <= 0:
        raise UsageError(f"{name} must be > 0 in a logarithmic range, got {text!r}.")
    return list(logarithmic(low, high, count))


def logarithmic(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` values from low to high, equally spaced in the logarithm."""
    inner = _linear(math.log(low), math.log(high), count)[1:-1]
    return (low, *map(math.exp, inner), high)[:count]


def _linear(low: float, high: float, count: int) -> list[float]:
    steps = max(count - 1, 1)
    return [low, *(low + (high - low) * i / steps for i in range(1, steps)), high][:count]


def option(help: str, **kwargs: Any) -> Parameter:
    """A plain option with its help text."""
    return Parameter(help=help, **kwargs)


def flag(help: str, **kwargs: Any) -> Parameter:
    """A switch without a `--no-` form."""
    return Parameter(help=help, negative="", **kwargs)


def number(help: str, allowed: str, **kwargs: Any) -> Parameter:
    """A real number in the range `allowed`."""
    return _converted(help, allowed, parse_number, **kwargs)


def whole(help: str, allowed: str, **kwargs: Any) -> Parameter:
    """A whole number in the range `allowed`."""
    return _converted(help, allowed, parse_whole, **kwargs)


def values(help: str, allowed: str, **kwargs: Any) -> Parameter:
    """A list of real numbers in the range `allowed`."""
    return _converted(help, allowed, parse_values, n_tokens=1, negative="", metavar="LIST", **kwargs)


def path(help: str, **kwargs: Any) -> Parameter:
    """A file or folder; an empty text, which stands for the current folder elsewhere, is refused."""

    def convert(_: Any, tokens: Sequence[Any]) -> Path:
        token = _only(tokens)
        if not token.value:
            raise UsageError(f"{token.keyword} must be a non-empty path, got ''.")
        return Path(token.value)

    return Parameter(help=help, converter=convert, **kwargs)


def _only(tokens: Sequence[Any]) -> Any:
    """The token of an option that may be given once."""
    if len(tokens) > 1:
        values = ", ".join(token.value for token in tokens)
        raise UsageError(f"{tokens[0].keyword} specified multiple times: it must be given once, got {values}.")
    return tokens[0]


def _converted(help: str, allowed: str, parse: Callable[[str, str, str], Any], **kwargs: Any) -> Parameter:
    def convert(_: Any, tokens: Sequence[Any]) -> Any:
        token = _only(tokens)
        return parse(token.keyword or "argument", token.value, allowed)

    return Parameter(help=help, converter=convert, allow_leading_hyphen=True, **kwargs)
