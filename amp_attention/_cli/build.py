"""From checked options to the problems of the experiments; refuses what does not fit in memory."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from amp_attention._cli.arrays import check_archive, check_array, readable
from amp_attention._cli.options import BayesRequest, Request, TargetRequest
from amp_attention._cli.parsing import RunError, UsageError
from amp_attention._cli.streams import say
from amp_attention.bayes import bayes_problem
from amp_attention.channels import AbstractPosteriorChannel
from amp_attention.checkpoints import CheckpointWriteError, file_digest
from amp_attention.data import Data, available_memory, check_memory, load_npy, load_npz, sample_size, whiteness
from amp_attention.experiments import (
    NOT_STORED,
    FinitePoint,
    FiniteSettings,
    Instance,
    Steps,
    SweepStore,
    TheorySettings,
    check_law_memory,
    check_node_memory,
    given_instance,
    kept_second_moment,
    problem_grid,
    read_eigenvalues,
    run_instances,
    to_json,
)
from amp_attention.heads import HardmaxHead
from amp_attention.numerics.packing import packed_size
from amp_attention.numerics.validation import AMP_ROUNDING, ROUNDING, reachable_tolerance
from amp_attention.problem import AttentionProblem, attention_head, cast
from amp_attention.spectral_laws import AbstractSpectralLaw, FiniteLaw, MarchenkoPastur
from amp_attention.targets import Target


@contextmanager
def usage_errors(option: str = "") -> Iterator[None]:
    """A ValueError of a constructor or a reader is a wrong argument of the user."""
    try:
        yield
    except CheckpointWriteError as error:  # a full disk is no wrong argument
        raise RunError(f"{option}: {error}.") from None
    except ValueError as error:
        raise UsageError(f"{option}: {error}." if option else f"{error}.") from None


def _dtype(request: Request) -> Any:
    return np.dtype(request.solver.dtype)


def _devices(request: Request) -> int:
    """How many devices the work is divided over."""
    everything = len(jax.devices()) if request.solver.distributed else 1
    return request.solver.devices or everything


def problems(request: Request, lams: Sequence[float] | None = None) -> list[AttentionProblem]:
    """The grid, alpha outermost; with other values of λ̃ than those of the options if given."""
    described = request.describe()
    options: dict[str, Any] = {name: described[name] for name in ("tokens", "noise")}
    options |= {"beta": request.problem.temperature(), "beta0": request.problem.beta0}
    if request.problem.kappa0 is not None:
        options["kappa0"] = request.problem.kappa0
    with usage_errors():
        options |= {"law": spectral_law(described), "dtype": _dtype(request), "smoothing": request.nodes.smoothing}
        return problem_grid(described["alpha"], lams or request.problem.lams(), **options)


def tuning(request: Request) -> tuple[list[AttentionProblem], dict[str, Any]]:
    """One problem an α, at the first guess of λ̃, and the bounds and grid of `tuning_sweep`."""
    search = request.problem.search()
    return problems(request, [search["first_guess"]]), {"bounds": tuple(search["bounds"]), "grid": search["grid"]}


def targets(request: TargetRequest) -> list[Target]:
    """The grid of `thresholds`, tokens outermost."""
    described = request.describe()
    _check_heads(max(described["tokens"]))
    with usage_errors():
        law = spectral_law(described)
        grid = itertools.product(described["tokens"], described["kappa0"], described["noise"])
        return [_target(law, tokens, kappa0, noise, np.dtype(request.dtype)) for tokens, kappa0, noise in grid]


def posterior_problems(request: Request) -> list[AttentionProblem]:
    """The grid of `amp --estimator bayes`, over α alone."""
    target, dtype, schedule = bayes_target(request), _dtype(request), request.estimator.schedule
    with usage_errors():
        return [cast(bayes_problem(target, alpha, schedule), dtype) for alpha in request.problem.alphas()]


def _schedule(problem: AttentionProblem) -> str:
    """Where the precision of a posterior mean is from: the default of its head where none was given."""
    assert isinstance(problem.channel, AbstractPosteriorChannel)
    return problem.channel.schedule


def bayes_target(request: BayesRequest | Request) -> Target:
    """The target of `bayes`, or of `amp --estimator bayes`: all of it is known to the estimator."""
    described = request.describe()
    tokens, dtype = described["tokens"], request.dtype if isinstance(request, BayesRequest) else request.solver.dtype
    _check_heads(tokens)
    head = HardmaxHead(tokens) if described["head"] == "hardmax" else attention_head(tokens, described["beta0"] or 1.0)
    with usage_errors():
        law = spectral_law(described) or MarchenkoPastur(described["kappa0"])
        return cast(Target(law, head, described["noise"]), np.dtype(dtype))


def _check_heads(tokens: int) -> None:
    """A threshold counts the directions of the scores that a head sees, in a K×K matrix and its decomposition."""
    needed, available, gib = 32 * packed_size(tokens) ** 2, available_memory(), 2**30
    if available is not None and needed > available:
        raise UsageError(
            f"--tokens: a head of T = {tokens} tokens needs about {needed / gib:.3g} GiB, but "
            f"{available / gib:.3g} GiB are available; refused before allocating."
        )


def _target(law: AbstractSpectralLaw | None, tokens: int, kappa0: float | None, noise: float, dtype: Any) -> Target:
    return cast(Target(law or MarchenkoPastur(kappa0), attention_head(tokens, 1.0), noise), dtype)


def gamma_chain(request: Request) -> Callable[[Any], Any] | None:
    """From a gradient in the eigenvalues of a power law to that in its exponent; None for other targets."""
    described = request.describe()
    if described["target"] != "power-law":
        return None
    d, normalise = described["target_d"], described["normalise"]
    gamma = jnp.asarray(described["gamma"], _dtype(request))
    eigenvalues = lambda gamma: FiniteLaw.power_law(gamma, d, normalise).eigenvalues  # noqa: E731
    _, along = jax.jvp(eigenvalues, (gamma,), (jnp.ones_like(gamma),))
    return lambda gradient: jnp.sum(gradient * along)


def spectral_law(described: dict[str, Any]) -> AbstractSpectralLaw | None:
    """The law of S0; None for the Marchenko–Pastur default."""
    name = described["target"]
    if name == "marchenko-pastur":
        return None
    if name == "power-law":
        check_law_memory("--target-d", described["target_d"])
        return FiniteLaw.power_law(described["gamma"], described["target_d"], described["normalise"])
    check_array("--target", Path(name))
    with usage_errors("--target"):
        eigenvalues = read_eigenvalues(Path(name))
    check_law_memory("--target", eigenvalues.size)
    return FiniteLaw(jnp.asarray(eigenvalues))


def theory_settings(request: Request) -> TheorySettings:
    """How state evolution is solved, after a look at the memory that the nodes need."""
    nodes = request.nodes
    _check_tolerance(request, ROUNDING)
    with usage_errors("--nodes"):
        check_node_memory(request.describe()["tokens"], nodes.nodes, nodes.replicas, _dtype(request))
    return TheorySettings(
        nodes=nodes.nodes,
        replicas=nodes.replicas,
        seed=request.solver.seed,
        tolerance=request.solver.tolerance,
        max_iterations=request.solver.max_iterations,
        damping=request.solver.damping,
        kappa=request.problem.width(),
        devices=_devices(request),
    )


def _check_tolerance(request: Request, rounding: int) -> None:
    """See `reachable_tolerance`: float32 does not reach all of them."""
    if request.solver.tolerance is not None:
        with usage_errors():
            reachable_tolerance("--tolerance", request.solver.tolerance, _dtype(request), rounding)


@dataclass(frozen=True)
class FiniteSetup:
    """What `amp` and `train` run.

    Attributes:
        problems: the grid.
        settings: how to run.
        instance: a user's data; None to draw them.
        overrides: entries of the `problem` description that the data or the library have answered.
        files: with these data.
    """

    problems: list[AttentionProblem]
    settings: FiniteSettings
    instance: Instance | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path] = ()

    @property
    def posterior(self) -> Target | None:
        """The target whose posterior mean is found; None where something is minimised."""
        problem = self.problems[0]
        return problem.target if isinstance(problem.channel, AbstractPosteriorChannel) else None

    def keeping_matrices(self) -> "FiniteSetup":
        """The same, with the learned matrices kept in memory."""
        return replace(self, settings=replace(self.settings, keep_matrices=True))

    def points(self, engine: str, store: Steps, tell: Callable[[str], None]) -> Iterator[FinitePoint]:
        """One point after the other."""
        for problem in self.problems:
            options: dict[str, Any] = {"instance": self.instance, "store": store, "progress": tell}
            yield run_instances(problem, [engine], self.settings, **options)[engine]


def finite_settings(request: Request, d: int | None = None) -> FiniteSettings:
    """How the engines run at finite d, after a look at the memory that the largest point needs."""
    instance = request.instance
    _check_tolerance(request, ROUNDING if request.command == "train" else AMP_ROUNDING)
    given = d is not None
    d = d or instance.d or 100
    if not given:
        with usage_errors("--d"):
            n = sample_size(max(request.problem.alphas()), d)
            where: dict[str, Any] = {"stored": instance.token_source == "memory", "devices": _devices(request)}
            check_memory(n, request.describe()["tokens"], d, _dtype(request), **where)
    return FiniteSettings(
        d=d,
        repeats=instance.repeats or 1,
        seed=request.solver.seed,
        tolerance=request.solver.tolerance,
        max_iterations=request.solver.max_iterations,
        damping=request.solver.damping,
        test_samples=instance.test_samples,
        optimizer=request.training.optimizer,
        kappa=request.problem.width(),
        devices=_devices(request),
        stored=instance.token_source == "memory",
    )


def sweep_store(
    request: Request, overrides: Mapping[str, Any] | None = None, files: Sequence[Path] = (), **more: Any
) -> Steps:
    """The file of --checkpoint, which belongs to one set of options and input files; without it nothing is stored.

    Args:
        request: the command.
        overrides: entries of the `problem` description that data from a file have answered.
        files: with these data.
        **more: what else the numbers depend on.
    """
    options = request.checkpoints
    if options.checkpoint is None:
        return NOT_STORED
    described = request.describe() | dict(overrides or {})
    target = [] if described["target"] in (None, "marchenko-pastur", "power-law") else [Path(described["target"])]
    found = {str(path): file_digest(path) for path in (*target, *files)}
    run: dict[str, Any] = {"command": request.command, "files": found}
    settings = request.settings() | {"devices": _devices(request)}
    run |= {"problem": _as_typed(request, described), "settings": _as_typed(request, settings)}
    run["number of processes"] = jax.process_count()
    with usage_errors("--checkpoint"):
        fingerprint = json.loads(to_json(run | more))
        return SweepStore(options.checkpoint, fingerprint, options.checkpoint_every or 60.0, options.resume)


def _as_typed(request: Request, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Entries that are options under the names that these have on the command line."""
    groups = (request.problem, request.solver, request.nodes, request.instance, request.training, request.estimator)
    options = {entry.name for group in groups for entry in fields(group)} | {"data", "labels", *request.analysis}
    options -= {"first_guess", "bounds", "grid"}  # of `tune`, from its --lam
    return {f"--{n.replace('_', '-')}" if n in options else n: value for n, value in entries.items()}


