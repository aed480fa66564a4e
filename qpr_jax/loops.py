"""Loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compile_loop(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function, and cache the result on disk if a folder for it is writable."""

    def decorate(loop: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, nogil=True, error_model="numpy", **options)(loop)
        except RuntimeError:  # neither the package's folder nor the home is writable
            return numba.njit(nogil=True, error_model="numpy", **options)(loop)

    return decorate
