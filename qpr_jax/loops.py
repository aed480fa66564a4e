"""Loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def compile_loop(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function, and cache the result on disk if a folder for it is writable.

    Numba compiles a cached loop again when its own file changes. So a loop may call only loops of
    its file: changes of another file would not reach it.
    """

    def decorate(loop: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, nogil=True, error_model="numpy", **options)(loop)
        except RuntimeError:  # neither the folder of the package nor the home is writable
            return numba.njit(nogil=True, error_model="numpy", **options)(loop)

    return decorate


@intrinsic
def prefetch(typing_context: Any, array: Any, row: Any, byte: Any) -> Any:
    """Ask the processor for the line of the cache at a byte of a row of an array, and go on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        found = context.make_array(kinds[0])(context, builder, args[0])
        row, byte = args[1:]
        start = builder.ptrtoint(found.data, row.type)
        stride = cgutils.unpack_tuple(builder, found.strides)[0]
        address = builder.add(builder.add(start, builder.mul(row, stride)), byte)
        pointer, integer = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, integer, integer, integer])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # To read (0), into all caches (3), data (1).
        builder.call(
            function, [builder.inttoptr(address, pointer), integer(0), integer(3), integer(1)]
        )
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp), generate
