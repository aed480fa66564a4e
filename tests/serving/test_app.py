import concurrent.futures
import socket
import threading

import httpx
import numpy as np
import pytest

from qpr_jax import Retriever
from qpr_jax.serving.app import make_app
from tests.serving.conftest import LIMITS, QUESTIONS, TOKEN

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def test_search(client, retriever):
    queries = ["learn python", "rice", ""]
    answer = client.post("/search", json={"queries": queries, "k": 2})
    assert answer.status_code == 200
    assert answer.json() == {
        "results": [[hit._asdict() for hit in hits] for hits in retriever.search(queries, 2)]
    }
    assert len(client.post("/search", json={"queries": ["x"]}).json()["results"][0]) == 4
    assert client.post("/search", json={"queries": []}).json() == {"results": []}


def test_encode(client, retriever):
    answer = client.post("/encode", json={"questions": ["learn python", "rice"]})
    vectors = np.array(answer.json()["vectors"], np.float32)
    np.testing.assert_array_equal(vectors, retriever.encode(["learn python", "rice"]))
    assert client.post("/encode", json={"questions": []}).json() == {"vectors": []}


def test_what_is_added_and_removed_is_so_on_disk_when_it_answers(client, tmp_path):
    answer = client.post("/questions", json={"questions": ["a", "b"]}, headers=BEARER)
    assert (answer.status_code, answer.json()) == (200, {"ids": [10, 11]})
    answer = client.post("/questions", json={"questions": ["c"], "ids": [5]}, headers=BEARER)
    assert answer.json() == {"ids": [5]}
    assert client.delete("/questions/3", headers=BEARER).status_code == 204
    answer = client.delete("/questions/3", headers=BEARER)
    assert (answer.status_code, answer.json()) == (404, {"error": "no question has the id 3"})
    now = {8: QUESTIONS[8], 9: QUESTIONS[9], 10: "a", 11: "b", 5: "c"}
    assert dict(Retriever.load(tmp_path / "mine").index) == now
    found = client.post("/search", json={"queries": ["c"], "k": 50}).json()["results"][0]
    assert {hit["id"]: hit["question"] for hit in found} == now
    assert client.get("/health").json() == {"status": "ok", "questions": 5}


@pytest.mark.parametrize(
    ("authorization", "status"),
    [({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": TOKEN}, 401)],
)
def test_writing_needs_the_token(client, retriever, authorization, status):
    for send in (
        lambda: client.post("/questions", json={"questions": ["a"]}, headers=authorization),
        lambda: client.delete("/questions/5", headers=authorization),
    ):
        assert send().status_code == status
    assert dict(retriever.index) == QUESTIONS


def test_without_a_token_nobody_writes(retriever, serve):
    address = serve(make_app(retriever))
    answer = httpx.delete(f"{address}/questions/5", headers={"Authorization": "Bearer"})
    assert answer.status_code == 403
    assert len(retriever) == 4


LONG = "x" * 201


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/search", {"queries": ["a"], "k": 0}, 422, "`k`: Input should be greater than or equal"),
        ("/search", {"queries": ["a"], "k": 51}, 422, "`k`: Input should be less than or equal"),
        ("/search", {"queries": ["a"], "k": "5"}, 422, "`k`: Input should be a valid integer"),
        ("/search", {"queries": ["a"], "k": True}, 422, "`k`: Input should be a valid integer"),
        ("/search", {"queries": "a"}, 422, "`queries`: Input should be a valid array"),
        ("/search", {"queries": [None]}, 422, "`queries.0`: Input should be a valid string"),
        ("/search", {"queries": [LONG]}, 422, "`queries.0`: String should have at most 200"),
        ("/search", {"queries": ["a"] * 21}, 422, "`queries`: List should have at most 20"),
        ("/search", {"querys": ["a"]}, 422, "`queries`: Field required"),
        ("/search", {"queries": ["a"], "more": 1}, 422, "`more`: Extra inputs are not permitted"),
        ("/search", {}, 422, "`queries`: Field required"),
        ("/search", [], 422, "`body`: Input should be an object"),
        ("/encode", {"questions": 5}, 422, "`questions`: Input should be a valid list"),
        ("/questions", {"questions": ["a"], "ids": [-1]}, 422, "`ids.0`: Input should be greater"),
        ("/questions", {"questions": ["a"], "ids": [2**63]}, 422, "`ids.0`: Input should be less"),
        ("/questions", {"questions": ["a"], "ids": []}, 400, "`ids`: expected one a question"),
        ("/questions", {"questions": ["a", "b"], "ids": [1, 1]}, 400, "expected distinct ids"),
    ],
)
def test_what_is_wrong_with_a_body_is_said_in_one_line(client, path, body, status, message):
    answer = client.post(path, json=body, headers=BEARER)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"null", b"[" * 9000, b'{"queries": ["\\ud800"]}', b'{"queries": [NaN]}'],
)
def test_bodies_that_are_nothing_are_the_clients_fault(client, body):
    answer = client.post("/search", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]


