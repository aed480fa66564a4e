"""Requests that arrive together are searched together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from qpr_jax.retriever import Hit

Search = Callable[[Sequence[str], int], list[list[Hit]]]


class _Request(NamedTuple):
    queries: list[str]
    k: int
    answer: asyncio.Future[list[list[Hit]]]


class Batcher:
    """Searches in one thread, while what arrives meanwhile waits to be the next batch.

    Nobody waits for a batch to fill: one that comes alone is searched at once.
    """

    def __init__(self, search: Search, *, most: int, seen: Callable[[int], object]) -> None:
        """most: queries of a batch, if no request has more. seen: is told the size of each."""
        self._search, self._most, self._seen = search, most, seen
        self._waiting: list[_Request] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._working: asyncio.Task[None] | None = None

    async def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """As of a `Retriever`."""
        request = _Request(queries, k, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await request.answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next():
            try:
                found = await loop.run_in_executor(self._thread, self._found, batch)
            except Exception as error:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            for request, hits in zip(batch, found, strict=True):
                if not request.answer.done():  # who asked may have gone
                    request.answer.set_result(hits)
        self._working = None

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
