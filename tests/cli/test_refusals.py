"""Wrong arguments and unreadable input: exit 2, one sentence naming option and value, nothing on stdout."""

import os
import subprocess
import sys

import numpy as np
import pytest

from amp_attention.cli import run


def refused(capsys, *arguments):
    """The sentence on stderr, after checking the form of the refusal."""
    status = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert status == 2, (status, err)
    assert out == ""
    assert err.startswith("amp-attention: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


OUT_OF_RANGE = [
    ("--tokens", "0"),
    ("--tokens", "2.5"),
    ("--alpha", "0"),
    ("--alpha", "-0.1,0.2"),
    ("--alpha", "nan"),
    ("--alpha", "0.1:2"),
    ("--lam", "-1"),
    ("--lam", "inf"),
    ("--weight-decay", "-1"),
    ("--kappa", "0"),
    ("--kappa0", "0"),
    ("--kappa0", "-1"),
    ("--noise", "-0.5"),
    ("--noise", "nan"),
    ("--beta", "0"),
    ("--beta0", "-2"),
    ("--gamma", "0"),
    ("--target-d", "0"),
    ("--nodes", "0"),
    ("--replicas", "0"),
    ("--smoothing", "0"),
    ("--tolerance", "0"),
    ("--max-iterations", "0"),
    ("--damping", "1"),
    ("--damping", "-0.1"),
    ("--seed", "-1"),
    ("--seed", "x"),
]


@pytest.mark.parametrize(("option", "value"), OUT_OF_RANGE)
def test_numbers_out_of_range(capsys, option, value):
    sentence = refused(capsys, "state-evolution", option, value)
    assert option in sentence
    assert value.split(",")[0] in sentence
    assert "must be" in sentence


@pytest.mark.parametrize(
    ("option", "value"), [("--d", "0"), ("--d", "1"), ("--repeats", "0"), ("--test-samples", "0"), ("--d", "ten")]
)
@pytest.mark.parametrize("command", ["amp", "train", "compare"])
def test_instance_numbers_out_of_range(capsys, command, option, value):
    sentence = refused(capsys, command, option, value)
    assert option in sentence
    assert value in sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["state-evolution", "--dtype", "float16"], ["--dtype", "float16"]),
        (["state-evolution", "--penalty", "ridge"], ["--penalty", "ridge", "nuclear"]),
        (["train", "--optimizer", "sgd"], ["--optimizer", "sgd"]),
        (["state-evolution", "--unknown", "1"], ["--unknown"]),
        (["state-evolution", "stray"], ["stray"]),
        (["state-evolution", "--alpha"], ["--alpha"]),
        (["state-evolution", "--d", "10"], ["--d"]),
        (["nonsense"], ["nonsense"]),
        (["compare", "--bound", "erm"], ["--bound", "erm", "bayes"]),
        (["train", "--estimator", "bayes"], ["--estimator"]),
        (["state-evolution", "--lam", "0.1", "--weight-decay", "0.1"], ["--lam", "--weight-decay"]),
        (["state-evolution", "--gamma", "2"], ["--gamma", "power-law"]),
        (["state-evolution", "--normalise"], ["--normalise", "power-law"]),
        (["state-evolution", "--target", "power-law", "--kappa0", "0.5"], ["--kappa0", "power-law"]),
        (["state-evolution", "--target", "wishart"], ["--target", "wishart"]),
        (["amp", "--lam", "0"], ["--lam", "amp", "state-evolution"]),
        (["compare", "--weight-decay", "0"], ["--weight-decay"]),
        (["amp", "--lam", "0.1", "--lam", "0.2"], ["--lam", "specified multiple times"]),
        (["amp", "--alpha", "0.1", "--alpha", "0.1"], ["--alpha", "specified multiple times"]),
        (["amp", "--d", "10", "--d", "20"], ["--d", "specified multiple times"]),
        (["amp", "--lam", "0.1,0.2,0.10"], ["--lam", "0.1", "once"]),
        (["amp", "--alpha", "1:2:3:lin"], ["--alpha", "1:2:3:lin"]),
        (["amp", "--seed", "9" * 30], ["--seed", "9" * 30, "<= 9223372036854775807"]),
        (["amp", "--out", ""], ["--out", "non-empty"]),
        (["amp", "--save-estimate", ""], ["--save-estimate", "non-empty"]),
        (["amp", "--target", ""], ["--target", "''"]),
        (["compare", "--without", "train", "--optimizer", "adam"], ["--without train", "--optimizer", "adam"]),
        (["state-evolution", "--alpha", "0.1:2:2000", "--lam", "0.1:2:2000"], ["--alpha", "--lam", "4000000"]),
    ],
)
def test_wrong_combinations(capsys, arguments, words):
    sentence = refused(capsys, *arguments)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["state-evolution", "--penalty", "frobenius"], ["--penalty", "frobenius"]),
        (["train", "--parameterization", "untied"], ["--parameterization", "untied"]),
        (["train", "--task", "seq2seq"], ["--task", "seq2seq"]),
    ],
)
def test_options_without_an_engine_are_refused_not_ignored(capsys, arguments, words):
    sentence = refused(capsys, *arguments)
    assert all(word in sentence for word in [*words, "is not available in this version"]), sentence


