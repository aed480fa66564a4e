"""Requests that arrive together, more than are answered at a time, and metrics."""

import concurrent.futures
import threading

import httpx

from qpr_jax.serving.app import make_app
from qpr_jax.serving.batching import Batcher
from qpr_jax.serving.limits import Limits
from tests.serving.conftest import BEARER, LIMITS, TOKEN


def test_requests_that_arrive_together_are_searched_together(retriever, serve, monkeypatch):
    sizes, first, go = [], threading.Event(), threading.Event()
    whole = retriever.search

    def search(queries, k=5, rerank=None):
        if not queries[0].startswith("learn"):  # of the warm-up
            return whole(queries, k)
        sizes.append(len(queries))
        if not first.is_set():
            first.set()
            go.wait(30)
        return whole(queries, k)

    monkeypatch.setattr(retriever, "search", search)
    waiting = threading.Semaphore(0)
    whole_wait = Batcher.search

    async def wait_for_answer(self, queries, k):
        waiting.release()
        return await whole_wait(self, queries, k)

    monkeypatch.setattr(Batcher, "search", wait_for_answer)
    address = serve(make_app(retriever, limits=LIMITS))

    def ask(number):
        body = {"queries": [f"learn python {number}"] * (1 + number % 2), "k": 1 + number % 3}
        return httpx.post(f"{address}/search", json=body).json()["results"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, 0)]
        assert first.wait(30)
        answers += [pool.submit(ask, number) for number in range(1, 7)]
        for _ in range(7):
            assert waiting.acquire(timeout=30)
        go.set()
        found = [answer.result() for answer in answers]
    for number, results in enumerate(found):
        query, k = f"learn python {number}", 1 + number % 3
        hits = [[hit._asdict() for hit in whole([query], k)[0]]] * (1 + number % 2)
        assert results == hits
    assert sizes[0] == 1
    assert len(sizes) < 7
    assert sum(sizes) == 1 + 2 + 1 + 2 + 1 + 2 + 1


def test_more_requests_than_it_answers_at_a_time_get_429(retriever, serve, monkeypatch):
    go = threading.Event()

    def search(queries, k=5, rerank=None):
        go.wait(30)
        return [[] for _ in queries]

    monkeypatch.setattr(retriever, "search", search)
    address = serve(make_app(retriever, limits=LIMITS))
    asked = {"queries": ["a"]}
    for _ in range(2):  # who was answered is not counted any more
        go.clear()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = [pool.submit(httpx.post, f"{address}/search", json=asked) for _ in range(12)]
            done = concurrent.futures.as_completed(answers, timeout=30)
            refused = [next(done).result() for _ in range(4)]
            assert httpx.get(f"{address}/health").status_code == 200
            go.set()
            answered = [answer.result() for answer in done]
        assert [answer.status_code for answer in refused] == [429] * 4
        assert [answer.headers["Retry-After"] for answer in refused] == ["1"] * 4
        assert [answer.status_code for answer in answered] == [200] * 8


def test_more_writers_than_wait_get_429(retriever, serve, monkeypatch):
    go, running, most = threading.Event(), [], []
    whole = retriever.add

    def add(questions, ids=None, payload=None):
        running.append(questions)
        most.append(len(running))
        go.wait(30)
        running.pop()
        return whole(questions, ids)

    monkeypatch.setattr(retriever, "add", add)
    address = serve(make_app(retriever, token=TOKEN, limits=Limits(writers=3)))

    def send(i):
        body = {"questions": ["a"], "ids": [100 + i]}
        return httpx.post(f"{address}/questions", json=body, headers=BEARER)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = concurrent.futures.as_completed([pool.submit(send, i) for i in range(8)], timeout=30)
        assert [next(done).result().status_code for _ in range(5)] == [429] * 5
        assert len(httpx.post(f"{address}/search", json={"queries": ["a"]}).json()["results"]) == 1
        go.set()
        assert [answer.result().status_code for answer in done] == [200] * 3
    assert most == [1, 1, 1]  # one at a time


def test_a_search_that_fails_is_an_error_of_the_server_and_not_the_end(
    retriever, serve, monkeypatch
):
    whole = retriever.search
    failing = [True]

    def search(queries, k=5, rerank=None):
        if queries == ["a"] and failing and failing.pop():
            raise RuntimeError("a bug")
        return whole(queries, k)

    monkeypatch.setattr(retriever, "search", search)
    address = serve(make_app(retriever, limits=LIMITS))
    statuses = [
        httpx.post(f"{address}/search", json={"queries": ["a"]}).status_code for _ in range(2)
    ]
    assert statuses == [500, 200]


def test_metrics(own_client):
    client = own_client
    client.post("/search", json={"queries": ["a", "b"]})
    client.get("/unknown")
    client.delete("/questions/17")
    report = client.get("/metrics")
    assert report.headers["Content-Type"].startswith("text/plain")
    lines = report.text.splitlines()
    for line in (
        'qpr_requests_total{method="POST",path="/search",status="200"} 1.0',
        'qpr_requests_total{method="GET",path="other",status="404"} 1.0',
        'qpr_requests_total{method="DELETE",path="/questions/{id}",status="401"} 1.0',
        "qpr_batch_queries_sum 2.0",
        "qpr_questions 4.0",
        'qpr_request_seconds_count{method="POST",path="/search"} 1.0',
    ):
        assert line in lines