def warn_if_another_target(law: AbstractSpectralLaw, d: int) -> None:
    """Say so when what is drawn at this d has another second moment than the law that the theory is about."""
    kept = kept_second_moment(law, d)
    if abs(kept - 1) > 0.05:
        say(
            f"warning: a target drawn at --d {d} has {kept:.2g} times the second moment Q0 of the law, whose list of "
            f"eigenvalues has another length; theory and data then differ. --target-d {d} (or a list of {d}) avoids it."
        )


def finite_setup(request: Request) -> FiniteSetup:
    """Drawn instances."""
    settings, overrides = finite_settings(request), {}
    if request.estimator.bayes:
        grid = posterior_problems(request)
        overrides["schedule"] = _schedule(grid[0])
    else:
        grid = problems(request)
    warn_if_another_target(grid[0].target.law, settings.d)
    return FiniteSetup(grid, settings, overrides=overrides)


def data_setup(request: Request, files: Sequence[Path]) -> FiniteSetup:
    """A user's tokens and labels, from one file or two, with a warning where the tokens are not white."""
    data, path = _user_data(files, _dtype(request)), files[0]
    if data.d < 2:
        raise UsageError(f"--data must hold tokens of dimension d >= 2, got d = {data.d} in {str(path)!r}.")
    _warn_unless_white(path, data)
    alpha = data.n / data.d**2
    overrides: dict[str, Any] = {"alpha": [alpha], "tokens": data.T, "data": str(path)}
    overrides["head"] = "linear" if data.T == 1 else "softmax"
    overrides |= {"labels": str(files[1])} if len(files) > 1 else {}
    overrides |= dict.fromkeys(("kappa0", "noise", "beta0", "target", "gamma", "target_d", "normalise"))
    with usage_errors():
        grid = problem_grid(
            [alpha],
            request.problem.lams(),
            tokens=data.T,
            beta=request.problem.temperature(),
            dtype=_dtype(request),
        )
    settings = finite_settings(request, data.d)
    return FiniteSetup(grid, settings, given_instance(data, request.solver.seed, settings.mesh), overrides, files)