@pytest.mark.parametrize(
    "arguments",
    [
        ["amp", "--d", "1000000"],
        ["compare", "--d", "50000", "--alpha", "3"],
        ["state-evolution", "--nodes", "1e13"],
        ["state-evolution", "--tokens", "100000"],
        ["state-evolution", "--target", "power-law", "--target-d", "1e12"],
    ],
)
def test_absurd_sizes_are_refused_before_allocating(capsys, arguments):
    assert "GiB" in refused(capsys, *arguments)


# Files


def test_missing_target_file(capsys, tmp_path):
    sentence = refused(capsys, "state-evolution", "--target", tmp_path / "none.npy")
    assert "--target" in sentence
    assert "none.npy" in sentence


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.array([1.0, -1.0]), "-1.0"),
        (np.array([1.0, np.nan]), "nan"),
        (np.array([np.inf]), "inf"),
        (np.eye(2), "shape"),
        (np.array([]), "non-empty"),
        (np.array(["a"]), "real numbers"),
    ],
)
def test_target_files_with_wrong_contents(capsys, tmp_path, array, word):
    np.save(tmp_path / "s.npy", array)
    sentence = refused(capsys, "state-evolution", "--target", tmp_path / "s.npy")
    assert "--target" in sentence
    assert "s.npy" in sentence
    assert word in sentence


def test_target_file_that_is_no_array(capsys, tmp_path):
    (tmp_path / "s.npy").write_text("hello")
    sentence = refused(capsys, "state-evolution", "--target", tmp_path / "s.npy")
    assert "--target must be a readable .npy file" in sentence
    assert "s.npy" in sentence


def white_data(n=8, tokens=2, d=4):
    generator = np.random.default_rng(0)
    return {"X": generator.normal(size=(n, tokens, d)), "y": np.full((n, tokens, tokens), 1 / tokens)}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"X": np.full((8, 2, 4), np.nan)}, "finite"),
        ({"y": np.full((8, 2, 2), 0.6)}, "sum to 1"),
        ({"y": np.full((8, 2, 2), [1.5, -0.5])}, "negative"),
        ({"y": np.full((7, 2, 2), 0.5)}, "shape"),
        ({"X": np.zeros((8, 4))}, "shape"),
        ({"X": np.array([["a"]])}, "real numbers"),
    ],
)
def test_data_files_with_wrong_contents(capsys, tmp_path, change, word):
    np.savez(tmp_path / "data.npz", **white_data() | change)
    sentence = refused(capsys, "amp", "--data", tmp_path / "data.npz")
    assert "--data" in sentence
    assert word in sentence


def test_data_file_without_labels(capsys, tmp_path):
    np.savez(tmp_path / "data.npz", X=white_data()["X"])
    assert "y missing" in refused(capsys, "amp", "--data", tmp_path / "data.npz")


def test_data_file_that_is_no_archive(capsys, tmp_path):
    (tmp_path / "data.npz").write_text("hello")
    sentence = refused(capsys, "amp", "--data", tmp_path / "data.npz")
    assert "--data must be a readable .npz file" in sentence
    assert "data.npz" in sentence


def test_damaged_data_file(capsys, tmp_path):
    np.savez(tmp_path / "data.npz", **white_data())
    content = bytearray((tmp_path / "data.npz").read_bytes())
    content[300] ^= 255  # inside the numbers of X
    (tmp_path / "data.npz").write_bytes(content)
    assert "--data must be a readable .npz file" in refused(capsys, "amp", "--data", tmp_path / "data.npz")


