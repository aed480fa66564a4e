"""What those need who run the service: readiness, request ids, a log, reloads, limits, alerts."""

import concurrent.futures
import dataclasses
import json
import pathlib
import re
import shutil
import threading
import urllib.parse
import weakref

import httpx
import pytest
import yaml

import qpr_jax
from qpr_jax import Retriever
from qpr_jax.errors import UnavailableError, UserError
from qpr_jax.serving.app import make_app
from qpr_jax.serving.guard import Rates
from qpr_jax.serving.limits import Limits
from tests.serving.conftest import BEARER, LIMITS, QUESTIONS, TOKEN, wait_until

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_it_is_ready_once_it_is_warm_and_while_a_search_succeeds(retriever, serve, monkeypatch):
    whole, go, failing = retriever.search, threading.Event(), [None]

    def search(queries, k=5, rerank=None):
        go.wait(30)
        if failing[0]:
            raise failing[0]
        return whole(queries, k, rerank=rerank)

    monkeypatch.setattr(retriever, "search", search)
    address = serve(make_app(retriever))
    answer = httpx.get(f"{address}/ready")
    assert (answer.status_code, answer.json()) == (503, {"error": "warming up"})
    assert answer.headers["Retry-After"] == "1"
    assert "\nqpr_ready 0.0\n" in httpx.get(f"{address}/metrics").text
    assert httpx.get(f"{address}/health").status_code == 200
    go.set()
    wait_until(lambda: httpx.get(f"{address}/ready").status_code == 200)
    assert httpx.get(f"{address}/ready").json() == {"status": "ready"}
    assert "\nqpr_ready 1.0\n" in httpx.get(f"{address}/metrics").text
    failing[0] = UserError("/secret: damaged")
    wait_until(lambda: httpx.get(f"{address}/ready").status_code == 503)
    line = "the server cannot search; see its log"
    assert httpx.get(f"{address}/ready").json() == {"error": line}
    assert "\nqpr_ready 0.0\n" in httpx.get(f"{address}/metrics").text
    failing[0] = None
    assert httpx.get(f"{address}/ready").status_code == 200  # at once


@pytest.mark.parametrize("given", ["a-1", "x" * 128, '~"\\!'])
def test_a_request_keeps_its_id(client, given):
    answer = client.get("/health", headers={"X-Request-ID": given})
    assert answer.headers.get_list("X-Request-ID") == [given]


