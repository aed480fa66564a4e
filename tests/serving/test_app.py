"""The HTTP contract: requests, answers, and mistakes of clients and of the server."""

import errno
import re
import urllib.parse

import httpx
import numpy as np
import pytest
import yaml

import qpr_jax
from qpr_jax import Retriever
from qpr_jax.errors import UnavailableError, UserError
from qpr_jax.serving.app import Settings, make_app
from tests.runs import ROOT, calibrate
from tests.serving.conftest import BEARER, QUESTIONS, TOKEN, client_of, running

JSON = {"Content-Type": "application/json"}
RICE = {"queries": ["rice"]}


def as_json(hits):
    results = [[hit._asdict() | {"close": hit.close} for hit in found] for found in hits]
    for hit in (hit for found in results for hit in found if hit["column"] is None):
        del hit["column"]
    return {"results": results}


def test_search_and_encode(client, folder):
    retriever, queries = Retriever.load(folder), ["learn python", "rice", ""]
    answer = client.post("/search", json={"queries": queries, "k": 2})
    assert (answer.status_code, answer.json()) == (200, as_json(retriever.search(queries, 2)))
    assert len(client.post("/search", json=RICE).json()["results"][0]) == 4
    assert client.post("/search", json={"queries": []}).json() == {"results": []}
    # Half of an emoji, as a program that counts in UTF-16 cuts it.
    cut = client.post("/search", content=b'{"query": "rice \\ud83d"}', headers=JSON)
    assert cut.json() == as_json(retriever.search(["rice ?"]))
    vectors = client.post("/encode", json={"questions": queries}).json()["vectors"]
    np.testing.assert_array_equal(np.array(vectors, np.float32), retriever.encode(queries))


def test_a_text_is_found_once(own_client):
    own_client.post("/questions", json={"questions": ["Cook rice"] * 3}, headers=BEARER)
    query = {"k": 9, "distinct": True}
    for answer in (
        own_client.post("/search", json=query | {"query": "rice"}),
        own_client.get("/search", params=query | {"q": "rice"}),
    ):
        texts = [hit["question"] for hit in answer.json()["results"][0]]
        assert sorted(texts) == sorted({*texts}) == sorted({*QUESTIONS.values(), "Cook rice"})


def test_hits_have_scores_without_a_re_ranker(mine):
    calibrate(mine)
    with client_of(make_app(Retriever.load(mine), Settings())) as client:
        for rerank, scored in ({}, True), ({"rerank": None}, True), ({"rerank": False}, False):
            answer = client.post("/search", json={"query": "cook rice", "k": 1} | rerank)
            (hit,) = answer.json()["results"][0]
            assert (hit["score"] is not None, hit["close"] is not None) == (scored, scored)


def test_in_two_stages(reranked):
    retriever, queries = Retriever.load(reranked), ["learn python", "cook rice"]
    with client_of(make_app(retriever)) as client:
        for word in (None, False):
            body = {"queries": queries, "k": 4, "rerank": word}
            answer = client.post("/search", json=body)
            assert answer.json() == as_json(retriever.search(queries, 4, rerank=word))
            unknown = {hit["close"] is None for hit in answer.json()["results"][0]}
            assert unknown == {word is False}  # which hits have no score
            asked = {"q": queries[0], "k": 4} | (
                {} if word is None else {"rerank": str(word).lower()}
            )
            answer = client.get("/search", params=asked)
            assert answer.json() == as_json(retriever.search(queries[:1], 4, rerank=word))
            least = retriever.search(queries[:1], 4)[0][1].score
            found = as_json(retriever.search(queries, 4, rerank=word, min_score=least))
            assert 0 < len(found["results"][0]) < 4
            answer = client.post("/search", json=body | {"min_score": least})
            assert answer.json() == found
            found = as_json(retriever.search(queries[:1], 4, rerank=word, min_score=least))
            assert client.get("/search", params=asked | {"min_score": least}).json() == found
        page = client.get("/").text
    assert all(0 < hit.score <= 1 for hit in retriever.search(queries, 4)[0])
    assert re.findall('<option value="(.*)">', page) == ["null", "false"]


