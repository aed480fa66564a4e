"""A lock that many readers hold at once, and a writer alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ReadersWriterLock:
    """Readers wait while a writer works or waits, so a writer waits for running readers only.

    Not to be taken again by a thread that holds it.
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