@pytest.mark.parametrize("given", [[], [""], ["two words"], ["x" * 129], [b"\xe9"], ["a", "b"]])
def test_a_request_without_a_valid_id_gets_one(client, given):
    headers = [("X-Request-ID", value) for value in given]
    ids = [client.get("/health", headers=headers).headers["X-Request-ID"] for _ in range(2)]
    assert len({*ids}) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in ids)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", "/", 200), ("GET", "/nothing", 404), ("PUT", "/search", 405)),
        *(("POST", "/search", 422), ("DELETE", "/questions/5", 401), ("POST", "/reload", 401)),
    ],
)
def test_every_answer_has_the_version(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["X-QPR-Version"] == qpr_jax.__version__
    assert answer.headers["X-Request-ID"]


def test_the_access_log_has_a_line_for_each_request(retriever, serve):
    lines = []
    address = serve(make_app(retriever, limits=LIMITS, access_log=lines.append))
    asked = {"queries": ["a secret query"], "k": 1}
    found = httpx.post(f"{address}/search", json=asked, headers={"X-Request-ID": "mine"})
    httpx.get(f"{address}/questions/a%0Ab%22", headers={"X-Request-ID": "theirs"})
    httpx.post(f"{address}/search", headers={"Host": "evil.example"})
    first, second, third = map(json.loads, lines)
    assert {*first} == {*("time", "id", "client", "method", "path", "status", "seconds", "bytes")}
    assert (first["id"], first["client"], first["method"]) == ("mine", "127.0.0.1", "POST")
    assert (first["path"], first["status"], first["bytes"]) == ("/search", 200, len(found.content))
    assert 0 < first["seconds"] < 30
    assert (second["id"], second["path"], second["status"]) == ("theirs", '/questions/a\nb"', 404)
    assert third["status"] == 400
    assert "secret" not in "".join(lines)
    assert not any("\n" in line for line in lines)


def test_a_question_by_its_id(own_client):
    ids = ["a/b", "a//b/../c", "two words", 'it\'s "7"?', "50%2F#", "é😀", "7", 2**63 - 1, "..x"]
    texts = [f"question {i}" for i in range(len(ids))]
    payload = [{"url": "https://example.com"}, *[None] * (len(ids) - 1)]
    body = {"questions": texts, "ids": ids, "payload": payload}
    assert own_client.post("/questions", json=body, headers=BEARER).status_code == 200
    for id, text, kept in zip(ids, texts, payload, strict=True):
        path = urllib.parse.quote(str(id), safe="")
        answer = own_client.get(f"/questions/{path}")
        assert answer.status_code == 200, id
        assert answer.json() == {"id": id, "question": text, "payload": kept}
    assert own_client.get("/questions/5").json()["question"] == QUESTIONS[5]
    assert own_client.delete("/questions/5", headers=BEARER).status_code == 204
    answer = own_client.get("/questions/5")
    assert (answer.status_code, answer.json()) == (404, {"error": "no question has the id 5"})
    assert own_client.get("/questions/").status_code == 422


@pytest.fixture
def reloadable(folder, tmp_path, serve):
    """A server of an index in a folder: its address, the folder, and the retrievers it opened."""
    mine, opened = shutil.copytree(folder, tmp_path / "mine"), []

    def open_again():
        retriever = Retriever.load(mine)
        opened.append(weakref.ref(retriever))
        return retriever

    app = make_app(open_again(), token=TOKEN, limits=Limits(), open_again=open_again)
    return serve(app), mine, opened


def test_a_reload_under_load_loses_no_request_and_mixes_no_indexes(reloadable, folder):
    address, mine, opened = reloadable
    old = [hit.question for hit in Retriever.load(mine).search(["rice"], 4)[0]]
    new = [f"new rice {i}" for i in range(4)]
    Retriever.build(new, [*range(40, 44)], run=folder).save(mine)
    stop, written = threading.Event(), []

    def search():
        answers = []
        with httpx.Client(base_url=address) as client:
            while not stop.is_set():
                answers.append(client.post("/search", json={"queries": ["rice"], "k": 4}))
        return answers

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(search) for _ in range(4)]
        for i in range(2):
            answer = httpx.post(f"{address}/reload", headers=BEARER)
            assert answer.status_code == 200, answer.text
            assert answer.json()["questions"] == 4 + i
            body = {"questions": [f"written {i}"], "ids": [100 + i]}
            written.append(httpx.post(f"{address}/questions", json=body, headers=BEARER))
        stop.set()
        answers = [answer for task in running for answer in task.result()]
    assert {answer.status_code for answer in (*answers, *written)} == {200}
    for answer in answers:
        found = {hit["question"] for hit in answer.json()["results"][0]}
        assert found == {*old} or not found & {*old}
    ids = {100, 101, *range(40, 44)}
    assert {*dict(Retriever.load(mine).index)} == ids
    # Without the collector, which `qpr serve` tells to leave the first index alone.
    wait_until(lambda: [ref() is None for ref in opened] == [True, True, False])


def test_a_write_during_a_reload_is_kept(folder, tmp_path, serve):
    mine, go, opening = shutil.copytree(folder, tmp_path / "mine"), threading.Event(), []

    def open_again():
        retriever = Retriever.load(mine)
        opening.append(retriever)
        go.wait(30)
        return retriever

    first = Retriever.load(mine)
    address = serve(make_app(first, token=TOKEN, open_again=open_again))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reload = pool.submit(httpx.post, f"{address}/reload", headers=BEARER)
        wait_until(lambda: opening)
        body = {"questions": ["late"], "ids": [77]}
        assert httpx.post(f"{address}/questions", json=body, headers=BEARER).status_code == 200
        go.set()
        assert reload.result().json()["questions"] == 5
    assert httpx.get(f"{address}/questions/77").json()["question"] == "late"
    assert opening[0].encoder is first.encoder  # so that its tables are not made again


def test_a_reload_that_fails_keeps_the_old_index_and_says_why(reloadable):
    address, mine, _ = reloadable
    manifest = mine / "index" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-5])
    answer = httpx.post(f"{address}/reload", headers=BEARER)
    assert answer.status_code == 503
    start = "the index was not reloaded, and the old one stays: "
    assert answer.json()["error"].startswith(f"{start}{manifest}: ")
    found = httpx.post(f"{address}/search", json={"queries": ["rice"], "k": 1})
    assert found.status_code == 200
    assert 'qpr_reloads_total{result="failed"} 1.0' in httpx.get(f"{address}/metrics").text
    manifest.write_bytes(whole)
    assert httpx.post(f"{address}/reload", headers=BEARER).json()["questions"] == 4