def test_arrays_of_python_objects(capsys, tmp_path):
    objects = np.array([None, 1], dtype=object)
    np.save(tmp_path / "s.npy", objects, allow_pickle=True)
    sentence = refused(capsys, "state-evolution", "--target", tmp_path / "s.npy")
    assert "--target must hold real numbers" in sentence
    np.savez(tmp_path / "data.npz", X=white_data()["X"], y=objects)
    sentence = refused(capsys, "amp", "--data", tmp_path / "data.npz")
    assert "--data must hold real numbers, got an array y of Python objects" in sentence


def test_data_of_dimension_one(capsys, tmp_path):
    np.savez(tmp_path / "data.npz", **white_data(d=1))
    assert "d = 1" in refused(capsys, "amp", "--data", tmp_path / "data.npz")


@pytest.mark.parametrize(
    "option",
    [
        ["--alpha", "0.5"],
        ["--d", "10"],
        ["--tokens", "2"],
        ["--kappa0", "0.5"],
        ["--noise", "0.1"],
        ["--beta0", "1"],
        ["--target", "power-law"],
        ["--repeats", "2"],
    ],
)
def test_options_that_the_data_answer_are_refused(capsys, tmp_path, option):
    np.savez(tmp_path / "data.npz", **white_data())
    sentence = refused(capsys, "amp", "--data", tmp_path / "data.npz", *option)
    assert option[0] in sentence
    assert "--data" in sentence


def test_missing_data_file(capsys, tmp_path):
    assert "none.npz" in refused(capsys, "amp", "--data", tmp_path / "none.npz")


def test_estimate_of_a_grid_or_over_a_file(capsys, tmp_path):
    assert "one point" in refused(capsys, "amp", "--lam", "0.1,0.2", "--save-estimate", tmp_path / "S.npy")
    (tmp_path / "S.npy").write_text("mine")
    assert "S.npy" in refused(capsys, "amp", "--save-estimate", tmp_path / "S.npy")
    assert (tmp_path / "S.npy").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["amp.json", "amp.nc", "learning_curves.png", "../results/amp.csv", ".amp-attention.json"]
)
def test_estimate_over_a_file_of_the_results(capsys, tmp_path, name):
    folder = tmp_path / "results"
    arguments = ["--out", folder, "--save-estimate", folder / name, "--overwrite"]
    assert "--save-estimate must not be one of the files" in refused(capsys, "amp", *arguments)
    assert not folder.exists()


def test_estimate_that_is_a_folder_or_in_no_folder(capsys, tmp_path):
    assert "folder" in refused(capsys, "amp", "--save-estimate", tmp_path, "--overwrite")
    sentence = refused(capsys, "amp", "--out", tmp_path / "new", "--save-estimate", tmp_path / "other" / "S.npy")
    assert "existing folder" in sentence


def test_out_is_a_file_or_holds_foreign_files(capsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "--out" in refused(capsys, "state-evolution", "--out", tmp_path / "file")
    (tmp_path / "state-evolution.csv").write_text("mine")
    sentence = refused(capsys, "state-evolution", "--out", tmp_path)
    assert "state-evolution.csv" in sentence
    assert (tmp_path / "state-evolution.csv").read_text() == "mine"


def program(*arguments):
    return subprocess.run([sys.executable, "-m", "amp_attention.cli", *arguments], capture_output=True, text=True)


def test_the_program_itself_exits_with_two_and_a_sentence():
    done = program("state-evolution", "--alpha", "0", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "--alpha" in done.stderr


def test_help_needs_no_jax():
    code = "import sys; from amp_attention.cli import run; run(['compare', '--help']); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--kappa0" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("command", ["state-evolution", "amp", "train"])
def test_tolerances_out_of_reach_of_float32(capsys, command):
    sentence = refused(capsys, command, "--dtype", "float32", "--tolerance", "1e-9")
    assert "--tolerance must be" in sentence and "in float32" in sentence and "1e-09" in sentence


def test_paths_that_no_system_takes(capsys, tmp_path):
    long = tmp_path / ("x" * 300)
    for arguments in (
        ("amp", "--data", f"{long}.npz"),
        ("state-evolution", "--target", f"{long}.npy"),
        ("amp", "--checkpoint", long / "run"),
        ("amp", "--save-estimate", f"{long}.npy"),
    ):
        assert "x" * 300 in refused(capsys, *arguments)


@pytest.mark.parametrize(("name", "value"), [("JAX_PLATFORMS", "foo"), ("JAX_ENABLE_X64", "banana")])
def test_an_environment_that_jax_does_not_take(name, value):
    command = [sys.executable, "-m", "amp_attention.cli", "amp", "--d", "8"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {name: value})
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("amp-attention: JAX ") and done.stderr.count("\n") == 1 and value in done.stderr
