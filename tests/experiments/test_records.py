import math

import numpy as np
import pytest

from amp_attention.experiments import kept_second_moment
from amp_attention.experiments._records import average, guarded, mean_and_error
from amp_attention.spectral_laws import FiniteLaw, MarchenkoPastur


def record(m, result="successful", **more):
    return {"m": m, "result": result} | more


def test_mean_and_standard_error():
    mean, error = mean_and_error([1.0, 2.0, 3.0, 6.0])
    assert mean == 3.0
    assert error == pytest.approx(np.std([1, 2, 3, 6], ddof=1) / 2)


def test_one_repeat_has_no_standard_error():
    assert average([record(2.0)], ["m"]) == {"m": 2.0, "standard_error": None, "result": "successful"}


def test_an_unfinished_run_has_no_part_in_the_mean():
    runs = [record(1.0), record(3.0), record(9.0, "max_steps_reached", message="raise it")]
    found = average(runs, ["m"])
    assert found["m"] == 2.0
    assert found["standard_error"]["m"] == pytest.approx(1.0)
    assert found["result"] == "max_steps_reached"
    assert found["message"] == "1 of 3 runs: raise it"


def test_without_any_success_the_mean_is_unknown():
    found = average([record(1.0, "diverged", message="x")], ["m"])
    assert math.isnan(found["m"])
    assert found["result"] == "diverged"


def raising(error):
    raise error


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (MemoryError("no"), "refused_by_memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: out of memory"), "refused_by_memory"),
        (FloatingPointError("nan"), "nonfinite"),
        (np.linalg.LinAlgError("did not converge"), "nonfinite"),
    ],
)
def test_numerical_errors_become_results(error, result):
    value, failed = guarded(raising, error)
    assert value is None
    assert failed["result"] == result
    assert type(error).__name__ in failed["message"]


def test_bugs_and_wrong_arguments_are_not_hidden():
    with pytest.raises(TypeError):
        guarded(raising, TypeError("a bug"))


def test_second_moment_kept_by_a_drawn_target():
    law = FiniteLaw.power_law(1.5, 1000)
    assert kept_second_moment(law, 1000) == kept_second_moment(MarchenkoPastur(0.5), 10) == 1.0
    # The largest eigenvalue carries 1/ζ(3) of Q0 and falls between the quantiles of a shorter list.
    assert kept_second_moment(law, 100) < 0.1
    assert abs(kept_second_moment(FiniteLaw([1.0, 2.0]), 50) - 1) < 1e-12