def test_changes_are_on_disk_before_the_answer(own_client, mine):
    def add(**body):
        return own_client.post("/questions", json=body, headers=BEARER).json()["ids"]

    first, second = add(questions=["a", "b"])
    assert add(questions=["c"], ids=[5]) == [5]
    for status in (204, 404):
        assert own_client.delete("/questions/3", headers=BEARER).status_code == status
    found = Retriever.load(mine).search(["c"], k=50)
    now = {8: QUESTIONS[8], 9: QUESTIONS[9], first: "a", second: "b", 5: "c"}
    assert {hit.id: hit.question for hit in found[0]} == now
    asked = {"queries": ["c"], "k": 50}
    assert own_client.post("/search", json=asked).json() == as_json(found)
    # As other programs write JSON: a byte order mark, and whole numbers with a point.
    body = b'\xef\xbb\xbf{"questions": ["c"], "ids": [5.0]}'
    answer = own_client.post("/questions", content=body, headers=BEARER | JSON)
    assert answer.json() == {"ids": [5]}
    assert own_client.get("/health").json() == {"status": "ok", "questions": 5}


def test_ids_and_payload(mine):
    """Over a real socket, because `TestClient` decodes a path twice."""
    ids = ["a/b?c#d%20", "a//b/../c", "007", "é😀", "two\nlines", 'it\'s "7"?', 12]
    payload = [{"url": "https://example.com", "n": [1, {"x": None}]}, None, {"é": 1}, *[None] * 4]
    texts = [f"rice {i}" for i in range(len(ids))]
    body = {"questions": texts, "ids": ids, "payload": payload}
    with (
        running(make_app(Retriever.load(mine), Settings(token=TOKEN))) as address,
        httpx.Client(base_url=address, headers=BEARER) as client,
    ):
        assert client.post("/questions", json=body).json() == {"ids": ids}
        for id, text, kept in zip(ids, texts, payload, strict=True):
            path = f"/questions/{urllib.parse.quote(str(id), safe='')}"
            assert client.get(path).json() == {"id": id, "question": text, "payload": kept}
            assert client.delete(path).status_code == 204
            assert client.get(path).status_code == 404
        endless = (b" " * 100_000 for _ in range(100))
        answer = client.post("/search", content=endless, headers=JSON)
        assert (answer.status_code, "error" in answer.json()) == (413, True)


