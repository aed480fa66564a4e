import concurrent.futures
import errno
import shutil

import httpx
import numpy as np
import pytest

from qpr_jax import Retriever
from qpr_jax.errors import UserError
from qpr_jax.serving.app import make_app
from qpr_jax.serving.limits import Limits
from tests.runs import write_reranker
from tests.serving.conftest import BEARER, LIMITS, QUESTIONS, TOKEN


def test_search(client, retriever):
    queries = ["learn python", "rice", ""]
    answer = client.post("/search", json={"queries": queries, "k": 2})
    assert answer.status_code == 200
    assert answer.json() == {
        "results": [[hit._asdict() for hit in hits] for hits in retriever.search(queries, 2)]
    }
    assert len(client.post("/search", json={"queries": ["x"]}).json()["results"][0]) == 4
    assert client.post("/search", json={"queries": []}).json() == {"results": []}


def test_in_two_stages(folder, serve, tmp_path):
    shutil.copytree(folder, tmp_path / "mine")
    write_reranker(tmp_path / "mine", candidates=3)
    retriever = Retriever.load(tmp_path / "mine")
    retriever.search(["rice"])  # compiles what no request should wait for
    address = serve(make_app(retriever, limits=LIMITS))
    queries = ["learn python", "cook rice"]
    for word in (None, False, "light"):
        body = {"queries": queries, "k": 4, "rerank": word}
        answer = httpx.post(f"{address}/search", json=body)
        hits = retriever.search(queries, 4, rerank=word)
        assert answer.json() == {"results": [[hit._asdict() for hit in found] for found in hits]}
    found = httpx.post(f"{address}/search", json={"queries": queries, "k": 4}).json()["results"][0]
    assert [hit["score"] is None for hit in found] == [False, False, False, True]
    page = httpx.get(address).text
    assert "<option value='\"light\"'>by the re-ranker</option><option value='false'>" in page
    assert 'class="order" >' in page


@pytest.mark.parametrize("word", ["heavy", 0, 1, True, "", [], "light", "cross_encoder"])
def test_a_stage_that_the_server_has_not(client, word):
    answer = client.post("/search", json={"queries": ["rice"], "rerank": word})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("`rerank`: ")
    assert "/" not in answer.json()["error"].replace("reranker/", "")


def test_a_word_in_the_spelling_of_python(client):
    answer = client.post("/search", json={"queries": ["rice"], "rerank": "False"})
    line = '`rerank`: expected false, null, "light" or "cross_encoder"'
    assert answer.json() == {"error": f"{line}, got False"}


def test_a_cross_encoder_gets_few_queries_at_a_time(client):
    body = {"queries": ["rice"] * 17, "rerank": "cross_encoder"}
    answer = client.post("/search", json=body)
    assert answer.status_code == 422
    assert answer.json() == {"error": "expected at most 16 queries for a cross-encoder, got 17"}


def test_no_batch_has_two_orders(folder, tmp_path, serve, monkeypatch):
    shutil.copytree(folder, tmp_path / "mine")
    write_reranker(tmp_path / "mine", candidates=3)
    retriever = Retriever.load(tmp_path / "mine")
    retriever.search(["rice"])
    whole, words = retriever.search, set()

    def search(queries, k=5, rerank=None):
        if queries not in (["ready"], ["warm up"]):
            words.add((rerank, *{query[0] for query in queries}))
        return whole(queries, k, rerank=rerank)

    monkeypatch.setattr(retriever, "search", search)
    address = serve(make_app(retriever, limits=Limits()))

    def post(number):
        body = {"queries": [f"{number % 2} rice"], "k": 1 + number % 4}
        body |= {"rerank": False} if number % 2 else {}
        return httpx.post(f"{address}/search", json=body).json()["results"][0]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number, hits in enumerate(pool.map(post, range(40))):
            assert len(hits) == 1 + number % 4
            assert (hits[0]["score"] is None) == bool(number % 2)
    assert words == {(False, "1"), ("light", "0")}


