"""AMP and training with checkpoints: the same numbers whatever interrupts them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from amp_attention._solution import result_name
from amp_attention.amp import _loop, solve_amp
from amp_attention.checkpoints import Checkpoint, CheckpointError
from amp_attention.data import Data, device_mesh, generate_data, shard
from amp_attention.erm import _train, train
from amp_attention.problem import attention_problem

PROBLEM = attention_problem(0.5, 0.1, tokens=1)
DATA, S0 = generate_data(jax.random.key(0), PROBLEM, 12)
THREE = shard(Data(DATA.X[:-1], DATA.y[:-1]), device_mesh(3))  # the last device has fewer samples that count
MOMENTUM = optax.chain(optax.trace(0.9), optax.scale(-1e-3))


@dataclass(frozen=True)
class Engine:
    """One of the engines: `solve` with its options, and the `module` whose `_advance` does a burst."""

    solve: Callable[..., Any]
    module: Any
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, checkpoint=None, problem=PROBLEM, data=DATA, **options):
        return self.solve(problem, data, checkpoint=checkpoint, **({"S0": S0} | self.options | options))


def _training(optimizer):
    return Engine(train, _train, {"key": jax.random.key(1), "max_steps": 60, "optimizer": optimizer})


ENGINES = {"amp": Engine(solve_amp, _loop)} | {
    name: _training(optimizer) for name, optimizer in (("lbfgs", "lbfgs"), ("adam", "adam"), ("own", MOMENTUM))
}
BOTH = pytest.mark.parametrize("engine", [ENGINES["amp"], ENGINES["lbfgs"]], ids=["amp", "train"])


@pytest.fixture(scope="module", params=ENGINES)
def case(request):
    """An engine, and its run without interruptions."""
    engine = ENGINES[request.param]
    plain = engine()
    assert plain.stats["iterations"] >= 60
    return engine, plain


@pytest.mark.parametrize("interval", [{"steps": 1}, {"steps": 7}, {"steps": 1000}, {"every": 1e-3}, {}])
def test_bursts_change_nothing(case, same_bits, tmp_path, interval):
    engine, plain = case
    assert same_bits(engine(Checkpoint(tmp_path / "run", **interval)), plain)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (5, 40)])
def test_an_interruption_changes_nothing(case, same_bits, tmp_path, bursts, before, after):
    (engine, plain), file = case, tmp_path / "run"
    with bursts(engine.module, 6):
        engine(Checkpoint(file, steps=before))
    with bursts(engine.module) as done:
        assert same_bits(engine(Checkpoint(file, steps=after, resume=True)), plain)
    assert len(done) == -(-(int(plain.stats["iterations"]) - 6 * before) // after)  # not from the start again


@BOTH
def test_a_finished_run_returns_at_once(engine, same_bits, tmp_path, bursts):
    """The end is a state, too."""
    file = tmp_path / "run"
    plain = engine(Checkpoint(file, resume=True), max_steps=500)  # no file yet: it starts
    content = file.read_bytes()
    assert plain.successful
    with bursts(engine.module) as done:
        assert same_bits(engine(Checkpoint(file, resume=True), max_steps=500), plain)
    assert not done
    with pytest.raises(CheckpointError, match="exists; to go on from it, pass resume=True"):
        engine(Checkpoint(file), max_steps=500)
    assert file.read_bytes() == content


@BOTH
def test_runs_that_do_not_converge(engine, same_bits, tmp_path):
    short = engine(Checkpoint(tmp_path / "short", steps=4), max_steps=10)
    assert result_name(short.result) == "max_steps_reached" and short.stats["iterations"] == 10
    assert same_bits(short, engine(max_steps=10))
    assert same_bits(engine(Checkpoint(tmp_path / "short", resume=True), max_steps=10), short)
    bad = Data(DATA.X.at[0, 0, 0].set(jnp.nan), DATA.y)
    failed = engine(Checkpoint(tmp_path / "bad", steps=1), data=bad)
    assert result_name(failed.result) == "nonfinite"
    assert np.all(np.isfinite(failed.value.S))
    assert same_bits(engine(Checkpoint(tmp_path / "bad", resume=True), data=bad), failed)


COMMON = {
    "problem": {"problem": attention_problem(0.5, 0.1 * (1 + 1e-15), tokens=1)},
    "data": {"data": Data(DATA.X, DATA.y.at[-1].add(1e-12))},
    "tolerance": {"tolerance": 1e-6},
    "max_steps": {"max_steps": 61},
    "devices": {"data": shard(DATA, device_mesh(2))},
}
OTHERS = {
    "amp": COMMON | {"S0": {"S0": None}, "start": {"start": S0}, "damping": {"damping": 0.5}},
    "lbfgs": COMMON
    | {
        "start": {"key": jax.random.key(2)},
        "width": {"width": 11},
        "learning_rate": {"learning_rate": 0.2},
        "optimizer": {"optimizer": MOMENTUM},
    },
    "own": {"optimizer": {"optimizer": optax.sgd(1e-3)}},
}


@pytest.mark.parametrize(("engine", "name"), [(engine, name) for engine in OTHERS for name in OTHERS[engine]])
def test_that_of_another_run_is_refused_and_left_as_it_is(tmp_path, bursts, engine, name):
    file, options, engine = tmp_path / "run", OTHERS[engine][name], ENGINES[engine]
    with bursts(engine.module, 0):
        engine(Checkpoint(file))
    content = file.read_bytes()
    with pytest.raises(CheckpointError, match=f"is a checkpoint of another run: {name} is"):
        engine(Checkpoint(file, resume=True), **options)
    assert file.read_bytes() == content


@BOTH
def test_samples_divided_over_devices(engine, same_bits, tmp_path, bursts):
    plain, file = engine(data=THREE), tmp_path / "run"
    with bursts(engine.module, 6):
        engine(Checkpoint(file, steps=3), data=THREE)
    resumed = engine(Checkpoint(file, resume=True), data=THREE)
    assert same_bits(resumed, plain)
    assert [x.sharding for x in jax.tree.leaves(resumed)] == [x.sharding for x in jax.tree.leaves(plain)]


@BOTH
def test_a_disk_that_fills_up_leaves_the_last_state(engine, same_bits, tmp_path, monkeypatch):
    file, advance, calls = tmp_path / "run", engine.module._advance, []

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:

        def fills_up(*arguments):
            calls.append(1)
            if len(calls) == 5:
                patch.setattr("os.fsync", full)
            return advance(*arguments)

        patch.setattr(engine.module, "_advance", fills_up)
        with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
            engine(Checkpoint(file, steps=2))
    assert len(calls) == 5
    assert same_bits(engine(Checkpoint(file, resume=True)), engine())


@BOTH
def test_there_is_nothing_to_write_under_a_transformation(engine, tmp_path):
    checkpoint = Checkpoint(tmp_path / "run")
    objective = lambda lam: engine(checkpoint, attention_problem(0.5, lam, tokens=1)).value.objective  # noqa: E731
    for attempt in (
        lambda: jax.grad(objective)(0.1),
        lambda: jax.jit(objective)(0.1),
        lambda: jax.vmap(objective)(jnp.asarray([0.1, 0.2])),
        lambda: jax.jit(lambda: engine(checkpoint).value.objective)(),
    ):
        with pytest.raises(ValueError, match="checkpoint must be None under jit, grad or vmap"):
            attempt()
    assert not checkpoint.path.exists()
