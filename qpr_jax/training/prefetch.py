"""Values of steps, made in a thread ahead of the loop that reads them."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

T = TypeVar("T")

AHEAD = 2  # the next one is ready while another is made, and memory holds few


class Prefetch(Iterator[T]):
    """The values of steps in their order, each made by the time that it is needed.

    A thread makes them one after the other, at most AHEAD beyond the one that was read last. An
    error is raised where its value would be read. Use it as a context: its end ends the thread.

    Attributes:
      waited: seconds that the reader has waited in all, except while its device was busy.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        steps: Iterable[int],
        *,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`make` is a function from one of the `steps` to its value.

        `busy` says whether the reader's device still has work, so that waiting costs nothing.
        """
        self._make, self._steps, self._busy = make, iter(steps), busy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._ahead: collections.deque[Future[T]] = collections.deque()
        self.waited = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        start = time.perf_counter()
        while len(self._ahead) <= AHEAD and (step := next(self._steps, None)) is not None:
            self._ahead.append(self._thread.submit(self._make, step))
        if not self._ahead:
            raise StopIteration
        try:
            value = self._ahead.popleft().result()
        except StopIteration as error:  # would end the reader's loop in silence
            raise RuntimeError("making the value of a step raised StopIteration") from error
        if not self._busy():
            self.waited += time.perf_counter() - start
        return value