@pytest.mark.parametrize("given", ["", "Bearer wrong", TOKEN, b"Bearer \xff\xfe"])
def test_writing_needs_the_token(client, given):
    headers = {"Authorization": given}
    assert client.delete("/questions/5", headers=headers).status_code == 401
    assert client.post("/reload", headers=headers).status_code == 401
    answer = client.post("/questions", json={"questions": ["a"]}, headers=headers)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert client.get("/health").json()["questions"] == 4


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/search", RICE | {"k": 0}, "`k`: Input should be greater than or equal to 1, got 0"),
        (
            "/search",
            RICE | {"rerank": "cross_encoder"},
            "`rerank`: this server has no 'cross_encoder'",
        ),
        ("/search", RICE | {"\n😀" * 99: 1}, r"`'\n\U0001f600\n"),
        ("/search", {"queries": ["a"] * 17, "rerank": "cross_encoder"}, "at most 16 queries for"),
        ("/search", {"queries": ["a"], "query": "b"}, "one of `queries` and `query`"),
        ("/search", RICE | {"min_score": 2}, "`min_score`: Input should be less than or equal"),
        ("/search", {}, "one of `queries` and `query`"),
        ("/search", {"query": "\ufdfa" * 1999}, "`query`: expected at most 2,000 characters in"),
        ("/encode", {"questions": ["\u3300" * 501]}, "`questions.0`: expected at most 2,000"),
        ("/questions", {"questions": ["\ufdfa" * 112]}, "`questions.0`: expected at most 2,000"),
        ("/search", {"queries": ["a"] * 101, "k": 100}, "queries times k; got 10,100"),
        ("/questions", {"questions": ["a"], "ids": []}, "`ids`: expected one a question (1)"),
        ("/questions", {"questions": ["a"], "payload": []}, "`payload`: expected a mapping a"),
        ("/questions", {"questions": ["a"], "ids": [-1]}, "`ids.0`: expected a whole number"),
        ("/questions", {"questions": ["a"], "ids": ["é" * 513]}, "`ids.0`: expected a whole"),
        ("/questions", {"questions": ["a", "b"], "ids": [1, "1"]}, "`ids`: expected distinct ids"),
        ("/questions", {"questions": ["a", " \n"]}, "position 1: expected a question"),
    ],
)
def test_a_wrong_body_gives_one_line(client, path, body, message):
    answer = client.post(path, json=body, headers=BEARER)
    line = answer.json()["error"]
    assert (answer.status_code, message in line) == (422, True), line
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 200


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"Content-Encoding": "gzip"}, b"\x1f\x8b", 415),
        ({"Content-Type": "text/plain"}, b"{}", 415),
        ({}, b" " * 10_000, 422),
        ({}, b" " * 10_001, 413),
        ({}, iter([b" " * 6000] * 2), 413),
        ({}, b"{", 422),
        ({}, b"\xff", 400),
        ({}, b"[" * 9000, 400),
        ({}, b'{"questions": ["a"], "payload": [{"x": [NaN]}]}', 422),
        ({}, b'{"questions": ["a"], "payload": [{"x": ["\\ud800"]}]}', 422),
        ({}, b'{"questions": ["a"], "ids": ["\\ud800"]}', 422),
        ({}, b'{"questions": ["rice \\ud800"]}', 422),
        ({}, b'{"questions": ["a"], "payload": [{"x": %s}]}' % (b"[" * 101 + b"]" * 101), 422),
        ({}, b'{"questions": ["a"], "payload": [%s1%s]}' % (b'{"x":' * 900, b"}" * 900), 422),
    ],
)
def test_bodies_without_meaning_are_the_clients_fault(client, headers, content, status):
    answer = client.post("/questions", content=content, headers=BEARER | JSON | headers)
    assert answer.status_code == status
    assert answer.json()["error"].isprintable()
    assert client.get("/health").json()["questions"] == 4


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/search", 422),
        ("GET", "/search?q=a&kk=2", 422),
        ("DELETE", "/search", 405),
        ("POST", "/search/", 404),
        ("GET", "/" + "😀" * 200, 404),
        ("GET", "/questions/", 422),
        ("GET", "/questions/-1", 404),
        ("POST", "/reload", 401),
    ],
)
def test_every_answer_has_the_version_an_id_and_one_line(client, method, path, status):
    answer = client.request(method, path, headers={"X-Request-ID": "two words"})
    assert answer.status_code == status
    assert answer.headers["X-QPR-Version"] == qpr_jax.__version__
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["X-Request-ID"])
    assert len(answer.json()["error"]) < 250
    assert client.head("/health", headers={"X-Request-ID": "a-1"}).headers["X-Request-ID"] == "a-1"


def test_an_unknown_path_or_id_says_what_there_is(own_client):
    def said(method, path):
        return own_client.request(method, path, headers=BEARER).json()["error"]

    assert said("GET", "/serch").startswith("no path /serch (did you mean `/search`?); there are")
    assert "/questions/ID, /ready, " in said("GET", "/x")
    assert said("DELETE", "/health") == "expected the method GET, got DELETE"
    assert said("GET", "/questions/unlike") == "no question has the id unlike"
    added = {"questions": ["rice"], "ids": ["T-1001"]}
    own_client.post("/questions", json=added, headers=BEARER)
    near = "no question has the id T-101 (did you mean `T-1001`?)"
    assert said("GET", "/questions/T-101") == said("DELETE", "/questions/T-101") == near


def test_as_many_hits_are_asked_for_as_may_be(client):
    for count, status in ((10, 200), (11, 422)):
        asked = {"queries": ["rice"] * count, "k": 1000}
        assert client.post("/search", json=asked).status_code == status


