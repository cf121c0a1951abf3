"""The program `amp-attention`: one command per question, no mathematics.

Nothing here imports JAX until a command has accepted its options.
"""

import errno
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError

from amp_attention._cli.checks import (
    check_alone,
    check_bayes,
    check_data,
    check_estimate,
    check_estimator,
    check_finite,
    check_observable,
    check_problem,
    check_spectrum,
    check_targets,
    check_tuning,
    check_unavailable,
    check_without,
)
from amp_attention._cli.environment import prepare
from amp_attention._cli.options import (
    ANALYSIS,
    INSTANCES,
    OUTPUT,
    SOLVER,
    BayesOptions,
    BayesRequest,
    CheckpointOptions,
    EstimatorOptions,
    InstanceOptions,
    NodeOptions,
    ObservableOptions,
    OutputOptions,
    ProblemOptions,
    Request,
    SolverOptions,
    TargetOptions,
    TargetRequest,
    TrainingOptions,
)
from amp_attention._cli.parsing import RunError, UsageError, flag, number, option, path, whole
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

_UNUSABLE = {errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP, errno.ENOTDIR, errno.EPERM}  # paths that nobody can open
_arguments: list[str] = []  # of the running command, as typed


@app.command(name="state-evolution")
def state_evolution(
    *,
    problem: ProblemOptions = ProblemOptions(),
    nodes: NodeOptions = NodeOptions(),
    solver: SolverOptions = SolverOptions(),
    checkpoints: CheckpointOptions = CheckpointOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """What does training find at d → ∞? Solves the state evolution on a grid of (alpha, lam)."""
    request = Request("state-evolution", problem, solver, output, nodes, checkpoints=checkpoints)
    check_unavailable(request)
    check_problem(request)
    prepare(solver.dtype, solver.devices, solver.distributed, output.quiet)
    from amp_attention._cli import build, figures, results
    from amp_attention.experiments import state_evolution_sweep

    grid, settings = build.problems(request), build.theory_settings(request)
    found = results.Results(request, _arguments)
    store = build.sweep_store(request)
    points = lambda _: state_evolution_sweep(grid, settings, store=store)  # noqa: E731
    return found.answer(points, len(grid), figures.theory_figures, store)


@app.command
def amp(
    *,
    problem: ProblemOptions = ProblemOptions(),
    instance: InstanceOptions = InstanceOptions(),
    data: Annotated[
        Path | None,
        path(
            "Tokens X and labels y from this .npz file, or X from a .npy file that may exceed memory.", group=INSTANCES
        ),
    ] = None,
    labels: Annotated[Path | None, path("Labels y for --data X.npy, from this .npy file.", group=INSTANCES)] = None,
    save_estimate: Annotated[Path | None, path("Write the learned S to this .npy file.", group=OUTPUT)] = None,
    estimator: EstimatorOptions = EstimatorOptions(),
    solver: SolverOptions = SolverOptions(),
    checkpoints: CheckpointOptions = CheckpointOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """What does AMP find at finite d, on drawn instances or on your own data?

    With --estimator bayes, the posterior mean of S0: there is no lam, and the grid is --alpha.
    """
    parts = {"instance": instance, "checkpoints": checkpoints, "estimator": estimator}
    request = Request("amp", problem, solver, output, **parts)
    check_estimator(request, data)
    check_unavailable(request)
    check_problem(request)
    check_finite(request)
    check_estimate(save_estimate, request)
    check_data(problem, instance, data, labels)
    files = [path for path in (data, labels) if path is not None]
    return _finite(request, files, save_estimate)


@app.command
def train(
    *,
    problem: ProblemOptions = ProblemOptions(),
    instance: InstanceOptions = InstanceOptions(),
    training: TrainingOptions = TrainingOptions(),
    solver: SolverOptions = SolverOptions(),
    checkpoints: CheckpointOptions = CheckpointOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """What does gradient training of the weights reach on the same instances?"""
    request = Request("train", problem, solver, output, NodeOptions(), instance, training, checkpoints=checkpoints)
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
    bound: Annotated[
        Literal["bayes"] | None,
        option(
            "bayes: also the least squared_error and test_error of any estimator, a bound for students of every beta; "
            "dashed in the learning curves.",
            group=INSTANCES,
        ),
    ] = None,
    nodes: NodeOptions = NodeOptions(),
    solver: SolverOptions = SolverOptions(),
    checkpoints: CheckpointOptions = CheckpointOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """Do theory, AMP and training agree? The three on one grid, with figures."""
    request = Request("compare", problem, solver, output, nodes, instance, training, {"bound": bound}, checkpoints)
    check_unavailable(request)
    check_without(without, training)
    check_problem(request)
    check_finite(request)
    prepare(solver.dtype, solver.devices, solver.distributed, output.quiet)
    from amp_attention import experiments
    from amp_attention._cli import build, figures, results

    grid, theory, finite = build.problems(request), build.theory_settings(request), build.finite_settings(request)
    build.warn_if_another_target(grid[0].target.law, finite.d)
    engines = ("amp",) if without == "train" else ("amp", "train")
    best = experiments.BayesSweep(seed=solver.seed) if bound == "bayes" else None
    found = results.Results(request, _arguments)
    found.parameters |= {"d": finite.d, "repeats": finite.repeats}
    store = build.sweep_store(request, engines=engines)
    options = {"engines": engines, "bound": best, "store": store}
    return found.answer(
        lambda tell: experiments.compare(grid, theory, finite, progress=tell, **options),
        len(grid),
        lambda points, parameters: figures.comparison_figures(points, parameters, theory, best),
        store,
    )


@app.command
def sensitivity(
    *,
    problem: ProblemOptions = ProblemOptions(),
    observable: ObservableOptions = ObservableOptions(),
    finite_d: Annotated[bool, flag("Also the derivative in lam of AMP at --d.", group=ANALYSIS)] = False,
    instance: InstanceOptions = InstanceOptions(),
    nodes: NodeOptions = NodeOptions(),
    solver: SolverOptions = SolverOptions(),
    checkpoints: CheckpointOptions = CheckpointOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """How does a prediction change with every number of the problem? Exact derivatives at each fixed point."""
    analysis = {"of": observable.of, "finite_d": finite_d}
    check_observable(observable.of)
    request = Request(
        "sensitivity", problem, solver, output, nodes, instance, analysis=analysis, checkpoints=checkpoints
    )
    check_unavailable(request)
    check_problem(request)
    if finite_d:
        check_finite(request, beside="--finite-d")
    else:
        check_alone("without --finite-d", instance)
    prepare(solver.dtype, solver.devices, solver.distributed, output.quiet)
    from amp_attention._cli import build, figures, results
    from amp_attention.experiments import sensitivity_sweep

    grid, settings = build.problems(request), build.theory_settings(request)
    finite, gamma = build.finite_settings(request) if finite_d else None, build.gamma_chain(request)
    found = results.Results(request, _arguments)
    options = {"finite": finite, "gamma": gamma, "store": build.sweep_store(request)}
    return found.answer(
        lambda tell: sensitivity_sweep(grid, observable.of, settings, progress=tell, **options),
        len(grid),
        figures.sensitivity_figures,
        options["store"],
    )


@app.command
def tune(
    *,
    problem: ProblemOptions = ProblemOptions(),
    observable: ObservableOptions = ObservableOptions(),
    gradient_tolerance: Annotated[
        float | None,
        number(
            "On the derivative of the observable in lam, > 0. [default: 1e-8; float32: 1e-4]", "> 0", group=ANALYSIS
        ),
    ] = None,
    nodes: NodeOptions = NodeOptions(),
    solver: SolverOptions = SolverOptions(),
    checkpoints: CheckpointOptions = CheckpointOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """Which lam is best at each alpha? Newton on the exact derivative.

    One value of --lam is the first guess; of a list, the ends are the bounds and `curve` has all of it.
    """
    tolerance = gradient_tolerance or (1e-8 if solver.dtype == "float64" else 1e-4)
    analysis = {"of": observable.of, "gradient_tolerance": tolerance}
    check_observable(observable.of)
    request = Request("tune", problem, solver, output, nodes, analysis=analysis, checkpoints=checkpoints)
    check_unavailable(request)
    check_problem(request)
    check_tuning(request)
    request.analysis.update(problem.search())
    prepare(solver.dtype, solver.devices, solver.distributed, output.quiet)
    from amp_attention._cli import build, figures, results
    from amp_attention.experiments import tuning_sweep

    (grid, options), settings = build.tuning(request), build.theory_settings(request)
    found = results.Results(request, _arguments)
    options |= {"tolerance": tolerance, "store": build.sweep_store(request)}
    return found.answer(
        lambda tell: tuning_sweep(grid, observable.of, settings, progress=tell, **options),
        len(grid),
        figures.tuning_figures,
        options["store"],
    )


@app.command
def thresholds(
    *,
    target: TargetOptions = TargetOptions(),
    dtype: Annotated[Literal["float64", "float32"], option("Floating-point type.", group=SOLVER)] = "float64",
    output: OutputOptions = OutputOptions(),
) -> int:
    """How many samples per d² for interpolation, perfect recovery, Bayes-optimal recovery? With derivatives."""
    request = TargetRequest("thresholds", target, dtype, output)
    check_targets(request)
    prepare(dtype)
    from amp_attention._cli import build, figures, results
    from amp_attention.experiments import threshold_sweep

    targets = build.targets(request)
    found = results.Results(request, _arguments)
    return found.answer(lambda _: threshold_sweep(targets), len(targets), figures.threshold_figures)


@app.command
def bayes(
    *,
    options: BayesOptions = BayesOptions(),
    dtype: Annotated[Literal["float64", "float32"], option("Floating-point type.", group=SOLVER)] = "float64",
    output: OutputOptions = OutputOptions(),
) -> int:
    """How well can any estimator do? The Bayes-optimal errors along α, or along the curve α(D)."""
    request = BayesRequest("bayes", options, dtype, output)
    check_bayes(request)
    prepare(dtype)
    from amp_attention._cli import build, figures, results
    from amp_attention.experiments import bayes_sweep

    target, noises = build.bayes_target(request), options.effective_noise or ()
    found = results.Results(request, _arguments)
    return found.answer(
        lambda _: bayes_sweep(
            target, options.alphas(), noises, nodes=options.nodes, replicas=options.replicas, seed=options.seed
        ),
        len(options.alphas()) + len(noises),
        lambda points, parameters: figures.bayes_figures(points, parameters, target.law),
    )


@app.command
def spectrum(
    *,
    problem: ProblemOptions = ProblemOptions(),
    engine: Annotated[Literal["amp", "train"], option("What finds S at --d.", group=INSTANCES)] = "amp",
    instance: InstanceOptions = InstanceOptions(),
    training: TrainingOptions = TrainingOptions(),
    nodes: NodeOptions = NodeOptions(),
    solver: SolverOptions = SolverOptions(),
    checkpoints: CheckpointOptions = CheckpointOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """What is the spectrum of the learned weights? Density, atom, outliers and phase; with --d, beside eigenvalues."""
    request = Request("spectrum", problem, solver, output, nodes, instance, training, {"engine": engine}, checkpoints)
    check_unavailable(request)
    check_problem(request)
    check_spectrum(request)
    prepare(solver.dtype, solver.devices, solver.distributed, output.quiet)
    from amp_attention._cli import build, figures, results
    from amp_attention.experiments import spectrum_sweep

    grid, settings = build.problems(request), build.theory_settings(request)
    finite = None if instance.d is None else build.finite_settings(request)
    found = results.Results(request, _arguments)
    if finite is not None:
        build.warn_if_another_target(grid[0].target.law, finite.d)
        found.parameters |= {"d": finite.d, "repeats": finite.repeats}
    store = build.sweep_store(request)
    return found.answer(
        lambda tell: spectrum_sweep(grid, settings, finite=finite, engine=engine, store=store, progress=tell),
        len(grid),
        lambda points, parameters: figures.spectrum_figures(points, parameters, engine),
        store,
    )


@app.command(name="phase-diagram")
def phase_diagram(
    *,
    problem: ProblemOptions = ProblemOptions(),
    outliers: Annotated[
        int, whole("Follow the detachment of the largest eigenvalues of a list.", ">= 0", group=ANALYSIS)
    ] = 3,
    nodes: NodeOptions = NodeOptions(),
    solver: SolverOptions = SolverOptions(),
    checkpoints: CheckpointOptions = CheckpointOptions(),
    output: OutputOptions = OutputOptions(),
) -> int:
    """Which phase is the learned spectrum in, and where are the boundaries?

    Without lists, --alpha is 0.05:2:12:log and --lam 0.01:1:12:log.
    """
    problem = problem.on_grid(alpha=(0.05, 2.0), lam=(0.01, 1.0), count=12)
    analysis = {"outliers": outliers}
    request = Request("phase-diagram", problem, solver, output, nodes, analysis=analysis, checkpoints=checkpoints)
    check_unavailable(request)
    check_problem(request)
    prepare(solver.dtype, solver.devices, solver.distributed, output.quiet)
    from amp_attention._cli import build, figures, results
    from amp_attention.experiments import PhaseDiagram

    grid, settings = build.problems(request), build.theory_settings(request)
    diagram = PhaseDiagram(settings, outliers)
    found = results.Results(request, _arguments)
    found.extras = {"boundaries": diagram.boundaries}
    store = build.sweep_store(request)
    rows = [grid[i : i + len(problem.lams())] for i in range(0, len(grid), len(problem.lams()))]
    return found.answer(
        lambda tell: diagram.rows(rows, tell, store),
        len(grid),
        lambda points, parameters: figures.phase_figures(points, parameters, diagram.boundaries),
        store,
    )


def _finite(request: Request, data: Sequence[Path] = (), save_estimate: Path | None = None) -> int:
    """`amp` and `train`: one engine on drawn instances, or on data from a file or two."""
    prepare(request.solver.dtype, request.solver.devices, request.solver.distributed, request.output.quiet)
    from amp_attention._cli import build, figures, results

    setup = build.data_setup(request, data) if data else build.finite_setup(request)
    if save_estimate is not None:
        setup = setup.keeping_matrices()
    found = results.Results(request, _arguments, setup.overrides)
    found.parameters |= {"d": setup.settings.d, "repeats": setup.settings.repeats}
    store = build.sweep_store(request, setup.overrides, setup.files, matrices=setup.settings.keep_matrices)
    status = found.answer(
        lambda tell: setup.points(request.command, store, tell),
        len(setup.problems),
        lambda points, parameters: figures.finite_figures(request.command, points, parameters, setup.posterior),
        store,
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
    except RunError as error:
        say(f"amp-attention: {' '.join(str(error).split())}")
        return 1
    except KeyboardInterrupt:
        say("amp-attention: interrupted.")
        return 130
    except OSError as error:
        if error.filename is None:
            abandon_stdout(error)
            return 1
        if error.errno not in _UNUSABLE:
            raise
        say(f"amp-attention: {error.filename} cannot be used: {error.strerror}.")
        return 2


def main() -> None:
    """Entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
