"""The product of rows and a fixed matrix, whose rounding does not depend on the other rows.

A library's product (BLAS) rounds a row differently in another batch. Here each number is one sum,
feature by feature, and it stays in a register until it is done: a tile of 6 rows by 16 columns has
12 sums of eight numbers, and the 16 registers of AVX2 hold them with what they are made of (Goto
and van de Geijn, 2008, "Anatomy of High-Performance Matrix Multiplication"). numba's loops cannot
say what stays in registers, so the tile is written in LLVM's vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from qpr_jax.loops import compile_loop

_LANES, _VECTORS = 8, 2
WIDTH = _LANES * _VECTORS  # columns of a tile
_ROWS = 6  # rows of a tile
_BLOCK = 96  # rows whose features fit into a core's cache while all panels are read


class Panels(NamedTuple):
    """A matrix [f, d] in panels of 16 columns, each contiguous.

    Attributes:
      values: float32 [P, f, 16]; the columns from d are zeros.
      columns: d.
    """

    values: np.ndarray
    columns: int


def to_panels(matrix: np.ndarray) -> Panels:
    """Lay out a matrix, float32 [f, d]."""
    features, columns = matrix.shape
    count = -(-columns // WIDTH)
    padded = np.zeros((features, count * WIDTH), np.float32)
    padded[:, :columns] = matrix
    panels = padded.reshape(features, count, WIDTH).swapaxes(0, 1)
    return Panels(np.ascontiguousarray(panels), columns)


def multiply(rows: np.ndarray, matrix: Panels) -> np.ndarray:
    """Compute rows @ matrix, float32 [n, f] and [f, d]: float32 [n, d]."""
    out = np.empty((len(rows), matrix.columns), np.float32)
    _multiply(np.ascontiguousarray(rows, np.float32), matrix.values, out)
    return out


def _tile_of(count: int) -> Callable[..., None]:
    """Make the function that writes the products of `count` rows and a panel."""

    @intrinsic
    def write_tile(typing_context: Any, rows: Any, first: Any, panel: Any, tile: Any) -> Any:
        """Write rows [n, f] from `first` on, times a panel [f, 16], to tile [count, 16]."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(signature.args, args, strict=True)
                if isinstance(kind, types.Array)
            ]
            _generate_tile(builder, count, args[1], *arrays)
            return context.get_dummy_value()

        return types.none(rows, types.intp, panel, tile), generate

    found: Callable[..., None] = write_tile
    return found


def _generate_tile(builder: Any, count: int, first: Any, rows: Any, panel: Any, tile: Any) -> None:
    """Write the code of a tile: `count` times _VECTORS sums over all features."""
    number, integer = ir.FloatType(), first.type
    vector, places = ir.VectorType(number, _LANES), ir.VectorType(ir.IntType(32), _LANES)
    undefined = ir.Constant(vector, ir.Undefined)
    fused = ("contract",)  # a product and a sum may be one instruction, which rounds once

    def vectors_at(pointer: Any) -> list[Any]:
        starts = (builder.gep(pointer, [integer(v * _LANES)]) for v in range(_VECTORS))
        return [builder.bitcast(start, vector.as_pointer()) for start in starts]

    (features, _) = cgutils.unpack_tuple(builder, panel.shape)
    starts = [
        builder.gep(rows.data, [builder.mul(builder.add(first, integer(row)), features)])
        for row in range(count)
    ]
    # LLVM keeps these in registers.
    zeros = ir.Constant(vector, [0.0] * _LANES)
    sums = [
        [cgutils.alloca_once_value(builder, zeros) for _ in range(_VECTORS)] for _ in range(count)
    ]
    with cgutils.for_range(builder, features, intp=integer) as loop:
        line = builder.gep(panel.data, [builder.mul(loop.index, integer(WIDTH))])
        columns = [builder.load(pointer, align=4) for pointer in vectors_at(line)]
        for start, row in zip(starts, sums, strict=True):
            value = builder.load(builder.gep(start, [loop.index]))
            value = builder.insert_element(undefined, value, ir.IntType(32)(0))
            value = builder.shuffle_vector(value, undefined, ir.Constant(places, [0] * _LANES))
            for column, total in zip(columns, row, strict=True):
                product = builder.fmul(value, column, flags=fused)
                builder.store(builder.fadd(builder.load(total), product, flags=fused), total)
    for number_of_row, row in enumerate(sums):
        start = builder.gep(tile.data, [integer(number_of_row * WIDTH)])
        for pointer, total in zip(vectors_at(start), row, strict=True):
            builder.store(builder.load(total), pointer, align=4)


_write_tile, _write_row = _tile_of(_ROWS), _tile_of(1)


@compile_loop()
def _multiply(rows, panels, out):  # type: ignore[no-untyped-def]
    """Write rows [n, f], contiguous, times panels [P, f, 16] to `out` [n, d]."""
    count, columns = out.shape
    tile = np.empty((_ROWS, WIDTH), np.float32)
    together = _ROWS if count >= _ROWS else 1
    for start in range(0, count, _BLOCK):
        for p in range(len(panels)):
            left = p * WIDTH
            for at in range(start, min(start + _BLOCK, count), together):
                # The last tile may make some rows twice.
                first = min(at, count - together)
                if together == 1:
                    _write_row(rows, first, panels[p], tile)
                else:
                    _write_tile(rows, first, panels[p], tile)
                for row in range(together):
                    for column in range(min(WIDTH, columns - left)):
                        out[first + row, left + column] = tile[row, column]
