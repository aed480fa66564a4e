"""Requests that arrive together are searched together, and fail apart."""

import asyncio
import threading

import pytest

from qpr_jax.serving.batching import Batcher, BusyError


class Searched:
    """A search that waits until it may go on, and notes its batches."""

    def __init__(self):
        self.batches, self.started, self.go = [], threading.Event(), threading.Event()
        self.batcher = Batcher(
            self, lambda hits: repr(hits).encode(), max_queries=4, max_waiting=16
        )

    def __call__(self, queries, k):
        self.batches.append(("".join(queries), k))
        self.started.set()
        assert self.go.wait(30)
        if "!" in queries:
            raise RuntimeError("a bug")
        return [[f"{query}{i}" for i in range(k)] for query in queries]

    async def waiting(self, *requests):
        """Tasks of requests (a query for each letter, k), that wait while the first runs."""
        tasks = []
        for queries, k in requests:
            tasks.append(asyncio.create_task(self.batcher.search([*queries], k)))
            await asyncio.sleep(0)
            if len(tasks) == 1:
                await asyncio.to_thread(self.started.wait, 30)
        return tasks


def answer(queries, k):
    return repr([[f"{query}{i}" for i in range(k)] for query in queries]).encode()


def test_what_waits_is_the_next_batch_up_to_its_size():
    requests = [("a", 1), ("bc", 2), ("d", 1), ("e", 3), ("f", 1), ("ghijklm", 1), ("n", 1)]
    searched = Searched()

    async def run():
        tasks = await searched.waiting(*requests)
        searched.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == [answer(*request) for request in requests]
    assert searched.batches == [("a", 1), ("bcde", 3), ("f", 1), ("ghijklm", 1), ("n", 1)]


def test_a_client_that_has_gone_errors_and_too_many_that_wait():
    searched = Searched()

    async def run():
        tasks = await searched.waiting(("!", 1), ("a", 1), ("b", 2), ("c" * 14, 1))
        with pytest.raises(BusyError):
            await searched.batcher.search(["d"], 1)
        tasks[1].cancel()
        await asyncio.sleep(0)
        searched.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    wrong, gone, *right = asyncio.run(run())
    assert isinstance(wrong, RuntimeError)
    assert isinstance(gone, asyncio.CancelledError)
    assert right == [answer("b", 2), answer("c" * 14, 1)]
    assert searched.batches == [("!", 1), ("b", 2), ("c" * 14, 1)]


def test_answered_requests_make_room_for_others():
    searched = Searched()
    searched.go.set()

    async def run():
        return [await searched.batcher.search(["a"], 1) for _ in range(40)]

    assert asyncio.run(run()) == [answer("a", 1)] * 40
