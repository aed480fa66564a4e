"""The index that is served: its queues of searches, and its replacement while requests go on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_fastapi_instrumentator import Instrumentator
from prometheus_fastapi_instrumentator.metrics import latency, requests
from starlette.exceptions import HTTPException

from qpr_jax.errors import UnavailableError, UserError, counted
from qpr_jax.index.protocol import Hit
from qpr_jax.pair_model.hits import Rerank
from qpr_jax.retriever import Retriever
from qpr_jax.serving.middleware import FIELDS
from qpr_jax.serving.models import CROSS_QUERIES, SearchRequest

log = logging.getLogger("qpr_jax")
T = TypeVar("T")

_RETRY_SECONDS = 1.0  # a reload that failed is not repeated before
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
Found = Sequence[Sequence[Hit]]
ToJson = Callable[[Found], bytes]  # makes the answer to a request, in the searching thread


class ServerMetrics:
    """The metrics of one application.

    Several workers that share a folder `$PROMETHEUS_MULTIPROC_DIR` report their sums, and the
    newest value of each gauge.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        gauge = functools.partial(Gauge, registry=registry, multiprocess_mode="mostrecent")
        self.questions = gauge("qpr_questions", "Indexed questions.")
        self.ready = gauge("qpr_ready", "1 if the server can search, else 0.")
        self.batches = Histogram(
            "qpr_batch_queries", "Queries of a batch.", buckets=_SIZES, registry=registry
        )
        self.reloads = Counter(
            "qpr_reloads", "Reloads of the index: ok or failed.", ["result"], registry=registry
        )
        for result in ("ok", "failed"):  # so that an alert sees the first failure
            self.reloads.labels(result)

    def instrumentator(self) -> Instrumentator:
        """Return what counts and times the requests."""
        found = Instrumentator(should_group_status_codes=False, registry=self.registry)
        count = requests("qpr_requests_total", "Requests answered.", registry=self.registry)
        seconds = latency(
            "qpr_request_seconds",
            "Time to answer.",
            should_include_status=False,
            buckets=_SECONDS,
            registry=self.registry,
        )
        return found.add(count, seconds)


class Served:
    """An index and its queues of searches."""

    def __init__(self, retriever: Retriever, on_batch: Callable[[int], object]) -> None:
        """on_batch: as of `Batcher`."""
        self.retriever = retriever
        by_score: list[Rerank] = [None] if retriever.ordering(None) else []
        by_cross_encoder: list[Rerank] = ["cross_encoder"] if retriever.cross_encoder else []
        self.orders = [*by_score, False, *by_cross_encoder]  # the default first
        # One for each order, so that no search waits for a cross-encoder.
        self._batchers = {
            (word, distinct, least): Batcher(
                functools.partial(
                    retriever.search, rerank=word, distinct=distinct, min_score=least
                ),
                max_queries=CROSS_QUERIES if word == "cross_encoder" else 256,
                on_batch=on_batch,
            )
            for word, distinct, least in itertools.product(self.orders, (False, True), (None, 0))
        }

    def warm_up(self) -> None:
        """Compute and compile what the first queries would wait for."""
        for word in self.orders:
            self.retriever.search(["warm up"], rerank=word)

    async def search(self, asked: SearchRequest) -> bytes:
        """Return the JSON of the hits. 429 if many wait; 422 without this model."""
        word = self.orders[0] if asked.rerank is None else asked.rerank
        if word not in self.orders:
            raise HTTPException(422, f"`rerank`: this server has no {word!r}")
        # A least score of 0 leaves out none; each request has its own.
        scored = None if asked.min_score is None else 0
        to_json = functools.partial(_search_json, least=asked.min_score or 0)
        batcher = self._batchers[word, asked.distinct, scored]
        return await batcher.search(asked.texts, asked.k, to_json)


