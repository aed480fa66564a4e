"""Programs of a Pallas kernel one after another, where Pallas' own interpreter fails.

It fails inside a `jax.shard_map` that checks what varies between devices (`check_vma`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl


class _Array:
    """What a kernel sees of an input or output of `run_by_hand`."""

    def __init__(self, value: jax.Array):
        self.value, self.shape, self.written = value, value.shape, list[jax.Array]()

    def __getitem__(self, index: Any) -> jax.Array:
        value = self.value
        for axis, part in enumerate(index if isinstance(index, tuple) else (index,)):
            if isinstance(part, pl.Slice):
                value = lax.dynamic_slice_in_dim(value, part.start, int(part.size), axis)
        return value

    def __setitem__(self, index: Any, value: jax.Array) -> None:
        self.written.append(value)  # whole, or column chunks in order


def run_by_hand(kernel: Any, inputs: Any, blocked: int, out: Any, anchors: int) -> Any:
    """Run a kernel on each block of `anchors` rows of the first `blocked` inputs and of `out`."""

    def program(parts: Any) -> Any:
        outputs = [_Array(jnp.zeros((anchors, *array.shape[1:]))) for array in out]
        kernel(*map(_Array, (*parts, *inputs[blocked:])), *outputs)
        return tuple(jnp.concatenate(output.written, axis=-1) for output in outputs)

    split_up = [array.reshape(-1, anchors, *array.shape[1:]) for array in inputs[:blocked]]
    found = lax.map(program, split_up)
    return tuple(value.reshape(array.shape) for value, array in zip(found, out, strict=True))
