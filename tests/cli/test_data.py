"""A user's tokens and labels: in one .npz file, or the tokens in a .npy file that stays where it is."""

import json
import os

import numpy as np
import pytest

from amp_attention.cli import run

D, N = 12, 72


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """White tokens and labels of a teacher, in one file and in two; in float32, as much data are."""
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    X = generator.normal(size=(N, 2, D)).astype(np.float32)
    W = generator.normal(size=(D, D // 2)) / D**0.5
    scores = np.einsum("nad,dw,ew,nbe->nab", X, W, W, X) / D**0.5 + generator.normal(size=(N, 2, 2))
    y = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.savez(folder / "data.npz", X=X, y=y)
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return folder


def two(folder, *options):
    return ["amp", "--data", folder / "X.npy", "--labels", folder / "y.npy", "--quiet", *options]


NUMBERS = ("train_objective", "train_error", "q", "trace", "zero_fraction")


@pytest.mark.parametrize("options", [(), ("--devices", "2")])
def test_two_files_give_what_one_gives(answer, files, tmp_path, options):
    one = answer("amp", "--data", files / "data.npz", "--quiet")
    found = answer(*two(files, *options, "--save-estimate", tmp_path / "S.npy"))
    assert one.status == found.status == 0 and found.err == ""
    for name in NUMBERS:
        np.testing.assert_allclose(found.points[0][name], one.points[0][name], rtol=1e-10)
    assert np.load(tmp_path / "S.npy").shape == (D, D)
    problem = found.document["problem"]
    assert problem["data"].endswith("X.npy") and problem["labels"].endswith("y.npy") and problem["alpha"] == [N / D**2]
    assert found.points[0]["test_error"] is None


def test_tokens_in_a_file_are_never_read_as_a_whole(answer, files, tmp_path, monkeypatch):
    """Neither by the solver, nor where they are checked, nor for the warning about tokens that are not white."""
    from amp_attention.data import MappedTokens, _data, fold_chunks

    for name in ("X", "y"):
        np.save(tmp_path / f"{name}.npy", np.load(files / f"{name}.npy")[1:])  # a shape that is not compiled yet
    sizes, read = [], MappedTokens.read

    def counting(tokens, start, size):
        sizes.append(size)
        return read(tokens, start, size)

    monkeypatch.setattr(MappedTokens, "read", counting)
    monkeypatch.setattr(_data, "_CHECKED_AT_ONCE", 20 * 2 * D)
    monkeypatch.setitem(fold_chunks.__kwdefaults__, "chunk", 20)
    monkeypatch.setattr("amp_attention.data._samples.lane_count", lambda size: 20)
    assert answer(*two(tmp_path, "--max-iterations", "3")).status == 1
    assert len(sizes) > 10 and max(sizes) <= 20


def test_the_warning_about_tokens_that_are_not_white(answer, files, tmp_path):
    np.save(tmp_path / "X.npy", 3 * np.load(files / "X.npy"))
    np.save(tmp_path / "y.npy", np.load(files / "y.npy"))
    found = answer(*two(tmp_path, "--max-iterations", "3"))
    assert "X.npy are far from white" in found.err


def test_nothing_is_looked_at_that_does_not_fit(answer, files, monkeypatch):
    monkeypatch.setattr("amp_attention._cli.build.available_memory", lambda: 4 * (2 * D) ** 2 * 8 - 1)
    found = answer(*two(files, "--max-iterations", "3"))
    assert "X.npy are white is not known" in found.err


def test_a_checkpoint_belongs_to_both_files(capsys, files, tmp_path):
    for name in ("X.npy", "y.npy"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    arguments = list(map(str, two(tmp_path, "--max-iterations", "3", "--checkpoint", tmp_path / "run")))
    assert run(arguments) == 1
    content = (tmp_path / "run").read_bytes()
    for name in ("X.npy", "y.npy"):
        facts, array = (tmp_path / name).stat(), np.load(files / name)
        np.save(tmp_path / name, array[::-1])
        os.utime(tmp_path / name, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        capsys.readouterr()
        assert run([*arguments, "--resume"]) == 2
        assert f"{name} has changed since the checkpoint" in capsys.readouterr().err
        np.save(tmp_path / name, array)  # the same again, at another time
        os.utime(tmp_path / name, ns=(0, 0))
    assert run([*arguments, "--resume", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["points"][0]["result"] == "max_steps_reached"
    assert (tmp_path / "run").read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "X.npy"], "--labels must be given beside --data X.npy: a .npy file of its labels y."),
        (["--labels", "y.npy"], "--labels must be left out without --data X.npy, got y.npy."),
        (["--data", "data.npz", "--labels", "y.npy"], "--labels must be left out without --data X.npy, got y.npy."),
        (["--data", "no.npy", "--labels", "y.npy"], "--data must be an existing file, got 'no.npy'."),
        (["--data", "X.npy", "--labels", "no.npy"], "--labels must be an existing file, got 'no.npy'."),
        (["--data", "X.npy", "--labels", "text.npy"], "--labels must be a readable .npy file, got 'text.npy'."),
        (["--data", "text.npy", "--labels", "y.npy"], "--data must be a readable .npy file, got 'text.npy'."),
        (["--data", "objects.npy", "--labels", "y.npy"], "--data must hold real numbers, got an array of Python"),
        (["--data", "X.npy", "--labels", "X.npy"], "--data, --labels: y must have shape (72, 2, 2) for X"),
        (["--data", "y.npy", "--labels", "short.npy"], "--data, --labels: y must have shape (72, 2, 2) for X"),
        (["--data", "nan.npy", "--labels", "y.npy"], "--data, --labels: X must have finite numbers only; 1 of 72"),
        (["--data", "short.npy", "--labels", "y.npy"], "short.npy must hold real numbers of shape (n, T, d)"),
        (["--data", "X.npy", "--labels", "y.npy", "--d", "9"], "--d must be left out beside --data"),
        (["--data", ".", "--labels", "y.npy"], "--data must be a .npz or .npy file, got the folder '.'."),
        (["--data", "fortran.npy", "--labels", "y.npy"], "in Fortran order; save np.ascontiguousarray of it"),
        (
            ["--data", "X.npy", "--labels", "y.npy", "--token-source", "key"],
            "--token-source must be left out beside --data, whose tokens cannot be redrawn, got key.",
        ),
        (["--data", "thin.npy", "--labels", "y.npy"], "--data must hold tokens of dimension d >= 2, got d = 1"),
    ],
)
def test_refusals(capsys, files, tmp_path, monkeypatch, arguments, sentence):
    X = np.load(files / "X.npy")
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "nan.npy", np.where(np.arange(N)[:, None, None] == 7, np.nan, X))
    np.save(tmp_path / "thin.npy", X[:, :, :1])
    np.save(tmp_path / "fortran.npy", np.asfortranarray(X))
    np.save(tmp_path / "y.npy", np.load(files / "y.npy"))
    np.save(tmp_path / "short.npy", X[0])
    np.save(tmp_path / "objects.npy", np.array([None, 1], dtype=object), allow_pickle=True)
    (tmp_path / "data.npz").write_bytes((files / "data.npz").read_bytes())
    (tmp_path / "text.npy").write_text("hello")
    monkeypatch.chdir(tmp_path)
    assert run(["amp", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("amp-attention: ") and err.count("\n") == 1 and sentence in err
