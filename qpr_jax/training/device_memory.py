"""What a compiled step needs of a device's memory."""

from __future__ import annotations

import jax

from qpr_jax.errors import UserError
from qpr_jax.machine import available_memory


def available(device: jax.Device) -> int:
    """Bytes that a training may allocate: on CPU for all devices together, else on this one."""
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("bytes_limit", 1 << 62))
    return available_memory()


def needed(compiled: jax.stages.Compiled) -> int:
    """Bytes that a compiled function holds on a device while it runs; 0 where XLA gives no plan."""
    plan = compiled.memory_analysis()
    if plan is None:
        return 0
    held = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return int(held - plan.alias_size_in_bytes)


def require_memory(compiled: jax.stages.Compiled, *, sharing: int, limit: int) -> int:
    """Return the bytes that a step needs; UserError if they are more than there are.

    Args:
      compiled: the step.
      sharing: number of devices that share `limit`.
      limit: bytes, from `available` before the state of the training is allocated.
    """
    need = sharing * needed(compiled)
    if need > limit:
        raise UserError(
            f"a step needs {need / 2**30:.1f} GiB of memory, but {limit / 2**30:.1f} GiB are "
            "available",
            remedy="set `batch.encode_chunk=4096` or less, which changes no result, or lower "
            "`batch_size`",
        )
    return need
