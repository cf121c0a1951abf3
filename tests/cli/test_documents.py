"""The JSON documents, by the contract."""

import json
import math

import numpy as np
import pytest

from amp_attention.cli import run

THEORY = {
    *("Sigma", "m", "q", "Sigma_hat", "m_hat", "q_hat", "delta", "epsilon", "eta", "test_error", "train_objective"),
    *("train_error", "free_entropy", "squared_error", "trace", "zero_fraction", "rank_fraction", "width_binds"),
    *("replicon", "stable", "iterations", "residual", "standard_error"),
}
OBSERVABLES = {"test_error", "train_objective", "train_error", "squared_error", "m", "q", "trace", "zero_fraction"}
RUN = OBSERVABLES | {
    *("d", "n", "alpha", "seed", "iterations", "gradient_norm", "seconds", "seconds_per_iteration", "compile_seconds"),
    "result",
}
PROBLEM = {
    *("tokens", "kappa", "kappa0", "noise", "beta", "beta0", "target", "gamma", "target_d", "normalise", "penalty"),
}
NODES = ("--nodes", "256", "--replicas", "4")
FINITE = ("--d", "12", "--test-samples", "2000")


def check_document(document, command):
    assert {"command", "version", "problem", "seconds", "points"} <= document.keys()
    assert document["command"] == command
    assert document["seconds"] > 0
    assert document["settings"]["dtype"] == "float64"
    problem = document["problem"]
    assert problem.keys() >= PROBLEM


def test_state_evolution(answer):
    found = answer("state-evolution", "--alpha", "0.5,0.6", "--lam", "0.1:0.2:2", *NODES)
    check_document(found.document, "state-evolution")
    assert found.status == 0
    assert [(p["alpha"], p["lam"]) for p in found.points] == [(0.5, 0.1), (0.5, 0.2), (0.6, 0.1), (0.6, 0.2)]
    for point in found.points:
        assert point.keys() >= THEORY | {"alpha", "lam", "result"}
        assert "message" not in point
        assert point["standard_error"].keys() >= {"Sigma", "m", "q", "replicon", "test_error"}
        assert isinstance(point["stable"], bool)
        assert isinstance(point["iterations"], int)
        assert point["squared_error"] == pytest.approx(1.5 - 2 * point["m"] + point["q"])
    problem = found.document["problem"]
    assert problem["alpha"] == [0.5, 0.6]
    assert problem["gamma"] is None


def test_what_was_asked_twice_is_answered_twice_the_same(answer):
    first, second = (answer("state-evolution", "--lam", "0.1", *NODES).points for _ in range(2))
    for point in (*first, *second):
        del point["seconds"], point["compile_seconds"]
    assert first == second
    (other,) = answer("state-evolution", "--lam", "0.1", "--seed", "1", *NODES).points
    assert other["m"] != first[0]["m"]


@pytest.mark.slow
def test_one_replica_has_no_standard_error(answer):
    (point,) = answer("state-evolution", "--lam", "3", "--nodes", "256", "--replicas", "1").points
    assert set(point["standard_error"].values()) == {None}


def test_weight_decay_is_lam_over_the_square_root_of_kappa(answer):
    found = answer("state-evolution", "--weight-decay", "0.2", "--kappa", "0.25", *NODES)
    assert found.points[0]["lam"] == pytest.approx(0.1)
    assert found.points[0]["width_binds"] is True
    assert found.document["problem"]["weight_decay"] == [0.2]


def test_power_law_and_measured_targets(answer, tmp_path):
    found = answer("state-evolution", "--target", "power-law", "--gamma", "1", "--target-d", "8", *NODES)
    assert found.status == 0
    assert found.document["problem"]["kappa0"] is None
    assert found.document["problem"]["target_d"] == 8
    np.save(tmp_path / "s.npy", np.sqrt(8) / np.arange(8, 0, -1))  # any order
    measured = answer("state-evolution", "--target", tmp_path / "s.npy", *NODES)
    assert measured.points[0]["q"] == pytest.approx(found.points[0]["q"], rel=1e-8)


def test_an_unfinished_point_is_reported_and_the_others_kept(answer):
    found = answer("state-evolution", "--lam", "5,0.05", "--max-iterations", "3", *NODES)
    assert found.status == 1
    assert [point["result"] for point in found.points] == ["successful", "max_steps_reached"]
    assert found.points[1]["message"]
    assert "max_steps_reached" in found.err


def test_progress_is_on_stderr_unless_quiet(answer):
    assert "state-evolution 1/1" in answer("state-evolution", "--lam", "0.1", *NODES).err
    assert answer("state-evolution", "--lam", "0.1", "--quiet", *NODES).err == ""


