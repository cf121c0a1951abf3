"""Wrong arguments of the library, one a row: each is refused in a sentence with its name, the range and its value."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from amp_attention.amp import AMP, FixedDamping, solve_amp
from amp_attention.boundaries import collapse_lam, crossing, margins
from amp_attention.channels import ERMChannel, SquaredLoss
from amp_attention.checkpoints import Checkpoint
from amp_attention.data import (
    Data,
    DrawnTokens,
    MappedTokens,
    adjoint,
    check_memory,
    device_mesh,
    estimated_memory,
    generate_data,
    load_npy,
    load_npz,
    sample_size,
    shard,
)
from amp_attention.denoisers import NuclearNorm
from amp_attention.erm import train
from amp_attention.experiments import (
    FiniteSettings,
    TheorySettings,
    peak_sweep,
    problem_grid,
    read_eigenvalues,
    run_instances,
)
from amp_attention.generalisation import measure_test_error
from amp_attention.heads import LinearHead, SoftmaxHead
from amp_attention.problem import AttentionProblem, attention_problem
from amp_attention.sensitivity import expansion, gradient, parameter, slope, with_parameter
from amp_attention.spectral_laws import FiniteLaw, FreeConvolution, MarchenkoPastur, Semicircle
from amp_attention.spectrum import LearnedSpectrum, detachment, distances, support_end
from amp_attention.state_evolution import (
    solve_each,
    solve_lowest,
    solve_state_evolution,
    state_evolution_nodes,
    trajectory,
)
from amp_attention.targets import Target
from amp_attention.thresholds import (
    bayes_recovery_threshold,
    interpolation_threshold,
    rank_fraction,
    recovery_threshold,
)
from amp_attention.tuning import optimise

KEY = jax.random.key(0)
PROBLEM, LAW = attention_problem(), MarchenkoPastur(0.5)
X, Y = jnp.zeros((5, 2, 3)), jnp.full((5, 2, 2), 0.5)
DATA, SINGLE = Data(X, Y), Data(X.astype(jnp.float32), Y.astype(jnp.float32))
EYE = jnp.eye(3)


@cache
def nodes():
    return state_evolution_nodes(PROBLEM, 16, 2)


class Case(NamedTuple):
    """A call, which is given an empty folder, and what the refusal says: `name` must `allowed`, got `value`."""

    call: Callable[[Path], object]
    name: str
    allowed: str
    value: str


def case(call, name, allowed, value) -> Case:
    """One whose call needs no folder."""
    return Case(lambda folder: call(), name, allowed, value)


def written(folder: Path, array) -> Path:
    np.save(folder / "array.npy", array)
    return folder / "array.npy"


ABOVE, FROM_ZERO, BELOW_ONE = "be a finite number > 0", "be a finite number >= 0", "be a number >= 0 and < 1"
WHOLE = "be a whole number >= {}".format
ONE_KEY = "be one random key of jax.random.key"
LAW_ALLOWED, FLOATS = "be a spectral law", "be an array of floating-point numbers"
A_PROBLEM, PATH, YES_NO = "be an AttentionProblem", "be the path of a file", "be True or False"
NODES, MESH = "be floating-point numbers of shape (replicas, points, {})".format, "be a mesh of device_mesh"
COARSE, COARSER = (f"be a finite number >= {least} in float32" for least in ("9.54e-07", "2.38e-06"))

CASES = {
    # Problems and their parts.
    "alpha-zero": case(lambda: attention_problem(alpha=0.0), "alpha", ABOVE, "0.0"),
    "alpha-negative": case(lambda: attention_problem(alpha=-0.1), "alpha", ABOVE, "-0.1"),
    "alpha-nan": case(lambda: attention_problem(alpha=math.nan), "alpha", ABOVE, "nan"),
    "alpha-inf": case(lambda: attention_problem(alpha=math.inf), "alpha", ABOVE, "inf"),
    "alpha-bool": case(lambda: attention_problem(alpha=True), "alpha", ABOVE, "True"),
    "alpha-complex": case(lambda: attention_problem(alpha=1 + 1j), "alpha", ABOVE, "(1+1j)"),
    "alpha-string": case(lambda: attention_problem(alpha="0.5"), "alpha", ABOVE, "'0.5'"),
    "alpha-none": case(lambda: attention_problem(alpha=None), "alpha", ABOVE, "None"),
    "alpha-array": case(lambda: attention_problem(alpha=np.array([0.5, 1.0])), "alpha", ABOVE, "[0.5 1. ]"),
    "alpha-empty": case(lambda: attention_problem(alpha=[]), "alpha", ABOVE, "[]"),
    "alpha-ragged": case(lambda: attention_problem(alpha=[[1.0], [1.0, 2.0]]), "alpha", ABOVE, "[[1.0], [1.0, 2.0]]"),
    "lam-negative": case(lambda: attention_problem(lam=-1e-300), "lam", FROM_ZERO, "-1e-300"),
    "lam-jax-nan": case(lambda: NuclearNorm(jnp.asarray(jnp.nan)), "lam", FROM_ZERO, "nan"),
    "noise-negative": case(lambda: attention_problem(noise=-0.5), "noise", FROM_ZERO, "-0.5"),
    "beta-zero": case(lambda: attention_problem(beta=0), "beta", ABOVE, "0"),
    "beta0-negative": case(lambda: attention_problem(beta0=-2.0), "beta", ABOVE, "-2.0"),
    "kappa0-zero": case(lambda: attention_problem(kappa0=0.0), "kappa0", ABOVE, "0.0"),
    "smoothing-zero": case(lambda: attention_problem(smoothing=0.0), "smoothing", ABOVE, "0.0"),
    "tokens-zero": case(lambda: attention_problem(tokens=0), "tokens", WHOLE(1), "0"),
    "tokens-float": case(lambda: attention_problem(tokens=2.0), "tokens", WHOLE(1), "2.0"),
    "tokens-bool": case(lambda: attention_problem(tokens=True), "tokens", WHOLE(1), "True"),
    "law-number": case(lambda: attention_problem(law=0.5), "law", LAW_ALLOWED, "0.5"),
    "dtype-half": case(lambda: attention_problem(dtype=np.float16), "dtype", "be float32 or float64", "<class"),
    "dtype-int": case(lambda: attention_problem(dtype="int32"), "dtype", "be float32 or float64", "'int32'"),
    "dtype-unknown": case(lambda: attention_problem(dtype="flaot64"), "dtype", "be float32 or float64", "'flaot64'"),
    "head-tokens": case(lambda: SoftmaxHead(1), "tokens", WHOLE(2), "1"),
    "head-beta": case(lambda: SoftmaxHead(2, math.inf), "beta", ABOVE, "inf"),
    "target-head": case(lambda: Target(LAW, "softmax"), "head", "be a head", "'softmax'"),
    "target-noise": case(lambda: Target(LAW, LinearHead(), math.nan), "noise", FROM_ZERO, "nan"),
    "other-tokens": case(
        lambda: AttentionProblem(PROBLEM.target, ERMChannel(SquaredLoss(SoftmaxHead(3))), NuclearNorm(0.1), 0.5),
        "channel",
        "have a head of the T = 2 tokens",
        "3",
    ),
    "no-channel": case(
        lambda: AttentionProblem(PROBLEM.target, None, NuclearNorm(0.1), 0.5), "channel", "be a channel", "None"
    ),
    "no-denoiser": case(
        lambda: AttentionProblem(PROBLEM.target, PROBLEM.channel, 0.1, 0.5), "denoiser", "be a denoiser", "0.1"
    ),
    # Spectral laws.
    "width-negative": case(lambda: MarchenkoPastur(-1), "kappa0", ABOVE, "-1"),
    "variance-nan": case(lambda: Semicircle(math.nan), "variance", ABOVE, "nan"),
    "delta-zero": case(lambda: FreeConvolution(LAW, 0.0), "delta", ABOVE, "0.0"),
    "convolution-law": case(lambda: FreeConvolution([1.0], 0.5), "law", LAW_ALLOWED, "[1.0]"),
    "per-cell": case(lambda: FreeConvolution(LAW, 0.5).nodes(0), "per_cell", WHOLE(1), "0"),
    "moment-negative": case(lambda: LAW.moment(-1), "k", WHOLE(0), "-1"),
    "sample-of-nothing": case(lambda: LAW.sample(KEY, 0), "d", WHOLE(1), "0"),
    "eigenvalues-empty": case(lambda: FiniteLaw([]), "eigenvalues", "be a non-empty list of shape (N,)", "shape (0,)"),
    "eigenvalues-matrix": case(lambda: FiniteLaw(EYE), "eigenvalues", "be a non-empty list", "shape (3, 3)"),
    "eigenvalues-nan": case(lambda: FiniteLaw([1.0, math.nan]), "eigenvalues", "be finite", "[1.0, nan]"),
    "eigenvalues-complex": case(lambda: FiniteLaw([1j]), "eigenvalues", "be a list of real numbers", "[1j]"),
    "eigenvalues-bool": case(lambda: FiniteLaw([True]), "eigenvalues", "be a list of real numbers", "[True]"),
    "eigenvalues-text": case(lambda: FiniteLaw(["a"]), "eigenvalues", "be a list of real numbers", "['a']"),
    "weights-zero": case(lambda: FiniteLaw([1.0, 2.0], [1.0, 0.0]), "weights", "be positive and finite", "[1.0, 0.0]"),
    "weights-shape": case(lambda: FiniteLaw([1.0, 2.0], [1.0]), "weights", "have the shape (2,)", "(1,)"),
    "gamma-inf": case(lambda: FiniteLaw.power_law(math.inf, 3), "gamma", "be a finite number", "inf"),
    "power-law-size": case(lambda: FiniteLaw.power_law(1.0, 2.5), "d", WHOLE(1), "2.5"),
    # State evolution.
    "nodes-zero": case(lambda: state_evolution_nodes(PROBLEM, 0), "nodes", WHOLE(1), "0"),
    "replicas-float": case(lambda: state_evolution_nodes(PROBLEM, 16, 2.5), "replicas", WHOLE(1), "2.5"),
    "nodes-seed": case(lambda: state_evolution_nodes(PROBLEM, 16, 2, -1), "seed", WHOLE(0), "-1"),
    "se-start-two": case(
        lambda: solve_state_evolution(PROBLEM, nodes(), start=jnp.ones(2)),
        "start",
        "be a FixedPoint or three numbers",
        "[1. 1.]",
    ),
    "se-damping-one": case(lambda: solve_state_evolution(PROBLEM, nodes(), damping=1), "damping", BELOW_ONE, "1"),
    "se-damping-nan": case(lambda: solve_lowest(PROBLEM, nodes(), damping=math.nan), "damping", BELOW_ONE, "nan"),
    "se-tolerance": case(lambda: solve_lowest(PROBLEM, nodes(), tolerance=-1.0), "tolerance", ABOVE, "-1.0"),
    "se-steps": case(lambda: solve_lowest(PROBLEM, nodes(), max_steps=0), "max_steps", WHOLE(1), "0"),
    "se-steps-bool": case(lambda: solve_lowest(PROBLEM, nodes(), max_steps=True), "max_steps", WHOLE(1), "True"),
    "se-starts": case(lambda: solve_each([PROBLEM], nodes(), starts=[]), "starts", "be as many as the 1 problems", "0"),
    "se-float32-tolerance": case(
        lambda: solve_lowest(attention_problem(dtype=jnp.float32), nodes(), tolerance=1e-8),
        "tolerance",
        COARSE,
        "1e-08",
    ),
    "nodes-problem": case(lambda: state_evolution_nodes(3), "problem", A_PROBLEM, "3"),
    "se-problem": case(lambda: solve_state_evolution(3, nodes()), "problem", A_PROBLEM, "3"),
    "se-lowest-problem": case(lambda: solve_lowest(PROBLEM.target, nodes()), "problem", A_PROBLEM, "Target"),
    "se-each-number": case(lambda: solve_each(3, nodes()), "problems", "be a list of problems", "3"),
    "se-each-problem": case(lambda: solve_each([PROBLEM, 3], nodes()), "problem", A_PROBLEM, "3"),
    "se-each-mesh": case(lambda: solve_each([PROBLEM], nodes(), mesh=2), "mesh", f"{MESH} or None", "2"),
    "se-nodes-number": case(lambda: solve_state_evolution(PROBLEM, 3), "nodes", NODES(4), "3"),
    "se-nodes-whole": case(
        lambda: solve_state_evolution(PROBLEM, nodes().astype(int)), "nodes", NODES(4), "int64 of shape (2, 8, 4)"
    ),
    "se-nodes-rank": case(lambda: solve_lowest(PROBLEM, nodes()[0]), "nodes", NODES(4), "float64 of shape (8, 4)"),
    "se-nodes-empty": case(lambda: solve_lowest(PROBLEM, nodes()[:0]), "nodes", NODES(4), "float64 of shape (0, 8, 4)"),
    "se-nodes-other-tokens": case(
        lambda: solve_lowest(attention_problem(tokens=3), nodes()), "nodes", NODES(10), "float64 of shape (2, 8, 4)"
    ),
    "se-nodes-quadratic": case(
        lambda: solve_lowest(attention_problem(tokens=1), nodes()), "nodes", NODES(2), "float64 of shape (2, 8, 4)"
    ),
    "se-each-nodes": case(
        lambda: solve_each([PROBLEM, attention_problem(tokens=3)], nodes()), "nodes", NODES(10), "float64 of shape"
    ),
    "se-nodes-traced": case(
        lambda: jax.vmap(lambda nodes: solve_lowest(PROBLEM, nodes).value.q)(nodes()), "nodes", NODES(4), "float64 of"
    ),
    "trajectory-nodes": case(lambda: trajectory(PROBLEM, 3, 5), "nodes", NODES(4), "3"),
    "trajectory-steps": case(lambda: trajectory(PROBLEM, nodes(), -1), "steps", WHOLE(0), "-1"),
    # AMP and training.
    "amp-tolerance": case(lambda: AMP(tolerance=0.0), "tolerance", ABOVE, "0.0"),
    "amp-damping": case(lambda: FixedDamping(-0.1), "damping", BELOW_ONE, "-0.1"),
    "amp-damping-array": case(lambda: AMP(damping=[0.1, 0.2]), "damping", BELOW_ONE, "[0.1, 0.2]"),
    "amp-steps": case(lambda: solve_amp(PROBLEM, DATA, max_steps=1e3), "max_steps", WHOLE(1), "1000.0"),
    "amp-float32-tolerance": case(lambda: solve_amp(PROBLEM, SINGLE, tolerance=1e-6), "tolerance", COARSER, "1e-06"),
    "amp-problem": case(lambda: solve_amp(PROBLEM.target, DATA), "problem", "be an AttentionProblem", "Target"),
    "amp-data": case(lambda: solve_amp(PROBLEM, (X, Y)), "data", "be Data", "(Array"),
    "amp-other-tokens": case(lambda: solve_amp(attention_problem(tokens=3), DATA), "data", "have T = 3 tokens", "2"),
    "amp-target-shape": case(lambda: solve_amp(PROBLEM, DATA, S0=jnp.eye(2)), "S0", "have shape (3, 3)", "(2, 2)"),
    "amp-target-nan": case(
        lambda: solve_amp(PROBLEM, DATA, S0=EYE.at[1, 2].set(jnp.nan)), "S0", "have finite entries", "nan at (1, 2)"
    ),
    "amp-start-complex": case(
        lambda: solve_amp(PROBLEM, DATA, start=1j * np.eye(3)), "start", "be an array of real numbers", "complex128"
    ),
    "amp-start-inf": case(
        lambda: solve_amp(PROBLEM, DATA, start=EYE / 0), "start", "have finite entries", "inf at (0, 0)"
    ),
    "amp-checkpoint": case(
        lambda: solve_amp(PROBLEM, DATA, checkpoint="run"), "checkpoint", "be a Checkpoint or None", "'run'"
    ),
    "train-optimizer": case(lambda: train(PROBLEM, DATA, key=KEY, optimizer="sgd"), "optimizer", "be one of", "'sgd'"),
    "train-optimizer-number": case(lambda: train(PROBLEM, DATA, key=KEY, optimizer=1), "optimizer", "be one of", "1"),
    "train-width": case(lambda: train(PROBLEM, DATA, key=KEY, width=0), "width", WHOLE(1), "0"),
    "train-rate": case(lambda: train(PROBLEM, DATA, key=KEY, learning_rate=0.0), "learning_rate", ABOVE, "0.0"),
    "train-steps": case(lambda: train(PROBLEM, DATA, key=KEY, max_steps=-5), "max_steps", WHOLE(1), "-5"),
    "train-float32-tolerance": case(
        lambda: train(PROBLEM, SINGLE, key=KEY, tolerance=1e-10), "tolerance", COARSE, "1e-10"
    ),
    "train-key": case(lambda: train(PROBLEM, DATA, key=0), "key", ONE_KEY, "0"),
    "train-target": case(lambda: train(PROBLEM, DATA, key=KEY, S0=X), "S0", "have shape (3, 3)", "(5, 2, 3)"),
    # Data.
    "X-shape": case(lambda: Data(X[0], Y), "X", "have shape (n, T, d)", "(2, 3)"),
    "X-empty": case(lambda: Data(X[:0], Y[:0]), "X", "have shape (n, T, d) with n, T, d >= 1", "(0, 2, 3)"),
    "X-complex": case(lambda: Data(X.astype(complex), Y), "X", FLOATS, "dtype complex128"),
    "X-whole": case(lambda: Data(X.astype(jnp.int32), Y), "X", FLOATS, "dtype int32"),
    "X-list": case(lambda: Data([[[1.0]]], Y), "X", FLOATS, "list"),
    "y-bool": case(lambda: Data(X, Y > 0), "y", FLOATS, "dtype bool"),
    "y-shape": case(lambda: Data(X, Y[:4]), "y", "have shape (5, 2, 2)", "(4, 2, 2)"),
    "fewer-samples": case(lambda: Data(X, Y, n=3), "n", "be the number of samples of X", "3"),
    "sample-size-alpha": case(lambda: sample_size(math.nan, 10), "alpha", ABOVE, "nan"),
    "sample-size-d": case(lambda: sample_size(0.5, -10), "d", WHOLE(1), "-10"),
    "generate-key": case(lambda: generate_data(42, PROBLEM, 3), "key", ONE_KEY, "42"),
    "generate-keys": case(
        lambda: generate_data(jax.random.split(KEY), PROBLEM, 3), "key", ONE_KEY, "key<fry> of shape (2,)"
    ),
    "generate-problem": case(
        lambda: generate_data(KEY, LAW, 3), "problem", "be an AttentionProblem or a Target", "MarchenkoPastur"
    ),
    "generate-n-missing": case(lambda: generate_data(KEY, PROBLEM.target, 3), "n", "be given", "None"),
    "generate-n": case(lambda: generate_data(KEY, PROBLEM, 3, 0), "n", WHOLE(1), "0"),
    "generate-mesh": case(lambda: generate_data(KEY, PROBLEM, 4, mesh=3), "mesh", f"{MESH} or None", "3"),
    "generate-other-mesh": case(
        lambda: generate_data(KEY, PROBLEM, 4, mesh=jax.make_mesh((2,), ("x",))), "mesh", MESH, "one with the axes"
    ),
    "generate-stored": case(lambda: generate_data(KEY, PROBLEM, 4, stored="no"), "stored", YES_NO, "'no'"),
    "data-mesh": case(lambda: Data(X, Y, mesh=3), "mesh", f"{MESH} or None", "3"),
    "shard-mesh": case(lambda: shard(DATA, 3), "mesh", MESH, "3"),
    "shard-no-mesh": case(lambda: shard(DATA, None), "mesh", MESH, "None"),
    "shard-data": case(lambda: shard(3, device_mesh()), "data", "be Data", "3"),
    "drawn-n": case(lambda: DrawnTokens(KEY, 0, 2, 3), "n", WHOLE(1), "0"),
    "adjoint-rows": case(lambda: adjoint(jnp.zeros((2, 5)), X), "g", "have shape (T(T+1)/2, n) = (3, 5)", "(2, 5)"),
    "memory-n": case(lambda: estimated_memory(-1, 2, 3), "n", WHOLE(1), "-1"),
    "memory-dtype": case(lambda: estimated_memory(1, 2, 3, complex), "dtype", "be float32 or float64", "<class"),
    "memory-devices": case(lambda: check_memory(1, 2, 3, devices=0), "devices", WHOLE(1), "0"),
    "devices": case(lambda: device_mesh(10**6), "devices", "be at most 4", "1000000"),
    "devices-text": case(lambda: device_mesh("a"), "devices", "be a number of devices or a list of some", "'a'"),
    "devices-list": case(lambda: device_mesh([0, 1]), "devices", "be a number of devices or a list", "[0, 1]"),
    "devices-none": case(lambda: device_mesh([]), "devices", "be a number of devices or a list of some", "[]"),
    "devices-float": case(lambda: device_mesh(2.0), "devices", WHOLE(1), "2.0"),
    "npy-tokens": case(lambda: load_npy(3, 4), "tokens", PATH, "3"),
    "npy-labels": case(lambda: load_npy("X.npy", 4), "labels", PATH, "4"),
    "npz-path": case(lambda: load_npz(3), "path", PATH, "3"),
    "mapped-path": case(lambda: MappedTokens(3), "path", PATH, "3"),
    "mapped-shape": Case(
        lambda folder: MappedTokens(written(folder, np.eye(3))), "array.npy", "hold real numbers", "float64 of shape"
    ),
    "archive": Case(
        lambda folder: load_npz(written(folder, np.eye(3))), "array.npy", "be an .npz archive", "a single array"
    ),
    # What reads data and estimates.
    "test-error-samples": case(lambda: measure_test_error(PROBLEM, EYE, EYE, KEY, samples=0), "samples", WHOLE(1), "0"),
    "test-error-chunk": case(lambda: measure_test_error(PROBLEM, EYE, EYE, KEY, chunk=0.5), "chunk", WHOLE(1), "0.5"),
    "test-error-key": case(lambda: measure_test_error(PROBLEM, EYE, EYE, None), "key", ONE_KEY, "None"),
    "test-error-square": case(lambda: measure_test_error(PROBLEM, X[0], X[0], KEY), "S", "have shape (3, 3)", "(2, 3)"),
    "test-error-target": case(
        lambda: measure_test_error(PROBLEM, EYE, jnp.eye(2), KEY), "S0", "have shape (3, 3)", "(2, 2)"
    ),
    # Derivatives, tuning, boundaries, thresholds, spectra.
    "gradient-of": case(lambda: gradient(PROBLEM, nodes(), None, of="tset_error"), "of", "be one of", "'tset_error'"),
    "parameter": case(lambda: parameter(PROBLEM, "gamma"), "parameter", "be one of", "'gamma'"),
    "absent-parameter": case(
        lambda: with_parameter(attention_problem(law=Semicircle(1.0)), "kappa0", 1.0),
        "parameter",
        "be a number that this problem has",
        "'kappa0'",
    ),
    "slope-along": case(
        lambda: slope(attention_problem(tokens=1), nodes(), None, along="beta"), "along", "be a number", "'beta'"
    ),
    "expansion-along": case(
        lambda: expansion(PROBLEM, nodes(), None, along="beta1"), "parameter", "be one of", "'beta1'"
    ),
    "tune-tolerance": case(lambda: optimise(PROBLEM, nodes(), tolerance=0.0), "tolerance", ABOVE, "0.0"),
    "tune-bounds-order": case(
        lambda: optimise(PROBLEM, nodes(), bounds=(1.0, 0.1)),
        "bounds",
        "be two numbers 0 < lower < upper",
        "(1.0, 0.1)",
    ),
    "tune-bounds-one": case(
        lambda: optimise(PROBLEM, nodes(), bounds=(1.0,)), "bounds", "be two numbers 0 < lower < upper", "(1.0,)"
    ),
    "tune-bounds-nan": case(
        lambda: optimise(PROBLEM, nodes(), bounds=(math.nan, 1.0)), "bounds", "be two numbers", "(nan, 1.0)"
    ),
    "tune-solves": case(lambda: optimise(PROBLEM, nodes(), max_solves=0), "max_solves", WHOLE(1), "0"),
    "tune-longest": case(lambda: optimise(PROBLEM, nodes(), longest=-1.0), "longest", ABOVE, "-1.0"),
    "crossing-margin": case(
        lambda: crossing(PROBLEM, nodes(), "outlier_0", bounds=(0.1, 1.0)), "margin", "be replicon", "'outlier_0'"
    ),
    "crossing-bounds": case(
        lambda: crossing(PROBLEM, nodes(), "replicon", bounds=(0.0, 1.0)), "bounds", "be two numbers", "(0.0, 1.0)"
    ),
    "margins": case(lambda: margins(-1), "outliers", WHOLE(0), "-1"),
    "collapse-penalty": case(lambda: collapse_lam(NotAProblem(), nodes()), "denoiser", "be NuclearNorm", "NoneType"),
    "constraints": case(lambda: interpolation_threshold(LAW, 0.5, 0), "constraints", WHOLE(1), "0"),
    "threshold-law": case(lambda: interpolation_threshold(0.5, 0.5, 2), "law", LAW_ALLOWED, "0.5"),
    "threshold-noise": case(lambda: interpolation_threshold(LAW, -1.0, 2), "noise", FROM_ZERO, "-1.0"),
    "recovery-width": case(lambda: recovery_threshold(0.0, 2), "rank_fraction", ABOVE, "0.0"),
    "bayes-constraints": case(lambda: bayes_recovery_threshold(0.5, 2.0), "constraints", WHOLE(1), "2.0"),
    "rank-nan": case(lambda: rank_fraction(math.nan), "rank_fraction", ABOVE, "nan"),
    "learned-eta": case(lambda: LearnedSpectrum(LAW, 0.5, 0.1, 0.0), "eta", ABOVE, "0.0"),
    "learned-epsilon": case(lambda: LearnedSpectrum(LAW, 0.5, -0.1, 1.0), "epsilon", FROM_ZERO, "-0.1"),
    "learned-law": case(lambda: LearnedSpectrum(None, 0.5, 0.1, 1.0), "law", LAW_ALLOWED, "None"),
    "per-band": case(lambda: LearnedSpectrum(LAW, 0.5, 0.1, 1.0).grid(1), "per_band", WHOLE(2), "1"),
    "support-delta": case(lambda: support_end(LAW, -0.5), "delta", ABOVE, "-0.5"),
    "detachment-law": case(lambda: detachment(LAW, 0.5, 1), "law", "be a FiniteLaw", "MarchenkoPastur"),
    "detachment-k": case(lambda: detachment(FiniteLaw([1.0]), 0.5, 2), "k", "be at most 1", "2"),
    "distances-empty": case(lambda: distances([], None), "eigenvalues", "be a non-empty list", "shape (0,)"),
    # Files, checkpoints, experiments.
    "checkpoint-path": case(lambda: Checkpoint(3), "path", PATH, "3"),
    "checkpoint-no-path": case(lambda: Checkpoint(""), "path", PATH, "''"),
    "checkpoint-resume": case(lambda: Checkpoint("run", resume="no"), "resume", YES_NO, "'no'"),
    "checkpoint-every": case(lambda: Checkpoint("run", every=0.0), "every", "be a finite number of seconds > 0", "0.0"),
    "checkpoint-nan": case(lambda: Checkpoint("run", every=math.nan), "every", "be a finite number", "nan"),
    "checkpoint-steps": case(lambda: Checkpoint("run", steps=0), "steps", WHOLE(1), "0"),
    "grid-alpha": case(lambda: problem_grid([0.5, -0.5], [0.1]), "alpha", ABOVE, "-0.5"),
    "grid-lam": case(lambda: problem_grid([0.5], [math.inf]), "lam", FROM_ZERO, "inf"),
    "peak-order": case(lambda: peak_sweep(PROBLEM, [0.1, 0.2]), "lams", "be in falling order", "0.2 after 0.1"),
    "peak-number": case(lambda: peak_sweep(PROBLEM, 0.1), "lams", "be a list of numbers > 0", "0.1"),
    "peak-noise": case(lambda: peak_sweep(attention_problem(noise=0.0), [0.1]), "noise", ABOVE, "0.0"),
    "theory-nodes": case(lambda: TheorySettings(nodes=0), "nodes", WHOLE(1), "0"),
    "theory-replicas": case(lambda: TheorySettings(replicas=2.5), "replicas", WHOLE(1), "2.5"),
    "theory-tolerance": case(lambda: TheorySettings(tolerance=0.0), "tolerance", ABOVE, "0.0"),
    "theory-iterations": case(lambda: TheorySettings(max_iterations=0), "max_iterations", WHOLE(1), "0"),
    "theory-damping": case(lambda: TheorySettings(damping=1.0), "damping", BELOW_ONE, "1.0"),
    "finite-d": case(lambda: FiniteSettings(d=0), "d", WHOLE(1), "0"),
    "finite-repeats": case(lambda: FiniteSettings(repeats=0), "repeats", WHOLE(1), "0"),
    "finite-test-samples": case(lambda: FiniteSettings(test_samples=-1), "test_samples", WHOLE(1), "-1"),
    "finite-optimizer": case(lambda: FiniteSettings(optimizer="sgd"), "optimizer", "be one of lbfgs, adam", "'sgd'"),
    "finite-kappa": case(lambda: FiniteSettings(kappa=0.0), "kappa", ABOVE, "0.0"),
    "finite-seed": case(lambda: FiniteSettings(seed=-1), "seed", WHOLE(0), "-1"),
    "finite-stored": case(lambda: FiniteSettings(stored="x"), "stored", YES_NO, "'x'"),
    "finite-large-seed": case(
        lambda: FiniteSettings(seed=2**63), "seed", f"be a whole number >= 0 and <= {2**63 - 1}", str(2**63)
    ),
    "engines": case(lambda: run_instances(PROBLEM, ["sgd"], FiniteSettings()), "engines", "be of amp, train", "'sgd'"),
    "engines-none": case(lambda: run_instances(PROBLEM, [], FiniteSettings()), "engines", "be of amp, train", "'none'"),
    "instances-settings": case(
        lambda: run_instances(PROBLEM, ["amp"], TheorySettings()), "settings", "be FiniteSettings", "TheorySettings"
    ),
    "data-mixed": case(lambda: Data(X.astype(jnp.float32), Y), "y", "have the dtype of X, float32", "float64"),
    "key-raw": case(
        lambda: generate_data(jnp.zeros(3, jnp.uint32), PROBLEM, 4), "key", ONE_KEY, "uint32 of shape (3,)"
    ),
    "checkpoint-huge": case(
        lambda: Checkpoint("run", every=10**400), "every", "be a finite number of seconds > 0", "1"
    ),
    "finite-devices": case(lambda: FiniteSettings(devices=0), "devices", WHOLE(1), "0"),
    "eigenvalue-file": Case(
        lambda folder: read_eigenvalues(written(folder, np.array([1.0, -2.0]))),
        "array.npy",
        "hold finite eigenvalues >= 0",
        "-2.0 at index 1",
    ),
    "eigenvalue-file-complex": Case(
        lambda folder: read_eigenvalues(written(folder, np.array([1j]))), "array.npy", "hold real numbers", "complex128"
    ),
}


class NotAProblem:
    """Without a penalty."""

    denoiser = None


@pytest.mark.parametrize("name", CASES)
def test_refused_with_name_range_and_value(name, tmp_path):
    wrong = CASES[name]
    with pytest.raises((ValueError, TypeError)) as refusal:
        wrong.call(tmp_path)
    sentence = str(refusal.value)
    assert f"{wrong.name} must {wrong.allowed}" in sentence
    assert f"got {wrong.value}" in sentence or f"got <{wrong.value}" in sentence or f", got {wrong.value}" in sentence
    assert "\n" not in sentence or wrong.name in ("data", "problem")  # which are shown as JAX shows them


def test_the_table_is_long_enough():
    assert len(CASES) >= 60