@pytest.mark.parametrize("id", ["-1", "x", "1.5", str(2**63), "9" * 5000, "%00"])
def test_ids_that_are_none(client, id):
    assert client.delete(f"/questions/{id}", headers=BEARER).status_code == 422


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_is_too_large_is_refused(client, chunked):
    parts = [b"x" * 1000] * 11
    answer = client.post("/search", content=iter(parts) if chunked else b"".join(parts))
    assert answer.status_code == 413
    assert answer.json() == {"error": "expected a body of at most 10,000 bytes, got more"}


@pytest.mark.parametrize("length", ["-5", "x", "1" * 5000, "5, 5"])
def test_a_length_that_is_none_is_refused(address, length):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        asked = f"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(asked.encode())
        assert connection.recv(1000).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/search", 405), ("GET", "/nothing", 404), ("PUT", "/", 405), ("GET", "/docs", 404)],
)
def test_other_addresses(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_requests_that_arrive_together_are_searched_together(retriever, serve, monkeypatch):
    sizes, first, go = [], threading.Event(), threading.Event()
    whole = retriever.search

    def search(queries, k=5):
        sizes.append(len(queries))
        if not first.is_set():
            first.set()
            go.wait(30)
        return whole(queries, k)

    monkeypatch.setattr(retriever, "search", search)
    address = serve(make_app(retriever, limits=LIMITS))

    def ask(number):
        body = {"queries": [f"learn python {number}"] * (1 + number % 2), "k": 1 + number % 3}
        return httpx.post(f"{address}/search", json=body).json()["results"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, 0)]
        assert first.wait(30)
        answers += [pool.submit(ask, number) for number in range(1, 7)]
        while httpx.get(f"{address}/metrics").status_code != 200:
            pass
        # All six wait by now, or soon: none is answered before the first.
        threading.Timer(0.5, go.set).start()
        found = [answer.result() for answer in answers]
    for number, results in enumerate(found):
        query, k = f"learn python {number}", 1 + number % 3
        hits = [[hit._asdict() for hit in whole([query], k)[0]]] * (1 + number % 2)
        assert results == hits
    assert sizes[0] == 1
    assert len(sizes) < 7
    assert sum(sizes) == 1 + 2 + 1 + 2 + 1 + 2 + 1


def test_more_requests_than_it_answers_at_a_time_are_told_to_wait(retriever, serve, monkeypatch):
    first, go = threading.Event(), threading.Event()

    def search(queries, k=5):
        first.set()
        go.wait(30)
        return [[] for _ in queries]

    monkeypatch.setattr(retriever, "search", search)
    address = serve(make_app(retriever, limits=LIMITS))
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = {"queries": ["a"]}
        answers = [pool.submit(httpx.post, f"{address}/search", json=asked) for _ in range(12)]
        done = concurrent.futures.as_completed(answers, timeout=30)
        refused = [next(done).result() for _ in range(4)]
        assert first.is_set()
        go.set()
        answered = [answer.result() for answer in done]
    assert [answer.status_code for answer in refused] == [429] * 4
    assert [answer.headers["Retry-After"] for answer in refused] == ["1"] * 4
    assert [answer.status_code for answer in answered] == [200] * 8


def test_a_search_that_fails_is_an_error_of_the_server_and_not_the_end(
    retriever, serve, monkeypatch
):
    whole = retriever.search
    failing = [True]

    def search(queries, k=5):
        if failing.pop() if failing else False:
            raise RuntimeError("a bug")
        return whole(queries, k)

    monkeypatch.setattr(retriever, "search", search)
    address = serve(make_app(retriever, limits=LIMITS))
    statuses = [
        httpx.post(f"{address}/search", json={"queries": ["a"]}).status_code for _ in range(2)
    ]
    assert statuses == [500, 200]


def test_measures(client):
    client.post("/search", json={"queries": ["a", "b"]})
    client.get("/unknown")
    client.delete("/questions/17")
    told = client.get("/metrics")
    assert told.headers["Content-Type"].startswith("text/plain")
    lines = told.text.splitlines()
    for line in (
        'qpr_requests_total{method="POST",path="/search",status="200"} 1.0',
        'qpr_requests_total{method="GET",path="other",status="404"} 1.0',
        'qpr_requests_total{method="DELETE",path="/questions/{id}",status="401"} 1.0',
        "qpr_batch_queries_sum 2.0",
        "qpr_questions 4.0",
        'qpr_request_seconds_count{method="POST",path="/search"} 1.0',
    ):
        assert line in lines


def test_the_openapi_document_says_what_there_is(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {path: sorted(methods) for path, methods in paths.items()} == {
        "/search": ["post"],
        "/encode": ["post"],
        "/questions": ["post"],
        "/questions/{id}": ["delete"],
        "/health": ["get"],
        "/metrics": ["get"],
    }


def test_the_page_may_load_nothing(client):
    answer = client.get("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "http" not in answer.text
