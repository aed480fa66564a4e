"""All devices as one axis that a batch is split over."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qpr_jax.errors import UserError

AXIS = "data"


def make_mesh(batch_size: int, devices: int = 0) -> Mesh:
    """A mesh of one axis, `data`, over the first `devices` devices (0: all).

    Raises:
      UserError: the global batch cannot be split evenly, or there are fewer devices, or they
        belong to several processes.
    """
    if jax.process_count() > 1:
        raise UserError(
            f"expected one process, got {jax.process_count()}; several hosts are not supported yet"
        )
    available = jax.devices()
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
