"""A lock that many readers hold at once and a writer alone, and the lock of a folder's writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import threading
from collections.abc import Iterator

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath

LOCK_FILE = ".lock"


class ReadersWriterLock:
    """Readers wait while a writer works or waits, so a writer waits for running readers only.

    A thread that holds it must not take it again.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = self._writers = 0
        self._writing = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock beside other readers."""
        with self._condition:
            self._condition.wait_for(lambda: self._writers == 0)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                if self._readers == 0:
                    self._condition.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._condition:
            self._writers += 1
            try:
                self._condition.wait_for(lambda: not self._readers and not self._writing)
            except BaseException:
                self._writers -= 1
                self._condition.notify_all()
                raise
            self._writing = True
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._writers -= 1
                self._condition.notify_all()


class WriteLock:
    """Held by the one thread, of all threads and processes, that writes a folder.

    folder: whose file `.lock` other processes wait for; only threads wait where None. May be set
      while the lock is held; the next holder takes that of the new folder.
    """

    def __init__(self, folder: StrPath | None = None) -> None:
        self.folder = None if folder is None else pathlib.Path(folder)
        self._threads = threading.Lock()

    @contextlib.contextmanager
    def hold(self, folder: StrPath | None = None) -> Iterator[None]:
        """Hold the lock; that of another `folder` where one is given, which is made if missing."""
        with self._threads, contextlib.ExitStack() as stack:
            if (path := folder or self.folder) is not None:
                descriptor = _open_lock(pathlib.Path(path))
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield


def _open_lock(folder: pathlib.Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        what = f"{path}: expected a plain file, got a symbolic link"
        raise UserError(what, remedy="remove the link") from None
