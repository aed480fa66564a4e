"""Requests that arrive together are searched together."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import faiss

from qpr_jax.retriever import Hit

SearchFn = Callable[[Sequence[str], int], list[list[Hit]]]
Written = Callable[[list[list[Hit]]], bytes]

_BATCHES = 16  # that may wait, so that none waits for long


class BusyError(Exception):
    """More queries wait than will soon be searched."""


class _Request(NamedTuple):
    queries: list[str]
    k: int
    answer: asyncio.Future[bytes]


class Batcher:
    """Searches in a thread; what arrives meanwhile is the next batch.

    Nobody waits for a batch to fill: one that comes alone is searched at once. The thread takes its
    next batch itself, since the event loop is busy with HTTP just when one ends. There is but one,
    in which FAISS divides a batch among its own threads: several would wait for each other, and for
    the event loop, wherever they run Python.
    """

    def __init__(
        self,
        search: SearchFn,
        written: Written,
        *,
        most: int,
        threads: int = 1,
        seen: Callable[[int], object] = lambda size: None,
    ) -> None:
        """written: makes the answer of a request, in the thread that searched.

        most: queries of a batch, if no request has more. threads: of FAISS. seen: is told the size
        of each batch.
        """
        self._search, self._written = search, written
        self._most, self._seen = most, seen
        self._pool = ThreadPoolExecutor(1, "search", lambda: faiss.omp_set_num_threads(threads))
        self._lock = threading.Lock()  # of what follows
        self._waiting: deque[_Request] = deque()
        self._size = 0  # queries that wait
        self._working = False

    async def search(self, queries: list[str], k: int) -> bytes:
        """What is written of the hits of a `Retriever`; BusyError where too many wait."""
        loop = asyncio.get_running_loop()
        request = _Request(queries, k, loop.create_future())
        with self._lock:
            if self._size >= _BATCHES * self._most:
                raise BusyError
            self._waiting.append(request)
            self._size += len(queries)
            start = not self._working
            self._working = True
        if start:
            self._pool.submit(self._work, loop)
        return await request.answer

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while batch := self._next():
            result: list[bytes] | Exception
            try:
                result = self._answers(batch)
            except Exception as error:
                result = error
            loop.call_soon_threadsafe(_tell, batch, result)

    def _next(self) -> list[_Request]:
        """The requests of the next batch, one at least if any waits; else the thread ends."""
        batch: list[_Request] = []
        size = 0
        with self._lock:
            while self._waiting and (not batch or size + self._first() <= self._most):
                size += self._first()
                request = self._waiting.popleft()
                self._size -= len(request.queries)
                if not request.answer.done():  # who asked may have gone
                    batch.append(request)
            self._working = bool(batch)
        return batch

    def _first(self) -> int:
        return len(self._waiting[0].queries)

    def _answers(self, batch: list[_Request]) -> list[bytes]:
        queries = [query for request in batch for query in request.queries]
        self._seen(len(queries))
        hits = iter(self._search(queries, max(request.k for request in batch)))
        return [
            self._written([next(hits)[: request.k] for _ in request.queries]) for request in batch
        ]


def _tell(batch: list[_Request], result: list[bytes] | Exception) -> None:
    for i, request in enumerate(batch):
        if request.answer.done():
            continue
        if isinstance(result, Exception):
            request.answer.set_exception(result)
        else:
            request.answer.set_result(result[i])
