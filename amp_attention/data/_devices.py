"""Samples divided over devices: the mesh, and what goes where."""

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from amp_attention.numerics.validation import whole_number

AXIS = "samples"
Tree = TypeVar("Tree")


def device_mesh(devices: int | Sequence[Any] | None = None) -> Mesh:
    """A line of devices that samples, or the problems of a sweep, are divided over.

    Args:
        devices: how many of `jax.devices()`, of all processes together, or which; all of them by default.

    Raises:
        ValueError: for more devices than there are.
    """
    present = jax.devices()
    if devices is None or isinstance(devices, int):
        count = len(present) if devices is None else whole_number("devices", devices, 1)
        if count > len(present):
            raise ValueError(
                f"devices must be at most {len(present)}, the number of {jax.default_backend()} devices, got {count}"
            )
        devices = present[:count]
    return jax.make_mesh((len(devices),), (AXIS,), devices=devices, axis_types=(jax.sharding.AxisType.Auto,))


def replicated(tree: Tree, mesh: Mesh | None) -> Tree:
    """Every array of the tree on all devices of the mesh; the tree itself without a mesh."""
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: jax.device_put(x, everywhere) if eqx.is_array(x) else x, tree)


def along_samples(ndim: int, axis: int) -> PartitionSpec:
    """The partition of an array whose axis `axis` runs over samples."""
    return PartitionSpec(*(AXIS if i == axis % ndim else None for i in range(ndim)))
