"""The options of `amp-attention`, one dataclass a theme, and what they mean together.

None stands for "not given": several options are refused beside another one, so given and default must differ.
"""

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from amp_attention._cli.names import OBSERVABLES, tokens_of
from amp_attention._cli.parsing import UsageError, flag, logarithmic, number, option, path, values, whole

Values = tuple[float, ...]

PROBLEM, ANALYSIS, INSTANCES, TRAINING, SOLVER, OUTPUT = (
    Group(name, sort_key=position)
    for position, name in enumerate(("Problem", "Analysis", "Instances", "Training", "Solver", "Output"))
)


def regularisation(help: str) -> Parameter:
    """A list of values >= 0; a refusal also says that `tune`, which is not known yet when it is read, has no 0."""
    parameter = values(help, ">= 0")

    def convert(kind: Any, tokens: Any) -> Any:
        try:
            return parameter.converter(kind, tokens)  # pyright: ignore[reportCallIssue, reportOptionalCall]
        except UsageError as error:
            raise UsageError(str(error).replace(">= 0", ">= 0 (tune: > 0)")) from None

    return Parameter.combine(parameter, Parameter(converter=convert))


@Parameter(name="*", group=PROBLEM)
@dataclass(frozen=True, kw_only=True)
class LawOptions:
    """The spectrum of S0."""

    target: Annotated[
        str | None,
        option("marchenko-pastur, power-law, or a .npy file of eigenvalues of S0. [default: marchenko-pastur]"),
    ] = None
    gamma: Annotated[float | None, number("Exponent of the power-law target, > 0. [default: 1.5]", "> 0")] = None
    target_d: Annotated[int | None, whole("Number of eigenvalues of the power-law target. [default: 1000]", ">= 1")] = (
        None
    )
    normalise: Annotated[bool, flag("Scale the power-law target to Q0 = 1.")] = False

    def law_options(self) -> dict[str, Any]:
        """What of these has a meaning, defaults filled in; null where it has none."""
        name = self.target or "marchenko-pastur"
        power_law = name == "power-law"
        return {
            "target": name,
            "gamma": _default(self.gamma, 1.5) if power_law else None,
            "target_d": _default(self.target_d, 1000) if power_law else None,
            "normalise": self.normalise if power_law else None,
        }


@Parameter(name="*", group=PROBLEM)
@dataclass(frozen=True, kw_only=True)
class ProblemOptions(LawOptions):
    """What is learned from what."""

    tokens: Annotated[int | None, whole("T >= 1; 1 means the linear head. [default: 2]", ">= 1")] = None
    alpha: Annotated[Values | None, values("n/d², > 0. A list: 0.1,0.2 or 0.1:2:20[:log]. [default: 0.5]", "> 0")] = (
        None
    )
    lam: Annotated[
        Values | None,
        regularisation(
            "λ̃ = √κ λ >= 0 (0, the λ̃ → 0⁺ limit, in theory only; tune: > 0), times d·Tr S. A list. [default: 0.05]"
        ),
    ] = None
    weight_decay: Annotated[
        Values | None, regularisation("λ >= 0 (0 in theory only; tune: > 0), instead of --lam: λ̃ = √κ λ. A list.")
    ] = None
    kappa: Annotated[float | None, number("Student width p/d > 0. [default: 1]", "> 0")] = None
    kappa0: Annotated[
        float | None, number("Teacher width p0/d > 0 (Marchenko-Pastur target). [default: 0.5]", "> 0")
    ] = None
    noise: Annotated[float | None, number("Δ >= 0, the variance of the label noise. [default: 0.5]", ">= 0")] = None
    beta: Annotated[float | None, number("Inverse temperature of the student, > 0. [default: 1]", "> 0")] = None
    beta0: Annotated[float | None, number("Inverse temperature of the target, > 0. [default: --beta]", "> 0")] = None
    penalty: Annotated[
        Literal["nuclear", "frobenius"] | None,
        option("Penalty on S (frobenius: not available in this version). [default: nuclear]"),
    ] = None

    def target_options(self) -> dict[str, Any]:
        """The options that describe the target, as given."""
        names = ("kappa0", "noise", "beta0", "target", "gamma", "target_d")
        given = {name: getattr(self, name) for name in names}
        return given | {"normalise": self.normalise or None}

    def lams(self) -> Values:
        """λ̃ of every column of the grid, whichever way it was given."""
        if self.weight_decay is None:
            return (0.05,) if self.lam is None else self.lam
        if self.lam is not None:
            raise UsageError("--weight-decay gives λ and --lam gives √κ λ: use one of them, not both.")
        return tuple(math.sqrt(self.width()) * decay for decay in self.weight_decay)

    def search(self) -> dict[str, Any]:
        """Of `tune`: one λ̃ is the first guess between wide bounds; of a list, the ends are the bounds."""
        lams = sorted(self.lams())
        low, high = (min(1e-5, lams[0]), max(1e2, lams[0])) if len(lams) == 1 else (lams[0], lams[-1])
        guess, grid = (lams[0], []) if len(lams) == 1 else (math.sqrt(low * high), lams)
        return {"first_guess": guess, "bounds": [low, high], "grid": grid}

    def alphas(self) -> Values:
        """α of every row of the grid."""
        return (0.5,) if self.alpha is None else self.alpha

    def width(self) -> float:
        """κ of the student."""
        return _default(self.kappa, 1.0)

    def temperature(self) -> float:
        """β of the student."""
        return _default(self.beta, 1.0)

    def on_grid(self, alpha: tuple[float, float], lam: tuple[float, float], count: int) -> "ProblemOptions":
        """With logarithmic ranges (low, high) in place of what was not given."""
        alphas = logarithmic(*alpha, count) if self.alpha is None else self.alpha
        given = self.lam is not None or self.weight_decay is not None
        return replace(self, alpha=alphas, lam=self.lam if given else logarithmic(*lam, count))


