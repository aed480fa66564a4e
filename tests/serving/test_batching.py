import asyncio
import threading

import pytest

from qpr_jax.serving.batching import Batcher, BusyError


class Searched:
    """A search that waits until it may go on, and notes its batches."""

    def __init__(self):
        self.batches, self.started, self.go = [], threading.Event(), threading.Event()

    def __call__(self, queries, k):
        self.batches.append((list(queries), k))
        self.started.set()
        assert self.go.wait(30)
        if "wrong" in queries:
            raise RuntimeError("a bug")
        return [[f"{query}{i}" for i in range(k)] for query in queries]


@pytest.fixture
def searched():
    return Searched()


def batcher(searched):
    return Batcher(searched, lambda hits: repr(hits).encode(), max_queries=4, max_waiting=16)


async def waiting(made, requests):
    """Tasks of requests, that all wait while the first is searched."""
    tasks = []
    for queries, k in requests:
        tasks.append(asyncio.create_task(made.search(queries, k)))
        await asyncio.sleep(0)
        if len(tasks) == 1:
            await asyncio.to_thread(made._search.started.wait, 30)
    return tasks


def test_what_waits_is_the_next_batch_up_to_its_size(searched):
    async def run():
        requests = [("a", 1), ("bc", 2), ("d", 1), ("e", 3), ("f", 1), ("ghijklm", 1), ("n", 1)]
        tasks = await waiting(batcher(searched), [([*queries], k) for queries, k in requests])
        searched.go.set()
        return requests, await asyncio.gather(*tasks)

    requests, answers = asyncio.run(run())
    assert [("".join(queries), k) for queries, k in searched.batches] == [
        ("a", 1),
        ("bcde", 3),
        ("f", 1),
        ("ghijklm", 1),
        ("n", 1),
    ]
    for (queries, k), answer in zip(requests, answers, strict=True):
        assert answer == repr([[f"{query}{i}" for i in range(k)] for query in queries]).encode()


def test_who_has_gone_is_not_searched_for(searched):
    async def run():
        tasks = await waiting(batcher(searched), [(["a"], 1), (["gone"], 1), (["b"], 1)])
        tasks[1].cancel()
        await asyncio.sleep(0)
        searched.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(run())
    assert [answers[0], answers[2]] == [b"[['a0']]", b"[['b0']]"]
    assert searched.batches == [(["a"], 1), (["b"], 1)]


def test_an_error_is_of_its_batch_alone(searched):
    async def run():
        made = batcher(searched)
        tasks = await waiting(made, [(["wrong"], 1), (["a"], 1)])
        searched.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        return answers, await made.search(["b"], 1)

    (wrong, right), later = asyncio.run(run())
    assert isinstance(wrong, RuntimeError)
    assert (right, later) == (b"[['a0']]", b"[['b0']]")


def test_too_many_that_wait(searched):
    async def run():
        made = batcher(searched)
        tasks = await waiting(made, [(["a"], 1), (["b"] * 7, 1), (["c"] * 9, 1)])
        with pytest.raises(BusyError):
            await made.search(["d"], 1)
        searched.go.set()
        await asyncio.gather(*tasks)
        return await made.search(["d"], 1)

    assert asyncio.run(run()) == b"[['d0']]"