def test_encode(client, retriever):
    answer = client.post("/encode", json={"questions": ["learn python", "rice"]})
    vectors = np.array(answer.json()["vectors"], np.float32)
    np.testing.assert_array_equal(vectors, retriever.encode(["learn python", "rice"]))
    assert client.post("/encode", json={"questions": []}).json() == {"vectors": []}


def test_changes_are_on_disk_before_the_answer(own_client, tmp_path):
    client = own_client
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
    [
        ([], 401),
        ([("Authorization", "Bearer wrong")], 401),
        ([("Authorization", "Bearer")], 401),
        ([("Authorization", TOKEN)], 401),
        ([("Authorization", f"Bearer {TOKEN}x")], 401),
        ([("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {TOKEN}")], 401),
        ([("Authorization", b"Bearer \xff\xfe")], 401),
    ],
)
def test_writing_needs_the_token(client, shared_retriever, authorization, status):
    for send in (
        lambda: client.post("/questions", json={"questions": ["a"]}, headers=authorization),
        lambda: client.post("/questions", content=b"no JSON", headers=authorization),
        lambda: client.delete("/questions/5", headers=authorization),
    ):
        assert send().status_code == status
    assert dict(shared_retriever.index) == QUESTIONS


def test_the_scheme_is_of_any_case(own_client):
    given = {"Authorization": f"bearer  {TOKEN}"}
    assert own_client.delete("/questions/5", headers=given).status_code == 204


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
        ("/encode", {"questions": 5}, 422, "`questions`: Input should be a valid array, got 5"),
        ("/questions", {"questions": ["a"], "ids": [-1]}, 422, "`ids.0`: expected a whole number"),
        ("/questions", {"questions": ["a"], "ids": [2**63]}, 422, ", got 9223372036854775808"),
        ("/questions", {"questions": ["a"], "ids": [7.0]}, 422, "1,024 bytes, got 7.0"),
        ("/questions", {"questions": ["a"], "ids": [True]}, 422, "1,024 bytes, got True"),
        ("/questions", {"questions": ["a"], "ids": [""]}, 422, "`ids.0`: expected a whole number"),
        ("/questions", {"questions": ["a", "b"], "ids": [1, "1"]}, 422, "expected distinct ids"),
        ("/questions", {"questions": ["a"], "payload": [1]}, 422, "`payload.0`: Input should be"),
        ("/questions", {"questions": ["a"], "payload": []}, 422, "`payload`: expected one for"),
        (
            "/questions",
            {"questions": ["a"], "ids": []},
            422,
            "`ids`: expected one for each",
        ),
        ("/questions", {"questions": ["a", "b"], "ids": [1, 1]}, 422, "expected distinct ids"),
        (
            "/questions",
            {"questions": ["a", " \n"]},
            422,
            "expected questions, got a blank one at 1",
        ),
        ("/search", {"\n\U0001f600" * 99: 1}, 422, "`queries`: Field required"),
        ("/search", {"queries": [], "\n\U0001f600" * 99: 1}, 422, r"`'\n\U0001f600\n"),
    ],
)
def test_a_wrong_body_gives_one_line(client, path, body, status, message):
    answer = client.post(path, json=body, headers=BEARER)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert answer.json()["error"].isascii()
    assert answer.json()["error"].isprintable()
    assert len(answer.json()["error"]) < 200


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"\xff", b"null", b"[" * 9000),
        *(b'{"queries": ["\\ud800"]}', b'{"queries": [NaN]}'),
        b'{"queries": [], "k": ' + b"9" * 5000 + b"}",
        b"{" + b'"":1,' * 1500 + b'"":1}',
    ],
)
def test_bodies_without_meaning_are_the_clients_fault(client, body):
    answer = client.post("/search", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/search", 405, "expected POST, got GET"),
        ("PUT", "/", 405, "got PUT"),
        ("PUT", "/questions/5", 405, "expected DELETE, GET, HEAD, got PUT"),
        ("GET", "/nothing", 404, "expected one of /, /encode, /health,"),
        ("POST", "/search/", 404, "; got /search/"),
        ("GET", "/docs", 404, "; got /docs"),
        ("GET", "/" + "%F0%9F%98%80" * 200, 404, "; got '/"),
    ],
)
def test_other_addresses(client, method, path, status, message):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert len(answer.json()["error"]) < 300