@Parameter(name="*", group=PROBLEM)
@dataclass(frozen=True, kw_only=True)
class EstimatorOptions:
    """What `amp` looks for: a minimiser, or the posterior mean of S0 given all about the target."""

    estimator: Annotated[
        Literal["erm", "bayes"],
        option(
            "erm: the minimiser of the training objective; bayes: the posterior mean of S0, the least error of all."
        ),
    ] = "erm"
    schedule: Annotated[
        Literal["se", "empirical"] | None,
        option("--estimator bayes: precision by state evolution, or as the samples have it. [default: of the head]"),
    ] = None
    head: Annotated[
        Literal["softmax", "hardmax", "linear"] | None,
        option("--estimator bayes: what makes labels of the scores. [default: softmax; --tokens 1: linear]"),
    ] = None

    @property
    def bayes(self) -> bool:
        """Whether it is the posterior mean."""
        return self.estimator == "bayes"

    def describe(self, problem: ProblemOptions) -> dict[str, Any]:
        """Entries of the `problem` description; of a posterior mean, null for what belongs to minimisers."""
        head = self.head or ("linear" if problem.tokens == 1 else "softmax")
        own: dict[str, Any] = {"estimator": self.estimator, "schedule": self.schedule, "head": head}
        if not self.bayes:
            return own
        tokens = _default(problem.tokens, 1 if head == "linear" else 2)
        beta0 = _default(problem.beta0, 1.0) if head == "softmax" else None
        return own | {"tokens": tokens, "beta0": beta0} | dict.fromkeys(OF_MINIMISERS)


OF_MINIMISERS = ("lam", "weight_decay", "kappa", "beta", "penalty")  # problem options


@Parameter(name="*", group=SOLVER)
@dataclass(frozen=True, kw_only=True)
class SolverOptions:
    """How the equations are solved."""

    tolerance: Annotated[
        float | None,
        number("Residual at which a solver stops, > 0. [default: 1e-8, training 1e-7; float32: 1e-5, 1e-4]", "> 0"),
    ] = None
    max_iterations: Annotated[
        int | None, whole("Largest number of iterations, >= 1. [default: of each engine]", ">= 1")
    ] = None
    damping: Annotated[
        float | None, number("Weight of the old iterate, in [0, 1). [default: automatic]", "in [0, 1)")
    ] = None
    dtype: Annotated[Literal["float64", "float32"], option("Floating-point type.")] = "float64"
    devices: Annotated[
        int | None,
        whole(
            "Devices that samples, or the points of state-evolution, are divided over, >= 1; on a CPU, cores. "
            "[default: 1; all with --distributed]",
            ">= 1",
        ),
    ] = None
    distributed: Annotated[
        bool, flag("This is one of several processes started together, whose devices count as one machine's.")
    ] = False
    seed: Annotated[int, whole("Fixes target, tokens, labels and Sobol scrambles, >= 0.", ">= 0")] = 0