class LiveIndex:
    """The index that a server searches and changes, and its successors.

    All methods run in the event loop, and do their work in threads. A request that has begun keeps
    its own index; new ones get `served`.
    """

    def __init__(self, retriever: Retriever, open_again: Callable[[], Retriever] | None) -> None:
        """open_again: opens the index of the folder for `reload`; None if there is no folder."""
        self.metrics = ServerMetrics()
        self._make = functools.partial(Served, on_batch=self.metrics.batches.observe)
        self.served, self._open = self._make(retriever), open_again
        self._warm = False
        self._writer = asyncio.Lock()  # writers queue here, and not in a thread each
        self._reloading = asyncio.Lock()
        self._reloaded = -math.inf  # when a reload last began
        self._count = 0

    async def warm_up(self) -> None:
        """Make the first index fast; it is not ready until then."""
        try:
            await asyncio.to_thread(self.served.warm_up)
        except Exception as error:  # searches fail likewise, and `why_not_ready` tries one
            log.error("the first search failed: %s", error)
        self._warm = True
        await self.why_not_ready()

    async def why_not_ready(self) -> str:
        """Try a search; return why the server cannot search, "" if it can."""
        reason = "" if self._warm else "warming up"
        if not reason:
            try:
                # Not in the queue of searches: a long queue does not mean a failure.
                await self.read(lambda now: now.search(["ready"], 1, rerank=False))
            except Exception as error:
                log.error("cannot search: %s", error)
                reason = "the server cannot search; see its log"
        self.metrics.ready.set(not reason)
        return reason

    async def count(self) -> int:
        """Return the number of questions; the last known one while the index fails."""
        with contextlib.suppress(UserError, OSError):
            self._count = await asyncio.to_thread(len, self.served.retriever)
        self.metrics.questions.set(self._count)
        return self._count

    async def read(self, look: Callable[[Retriever], T]) -> T:
        """Return `look(retriever)`, called in a thread."""
        return await self.with_newest(lambda now: asyncio.to_thread(look, now.retriever))

    async def write(self, change: Callable[[Retriever], T]) -> T:
        """Return `change(retriever)`, called in a thread, one change after the other."""
        async with self._writer:
            return await self.read(change)

    async def with_newest(self, work: Callable[[Served], Awaitable[T]]) -> T:
        """Return `work(served)`.

        A store follows the changes of other processes, but refuses a new index of another encoder:
        then the index is reloaded, and the work done again.
        """
        served = self.served
        try:
            return await work(served)
        except UserError as error:
            of_client = str(error).startswith(FIELDS)
            if of_client or isinstance(error, UnavailableError) or self._open is None:
                raise
            async with self._reloading:
                if self.served is served:  # no other request has reloaded it meanwhile
                    if time.monotonic() - self._reloaded < _RETRY_SECONDS:
                        raise
                    await self._reload()
        return await work(self.served)

    async def reload(self) -> dict[str, Any]:
        """Replace the index by the one that the folder has now.

        The new index is opened and warmed up while the old one answers. If that fails, the old one
        stays, and the exception is an HTTPException.

        Returns the number of questions and the duration in seconds.
        """
        async with self._reloading:
            return await self._reload()

    async def _reload(self) -> dict[str, Any]:
        if self._open is None:
            raise HTTPException(409, "the index is in memory, so it cannot be reloaded")
        start = self._reloaded = time.monotonic()
        try:
            new = self._make(await asyncio.to_thread(self._open))
            await asyncio.to_thread(new.warm_up)
        except Exception as error:
            self.metrics.reloads.labels("failed").inc()
            line = "the index was not reloaded, and the old one stays"
            log.error("%s: %s", line, error, exc_info=not isinstance(error, UserError | OSError))
            # The reason may name paths and addresses, which are not for clients.
            retry = {"Retry-After": "1"} if isinstance(error, UnavailableError) else None
            raise HTTPException(503, f"{line}; see the server's log", retry) from None
        self.served = new
        self.metrics.reloads.labels("ok").inc()
        count, seconds = await self.count(), round(time.monotonic() - start, 3)
        log.info("reloaded: %s, %s s", counted(count, "question"), seconds)
        return {"questions": count, "seconds": seconds}


def _fields(hit: Hit) -> dict[str, Any]:
    fields = {**hit._asdict(), "close": hit.close}
    if hit.column is None:
        del fields["column"]
    return fields


def _search_json(results: Sequence[Sequence[Hit]], least: float) -> bytes:
    found = [[_fields(hit) for hit in hits if (hit.score or 0) >= least] for hits in results]
    # ASCII, because an indexed text may have a lone surrogate.
    return json.dumps({"results": found}).encode()


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
