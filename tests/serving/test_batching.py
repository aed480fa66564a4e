"""Requests that arrive together are searched together, and fail apart."""

import asyncio
import threading

import pytest
from starlette.exceptions import HTTPException

from qpr_jax.serving.live import Batcher


def found(queries, k):
    return [[f"{query}{i}" for i in range(k)] for query in queries]


def to_json(hits):
    return repr(hits).encode()


def test_what_waits_is_the_next_batch_up_to_its_size_without_clients_that_have_gone():
    batches, started, go = [], threading.Event(), threading.Event()

    def search(queries, k):
        batches.append(("".join(queries), k))
        started.set()
        assert go.wait(30)
        if "!" in queries:
            raise RuntimeError("a bug")
        return found(queries, k)

    requests = [("bc", 2), ("d", 1), ("x", 9), ("e", 3), ("f", 1), ("ghijklm", 1), ("n", 1)]

    async def run():
        batcher = Batcher(search, max_queries=4, max_waiting=20)
        tasks = [asyncio.create_task(batcher.search(["!"], 1, to_json))]
        await asyncio.sleep(0)
        await asyncio.to_thread(started.wait, 30)
        for queries, k in requests:
            tasks.append(asyncio.create_task(batcher.search([*queries], k, to_json)))
        await asyncio.sleep(0)
        tasks[3].cancel()
        await asyncio.sleep(0)
        go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(40):  # there is room again
            assert await batcher.search(["a"], 1, to_json) == to_json(found("a", 1))
        return answers

    wrong, *answers = asyncio.run(run())
    assert isinstance(wrong, RuntimeError)
    assert isinstance(answers.pop(2), asyncio.CancelledError)
    del requests[2]
    assert answers == [to_json(found(*request)) for request in requests]
    expected = [("!", 1), ("bcde", 3), ("f", 1), ("ghijklm", 1), ("n", 1)]
    assert batches == expected + [("a", 1)] * 40


def test_beyond_the_queries_that_may_wait_a_request_is_refused():
    started, go = threading.Event(), threading.Event()

    def search(queries, k):
        started.set()
        assert go.wait(30)
        return found(queries, k)

    async def run():
        batcher = Batcher(search, max_queries=4, max_waiting=2)
        tasks = [asyncio.create_task(batcher.search(["a"], 1, to_json))]
        await asyncio.to_thread(started.wait, 30)
        tasks.append(asyncio.create_task(batcher.search(["b", "c"], 1, to_json)))
        await asyncio.sleep(0)
        with pytest.raises(HTTPException, match="too many requests"):
            await asyncio.wait_for(batcher.search(["d"], 1, to_json), 5)
        go.set()
        await asyncio.gather(*tasks)

    try:
        asyncio.run(run())
    finally:
        go.set()
