"""Combinations of options that are refused, before anything expensive is imported or allocated."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from amp_attention._cli.names import HEAD_TOKENS, MANIFEST, OBSERVABLES, result_files, tokens_of
from amp_attention._cli.options import (
    OF_MINIMISERS,
    BayesOptions,
    BayesRequest,
    InstanceOptions,
    ProblemOptions,
    Request,
    TargetOptions,
    TargetRequest,
    TrainingOptions,
)
from amp_attention._cli.parsing import UsageError

LARGEST_GRID = 1_000_000


def refuse(condition: object, sentence: str) -> None:
    """Raise the sentence as a usage error where the condition holds."""
    if condition:
        raise UsageError(sentence)


def check_unavailable(request: Request) -> None:
    """The one place for options of the contract whose engine does not exist yet: remove a line when it does."""
    training = request.training
    missing = (
        (request.problem.penalty == "frobenius", "--penalty", "frobenius", "nuclear"),
        (training.parameterization != "tied", "--parameterization", training.parameterization, "tied"),
        (training.task != "seq2lab", "--task", training.task, "seq2lab"),
    )
    for condition, name, value, accepted in missing:
        refuse(condition, f"{name} {value} is not available in this version: {name} must be {accepted}.")


def check_problem(request: Request) -> None:
    """Target options that contradict each other, and lists whose product is absurd."""
    problem = request.problem
    check_law(problem)
    _check_lists(problem)
    size = len(problem.alphas()) * len(problem.lams())
    refuse(size > LARGEST_GRID, f"--alpha and --lam must make a grid of at most {LARGEST_GRID} points, got {size}.")
    check_devices(request)
    check_checkpoint(request)


def check_law(problem: ProblemOptions | TargetOptions | BayesOptions) -> None:
    """Options of a spectrum that contradict each other."""
    target = "marchenko-pastur" if problem.target is None else problem.target
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


def check_targets(request: TargetRequest) -> None:
    """The grid of `thresholds`."""
    check_law(request.target)
    for name in ("tokens", "kappa0", "noise"):
        check_list(_dashed(name), getattr(request.target, name))
    fractional = next((value for value in request.target.tokens or () if value != int(value)), None)
    refuse(fractional is not None, f"--tokens must be a whole number >= 1, got {fractional}.")
    size = math.prod(len(values) for values in request.target.lists().values())
    refuse(size > LARGEST_GRID, f"--tokens, --kappa0 and --noise must make at most {LARGEST_GRID} points, got {size}.")


def check_bayes(request: BayesRequest) -> None:
    """A head that its tokens fit, and one list of places."""
    bayes = request.bayes
    check_law(bayes)
    check_list("--alpha", bayes.alpha)
    check_list("--effective-noise", bayes.effective_noise)
    both = bayes.alpha is not None and bayes.effective_noise is not None
    refuse(both, "--effective-noise gives D, from which α follows, and --alpha gives α: use one of them, not both.")
    check_head(bayes.head, request.describe()["tokens"], bayes.beta0)


def check_head(head: str, tokens: int, beta0: float | None) -> None:
    """Tokens and a temperature that a head of the target can have."""
    least, most = HEAD_TOKENS[head]
    outside = tokens < least or (most is not None and tokens > most)
    refuse(outside, f"--tokens must be {tokens_of(head)} for --head {head}, got {tokens}.")
    given = beta0 is not None and head != "softmax"
    refuse(given, f"--beta0 must be left out for --head {head}, which has no temperature, got {beta0}.")


def check_estimator(request: Request, data: Path | None) -> None:
    """What has no meaning for a posterior mean, and options that nothing else has."""
    estimator, problem = request.estimator, request.problem
    if not estimator.bayes:
        for name in ("schedule", "head"):
            given = getattr(estimator, name)
            refuse(given is not None, f"{_dashed(name)} must be left out without --estimator bayes, got {given}.")
        return
    for name in OF_MINIMISERS:
        given = getattr(problem, name)
        refuse(
            given is not None,
            f"{_dashed(name)} must be left out beside --estimator bayes, which does not depend on it, got "
            f"{_listed(given)}.",
        )
    refuse(
        data is not None,
        f"--data must be left out beside --estimator bayes, which has to know the law of the target, got {data}.",
    )
    described = request.describe()
    check_head(described["head"], described["tokens"], problem.beta0)


def check_observable(name: str) -> None:
    """A field of the fixed point that can be differentiated."""
    refuse(name not in OBSERVABLES, f"--of must be one of {', '.join(OBSERVABLES)}, got {name!r}.")


def check_tuning(request: Request) -> None:
    """`tune` varies λ̃ itself: a list is its bounds."""
    name = "--lam" if request.problem.weight_decay is None else "--weight-decay"
    lams = request.problem.lams()
    refuse(min(lams) <= 0, f"{name} must be > 0 for tune, which works in log λ̃, got {min(lams)}.")


def check_list(name: str, given: Sequence[float] | None) -> None:
    """Every value of a list once: twice would be the same points of the grid twice."""
    twice = next((value for value, count in Counter(given or ()).items() if count > 1), None)
    refuse(twice is not None, f"{name} must hold every value once, got {twice or 0:.12g} more than once.")


def _check_lists(problem: ProblemOptions) -> None:
    check_list("--alpha", problem.alpha)
    check_list("--lam", problem.lam)
    check_list("--weight-decay", problem.weight_decay)


def check_without(without: str | None, training: TrainingOptions) -> None:
    """Options of an engine that is left out."""
    refuse(
        without == "train" and training != TrainingOptions(),
        f"--optimizer must be left out beside --without train, got {training.optimizer}.",
    )


def check_checkpoint(request: Request) -> None:
    """A checkpoint can be written, and nothing else is in its place."""
    options = request.checkpoints
    for name in ("checkpoint_every", "resume"):
        given = getattr(options, name) and options.checkpoint is None
        refuse(given, f"{_dashed(name)} must be left out without --checkpoint.")
    if options.checkpoint is not None:
        folder = options.checkpoint.absolute().parent
        refuse(not folder.is_dir(), f"--checkpoint must be in an existing folder, got {str(options.checkpoint)!r}.")
        _check_checkpoint_file(options.checkpoint, options.resume)
        _check_not_an_output(options.checkpoint, request)


def _check_not_an_output(file: Path, request: Request) -> None:
    """One file for two things would be written over."""
    out = request.output.out
    if out is not None:
        inside = os.path.realpath(file.parent) == os.path.realpath(out)
        clash = (inside and file.name in (*result_files(request.command), MANIFEST)) or _same(file, out)
        refuse(clash, f"--checkpoint must be another file than those of --out, got {str(file)!r}.")


def _same(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


def _check_checkpoint_file(file: Path, resume: bool) -> None:
    refuse(os.path.isdir(file), f"--checkpoint: {file} is a folder, not a checkpoint file.")
    special = os.path.exists(file) and not os.path.isfile(file)
    refuse(special, f"--checkpoint: {file} is a device or a pipe, not a checkpoint file.")
    taken = os.path.lexists(file) and not resume
    refuse(taken, f"--checkpoint: {file} exists; to go on from it add --resume, else give another path.")


def check_finite(request: Request, beside: str = "") -> None:
    """What only theory can do, for engines at finite d; `beside` is the option that asks for them, if one does."""
    where = f"beside {beside}" if beside else f"for {request.command}"
    name = "--lam" if request.problem.weight_decay is None else "--weight-decay"
    refuse(
        min(request.problem.lams()) <= 0,
        f"{name} must be > 0 {where}, got 0: the λ̃ → 0⁺ limit is one of theory alone, see state-evolution.",
    )
    d = request.instance.d
    refuse(d is not None and d < 2, f"--d must be a whole number >= 2, got {d}.")


def check_alone(why: str, *groups: Any) -> None:
    """Options that have no meaning here are refused, not ignored; `why` is "without --d", for instance."""
    for group in groups:
        for name, value in asdict(group).items():
            default = getattr(type(group)(), name)
            refuse(value != default, f"{_dashed(name)} must be left out {why}, got {value}.")


def check_devices(request: Request) -> None:
    """Several devices have something to divide only where there are samples, or many points of state evolution."""
    instances = request.analysis.get("finite_d", request.command in ("amp", "train", "compare"))
    instances = instances or (request.command == "spectrum" and request.instance.d is not None)
    divided = instances or request.command == "state-evolution"
    for name in ("devices", "distributed"):
        value = getattr(request.solver, name)
        given = value if name == "devices" else ""
        refuse(
            value != getattr(type(request.solver)(), name) and not divided,
            f"{_dashed(name)} must be left out where no samples are drawn, got {_dashed(name)} {given}".strip() + ".",
        )


def check_spectrum(request: Request) -> None:
    """Without --d there is theory alone, without --engine train nothing is trained."""
    engine = request.analysis["engine"]
    if request.instance.d is None:
        refuse(engine != "amp", f"--engine must be left out without --d, got {engine}.")
        check_alone("without --d", request.instance, request.training)
    else:
        check_finite(request, beside="--d")
    if engine != "train":
        check_alone(f"beside --engine {engine}", request.training)


def check_data(problem: ProblemOptions, instance: InstanceOptions, file: Path | None, labels: Path | None) -> None:
    """Tokens and labels that belong together; options that they answer are refused beside them."""
    folder = file is not None and os.path.isdir(file)
    refuse(folder, f"--data must be a .npz or .npy file, got the folder {str(file)!r}.")
    separate = file is not None and file.suffix == ".npy"
    refuse(labels is not None and not separate, f"--labels must be left out without --data X.npy, got {labels}.")
    refuse(separate and labels is None, f"--labels must be given beside --data {file}: a .npy file of its labels y.")
    if file is None:
        return
    given = {"alpha": problem.alpha, "tokens": problem.tokens, **problem.target_options()}
    given |= {"d": instance.d, "repeats": instance.repeats}
    for name, value in given.items():
        refuse(
            value is not None,
            f"{_dashed(name)} must be left out beside --data, whose file fixes it or has no place for it, got {value}.",
        )
    source = instance.token_source
    refuse(
        source != InstanceOptions.token_source,
        f"--token-source must be left out beside --data, whose tokens cannot be redrawn, got {source}.",
    )
    check_readable("--data", file)
    if labels is not None:
        check_readable("--labels", labels)


def check_readable(name: str, path: Path) -> None:
    """An input file that exists and can be opened."""
    refuse(not path.exists(), f"{name} must be an existing file, got {str(path)!r}.")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"{name} must be a readable file, got {str(path)!r} ({error.strerror}).") from None


def check_estimate(path: Path | None, request: Request) -> None:
    """--save-estimate holds one matrix: one point, one repeat, a file of its own."""
    if path is None:
        return
    points = len(request.problem.lams()) * len(request.problem.alphas()) * (request.instance.repeats or 1)
    refuse(points != 1, f"--save-estimate must have one point and one repeat, got {points} of them.")
    refuse(path.is_dir(), f"--save-estimate must be a file, got the folder {str(path)!r}.")
    out = request.output.out
    taken = () if out is None else [(out / name).resolve() for name in (*result_files(request.command), MANIFEST)]
    refuse(
        path.resolve() in taken,
        f"--save-estimate must not be one of the files that --out writes, got {str(path)!r}; choose another name.",
    )
    checkpoint = request.checkpoints.checkpoint
    clash = checkpoint is not None and _same(path, checkpoint)
    refuse(clash, f"--save-estimate must be another file than --checkpoint, got {str(path)!r}.")
    refuse(
        path.exists() and not request.output.overwrite,
        f"--save-estimate must name a new file unless --overwrite is given, got {str(path)!r}, which exists.",
    )
    parent = path.absolute().parent
    created = out is not None and parent.resolve() == out.resolve()
    refuse(not parent.is_dir() and not created, f"--save-estimate must be in an existing folder, got {str(path)!r}.")


def _listed(given: Any) -> str:
    return ", ".join(f"{value:.12g}" for value in given) if isinstance(given, tuple) else str(given)


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")