def test_hosts_that_are_served_and_what_the_operator_allows(client, folder):
    def status(*hosts):
        return client.get("/health", headers=[("Host", host) for host in hosts]).status_code

    for host in ("localhost", "LocalHost:1", "127.0.0.1:80", "[::1]:8000"):
        assert status(host) == 200
        assert status(host, "localhost") == 400
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost:8000:1", "[::1", b"\xff", ""):
        assert status(host) == 400
    with client_of(
        make_app(Retriever.load(folder), Settings(allowed_hosts=["Own.Example"]))
    ) as own:
        assert own.get("/health", headers={"Host": "own.example"}).status_code == 200
    origin = "https://shop.example"
    app = make_app(Retriever.load(folder), Settings(allowed_hosts=["*"], allowed_origins=[origin]))
    with client_of(app) as own:
        for sent, allowed in [(origin, origin), ("https://evil.example", None)]:
            headers = {"Origin": sent, "Host": "any.example"}
            answer = own.post("/search", json=RICE, headers=headers)
            assert len(answer.json()["results"][0]) == 4
            assert answer.headers.get("Access-Control-Allow-Origin") == allowed
        refused = [({"Content-Type": "text/plain"}, 415), ({"Content-Encoding": "br"}, 415)]
        refused += [({"X-Request-ID": "a"}, 422), ({"Authorization": "Bearer x"}, 403)]
        for more, status in refused:
            path = "/questions" if status == 403 else "/search"
            answer = own.post(path, content=b"{}", headers={"Origin": origin} | JSON | more)
            assert answer.status_code == status
            assert answer.headers["Access-Control-Allow-Origin"] == origin
        headers = {"Authorization": "Bearer "}  # no token
        assert own.delete("/questions/5", headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 507, "disk is full"),
        (OSError(errno.EIO, "Input/output error", "/secret"), 503, "see its log"),
        (UserError("/secret: damaged"), 503, "see its log"),
        (UnavailableError("/secret: no answer"), 503, "try again"),
        (UserError("expected short texts", setting="questions"), 422, "expected short texts"),
        (RuntimeError("/secret"), 500, "see its log"),
    ],
)
def test_faults_of_the_server(folder, monkeypatch, caplog, error, status, line):
    def add(*arguments, **options):
        raise error

    retriever = Retriever.load(folder)
    monkeypatch.setattr(retriever, "add", add)
    with client_of(make_app(retriever, Settings(token=TOKEN))) as client:
        answer = client.post("/questions", json={"questions": ["a"]}, headers=BEARER)
    assert (answer.status_code, line in answer.json()["error"]) == (status, True)
    assert "secret" not in answer.text
    assert ("Traceback" in caplog.text) == (status == 500)


def test_the_openapi_document(client):
    document = client.get("/openapi.json").json()
    operations = {(p, m): said for p, ms in document["paths"].items() for m, said in ms.items()}
    tokens = {("/questions", "post"), ("/reload", "post"), ("/questions/{id}", "delete")}
    paths = ("/questions/{id}", "/search", "/health", "/ready", "/metrics")
    free = {(path, "get") for path in paths}
    assert {*operations} == tokens | free | {("/search", "post"), ("/encode", "post")}
    assert {key for key, said in operations.items() if "security" in said} == tokens
    for said in operations.values():
        assert {*said["responses"]} - {"200", "204"} == {"4XX", "5XX"}


def test_metrics_are_those_of_the_page_and_of_the_alerts(own_client):
    own_client.post("/search", json={"queries": ["a", "b"]})
    own_client.get("/unknown")
    report = own_client.get("/metrics").text
    for line in (
        'qpr_requests_total{handler="/search",method="POST",status="200"} 1.0',
        'qpr_requests_total{handler="none",method="GET",status="404"} 1.0',
        'qpr_request_seconds_count{handler="/search",method="POST"} 1.0',
        *("qpr_batch_queries_sum 2.0", "qpr_questions 4.0", "qpr_ready 1.0"),
    ):
        assert line in report.splitlines()
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    families = {*re.findall(r"^# TYPE (qpr_\w+)", report, re.MULTILINE)}
    documented = {*re.findall(r"^\| `(qpr_\w+)", page, re.MULTILINE)}
    assert documented == {name for name in families if not name.endswith("_created")}
    rules = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text(encoding="utf-8"))
    for rule in rules["groups"][0]["rules"]:
        assert f"`{rule['alert']}`" in page
        names = {*re.findall(r"\bqpr_\w+", rule["expr"])}
        assert names <= {*re.findall(r"^(\w+)[ {]", report, re.MULTILINE)}
        for handler in re.findall(r'handler="([^"]*)"', rule["expr"]):
            assert f'handler="{handler}"' in report
