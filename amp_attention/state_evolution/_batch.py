"""State evolution of many problems at once, divided over devices."""

from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from amp_attention._solution import Solution
from amp_attention._typing import Array, Float
from amp_attention.numerics.devices import AXIS, check_mesh, replicated
from amp_attention.numerics.validation import instance_of
from amp_attention.problem import AttentionProblem
from amp_attention.state_evolution._equations import Nodes, check_nodes
from amp_attention.state_evolution._fixed_point import FixedPoint
from amp_attention.state_evolution._solver import informed_start, solve_lowest, uninformed_start


def solve_each(
    problems: Sequence[AttentionProblem],
    nodes: Nodes,
    *,
    starts: Sequence[FixedPoint | Float[Array, "3"] | None] | None = None,
    mesh: Mesh | None = None,
    **options,
) -> list[Solution[FixedPoint]]:
    """`solve_lowest` for every problem, each device working through its own share of them.

    One after the other on a device: a problem that takes long, or fails, delays or spoils no other, and each solution
    is the one that `solve_lowest` finds for it alone, with its own count of evaluations.

    Args:
        problems: of the same shapes.
        nodes: as in `solve_state_evolution`, the same for all.
        starts: where the search for each begins, besides near its target; a fixed point, (Σ, m, q), or None for 0.
        mesh: devices that the problems are divided over; one device by default.
        **options: `tolerance`, `max_steps`, `damping` of `solve_state_evolution`.

    Returns:
        The solutions, in order.

    Raises:
        ValueError: for arguments of another kind or out of range, or lists of different lengths.
    """
    instance_of("problems", problems, Sequence, "a list of problems")
    check_mesh(mesh)
    for problem in problems:
        check_nodes(problem, nodes)
    starts = [None] * len(problems) if starts is None else starts
    if len(starts) != len(problems):
        raise ValueError(f"starts must be as many as the {len(problems)} problems, got {len(starts)}")
    if not problems:
        return []
    devices = 1 if mesh is None else mesh.size
    missing = -len(problems) % devices
    known = [isinstance(start, FixedPoint) for start in starts]
    points = [_overlaps(problem, start) for problem, start in zip(problems, starts, strict=True)]
    filled = [jnp.asarray(flag) for flag in known], points, problems
    flags, points, stacked = (_stack([*part, *[part[-1]] * missing]) for part in filled)
    flags, points, stacked, nodes = replicated((flags, points, stacked, nodes), mesh)
    together = _solve_all(stacked, points, flags, nodes, mesh, tuple(sorted(options.items())))
    return [jax.tree.map(lambda x: x[i], together) for i in range(len(problems))]  # noqa: B023


def _overlaps(problem: AttentionProblem, start: FixedPoint | Float[Array, "3"] | None) -> Float[Array, "3"]:
    if start is None:
        return uninformed_start(problem)
    return jnp.asarray(start.overlaps if isinstance(start, FixedPoint) else start, problem.alpha.dtype)


def _stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@eqx.filter_jit
def _solve_all(problems, points, known, nodes, mesh: Mesh | None, options: tuple) -> Solution[FixedPoint]:
    def one(arguments, nodes):
        problem, point, known = arguments
        starts = [(point, known), informed_start(problem)]
        return solve_lowest(problem, nodes, starts, **dict(options))

    def on_device(problems, points, known, nodes):
        return jax.lax.map(partial(one, nodes=nodes), (problems, points, known))

    if mesh is None:
        return on_device(problems, points, known, nodes)
    mine, all_of_it = PartitionSpec(AXIS), PartitionSpec()

    def shared(*arguments):
        solutions = on_device(*arguments)
        return jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS, tiled=True), solutions)

    specs = (mine, mine, mine, all_of_it)
    return jax.shard_map(shared, mesh=mesh, in_specs=specs, out_specs=all_of_it, check_vma=False)(
        problems, points, known, nodes
    )