def test_a_reload_of_a_store_that_is_gone_is_asked_for_again_without_its_address(folder, serve):
    def open_again():
        raise UnavailableError("milvus://inside:19530/q: Milvus does not answer")

    app = make_app(Retriever.load(folder), token=TOKEN, open_again=open_again)
    answer = httpx.post(f"{serve(app)}/reload", headers=BEARER)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "try again" in answer.text
    assert "inside" not in answer.text


def test_an_index_in_memory_cannot_be_reloaded(client):
    assert client.post("/reload", headers=BEARER).status_code == 409


def test_a_search_that_takes_too_long_is_given_up(retriever, serve, monkeypatch):
    go, whole = threading.Event(), retriever.search

    def search(queries, k=5, rerank=None):
        if queries == ["slow"]:
            go.wait(30)
        return whole(queries, k, rerank=rerank)

    monkeypatch.setattr(retriever, "search", search)
    address = serve(make_app(retriever, limits=Limits(seconds=0.2)))
    answer = httpx.post(f"{address}/search", json={"queries": ["slow"]})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["error"].startswith("not answered within 0.2 s; ")
    go.set()
    assert httpx.post(f"{address}/search", json={"queries": ["rice"]}).status_code == 200


def test_rates_by_hand():
    rates = Rates(2.0)
    assert [rates.wait("a", 10.0) for _ in range(3)] == [0, 0, 0.5]
    assert rates.wait("b", 10.0) == 0
    assert [rates.wait("a", 10.5) for _ in range(2)] == [0, 0.5]
    slow = Rates(0.1)
    assert [slow.wait("a", 0.0), slow.wait("a", 4.0), slow.wait("a", 10.0)] == [0, 6, 0]
    assert [Rates(0).wait("a", 0.0) for _ in range(3)] == [0, 0, 0]


def test_more_requests_a_second_than_allowed_get_429(retriever, serve):
    address = serve(make_app(retriever, limits=Limits(rate=0.01)))
    answers = [httpx.post(f"{address}/search", json={"queries": ["a"]}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert 90 <= int(answers[1].headers["Retry-After"]) <= 100
    line = "expected at most 0.01 requests a second, got more"
    assert answers[1].json() == {"error": line}
    for path in ("health", "metrics", "health"):
        assert httpx.get(f"{address}/{path}").status_code == 200


def test_pages_of_named_origins_alone_may_read_answers(retriever, serve):
    allowed = "https://shop.example"
    closed = serve(make_app(retriever))
    address = serve(make_app(retriever, allowed_origins=[allowed]))
    asks = {"Access-Control-Request-Method": "POST"}

    def allows(at, origin):
        search = httpx.post(f"{at}/search", json={"queries": []}, headers={"Origin": origin})
        assert search.status_code == 200
        asked = httpx.options(f"{at}/search", headers={"Origin": origin} | asks)
        name = "Access-Control-Allow-Origin"
        return [answer.headers.get(name) for answer in (search, asked)]

    assert allows(address, allowed) == [allowed, allowed]
    assert allows(address, "https://evil.example") == [None, None]
    assert allows(closed, allowed) == [None, None]


def test_the_page_has_all_limits_with_their_defaults():
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `--max-([a-z-]+)` \| ([0-9.,]+) \|", page, re.MULTILINE)
    found = {name.replace("-", "_"): float(value.replace(",", "")) for name, value in rows}
    assert found == dataclasses.asdict(Limits())


def test_alerts_ask_for_metrics_that_there_are(client):
    for path in ("/search", "/encode"):
        client.post(path, json={})
    report = client.get("/metrics").text
    exported = {*re.findall(r"^(\w+)[ {]", report, re.MULTILINE)}
    rules = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text(encoding="utf-8"))
    (group,) = rules["groups"]
    assert len(group["rules"]) == 5
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    for rule in group["rules"]:
        assert {*rule} == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in page
        names = {*re.findall(r"\bqpr_\w+", rule["expr"])}
        assert names
        assert names <= exported, rule["alert"]
        for name, value in re.findall(r'(\w+)=~?"([^"]*)"', rule["expr"]):
            known = value if name in ("path", "result") else ""  # others come with failures
            assert name == "job" or f'{name}="{known}' in report, (name, value)
    families = {*re.findall(r"^# TYPE (qpr_\w+)", report, re.MULTILINE)}
    documented = {*re.findall(r"^\| `(qpr_\w+)", page, re.MULTILINE)}
    assert documented == {name for name in families if not name.endswith("_created")}
