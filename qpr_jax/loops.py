"""Loops that numba compiles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numba
import numpy as np


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
