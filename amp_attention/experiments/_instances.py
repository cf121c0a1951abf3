"""One draw of target, tokens and labels, the same for every engine."""

from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from amp_attention._typing import Array, Float, PRNGKeyArray
from amp_attention.data import Data, generate_data, sample_size, shard
from amp_attention.problem import AttentionProblem


@dataclass(frozen=True)
class Instance:
    """A finite-d problem.

    Attributes:
        data: tokens and labels.
        S0: the target; None for a user's data.
        train_key: of the initial weights.
        test_key: of the fresh samples behind the test error.
    """

    data: Data
    S0: Float[Array, "d d"] | None
    train_key: PRNGKeyArray
    test_key: PRNGKeyArray


def instance_keys(seed: int, repeat: int) -> Array:
    """Three keys (data, training, test) of one repeat: they depend on nothing but seed and repeat."""
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), repeat), 3)


def draw_instance(
    problem: AttentionProblem, d: int, seed: int = 0, repeat: int = 0, *, mesh: Mesh | None = None, stored: bool = True
) -> Instance:
    """Target, tokens and labels of one repeat at n = round(αd²).

    Args:
        problem: its target and α are read.
        d: embedding dimension.
        seed: of the experiment.
        repeat: index of the repeat; each has its own target, tokens and labels.
        mesh, stored: where the tokens are, as in `generate_data`.
    """
    data_key, train_key, test_key = instance_keys(seed, repeat)
    data, S0 = generate_data(
        data_key, problem.target, d, sample_size(float(problem.alpha), d), mesh=mesh, stored=stored
    )
    return Instance(data, S0, train_key, test_key)


def given_instance(data: Data, seed: int = 0, mesh: Mesh | None = None) -> Instance:
    """A user's own data, whose target is not known, divided over the devices of a mesh."""
    _, train_key, test_key = instance_keys(seed, 0)
    return Instance(data if mesh is None else shard(data, mesh), None, train_key, test_key)
