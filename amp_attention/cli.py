"""The program `amp-attention`: one command per question, no mathematics.

Nothing here imports JAX until a command has accepted its options.
"""

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError

from amp_attention._cli.checks import (
    check_data,
    check_estimate,
    check_finite,
    check_problem,
    check_unavailable,
    check_without,
)
from amp_attention._cli.environment import prepare
from amp_attention._cli.options import (
    INSTANCES,
    OUTPUT,
    InstanceOptions,
    NodeOptions,
    OutputOptions,
    ProblemOptions,
    Request,
    SolverOptions,
    TrainingOptions,
)
from amp_attention._cli.parsing import UsageError, option, path
from amp_attention._cli.streams import abandon_stdout, replace_closed_streams, say


def installed_version() -> str:
    """The version of the installed package."""
    try:
        return importlib.metadata.version("amp-attention")
    except importlib.metadata.PackageNotFoundError:
        return "unknown: amp-attention is not installed"


app = App(
    name="amp-attention",
    help="Approximate message passing, state evolution and training of tied softmax attention, side by side.",
    version=installed_version,
    help_format="plaintext",
)

_arguments: list[str] = []  # of the running command, as typed


@app.command(name="state-evolution")
def state_evolution(
    *,
    problem: ProblemOptions = ProblemOptions(),
    nodes: NodeOptions = NodeOptions(),
    solver: SolverOptions = SolverOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """What does training find at d → ∞? Solves the state evolution on a grid of (alpha, lam)."""
    request = Request("state-evolution", problem, solver, output, nodes=nodes)
    check_unavailable(request)
    check_problem(request)
    prepare(solver.dtype)
    from amp_attention._cli import build, figures, results
    from amp_attention.experiments import state_evolution_sweep

    grid, settings = build.problems(request), build.theory_settings(request)
    found = results.Results(request, _arguments)
    return found.answer(lambda _: state_evolution_sweep(grid, settings), len(grid), figures.theory_figures)


@app.command
def amp(
    *,
    problem: ProblemOptions = ProblemOptions(),
    instance: InstanceOptions = InstanceOptions(),
    data: Annotated[Path | None, path("Tokens X and labels y from this .npz file.", group=INSTANCES)] = None,
    save_estimate: Annotated[Path | None, path("Write the learned S to this .npy file.", group=OUTPUT)] = None,
    estimator: Annotated[Literal["erm", "bayes"], option("What AMP estimates.", show=False)] = "erm",
    schedule: Annotated[Literal["se", "empirical"] | None, option("Of --estimator bayes.", show=False)] = None,
    solver: SolverOptions = SolverOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """What does AMP find at finite d, on drawn instances or on your own data?"""
    request = Request("amp", problem, solver, output, instance=instance)
    check_unavailable(request, estimator, schedule)
    check_problem(request)
    check_finite(request)
    check_estimate(save_estimate, request)
    if data is not None:
        check_data(problem, instance, data)
    return _finite(request, data, save_estimate)


@app.command
def train(
    *,
    problem: ProblemOptions = ProblemOptions(),
    instance: InstanceOptions = InstanceOptions(),
    training: TrainingOptions = TrainingOptions(),
    solver: SolverOptions = SolverOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """What does gradient training of the weights reach on the same instances?"""
    request = Request("train", problem, solver, output, instance=instance, training=training)
    check_unavailable(request)
    check_problem(request)
    check_finite(request)
    return _finite(request)


@app.command
def compare(
    *,
    problem: ProblemOptions = ProblemOptions(),
    instance: InstanceOptions = InstanceOptions(),
    training: TrainingOptions = TrainingOptions(),
    without: Annotated[Literal["train"] | None, option("Leave this engine out.", group=INSTANCES)] = None,
    bound: Annotated[Literal["bayes"] | None, option("Add this line to the learning curve.", show=False)] = None,
    nodes: NodeOptions = NodeOptions(),
    solver: SolverOptions = SolverOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """Do theory, AMP and training agree? The three on one grid, with figures."""
    request = Request("compare", problem, solver, output, nodes, instance, training)
    check_unavailable(request, bound=bound)
    check_without(without, training)
    check_problem(request)
    check_finite(request)
    prepare(solver.dtype)
    from amp_attention import experiments
    from amp_attention._cli import build, figures, results

    grid, theory, finite = build.problems(request), build.theory_settings(request), build.finite_settings(request)
    build.warn_if_another_target(grid[0].target.law, finite.d)
    engines = ("amp",) if without == "train" else ("amp", "train")
    found = results.Results(request, _arguments)
    found.parameters |= {"d": finite.d, "repeats": finite.repeats}
    return found.answer(
        lambda tell: experiments.compare(grid, theory, finite, engines=engines, progress=tell),
        len(grid),
        lambda points, parameters: figures.comparison_figures(points, parameters, theory),
    )


def _finite(request: Request, data: Path | None = None, save_estimate: Path | None = None) -> int:
    """`amp` and `train`: one engine on drawn instances, or on data from a file."""
    prepare(request.solver.dtype)
    from amp_attention._cli import build, figures, results

    setup = build.finite_setup(request) if data is None else build.data_setup(request, data)
    if save_estimate is not None:
        setup = setup.keeping_matrices()
    found = results.Results(request, _arguments, setup.overrides)
    found.parameters |= {"d": setup.settings.d, "repeats": setup.settings.repeats}
    status = found.answer(
        lambda tell: setup.points(request.command, tell),
        len(setup.problems),
        lambda points, parameters: figures.finite_figures(request.command, points, parameters),
    )
    if save_estimate is not None and found.points:
        results.save_matrix(save_estimate, found.points[0].runs[0].S)
    return status


def run(arguments: Sequence[str]) -> int:
    """The program without `sys.exit`: parse, answer, and turn what went wrong into a sentence and a status."""
    _arguments[:] = arguments
    replace_closed_streams()
    try:
        status = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return status or 0
    except (UsageError, CycloptsError) as error:
        say(f"amp-attention: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        say("amp-attention: interrupted.")
        return 130
    except OSError as error:
        if error.filename is not None:  # of a file, not of stdout
            raise
        abandon_stdout(error)
        return 1


def main() -> None:
    """Entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
