"""The lock of a folder, among threads and processes."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from qpr_jax.files import StrPath, locked

LOCK_FILE = ".lock"


@contextlib.contextmanager
def folder_lock(folder: StrPath) -> Iterator[None]:
    """Hold the lock of a folder against all other threads and processes; wait until it is free.

    A thread that holds it may take it again. A killed process frees it. The folder is created if
    missing. UserError if its file `.lock` is a symbolic link.
    """
    with locked(pathlib.Path(folder).resolve() / LOCK_FILE, wait=True, reentrant=True):
        yield
