"""Requests that arrive together are searched together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import faiss

from qpr_jax.retriever import Hit

Search = Callable[[Sequence[str], int], list[list[Hit]]]
Written = Callable[[list[list[Hit]]], bytes]

_BATCHES = 16  # that may wait, so that none waits for long


class BusyError(Exception):
    """More queries wait than will soon be searched."""


class _Request(NamedTuple):
    queries: list[str]
    k: int
    answer: asyncio.Future[bytes]


class Batcher:
    """Searches in a few threads; what arrives while all of them search is the next batch.

    Nobody waits for a batch to fill: one that comes alone is searched at once.
    """

    def __init__(
        self,
        search: Search,
        written: Written,
        *,
        threads: int,
        most: int,
        seen: Callable[[int], object] = lambda size: None,
    ) -> None:
        """written: makes the answer of a request, in the thread that searched.

        most: queries of a batch, if no request has more. seen: is told the size of each.
        """
        self._search, self._written = search, written
        self._most, self._seen = most, seen
        self._waiting: list[_Request] = []
        # FAISS's own threads would be in the way of the others.
        self._pool = ThreadPoolExecutor(threads, "search", lambda: faiss.omp_set_num_threads(1))
        self._idle = threads
        self._working: set[asyncio.Task[None]] = set()

    async def search(self, queries: list[str], k: int) -> bytes:
        """What is written of the hits of a `Retriever`; BusyError where too many wait."""
        if sum(len(request.queries) for request in self._waiting) >= _BATCHES * self._most:
            raise BusyError
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
                answers = await loop.run_in_executor(self._pool, self._answers, batch)
            except Exception as error:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            for request, answer in zip(batch, answers, strict=True):
                if not request.answer.done():
                    request.answer.set_result(answer)
        self._idle += 1

    def _next(self) -> list[_Request]:
        """The requests of the next batch, one at least if any waits."""
        # Who asked may have gone.
        waiting = [request for request in self._waiting if not request.answer.done()]
        count = size = 0
        for request in waiting:
            size += len(request.queries)
            if count and size > self._most:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    def _answers(self, batch: list[_Request]) -> list[bytes]:
        queries = [query for request in batch for query in request.queries]
        self._seen(len(queries))
        hits = iter(self._search(queries, max(request.k for request in batch)))
        return [
            self._written([next(hits)[: request.k] for _ in request.queries]) for request in batch
        ]