@pytest.mark.parametrize("path", ["/health", "/"])
def test_a_head_alone(client, path):
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_too_many_questions_to_find(retriever, serve):
    address = serve(make_app(retriever))
    asked = {"queries": ["a"] * 101, "k": 100}
    answer = httpx.post(f"{address}/search", json=asked)
    assert answer.status_code == 422
    assert "at most 10,000 hits, queries times k; got 10,100" in answer.text
    asked["queries"].pop()
    assert len(httpx.post(f"{address}/search", json=asked).json()["results"]) == 100


def test_small_limits_are_the_pages_too(retriever, serve):
    address = serve(make_app(retriever, limits=Limits(k=3, characters=77)))
    page = httpx.get(address).text
    assert "k: 3," in page
    assert 'class="order" hidden' in page
    assert 'maxlength="77"' in page
    asked = {"queries": ["rice"]}
    assert len(httpx.post(f"{address}/search", json=asked).json()["results"][0]) == 3


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 507, "disk is full"),
        (OSError(errno.EIO, "Input/output error", "/secret"), 503, "see its log"),
        (UserError("/secret: damaged"), 503, "see its log"),
        (RuntimeError("/secret"), 500, "see its log"),
    ],
)
def test_faults_of_the_server(client, shared_retriever, monkeypatch, error, status, line):
    def add(questions, ids=None, payload=None):
        raise error

    monkeypatch.setattr(shared_retriever, "add", add)
    answer = client.post("/questions", json={"questions": ["a"]}, headers=BEARER)
    assert answer.status_code == status
    assert line in answer.json()["error"]
    assert "secret" not in answer.text
    assert (answer.headers.get("Connection") == "close") == (status == 500)


def test_the_openapi_document_says_what_there_is(client):
    document = client.get("/openapi.json").json()
    paths = document["paths"]
    statuses = {
        (path, method): sorted(said["responses"])
        for path, methods in paths.items()
        for method, said in methods.items()
    }
    assert statuses == {
        ("/search", "post"): ["200", "408", "413", "422", "429", "503"],
        ("/encode", "post"): ["200", "408", "413", "422", "429", "503"],
        ("/questions", "post"): [
            *("200", "401", "403", "408", "413", "422", "429", "503", "507"),
        ],
        ("/questions/{id}", "delete"): ["204", "401", "403", "404", "422", "429", "503", "507"],
        ("/questions/{id}", "get"): ["200", "404", "422", "429", "503"],
        ("/reload", "post"): ["200", "401", "403", "409", "429", "503"],
        ("/health", "get"): ["200"],
        ("/ready", "get"): ["200", "503"],
        ("/metrics", "get"): ["200"],
    }
    body = paths["/search"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["k"]["maximum"] == LIMITS.k
    assert "cross_encoder" in str(body["properties"]["rerank"])
    assert body["properties"]["queries"]["items"]["maxLength"] == LIMITS.characters
    assert [path for path in paths if "security" in str(paths[path])] == [
        "/questions",
        "/questions/{id}",
        "/reload",
    ]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_every_field_of_the_openapi_document_is_explained(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert {"HitModel", "AddResponse", "Error"} <= {*schemas}
    for name, schema in schemas.items():
        for field, said in schema.get("properties", {}).items():
            assert "description" in str(said), f"{name}.{field}"


def test_the_page_may_load_nothing(client):
    answer = client.get("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "http" not in answer.text.replace("/^https?:[/][/]/", "")  # a pattern of addresses
