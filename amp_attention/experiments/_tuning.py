"""The best λ̃ along a grid of α."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from amp_attention._solution import RESULTS, result_message, result_name
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._records import number, solution_document, solution_from
from amp_attention.experiments._store import NOT_STORED, Steps
from amp_attention.experiments._theory import TheorySettings, TheorySweep
from amp_attention.problem import AttentionProblem
from amp_attention.tuning import Optimum, optimise

COLLAPSE = "S = 0 from lam_opt on, where the observable is constant: every larger λ̃ is as good"


@dataclass(frozen=True)
class TuningPoint:
    """The optimum at one α, with its `record` for files."""

    record: dict[str, Any]
    optimum: Optimum


def tuning_sweep(
    problems: Iterable[AttentionProblem],
    of: str = "test_error",
    settings: TheorySettings = TheorySettings(),
    *,
    bounds: tuple[float, float] = (1e-5, 1e2),
    tolerance: float = 1e-8,
    grid: Iterable[float] = (),
    store: Steps = NOT_STORED,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[TuningPoint]:
    """λ̃*(α), each from the one before.

    Args:
        problems: one an α.
        of: a field of `FixedPoint`.
        settings: how state evolution is solved.
        bounds: smallest and largest λ̃.
        tolerance: on |dE/dλ̃|.
        grid: more values of λ̃ for `curve`.
        store: keeps what is found, for instance a `SweepStore`.
        progress: told what is about to run.

    Yields:
        A `TuningPoint` each: `lam_opt`, `value`, `test_error`, `gradient`, `curvature`, `bound`, `solves` (those of the
        optimum alone), `collapse` and `curve`, the observable at all values of λ̃ visited. Where `collapse`, S = 0 from
        `lam_opt` on and the observable is constant there; `message` says so, though the `result` is a success.
    """
    sweep, grid = TheorySweep(settings, store), sorted(grid)
    options = {"of": of, "bounds": bounds, "tolerance": tolerance} | search_options(settings)
    last: Optimum | None = None
    for problem in problems:
        progress("optimum")
        search = partial(_search, problem, last, sweep.nodes_for(problem), options)
        optimum = _optimum(problem, store.step(f"optimum at alpha {number(problem.alpha)!r}", search))
        last = optimum if optimum.successful else last
        progress("curve")
        record = _record(problem, optimum) | {"of": of, "curve": _curve(problem, optimum, sweep, of, grid)}
        yield TuningPoint(record, optimum)


def _search(problem: AttentionProblem, last: Optimum | None, nodes, options: Mapping[str, Any]) -> dict[str, Any]:
    """The optimum, looked for from the last one, in names and numbers."""
    if last is not None and last.solution is not None:
        options, problem = {**options, "start": last.solution.value}, problem_at(problem, lam=last.x)
    found = optimise(problem, nodes, **options)
    solution = None if found.solution is None else solution_document(found.solution)
    return vars(found) | {"problem": None, "result": result_name(found.result), "solution": solution}


def _optimum(problem: AttentionProblem, found: dict[str, Any]) -> Optimum:
    """The optimum that `_search` describes."""
    solution, at = None, problem
    if found["solution"] is not None:
        solution, at = solution_from(found["solution"]), problem_at(problem, lam=found["x"])
    visited = tuple((lam, value) for lam, value in found["visited"])
    whole = {"problem": at, "solution": solution, "visited": visited, "result": getattr(RESULTS, found["result"])}
    return Optimum(**found | whole)


def search_options(settings: TheorySettings) -> dict[str, Any]:
    """Of the solver in a search along λ̃, whose tolerance is that of the search: those that were given."""
    given = {"max_steps": settings.max_iterations, "damping": settings.damping}
    return {name: value for name, value in given.items() if value is not None}


def _record(problem: AttentionProblem, optimum: Optimum) -> dict[str, Any]:
    name = result_name(optimum.result)
    record: dict[str, Any] = {"alpha": number(problem.alpha), "result": name}
    if not optimum.successful:
        record["message"] = result_message(optimum.result)
    elif optimum.collapse:
        record["message"] = COLLAPSE
    point = None if optimum.solution is None else optimum.solution.value
    return record | {
        "lam_opt": optimum.x,
        "value": optimum.value,
        "test_error": number(getattr(point, "test_error", None)),
        "gradient": optimum.gradient,
        "curvature": optimum.curvature,
        "bound": optimum.bound,
        "collapse": optimum.collapse,
        "solves": optimum.solves,
        "replicon": number(getattr(point, "replicon", None)),
        "stable": None if point is None else bool(point.stable),
        "lam": optimum.x,
    }


def _curve(problem, optimum: Optimum, sweep: TheorySweep, of: str, grid: list[float]) -> list[dict[str, float]]:
    """Observable against λ̃, where it was evaluated and on the grid asked for."""
    points = list(optimum.visited)
    for lam in grid:
        solved = sweep.solve(problem_at(problem, lam=lam))
        points += [(lam, solved.record[of])] if solved.successful else []
    return [{"lam": lam, "value": value} for lam, value in sorted(points)]
