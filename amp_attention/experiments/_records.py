"""Points as plain records: names, numbers, means with standard errors, and what a failure leaves."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from amp_attention._solution import RESULTS, Solution, result_message, result_name
from amp_attention.state_evolution import FixedPoint

THEORY_NAMES = (
    "Sigma",
    "m",
    "q",
    "Sigma_hat",
    "m_hat",
    "q_hat",
    "delta",
    "epsilon",
    "eta",
    "test_error",
    "train_objective",
    "train_error",
    "free_entropy",
    "squared_error",
    "trace",
    "zero_fraction",
    "rank_fraction",
    "replicon",
)
FINITE_NAMES = (
    "test_error",
    "train_objective",
    "train_error",
    "squared_error",
    "m",
    "q",
    "trace",
    "zero_fraction",
)
AMP_NAMES = ("V", "Gamma")
POSTERIOR_NAMES = ("test_error_plugin",)  # of a posterior mean, besides

SUCCESSFUL = "successful"


def number(value: Any) -> float:
    """One concrete scalar as a Python float; NaN for None."""
    return math.nan if value is None else float(np.asarray(value))


def numbers(source: Any, names: Iterable[str]) -> dict[str, float]:
    """Attributes (or entries) of `source` as floats, NaN where it has none."""
    get = source.get if isinstance(source, Mapping) else lambda name: getattr(source, name, None)
    return {name: number(get(name)) for name in names}


def outcome(solution: Solution) -> dict[str, Any]:
    """`result`, and `message` where it is not a success."""
    name = result_name(solution.result)
    return {"result": name} if name == SUCCESSFUL else {"result": name, "message": result_message(solution.result)}


def solution_document(solution: Solution[FixedPoint]) -> dict[str, Any]:
    """A solution of state evolution in names, numbers and arrays."""
    point, errors = solution.value, solution.value.standard_error
    value = vars(point) | {"standard_error": None if errors is None else vars(errors)}
    return {"result": result_name(solution.result), "value": value, "stats": solution.stats}


def solution_from(document: Mapping[str, Any]) -> Solution[FixedPoint]:
    """The solution that `solution_document` describes."""
    value, errors = document["value"], document["value"]["standard_error"]
    point = FixedPoint(**value | {"standard_error": None if errors is None else FixedPoint(**errors)})
    return Solution(point, getattr(RESULTS, document["result"]), document["stats"])


def failure(error: Exception) -> dict[str, Any]:
    """What an exception inside one point becomes: the sweep goes on."""
    text = " ".join(str(error).split())[:300]
    memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text
    result = RESULTS.refused_by_memory if memory else RESULTS.nonfinite
    return {"result": result_name(result), "message": f"{type(error).__name__}: {text}"}


# What a solver may raise for numerical reasons; a wrong argument or a bug is neither and ends the sweep.
NUMERICAL_ERRORS = (MemoryError, ArithmeticError, np.linalg.LinAlgError, RuntimeError)  # JAX and Equinox raise the last


class LostProcessError(Exception):
    """Of several processes one no longer answers: nothing that they compute together can go on."""


def refuse_lost_process(error: Exception) -> None:
    """What JAX raises at run time in one of several processes is no property of a point.

    Raises:
        LostProcessError: with the reason.
    """
    if jax.process_count() > 1 and isinstance(error, jax.errors.JaxRuntimeError):
        record = failure(error)
        memory = record["result"] == result_name(RESULTS.refused_by_memory)
        what = "this process ran out of memory" if memory else "another process was lost"
        raise LostProcessError(f"{what}: {record['message']}") from error


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any] | None]:
    """(value, None), or (None, the record of the failure) for numerical errors and exhausted memory.

    Raises:
        LostProcessError: when another process does not answer any more.
    """
    try:
        return function(*args, **kwargs), None
    except NUMERICAL_ERRORS as error:
        refuse_lost_process(error)
        return None, failure(error)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of independent repeats; the error of a single one is NaN (unknown)."""
    array = np.asarray(values, float)
    if array.size == 0:
        return math.nan, math.nan
    error = array.std(ddof=1) / math.sqrt(array.size) if array.size > 1 else math.nan
    return float(array.mean()), float(error)


def average(records: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Means over the successful records, their standard errors (None for one repeat), and the joint result.

    An unfinished run has numbers of its own but no part in the means: they would be plausible and wrong.
    """
    good = [record for record in records if record["result"] == SUCCESSFUL]
    bad = [record for record in records if record["result"] != SUCCESSFUL]
    pairs = {name: mean_and_error([record[name] for record in good]) for name in names}
    means: dict[str, Any] = {name: pair[0] for name, pair in pairs.items()}
    means["standard_error"] = {n: pair[1] for n, pair in pairs.items()} if len(records) > 1 else None
    means["result"] = bad[0]["result"] if bad else SUCCESSFUL
    if bad:
        means["message"] = f"{len(bad)} of {len(records)} runs: {bad[0]['message']}"
    return means