@Parameter(name="*", group=SOLVER)
@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The Gaussian averages of state evolution."""

    nodes: Annotated[int, whole("Sobol points of the Gaussian averages, >= 1, rounded up to 2^k.", ">= 1")] = 4096
    replicas: Annotated[int, whole("Scrambled subsets behind each standard error, >= 1.", ">= 1")] = 8
    smoothing: Annotated[
        float | None,
        number("Width, in units of the loss, of the passage between two proximal minima, > 0. [default: none]", "> 0"),
    ] = None


@Parameter(name="*", group=INSTANCES)
@dataclass(frozen=True, kw_only=True)
class InstanceOptions:
    """Finite-d instances."""

    d: Annotated[int | None, whole("Embedding dimension, >= 2. [default: 100; spectrum: none]", ">= 1")] = None
    repeats: Annotated[int | None, whole("Independent targets, tokens and labels, >= 1. [default: 1]", ">= 1")] = None
    test_samples: Annotated[int, whole("Fresh samples behind test_error, >= 1.", ">= 1")] = 100_000
    token_source: Annotated[
        Literal["memory", "key"], option("Keep the tokens in memory, or redraw them from their key at every pass.")
    ] = "memory"


@Parameter(name="*", group=TRAINING)
@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Gradient training."""

    optimizer: Annotated[Literal["lbfgs", "adam"], option("Optimiser of the factors W.")] = "lbfgs"
    parameterization: Annotated[
        Literal["tied", "direct", "untied"], option("What is trained (direct, untied: not available in this version).")
    ] = "tied"
    task: Annotated[
        Literal["seq2lab", "seq2seq"], option("What the network returns (seq2seq: not available in this version).")
    ] = "seq2lab"


@Parameter(name="*", group=ANALYSIS)
@dataclass(frozen=True, kw_only=True)
class ObservableOptions:
    """What is differentiated or tuned."""

    of: Annotated[str, option(f"Observable of the fixed point: {', '.join(OBSERVABLES)}.")] = "test_error"


@Parameter(name="*", group=PROBLEM)
@dataclass(frozen=True, kw_only=True)
class TargetOptions(LawOptions):
    """Lists of targets, for `thresholds`; their product grid, tokens outermost."""

    tokens: Annotated[Values | None, values("T >= 1; 1 means the linear head. A list. [default: 2]", ">= 1")] = None
    kappa0: Annotated[
        Values | None, values("Teacher width p0/d > 0 (Marchenko-Pastur target). A list. [default: 0.5]", "> 0")
    ] = None
    noise: Annotated[Values | None, values("Δ >= 0. A list. [default: 0.5]", ">= 0")] = None

    def lists(self) -> dict[str, list[Any]]:
        """The axes of the grid."""
        named = self.law_options()["target"] != "marchenko-pastur"
        return {
            "tokens": [int(value) for value in _default(self.tokens, (2,))],
            "kappa0": [None] if named else list(_default(self.kappa0, (0.5,))),
            "noise": list(_default(self.noise, (0.5,))),
        }


