"""Search requests that arrive together, searched as one batch."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from starlette.exceptions import HTTPException

from qpr_jax.retriever import Hit

Found = Sequence[Sequence[Hit]]
ToJson = Callable[[Found], bytes]  # makes the answer to a request, in the searching thread


class _Request(NamedTuple):
    queries: list[str]
    k: int
    to_json: ToJson
    answer: asyncio.Future[bytes]


class Batcher:
    """Searches in one thread; requests that arrive during a search form the next batch.

    A request never waits for a batch to fill: one that arrives alone is searched at once. The
    thread takes its next batch itself, because the event loop may be busy with HTTP when a batch
    ends. FAISS divides a batch among its own threads.
    """

    def __init__(
        self,
        search: Callable[[Sequence[str], int], Found],
        *,
        max_queries: int,  # of a batch, unless one request has more
        max_waiting: int = 4096,  # queries
        on_batch: Callable[[int], object] = lambda size: None,  # gets the number of queries
    ) -> None:
        self._search, self._max_queries, self._max_waiting = search, max_queries, max_waiting
        self._on_batch = on_batch
        self._pool = ThreadPoolExecutor(1, "search")
        self._lock = threading.Lock()  # guards the three below
        self._waiting: deque[_Request] = deque()
        self._waiting_queries = 0
        self._running = False

    async def search(self, queries: list[str], k: int, to_json: ToJson) -> bytes:
        """Return the answer to a request; an HTTPException if too many queries wait."""
        loop = asyncio.get_running_loop()
        request = _Request(queries, k, to_json, loop.create_future())
        with self._lock:
            if self._waiting_queries >= self._max_waiting:
                line = "too many requests are waiting; try again later"
                raise HTTPException(429, line, {"Retry-After": "1"})
            self._waiting.append(request)
            self._waiting_queries += len(queries)
            start = not self._running
            self._running = True
        if start:
            self._pool.submit(self._search_until_idle, loop)
        return await request.answer

    def _search_until_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        while batch := self._next_batch():
            result: list[bytes] | Exception
            try:
                result = self._search_batch(batch)
            except Exception as error:
                result = error
            loop.call_soon_threadsafe(_set_answers, batch, result)

    def _next_batch(self) -> list[_Request]:
        """Take the requests of the next batch; none ends the work of the thread."""
        batch: list[_Request] = []
        size = 0
        with self._lock:
            while self._waiting:
                queries = len(self._waiting[0].queries)
                if batch and size + queries > self._max_queries:
                    break
                request = self._waiting.popleft()
                self._waiting_queries -= queries
                if not request.answer.done():  # done if the client has disconnected
                    size += queries
                    batch.append(request)
            self._running = bool(batch)
        return batch

    def _search_batch(self, batch: list[_Request]) -> list[bytes]:
        queries = [query for request in batch for query in request.queries]
        self._on_batch(len(queries))
        hits = iter(self._search(queries, max(request.k for request in batch)))
        return [r.to_json([next(hits)[: r.k] for _ in r.queries]) for r in batch]


def _set_answers(batch: list[_Request], result: list[bytes] | Exception) -> None:
    for i, request in enumerate(batch):
        if request.answer.done():
            continue
        if isinstance(result, Exception):
            request.answer.set_exception(result)
        else:
            request.answer.set_result(result[i])
