"""Sizes by flag, and the numbers of other processes as results of pytest-benchmark."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import _measure

_now = 0.0  # of the clock that pytest-benchmark reads
_SIZES = {
    "d": ("200", "200,400", "dimensions of the AMP iteration"),
    "tokens": ("2,3,5", "2,3,5", "T of the AMP iteration"),
    "rounds": ("7", "9", "calls behind each median"),
    "alphas": ("50", "50", "values of alpha of the state evolution sweep, four values of lambda each"),
    "training-d": ("60", "100,200", "dimensions of AMP against training"),
    "naive-d": ("40,80", "40,60,80,100", "dimensions of the dense baseline"),
    "memory-d": ("350", "400", "dimensions of the peak memory"),
    "growth-d": ("160,226,320", "100,141,200,283,400", "dimensions that exponents are fitted to"),
    "gpu-d": ("60", "200", "dimensions at which the accelerator script is run on this machine"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Sizes, comma-separated."""
    group = parser.getgroup("sizes of the benchmarks")
    group.addoption("--full", action="store_true", help="the sizes of the documentation instead of quick ones")
    group.addoption("--enforce-limits", action="store_true", help="a measurement beyond its limit is a failure")
    for name, (quick, full, text) in _SIZES.items():
        group.addoption(f"--{name}", default=None, metavar="LIST", help=f"{text} ({quick}; with --full {full})")


def sizes(config: pytest.Config, name: str) -> list[int]:
    """The whole numbers of one flag."""
    quick, full, _ = _SIZES[name]
    given = config.getoption(f"--{name}")
    text = given if given is not None else full if config.getoption("--full") else quick
    return [int(part) for part in text.split(",")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A parameter named as a flag, with _ for -, takes its values; `devices` is one, or all the cores."""
    for name in _SIZES:
        parameter = name.replace("-", "_")
        if parameter in metafunc.fixturenames and name not in ("rounds", "growth-d"):
            metafunc.parametrize(
                parameter, sizes(metafunc.config, name), ids=lambda value, name=name: f"{name}={value}"
            )
    if "devices" in metafunc.fixturenames:
        cores = _measure.machine()["cores"]
        metafunc.parametrize("devices", sorted({1, cores}), ids=lambda value: f"devices={value}")


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> int:
    """Calls behind each median, at least 5."""
    return max(5, sizes(pytestconfig, "rounds")[0])


@pytest.fixture
def growth_d(pytestconfig: pytest.Config) -> list[int]:
    """Dimensions that exponents are fitted to."""
    return sizes(pytestconfig, "growth-d")


def clock() -> float:
    """Seconds that stand still except while measured times are replayed."""
    return _now


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-benchmark reads the replayed clock everywhere, and groups by module."""
    for item in items:
        item.add_marker(pytest.mark.benchmark(timer=clock, group=item.path.stem.removeprefix("bench_")))


@pytest.fixture
def record(benchmark: Any, pytestconfig: pytest.Config) -> Callable[..., None]:
    """Hand a result to pytest-benchmark: its seconds as timings, its rows and points as extra information."""

    def record(case: str, seconds: list[float], rows: list[dict], points: list[dict] | None = None) -> None:
        times = iter(seconds)

        def replay() -> None:
            global _now
            _now += next(times)

        benchmark.pedantic(replay, rounds=len(seconds), iterations=1)
        benchmark.extra_info.update(case=case, rows=rows, points=points or [])
        missed = [row for row in rows if not _measure.within_limit(row)]
        if pytestconfig.getoption("--enforce-limits"):
            assert not missed

    return record


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict) -> None:
    """Describe the machine as the report prints it."""
    machine_info["described"] = _measure.machine() | {"load": os.getloadavg()[0]}
