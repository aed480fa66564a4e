"""All devices as one axis that a batch is split over."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qpr_jax.errors import UserError

AXIS = "data"


def make_mesh(batch_size: int, devices: int = 0) -> Mesh:
    """A mesh of one axis, `data`, over the first `devices` devices (0: all, of all processes).

    Raises:
      UserError: the global batch cannot be split evenly, or there are fewer devices.
    """
    available = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if devices > len(available):
        raise UserError(f"expected at most {len(available)} `devices`, got {devices}")
    chosen = available[: devices or len(available)]
    if batch_size % len(chosen):
        raise UserError(
            f"expected a `batch_size` that {len(chosen)} devices can share evenly, got "
            f"{batch_size}; try {batch_size // len(chosen) * len(chosen) or len(chosen)}"
        )
    return Mesh(np.array(chosen), (AXIS,))


def replicated(mesh: Mesh) -> NamedSharding:
    """Each device holds the whole."""
    return NamedSharding(mesh, PartitionSpec())


def put(array: Any, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """An array on the devices of `mesh`; of several processes each gives its own part."""
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_process_local_data(sharding, np.asarray(array))


def replicate(tree: Any, mesh: Mesh) -> Any:
    """A tree of arrays, the same in all processes, whole on each device."""
    return jax.tree.map(lambda array: put(array, mesh, PartitionSpec()), tree)


def own_devices(mesh: Mesh) -> slice:
    """Which of the mesh's devices are this process's; `make_mesh` puts them side by side."""
    ours = [i for i, d in enumerate(mesh.devices) if d.process_index == jax.process_index()]
    return slice(ours[0], ours[-1] + 1)
