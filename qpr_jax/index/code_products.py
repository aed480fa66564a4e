"""Products of the codes of vectors, int8, and of queries, int16, exact in int32.

A tile of four codes and one or two queries: what is read and widened serves several products, all
sums stay in registers, and those of four codes are added up together. numba's loops do neither, so
the tile is written in LLVM's vectors, as that of `encoders.matrix_product`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from qpr_jax.loops import compile_loop

TOGETHER = 2  # queries of a tile
_ROWS = 4  # codes of a tile
_LANES = 16  # numbers that are multiplied at a time


def _tile_of(queries: int) -> Callable[..., None]:
    """Make the function that writes the products of four codes and the first `queries`."""

    @intrinsic
    def write_tile(typing_context: Any, codes: Any, first: Any, coded: Any, out: Any) -> Any:
        """Write codes [n, D] from `first` on, times queries [q, D], to out [2, N], likewise."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            arrays = [
                context.make_array(signature.args[i])(context, builder, args[i]) for i in (0, 2, 3)
            ]
            _generate_tile(builder, queries, args[1], *arrays)
            return context.get_dummy_value()

        return types.none(codes, types.intp, coded, out), generate

    found: Callable[..., None] = write_tile
    return found


def _generate_tile(
    builder: Any, queries: int, first: Any, codes: Any, coded: Any, out: Any
) -> None:
    """Write the code of a tile."""
    integer, narrow = first.type, ir.IntType(32)
    wide = ir.VectorType(narrow, _LANES)

    def added(a: Any, b: Any, places: range, others: range) -> Any:
        """Numbers at some places of two vectors, which follow each other, and at others: sums."""
        masks = (ir.Constant(ir.VectorType(narrow, len(x)), [*x]) for x in (places, others))
        return builder.add(*(builder.shuffle_vector(a, b, mask) for mask in masks))

    (_, width), (_, room) = (cgutils.unpack_tuple(builder, array.shape) for array in (codes, out))
    rows = [
        builder.gep(codes.data, [builder.mul(builder.add(first, integer(row)), width)])
        for row in range(_ROWS)
    ]
    starts = [builder.gep(coded.data, [builder.mul(integer(q), width)]) for q in range(queries)]
    # LLVM keeps these in registers.
    zeros = ir.Constant(ir.VectorType(narrow, _LANES // 2), [0] * (_LANES // 2))
    sums = [[cgutils.alloca_once_value(builder, zeros) for _ in rows] for _ in starts]
    with cgutils.for_range(builder, builder.sdiv(width, integer(_LANES)), intp=integer) as loop:
        at = builder.mul(loop.index, integer(_LANES))

        def read(start: Any) -> Any:
            pointer = builder.gep(start, [at])
            kind = ir.VectorType(pointer.type.pointee, _LANES).as_pointer()
            return builder.sext(builder.load(builder.bitcast(pointer, kind), align=1), wide)

        numbers, others = [*map(read, rows)], [*map(read, starts)]
        for other, totals in zip(others, sums, strict=True):
            for number, total in zip(numbers, totals, strict=True):
                # Products and the sums of neighbours are one instruction of x86.
                products = builder.mul(number, other)
                pairs = added(products, products, range(0, _LANES, 2), range(1, _LANES, 2))
                builder.store(builder.add(builder.load(total), pairs), total)
    for q, totals in enumerate(sums):
        eights = (builder.load(total) for total in totals)
        a, b, c, d = (added(eight, eight, range(4), range(4, 8)) for eight in eights)
        even, odd = range(0, 8, 2), range(1, 8, 2)
        four = added(added(a, b, even, odd), added(c, d, even, odd), even, odd)
        place = builder.add(builder.mul(integer(q), room), first)
        pointer = builder.bitcast(builder.gep(out.data, [place]), four.type.as_pointer())
        builder.store(four, pointer, align=4)


_write_tile_of_one, _write_tile_of_two = _tile_of(1), _tile_of(TOGETHER)


@compile_loop()
def write_products(codes, coded, out):  # type: ignore[no-untyped-def]
    """Write the products of codes and the first two queries, or the only one.

    codes: int8 [n, D], contiguous, where D is divisible by 16. coded: int16 [1 or more, D]. out:
    int32 [2, n or more].
    """
    count = len(codes)
    if count < _ROWS:
        for q in range(min(len(coded), TOGETHER)):
            for i in range(count):
                total = np.int32(0)
                for j in range(codes.shape[1]):
                    total = np.int32(total + np.int32(codes[i, j]) * np.int32(coded[q, j]))
                out[q, i] = total
        return
    for at in range(0, count, _ROWS):
        first = min(at, count - _ROWS)  # the last tile may make some products twice
        if len(coded) == 1:
            _write_tile_of_one(codes, first, coded, out)
        else:
            _write_tile_of_two(codes, first, coded, out)
