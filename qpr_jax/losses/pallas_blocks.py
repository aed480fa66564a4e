"""Block sizes of the kernels: what fits the shared memory and the registers of a GPU."""

from __future__ import annotations

from typing import NamedTuple

from jax import lax

from qpr_jax.precision import PRECISIONS, resolve
from qpr_jax.tuning import GPU


class Blocks(NamedTuple):
    """Rows of a block of anchors and of a tile of others, and parameters of Triton."""

    anchors: int
    others: int
    warps: int
    stages: int


# What every GPU since Ampere has. Hopper has 227 KiB: larger blocks are to be tried there first.
SHARED_MEMORY = 99 << 10
# The accumulators of a gradient take anchors x width / (32 x warps) registers of a thread's 255.
# 64 rows and 4 warps, or 128 and 8, are what `wgmma` takes; tiles are loaded ahead. Fewer rows use
# `mma.sync`, where warps share the columns of a tile if it has more columns than rows. The last of
# these, for operands of 4 bytes and more than 448 columns, spills registers: it fits, and is slow.
_FLOAT32 = (Blocks(32, 64, 4, 1), Blocks(16, 32, 4, 1), Blocks(16, 16, 1, 1))
_BLOCKS = {
    "bf16": (Blocks(128, 64, 8, 2), Blocks(64, 64, 4, 2), Blocks(64, 32, 4, 2), *_FLOAT32),
    "bf16_3x": _FLOAT32,
    "tf32": _FLOAT32,
    # No tensor cores, and operands in registers.
    "highest": (Blocks(32, 16, 4, 1), Blocks(16, 16, 4, 1)),
}


def precision_name(precision: lax.PrecisionLike) -> str:
    """The name, as of `qpr_jax.precision`, of what JAX makes of a precision on a GPU."""
    for name in PRECISIONS:
        if precision in (name, resolve(name, platform=GPU)):
            return name
    if precision in (None, lax.Precision.DEFAULT, lax.Precision.HIGH):
        return "tf32"
    raise ValueError(f"expected a precision of {', '.join(PRECISIONS)}, got {precision!r}")


def block_sizes(width: int, precision: str) -> Blocks:
    """Choose the blocks for operands of this many columns: the first that fit shared memory.

    Raises:
      ValueError: none fit, since there are too many columns.
    """
    for blocks in _BLOCKS[precision]:
        if shared_memory(blocks, width, precision) <= SHARED_MEMORY:
            return blocks
    raise ValueError(
        f"expected vectors short enough for the shared memory of a GPU, got {width} columns, "
        f'precision {precision}; use implementation="xla"'
    )


def shared_memory(blocks: Blocks, width: int, precision: str) -> int:
    """Bytes of shared memory that Triton takes for these blocks, at most."""
    rows = blocks.anchors + blocks.stages * blocks.others
    bytes_of_value = 2 if precision == "bf16" else 4
    # What a row of others has beside its vector, loaded ahead with it.
    of_rows = blocks.stages * blocks.others * 4 * 4
    # Slopes change from the layout of a result to that of an operand: in registers with `wgmma`,
    # and with a copy for each warp that needs them with `mma.sync`.
    slopes = blocks.anchors * blocks.others * 4
    if precision == "bf16" and blocks.anchors >= 64:
        slopes = 0
    elif precision != "highest":
        slopes = max(slopes, blocks.warps * 2048)
    return rows * width * bytes_of_value + of_rows + slopes


def padded_width(dimension: int) -> int:
    """The columns of the operands for vectors of this dimension: whole chunks of at least 16."""
    least = 16 if dimension <= 64 else 64
    return max(least, -(-dimension // least) * least)


def chunks(width: int) -> list[tuple[int, int]]:
    """Start and width of the column chunks: powers of two, largest first."""
    found, start = [], 0
    while start < width:
        chunk = min(64, 1 << ((width - start).bit_length() - 1))
        found.append((start, chunk))
        start += chunk
    return found
