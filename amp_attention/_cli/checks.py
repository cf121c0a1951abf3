"""Combinations of options that are refused, before anything expensive is imported or allocated."""

from pathlib import Path

from amp_attention._cli.options import InstanceOptions, ProblemOptions, Request
from amp_attention._cli.parsing import UsageError

LARGEST_GRID = 1_000_000


def refuse(condition: object, sentence: str) -> None:
    """Raise the sentence as a usage error where the condition holds."""
    if condition:
        raise UsageError(sentence)


def check_unavailable(
    request: Request, estimator: str = "erm", schedule: str | None = None, bound: str | None = None
) -> None:
    """The one place for options of the contract whose engine does not exist yet: remove a line when it does."""
    training, instance = request.training, request.instance
    missing = (
        (request.problem.penalty == "frobenius", "--penalty", "frobenius", "nuclear"),
        (training.parameterization != "tied", "--parameterization", training.parameterization, "tied"),
        (training.task != "seq2lab", "--task", training.task, "seq2lab"),
        (estimator != "erm", "--estimator", estimator, "erm"),
        (schedule is not None, "--schedule", schedule, "no value"),
        (bound is not None, "--bound", bound, "no value"),
        (request.solver.devices != 1, "--devices", request.solver.devices, "1"),
        (instance.checkpoint is not None, "--checkpoint", instance.checkpoint, "no value"),
        (instance.checkpoint_every is not None, "--checkpoint-every", instance.checkpoint_every, "no value"),
        (instance.resume, "--resume", "it", "no value"),
    )
    for condition, name, value, accepted in missing:
        refuse(condition, f"{name} must be {accepted} in this version, which has no engine for it, got {value}.")


def check_problem(request: Request) -> None:
    """Target options that contradict each other, and lists whose product is absurd."""
    problem = request.problem
    target = problem.target or "marchenko-pastur"
    if target != "power-law":
        for name in ("gamma", "target_d", "normalise"):
            given = getattr(problem, name)
            refuse(given, f"{_dashed(name)} needs --target power-law, got --target {target}.")
    refuse(
        problem.kappa0 is not None and target != "marchenko-pastur",
        f"--kappa0 needs --target marchenko-pastur, got --target {target}.",
    )
    if target not in ("marchenko-pastur", "power-law"):
        refuse(
            not target.endswith(".npy"),
            f"--target must be marchenko-pastur, power-law or a .npy file of eigenvalues, got {target!r}.",
        )
        check_readable("--target", Path(target))
    size = len(problem.alphas()) * len(problem.lams())
    refuse(size > LARGEST_GRID, f"--alpha and --lam must make a grid of at most {LARGEST_GRID} points, got {size}.")


def check_finite(request: Request) -> None:
    """What only state evolution can do."""
    name = "--lam" if request.problem.weight_decay is None else "--weight-decay"
    refuse(
        min(request.problem.lams()) <= 0,
        f"{name} must be > 0 for {request.command}, got 0: the λ → 0 branch belongs to state-evolution.",
    )
    d = request.instance.d
    refuse(d is not None and d < 2, f"--d must be a whole number >= 2, got {d}.")


def check_data(problem: ProblemOptions, instance: InstanceOptions, file: Path) -> None:
    """Options that the data file answers are refused beside it."""
    given = {"alpha": problem.alpha, "tokens": problem.tokens, **problem.target_options()}
    given |= {"d": instance.d, "repeats": instance.repeats}
    for name, value in given.items():
        refuse(
            value is not None,
            f"{_dashed(name)} must be left out beside --data, whose file fixes it or has no place for it, got {value}.",
        )
    check_readable("--data", file)


def check_readable(name: str, path: Path) -> None:
    """An input file that exists and can be opened."""
    refuse(not path.exists(), f"{name} must be an existing file, got {str(path)!r}.")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"{name} must be a readable file, got {str(path)!r} ({error.strerror}).") from None


def check_estimate(path: Path | None, request: Request) -> None:
    """--save-estimate holds one matrix: one point, one repeat, no foreign file."""
    if path is None:
        return
    points = len(request.problem.lams()) * len(request.problem.alphas()) * (request.instance.repeats or 1)
    refuse(points != 1, f"--save-estimate must have one point and one repeat, got {points} of them.")
    refuse(
        path.exists() and not request.output.overwrite,
        f"--save-estimate must name a new file unless --overwrite is given, got {str(path)!r}, which exists.",
    )
    refuse(not path.absolute().parent.is_dir(), f"--save-estimate must be in an existing folder, got {str(path)!r}.")


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")
