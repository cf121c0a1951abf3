"""Phases of the learned matrix on a grid of (α, λ̃), and the lines between them."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from amp_attention.boundaries import Margin, collapse_lam, crossing, margins
from amp_attention.experiments._grid import problem_at
from amp_attention.experiments._records import number
from amp_attention.experiments._store import NOT_STORED, Steps
from amp_attention.experiments._theory import TheoryPoint, TheorySettings, TheorySweep
from amp_attention.experiments._tuning import search_options
from amp_attention.problem import AttentionProblem
from amp_attention.spectral_laws import FiniteLaw
from amp_attention.spectrum import phase_name


@dataclass(frozen=True)
class PhasePoint:
    """One point of the grid, with its `record` for files: the fixed point and its `phase`."""

    record: dict[str, Any]
    theory: TheoryPoint


@dataclass
class PhaseDiagram:
    """Fixed points on a grid, row by row, and the boundaries between neighbours in λ̃.

    Attributes:
        settings: how state evolution is solved.
        outliers: of how many of the largest eigenvalues of a list the detachment is followed.
        boundaries: by name, pairs [α, λ̃] in the order of α; filled row by row.
    """

    settings: TheorySettings = field(default_factory=TheorySettings)
    outliers: int = 0
    boundaries: dict[str, list[list[float]]] = field(default_factory=dict)

    def rows(
        self,
        grid: Sequence[Sequence[AttentionProblem]],
        progress: Callable[[str], None] = lambda _: None,
        store: Steps = NOT_STORED,
    ) -> Iterator[PhasePoint]:
        """The points of one row of λ̃ after the other, each row with its boundaries.

        Args:
            grid: rows of equal α, with λ̃ ascending or descending.
            progress: told what is about to run.
            store: keeps what is found, for instance a `SweepStore`.

        Yields:
            A `PhasePoint` each.
        """
        sweep = TheorySweep(self.settings, store)
        found: Mapping[str, Margin] = margins(self._followed(grid[0][0]))
        self.boundaries |= {name: [] for name in ("collapse", *found)}
        for row in grid:
            points = []
            for problem in row:
                theory = sweep.solve(problem)
                points.append(PhasePoint(theory.record | {"phase": _phase(theory)}, theory))
                yield points[-1]
            progress("boundaries")
            crossed = partial(self._crossings, [point.theory for point in points], found, sweep.nodes_for(row[0]))
            for name, lams in store.step("boundaries", crossed).items():
                self.boundaries[name] += [[number(row[0].alpha), lam] for lam in lams]

    def _followed(self, problem: AttentionProblem) -> int:
        law = problem.target.law
        return min(self.outliers, law.eigenvalues.shape[0]) if isinstance(law, FiniteLaw) else 0

    def _crossings(self, points: Sequence[TheoryPoint], found: Mapping[str, Margin], nodes) -> dict[str, list[float]]:
        """By boundary, the λ̃ at which it crosses a row."""
        solved = sorted((p for p in points if p.successful and p.record["lam"] > 0), key=lambda p: p.record["lam"])
        options = search_options(self.settings)
        crossings = {"collapse": [number(collapse_lam(points[0].problem, nodes))]}
        for name, margin in found.items():
            lams = [_between(low, high, margin, nodes, options) for low, high in itertools.pairwise(solved)]
            crossings[name] = [lam for lam in lams if math.isfinite(lam)]
        return crossings


def _phase(theory: TheoryPoint) -> str | None:
    if not theory.successful:
        return None
    value = theory.value
    return phase_name(theory.problem.target.law, value.delta, value.epsilon)


def _between(low: TheoryPoint, high: TheoryPoint, margin: Margin, nodes, options: dict[str, Any]) -> float:
    """λ̃ at which the margin changes sign between two neighbours; NaN if it does not."""
    ends = [number(margin(point.problem, point.value)) for point in (low, high)]
    if low.value.q == 0 or not ends[0] * ends[1] < 0:
        return math.nan
    bounds = (low.record["lam"], high.record["lam"])
    weight = ends[0] / (ends[0] - ends[1])  # the secant
    start = problem_at(low.problem, lam=bounds[0] + weight * (bounds[1] - bounds[0]))
    return crossing(start, nodes, margin, bounds=bounds, increasing=ends[1] > 0, start=low.value, **options).x
