"""Work divided over devices: the mesh, and what goes where."""

from collections.abc import Sequence
from types import NoneType
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from amp_attention._typing import Array
from amp_attention.numerics.validation import instance_of, whole_number

AXIS = "devices"
Tree = TypeVar("Tree")


def device_mesh(devices: int | Sequence[Any] | None = None) -> Mesh:
    """A line of devices that samples, or the problems of a sweep, are divided over.

    Args:
        devices: how many of `jax.devices()`, of all processes together, or which; all of them by default.

    Raises:
        ValueError: for more devices than there are, or what is neither a number nor a list of devices.
    """
    present = jax.devices()
    if isinstance(devices, Sequence):
        if not devices or not all(isinstance(device, jax.Device) for device in devices):
            raise ValueError(f"devices must be a number of devices or a list of some, got {devices!r}")
    else:
        count = len(present) if devices is None else whole_number("devices", devices, 1)
        if count > len(present):
            raise ValueError(
                f"devices must be at most {len(present)}, the number of {jax.default_backend()} devices, got {count}"
            )
        devices = present[:count]
    return jax.make_mesh((len(devices),), (AXIS,), devices=devices, axis_types=(jax.sharding.AxisType.Auto,))


def check_mesh(mesh: Mesh | None, *, required: bool = False) -> None:
    """ValueError unless `mesh` is one of `device_mesh`, or None where none is `required`."""
    allowed = "a mesh of device_mesh" if required else "a mesh of device_mesh or None"
    instance_of("mesh", mesh, Mesh if required else (Mesh, NoneType), allowed)
    if mesh is not None and mesh.axis_names != (AXIS,):
        raise ValueError(f"mesh must be {allowed}, got one with the axes {mesh.axis_names}")


def replicated(tree: Tree, mesh: Mesh | None) -> Tree:
    """Every array of the tree on all devices of the mesh; the tree itself without a mesh."""
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: placed(x, everywhere) if eqx.is_array(x) else x, tree)


def placed(x: Array, sharding: NamedSharding) -> Array:
    """`jax.device_put`, also on devices of other processes, which hold the same x."""
    addressable = sharding.is_fully_addressable or not getattr(x, "is_fully_addressable", True)
    if addressable or isinstance(x, Tracer):
        return jax.device_put(x, sharding)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(placed(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def along_samples(ndim: int, axis: int) -> PartitionSpec:
    """The partition of an array whose axis `axis` runs over samples."""
    return PartitionSpec(*(AXIS if i == axis % ndim else None for i in range(ndim)))
