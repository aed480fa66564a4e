"""The index that is served now, and the one that takes its place while requests go on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from starlette.exceptions import HTTPException

from qpr_jax.errors import UnavailableError, UserError, format_error
from qpr_jax.reranking.base import Rerank
from qpr_jax.retriever import Hit, Retriever
from qpr_jax.serving.batching import Batcher, BusyError
from qpr_jax.serving.limits import Limits
from qpr_jax.serving.observer import ServerMetrics
from qpr_jax.serving.page import make_page

log = logging.getLogger("qpr_jax")
T = TypeVar("T")

_PROBED_SECONDS = 1.0  # how long an answer of `/ready` holds


class Served:
    """An index with its queues of searches, and the page that offers its orders of hits."""

    def __init__(
        self, retriever: Retriever, limits: Limits, threads: int, on_batch: Callable[[int], object]
    ) -> None:
        """threads: of FAISS; on_batch: as of `Batcher`."""
        self.retriever = retriever
        self._limits, self._threads, self._on_batch = limits, threads, on_batch
        # One for each order, so that no batch has two, and none waits for a cross-encoder.
        self._batchers: dict[Rerank, Batcher] = {}
        words = retriever.second_stages.words(retriever.index)
        self.page = make_page(k=limits.k, characters=limits.characters, rerank=words)

    def warm_up(self) -> None:
        """Compute and compile what the first queries would wait for."""
        self.retriever.encoder.warm_up()
        for word in self.retriever.second_stages.words(self.retriever.index):
            self.retriever.search(["warm up"], rerank=word)

    def choose(self, rerank: Rerank) -> Rerank:
        """As `SecondStages.choose`."""
        return self.retriever.second_stages.choose(rerank, self.retriever.index)

    async def search(self, queries: list[str], k: int, word: Rerank) -> bytes:
        """The answer to a search in an order that `choose` gave; BusyError where many wait."""
        if word not in self._batchers:
            self._batchers[word] = self._batcher(word)
        return await self._batchers[word].search(queries, k)

    def _batcher(self, word: Rerank) -> Batcher:
        limits, size, waiting = self._limits, self._limits.batch, self._limits.waiting
        if word == "cross_encoder":  # the same number of batches wait
            size, waiting = limits.cross_queries, waiting * limits.cross_queries // limits.batch
        return Batcher(
            functools.partial(self.retriever.search, rerank=word),
            _search_json,
            max_queries=size,
            max_waiting=max(1, waiting),
            threads=self._threads,
            on_batch=self._on_batch,
        )


class LiveIndex:
    """What a server searches and changes: one index after the other.

    All its methods run in the event loop, whose threads do the work.

    Attributes:
      served: the index of new requests; those that have begun keep theirs.
    """

    def __init__(
        self,
        retriever: Retriever,
        open_again: Callable[[], Retriever] | None,
        *,
        limits: Limits,
        threads: int,
        metrics: ServerMetrics,
    ) -> None:
        """open_again: reads the index of the folder, for `reload`; None: there is none."""
        self._make = functools.partial(
            Served, limits=limits, threads=threads, on_batch=metrics.batches.observe
        )
        self.served = self._make(retriever)
        self._open, self._limits, self._metrics = open_again, limits, metrics
        self._warm = False
        self._probe: tuple[float, str] = (0.0, "")  # when `/ready` was last found out, and why not
        self._writer = asyncio.Lock()  # so that writers queue here and not in a thread each
        self._writers = 0
        self._reloading = asyncio.Lock()
        self._next_reload: asyncio.Task[dict[str, Any]] | None = None
        metrics.questions.set_function(lambda: len(self.served.retriever))
        metrics.opened.set_to_current_time()

    async def warm_up(self) -> None:
        """Make the first index fast; `why_not_ready` says that it is not until then."""
        try:
            await _in_own_thread(self.served.warm_up)
        except Exception as error:  # searches fail likewise, and `why_not_ready` tries one
            log.error("the first search failed: %s", _reason(error))
        self._warm = True
        await self.why_not_ready()

    async def why_not_ready(self) -> str:
        """Why it cannot search, in a line; "" where it can. By a search, once a second."""
        if not self._warm:
            return "warming up"
        now = time.monotonic()
        if now - self._probe[0] >= _PROBED_SECONDS or self._probe[1]:
            self._probe = now, await self._try_search()
        self._metrics.ready.set(not self._probe[1])
        return self._probe[1]

    async def _try_search(self) -> str:
        try:
            async with asyncio.timeout(self._limits.seconds):
                # Not in the queue of searches, whose length is no reason.
                search = functools.partial(self.served.retriever.search, rerank=False)
                await asyncio.to_thread(search, ["ready"], 1)
        except Exception as error:
            log.error("cannot search: %s", _reason(error) or "it takes too long")
            return "the server cannot search; see its log"
        return ""

    async def write(self, change: Callable[[Retriever], Any]) -> Any:
        """What `change` gives, in a thread, one after the other; BusyError where many wait."""
        if self._writers >= self._limits.writers:
            raise BusyError
        self._writers += 1
        try:
            async with self._writer:
                return await asyncio.to_thread(change, self.served.retriever)
        finally:
            self._writers -= 1

    async def reload(self) -> dict[str, Any]:
        """Put the index that its folder has now in the place of the present one.

        The new one is opened and made fast next to the old one, which answers meanwhile, then
        reads what was written since. Calls that come before it is opened share one reload.

        Returns the number of questions and the seconds it took. HTTPException where it fails: then
        the old one stays.
        """
        if self._open is None:
            raise HTTPException(409, "expected an index in a folder, got one in memory")
        if self._next_reload is None:
            self._next_reload = asyncio.create_task(self._reload(self._open))
            self._next_reload.add_done_callback(_forget_error)
        return await asyncio.shield(self._next_reload)

    async def _reload(self, open_again: Callable[[], Retriever]) -> dict[str, Any]:
        async with self._reloading:
            self._next_reload = None  # who calls from now on may mean newer files
            start = time.perf_counter()
            try:
                new = await _in_own_thread(lambda: self._open_warm(open_again))
                async with self._writer:
                    await asyncio.to_thread(_catch_up, new.retriever)
                    self.served = new
            except Exception as error:
                self._metrics.reloads.labels("failed").inc()
                line, reason = "the index was not reloaded, and the old one stays", _reason(error)
                log.error("%s: %s", line, reason)
                if isinstance(error, UnavailableError):  # whose address is not for clients
                    line, headers = f"{line}: it does not answer; try again", {"Retry-After": "1"}
                    raise HTTPException(503, line, headers) from None
                raise HTTPException(503, f"{line}: {reason}") from None
            self._probe = (0.0, "")
            self._metrics.reloads.labels("ok").inc()
            self._metrics.opened.set_to_current_time()
            facts = {"questions": len(new.retriever)}
            seconds = round(time.perf_counter() - start, 3)
            log.info("reloaded: %s questions, %s s", f"{facts['questions']:,}", seconds)
            return facts | {"seconds": seconds}

    def _open_warm(self, open_again: Callable[[], Retriever]) -> Served:
        retriever, old = open_again(), self.served.retriever
        if retriever.encoder.identity == old.encoder.identity:  # its tables are made
            retriever.use_encoder(old.encoder)
        new = self._make(retriever)
        new.warm_up()
        return new


async def _in_own_thread(work: Callable[[], T]) -> T:
    """What `work` gives; a thread of asyncio would hold up a stop until it ends."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def set_result(value: T | None, error: Exception | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(cast("T", value))

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(set_result, value, error)

    threading.Thread(target=run, daemon=True).start()
    return await result


def _forget_error(done: asyncio.Task[Any]) -> None:
    """Of a reload that nobody waits for any more; it was logged."""
    if not done.cancelled():
        done.exception()


def _catch_up(retriever: Retriever) -> None:
    with retriever.changing():
        pass


def _reason(error: Exception) -> str:
    """The line of an error for those who run the server; the traceback of a bug is logged."""
    if isinstance(error, UserError | OSError) and (found := format_error(error)):
        return found[0].removeprefix("error: ")
    log.debug("traceback:", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _search_json(results: Sequence[Sequence[Hit]]) -> bytes:
    # ASCII, because any string is a question, even one with a lone surrogate.
    return json.dumps({"results": [[hit._asdict() for hit in hits] for hits in results]}).encode()
