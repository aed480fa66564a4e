"""Loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


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