def _user_data(files: Sequence[Path], dtype: Any) -> Data:
    """X and y in memory from a .npz file; of two .npy files the first, with the tokens, stays where it is."""
    if len(files) == 1:
        check_archive("--data", files[0], ("X", "y"))
        with readable("--data", files[0], ".npz"), usage_errors("--data"):
            return load_npz(files[0], dtype)
    for option, path in zip(("--data", "--labels"), files, strict=True):
        check_array(option, path)
    with usage_errors("--data, --labels"):
        return load_npy(files[0], files[1], dtype)


def _warn_unless_white(path: Path, data: Data) -> None:
    needed, available, gib = 4 * (data.T * data.d) ** 2 * data.dtype.itemsize, available_memory(), 2**30
    if available is not None and needed > available:
        say(
            f"warning: whether the tokens of {path} are white is not known: their covariance needs about "
            f"{needed / gib:.3g} GiB, but {available / gib:.3g} GiB are available."
        )
        return
    found = whiteness(data.X)
    if found.far_from_white:
        say(
            f"warning: the tokens of {path} are far from white: covariance off by {float(found.covariance):.2g} (white "
            f"tokens: {float(found.covariance_expected):.2g}), mean by {float(found.mean):.2g} (white: "
            f"{float(found.mean_expected):.2g}); AMP assumes white tokens and may not converge."
        )
