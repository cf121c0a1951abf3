"""Runs at finite d and what they leave behind."""

import numpy as np
import pytest

from amp_attention.bayes import bayes_problem
from amp_attention.experiments import FiniteSettings, draw_instance, run_engine, run_instances
from amp_attention.heads import SoftmaxHead
from amp_attention.problem import attention_problem
from amp_attention.spectral_laws import MarchenkoPastur
from amp_attention.targets import Target

D = 20
SETTINGS = FiniteSettings(d=D, test_samples=500)
BAYES = bayes_problem(Target(MarchenkoPastur(0.5), SoftmaxHead(2), 0.5), 0.2)


@pytest.mark.parametrize(("problem", "mean", "variance"), [(attention_problem(0.2, 0.1), 0, 0), (BAYES, 0.5**0.5, 1)])
def test_a_history_starts_where_the_denoiser_does(problem, mean, variance):
    """A minimiser at S = 0, a posterior mean at √κ0 I, the mean of S0, with its variance."""
    instance = draw_instance(problem, D)
    found = run_engine("amp", problem, instance, SETTINGS)
    start = {name: values[0] for name, values in found.history.items()}
    expected = {"q": mean**2, "m": mean * np.trace(instance.S0) / D, "V": variance}
    assert start == pytest.approx(expected, rel=1e-12)
    assert len(found.history["q"]) == found.record["iterations"] + 1
    assert found.history["q"][-1] == pytest.approx(found.record["q"], rel=1e-10)


def test_a_failed_run_has_the_names_of_a_good_one(monkeypatch):
    """And no numbers: for both kinds of estimate."""
    for problem in (attention_problem(0.2, 0.1), BAYES):
        names = run_engine("amp", problem, draw_instance(problem, D), SETTINGS).record.keys()
        with monkeypatch.context() as patch:
            patch.setattr("amp_attention.experiments._finite.solve_amp", lambda *_, **__: 1 / 0)
            point = run_instances(problem, ["amp"], SETTINGS)["amp"].record
        (failed,) = point["runs"]
        assert failed.keys() == names | {"message"} and point["result"] == failed["result"] == "nonfinite"
        assert ("test_error_plugin" in point) == ("test_error_plugin_standard_error" in failed) == (problem is BAYES)
