"""Requests that arrive together are searched together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import faiss

from qpr_jax.retriever import Hit

Search = Callable[[Sequence[str], int], list[list[Hit]]]


class _Request(NamedTuple):
    queries: list[str]
    k: int
    answer: asyncio.Future[list[list[Hit]]]


class Batcher:
    """Searches in a few threads; what arrives while all of them search is the next batch.

    Nobody waits for a batch to fill: one that comes alone is searched at once.
    """

    def __init__(
        self, search: Search, *, threads: int, most: int, seen: Callable[[int], object]
    ) -> None:
        """most: queries of a batch, if no request has more. seen: is told the size of each."""
        self._search, self._most, self._seen = search, most, seen
        self._waiting: list[_Request] = []
        # FAISS's own threads would be in the way of the others.
        self._pool = ThreadPoolExecutor(threads, "search", lambda: faiss.omp_set_num_threads(1))
        self._idle = threads
        self._working: set[asyncio.Task[None]] = set()

    async def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """As of a `Retriever`."""
        request = _Request(queries, k, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._idle:
            self._idle -= 1
            task = asyncio.create_task(self._work())
            self._working.add(task)  # the loop itself would forget it
            task.add_done_callback(self._working.discard)
        return await request.answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next():
            try:
                found = await loop.run_in_executor(self._pool, self._found, batch)
            except Exception as error:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            for request, hits in zip(batch, found, strict=True):
                if not request.answer.done():  # who asked may have gone
                    request.answer.set_result(hits)
        self._idle += 1

    def _next(self) -> list[_Request]:
        """The requests of the next batch, one at least if any waits."""
        count = size = 0
        for request in self._waiting:
            size += len(request.queries)
            if count and size > self._most:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _found(self, batch: list[_Request]) -> list[list[list[Hit]]]:
        queries = [query for request in batch for query in request.queries]
        self._seen(len(queries))
        hits = iter(self._search(queries, max(request.k for request in batch)))
        return [[next(hits)[: request.k] for _ in request.queries] for request in batch]