def test_comparison_document(comparison):
    check_document(comparison.document, "compare")
    assert comparison.document["settings"].items() >= {"d": 12, "repeats": 2, "seed": 3, "nodes": 256}.items()
    assert comparison.status == 0
    assert len(comparison.points) == 2
    for point in comparison.points:
        assert point["result"] == "successful"
        assert point["state_evolution"].keys() >= THEORY
        for engine in ("amp", "train"):
            part = point[engine]
            assert part.keys() >= OBSERVABLES | {"alpha", "lam", "result", "standard_error", "runs"}
            assert part["standard_error"].keys() >= OBSERVABLES
            assert len(part["runs"]) == 2
            for run_ in part["runs"]:
                assert run_.keys() >= RUN
                assert run_["alpha"] == run_["n"] / run_["d"] ** 2
                assert run_["seconds"] > 0
        assert {"V", "Gamma"} <= point["amp"]["runs"][0].keys()
        assert point["state_evolution"]["alpha"] == point["amp"]["runs"][0]["alpha"]
        assert point["bayes"] is None  # without --bound


def test_means_and_standard_errors_are_those_of_the_runs(comparison):
    part = comparison.points[0]["amp"]
    for name in OBSERVABLES:
        values = [run_[name] for run_ in part["runs"]]
        assert part[name] == pytest.approx(np.mean(values))
        assert part["standard_error"][name] == pytest.approx(np.std(values, ddof=1) / math.sqrt(2))


def test_amp_and_training_reach_the_same_minimum(comparison):
    for point in comparison.points:
        assert point["agreement"]["objective_gap"] < 1e-6
        assert point["agreement"]["squared_distance"] < 1e-4
        assert max(run_["gradient_norm"] for run_ in point["amp"]["runs"]) <= 1e-8


def test_repeats_are_independent(comparison):
    first, second = comparison.points[0]["amp"]["runs"]
    assert first["train_objective"] != second["train_objective"]


def same(one, two, names=("train_objective", "test_error", "m", "squared_error")):
    return all(one[name] == pytest.approx(two[name], rel=1e-9) for name in names)


@pytest.mark.parametrize("engine", ["amp", "train"])
def test_commands_share_their_draws(answer, comparison, engine):
    (point,) = answer(engine, *FINITE, "--lam", "0.05", "--repeats", "2", "--seed", "3").points
    for mine, theirs in zip(point["runs"], comparison.points[0][engine]["runs"], strict=True):
        assert same(mine, theirs)
    (single,) = answer(engine, *FINITE, "--lam", "0.05", "--seed", "3").points
    assert same(single, comparison.points[0][engine]["runs"][0])
    assert single["standard_error"] is None


def test_another_seed_is_another_instance(answer, comparison):
    (point,) = answer("amp", *FINITE, "--lam", "0.05", "--seed", "4").points
    assert not same(point, comparison.points[0]["amp"]["runs"][0])


def test_an_unfinished_run_is_no_part_of_the_means(answer):
    found = answer("amp", *FINITE, "--max-iterations", "2")
    (point,) = found.points
    assert found.status == 1
    assert point["result"] == "max_steps_reached"
    assert point["m"] is None
    assert point["runs"][0]["m"] is not None
    assert point["runs"][0]["message"]


def test_without_train(answer):
    (point,) = answer("compare", "--without", "train", "--lam", "0.05", *FINITE, *NODES).points
    assert point["train"] is None
    assert point["agreement"]["objective_gap"] is None
    assert point["amp"]["result"] == "successful"


# Own data


@pytest.fixture
def data_file(tmp_path):
    generator = np.random.default_rng(1)
    X = generator.normal(size=(72, 2, 12))
    S = X[0, 0][:, None] * X[0, 0] / 12
    h = np.einsum("nai,ij,nbj->nab", X, S, X) - np.trace(S) * np.eye(2)
    y = np.exp(h / np.sqrt(12))
    np.savez(tmp_path / "data.npz", X=X, y=y / y.sum(-1, keepdims=True))
    return tmp_path / "data.npz"


def test_own_data_have_no_target(answer, data_file, tmp_path):
    found = answer("amp", "--data", data_file, "--lam", "0.05", "--save-estimate", tmp_path / "S.npy")
    (point,) = found.points
    assert found.status == 0
    assert (point["m"], point["squared_error"], point["test_error"]) == (None, None, None)
    assert (point["d"], point["n"], point["alpha"]) == (12, 72, 0.5)
    assert found.document["problem"]["kappa0"] is None
    S = np.load(tmp_path / "S.npy")
    assert np.trace(S) / 12 == pytest.approx(point["trace"])
    assert np.sum(S**2) / 12 == pytest.approx(point["q"])
    assert "white" not in found.err


def test_tokens_far_from_white_give_a_warning(answer, data_file, tmp_path):
    with np.load(data_file) as archive:
        np.savez(tmp_path / "skew.npz", X=archive["X"] + 1, y=archive["y"])
    found = answer("amp", "--data", tmp_path / "skew.npz", "--lam", "1")
    assert "far from white" in found.err


def test_a_table_without_json(capsys):
    assert run(["state-evolution", "--lam", "0.1,0.2", *NODES, "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["alpha", "lam", "test_error"]
    assert len(lines) == 3
    with pytest.raises(json.JSONDecodeError):
        json.loads("\n".join(lines))
