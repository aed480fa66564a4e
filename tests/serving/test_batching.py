"""Requests that arrive together are searched together, and fail apart."""

import asyncio
import threading

from qpr_jax.serving.batching import Batcher


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

    async def answers(self, *requests, meanwhile=None):
        """The answers of requests (a query for each letter, k), that wait while the first runs."""
        tasks = []
        for queries, k in requests:
            tasks.append(asyncio.create_task(self.batcher.search([*queries], k)))
            await asyncio.sleep(0)
            await asyncio.to_thread(self.started.wait, 30)
        if meanwhile:
            await meanwhile(tasks)
        self.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


def right(queries, k):
    return repr([[f"{query}{i}" for i in range(k)] for query in queries]).encode()


def test_what_waits_is_the_next_batch_up_to_its_size():
    requests = [("a", 1), ("bc", 2), ("d", 1), ("e", 3), ("f", 1), ("ghijklm", 1), ("n", 1)]
    searched = Searched()

    async def run():
        first = await searched.answers(*requests)
        return first, [await searched.batcher.search(["a"], 1) for _ in range(40)]  # have room

    expected = [right(*request) for request in requests]
    assert asyncio.run(run()) == (expected, [right("a", 1)] * 40)
    batches = [("a", 1), ("bcde", 3), ("f", 1), ("ghijklm", 1), ("n", 1)]
    assert searched.batches == batches + [("a", 1)] * 40


def test_a_client_that_has_gone_and_errors():
    searched = Searched()

    async def meanwhile(tasks):
        tasks[1].cancel()
        await asyncio.sleep(0)

    requests = ("!", 1), ("a", 1), ("b", 2), ("c" * 14, 1)
    wrong, gone, *others = asyncio.run(searched.answers(*requests, meanwhile=meanwhile))
    assert isinstance(wrong, RuntimeError)
    assert isinstance(gone, asyncio.CancelledError)
    assert others == [right("b", 2), right("c" * 14, 1)]
    assert searched.batches == [("!", 1), ("b", 2), ("c" * 14, 1)]