@Parameter(name="*", group=PROBLEM)
@dataclass(frozen=True, kw_only=True)
class BayesOptions(LawOptions):
    """The target of `bayes`, all of which the estimator knows, and where on its curve to look."""

    head: Annotated[Literal["softmax", "hardmax", "linear"], option("What makes labels of the scores.")] = "softmax"
    tokens: Annotated[
        int | None,
        whole(
            f"T, {tokens_of('softmax')} (hardmax: {tokens_of('hardmax')}; linear: 1). [default: 2; linear: 1]", ">= 1"
        ),
    ] = None
    kappa0: Annotated[
        float | None, number("Teacher width p0/d > 0 (Marchenko-Pastur target). [default: 0.5]", "> 0")
    ] = None
    noise: Annotated[float, number("Δ >= 0, the variance of the label noise.", ">= 0")] = 0.5
    beta0: Annotated[
        float | None,
        number("Inverse temperature of a softmax, > 0; test errors alone depend on it. [default: 1]", "> 0"),
    ] = None
    alpha: Annotated[Values | None, values("n/d², > 0. A list. [default: 0.05:1:20:log]", "> 0")] = None
    effective_noise: Annotated[
        Values | None, values("D > 0 of the explicit curve α(D), instead of --alpha. A list.", "> 0")
    ] = None
    nodes: Annotated[
        int,
        whole(
            "Sobol points of the test errors, >= 1, rounded up to 2^k; a 32nd of them for a hardmax of T >= 3.",
            ">= 1",
            group=SOLVER,
        ),
    ] = 65_536
    replicas: Annotated[int, whole("Scrambled subsets behind each standard error, >= 1.", ">= 1", group=SOLVER)] = 8
    seed: Annotated[int, whole("Fixes the Sobol scrambles, >= 0.", ">= 0", group=SOLVER)] = 0

    def alphas(self) -> Values:
        """What is solved for; none where the effective noise is given."""
        if self.effective_noise is not None:
            return ()
        return logarithmic(0.05, 1.0, 20) if self.alpha is None else self.alpha


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the results go."""

    json: Annotated[bool, flag("Print exactly one JSON document.")] = False
    out: Annotated[Path | None, path("Folder for tables (CSV, netCDF), JSON, figures (PNG, PDF), command line.")] = None
    overwrite: Annotated[bool, flag("Let --out and --save-estimate replace files that this program did not write.")] = (
        False
    )
    quiet: Annotated[bool, flag("No progress on stderr.")] = False


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """What survives an interruption."""

    checkpoint: Annotated[
        Path | None, path("Keep every point in this file as it is found, and a run at finite d under way beside it.")
    ] = None
    checkpoint_every: Annotated[
        float | None,
        number("Seconds between two states of the run under way, > 0; of points, 1 at most. [default: 60]", "> 0"),
    ] = None
    resume: Annotated[bool, flag("Go on from --checkpoint, with the same options.")] = False


@dataclass(frozen=True)
class Request:
    """One command with its options, as checked; what the commands hand to the experiments."""

    command: str
    problem: ProblemOptions
    solver: SolverOptions
    output: OutputOptions
    nodes: NodeOptions = field(default_factory=NodeOptions)
    instance: InstanceOptions = field(default_factory=InstanceOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    analysis: dict[str, Any] = field(default_factory=dict)  # options of this command alone
    checkpoints: CheckpointOptions = field(default_factory=CheckpointOptions)
    estimator: EstimatorOptions = field(default_factory=EstimatorOptions)  # of `amp`

    def settings(self) -> dict[str, Any]:
        """The `settings` entry of the JSON document: how it was computed, as given (null: default, or no meaning)."""
        command, engine = self.command, self.analysis.get("engine")
        draws = self.analysis.get("finite_d", True) and not (command == "spectrum" and self.instance.d is None)
        trains = command in ("train", "compare") or (engine == "train" and draws)
        groups = [asdict(self.solver)]
        if command not in ("amp", "train"):
            groups.append(asdict(self.nodes))
        if command in ("amp", "train", "compare", "sensitivity", "spectrum"):
            groups.append(_unless_null(self.instance, draws))
        if command in ("train", "compare", "spectrum"):
            groups.append(_unless_null(self.training, trains))
        own = self.analysis | ({"engine": engine if draws else None} if command == "spectrum" else {})
        return own | {name: value for group in groups for name, value in group.items()}

    def describe(self) -> dict[str, Any]:
        """The `problem` entry of the JSON document: every problem option, null where it has no meaning."""
        problem, varied = self.problem, self.command == "tune"  # whose λ̃ is an answer; the search is in `settings`
        law = problem.law_options()
        decays = None if problem.weight_decay is None or varied else list(problem.weight_decay)
        own = self.estimator.describe(problem) if self.command == "amp" else {}
        return (
            own
            | asdict(problem)
            | law
            | {
                "tokens": problem.tokens or 2,
                "alpha": list(problem.alphas()),
                "lam": None if varied else list(problem.lams()),
                "weight_decay": decays,
                "kappa": problem.width(),
                "penalty": _default(problem.penalty, "nuclear"),
                "kappa0": _default(problem.kappa0, 0.5) if law["target"] == "marchenko-pastur" else None,
                "noise": _default(problem.noise, 0.5),
                "beta": None if problem.tokens == 1 else problem.temperature(),
                "beta0": None if problem.tokens == 1 else _default(problem.beta0, problem.temperature()),
            }
            | own
        )


@dataclass(frozen=True)
class TargetRequest:
    """`thresholds` with its options: a grid of targets instead of a grid of problems."""

    command: str
    target: TargetOptions
    dtype: str
    output: OutputOptions

    def settings(self) -> dict[str, Any]:
        """The `settings` entry of the JSON document."""
        return {"dtype": self.dtype}

    def describe(self) -> dict[str, Any]:
        """The `problem` entry of the JSON document."""
        return self.target.lists() | self.target.law_options()


@dataclass(frozen=True)
class BayesRequest:
    """`bayes` with its options: one target, and a list of α or of effective noises."""

    command: str
    bayes: BayesOptions
    dtype: str
    output: OutputOptions

    def settings(self) -> dict[str, Any]:
        """The `settings` entry of the JSON document."""
        return {"dtype": self.dtype} | {name: getattr(self.bayes, name) for name in ("nodes", "replicas", "seed")}

    def describe(self) -> dict[str, Any]:
        """The `problem` entry of the JSON document: null where an option has no meaning."""
        bayes, law = self.bayes, self.bayes.law_options()
        return law | {
            "head": bayes.head,
            "tokens": _default(bayes.tokens, 1 if bayes.head == "linear" else 2),
            "kappa0": _default(bayes.kappa0, 0.5) if law["target"] == "marchenko-pastur" else None,
            "noise": bayes.noise,
            "beta0": _default(bayes.beta0, 1.0) if bayes.head == "softmax" else None,
            "alpha": list(bayes.alphas()) or None,
            "effective_noise": None if bayes.effective_noise is None else list(bayes.effective_noise),
        }


def _unless_null(group: Any, meaningful: Any) -> dict[str, Any]:
    return asdict(group) if meaningful else dict.fromkeys(asdict(group))


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value
