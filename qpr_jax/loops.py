"""Loops that numba compiles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def compile_loop(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function, and cache the result on disk if a folder for it is writable."""

    def decorate(loop: Callable[..., Any]) -> Any:
        try:
            compiled = numba.njit(cache=True, nogil=True, error_model="numpy", **options)(loop)
            file = compiled._cache._cache_file
            file._source_stamp = (file._source_stamp, _imported(compiled))
        # Neither the package's folder nor the home is writable, or numba has other fields.
        except (RuntimeError, AttributeError):
            return numba.njit(nogil=True, error_model="numpy", **options)(loop)
        return compiled

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


def _imported(compiled: Any) -> str:
    """Hash the loops and numbers that a loop's module has so far, those of other modules, too.

    The compiled loop contains them, but numba compiles it again only if its own file changes.
    """
    parts = []
    for name, value in compiled.py_func.__globals__.items():
        if hasattr(value, "py_func"):
            parts.append((name, value._cache._cache_file._source_stamp))
        elif isinstance(value, int | float | np.generic):
            parts.append((name, repr(value)))
    return hashlib.sha256(repr(parts).encode()).hexdigest()
