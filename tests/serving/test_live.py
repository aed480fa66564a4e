"""Readiness, reloads, concurrency, changes of other processes, and forks."""

import asyncio
import concurrent.futures
import json
import multiprocessing
import os
import shutil
import threading
import time

import pytest
from starlette.exceptions import HTTPException

from qpr_jax import Retriever
from qpr_jax.errors import UnavailableError, UserError
from qpr_jax.serving.app import Settings, create_app, make_app
from qpr_jax.serving.live import LiveIndex
from tests.runs import write_encoder
from tests.serving.conftest import BEARER, TOKEN, client_of
from tests.waiting import wait_until


def serve(folder):
    """A client of a server that can open the index of the folder again."""
    settings = Settings(folder=str(folder), token=TOKEN)
    return client_of(make_app(settings.open_index(), settings))


def search(client, query="rice", k=4):
    return client.post("/search", json={"queries": [query], "k": k})


def slow_search(monkeypatch, retriever, go, error=None):
    """Make the searches of a retriever wait for an event, and fail while `error` has one."""
    whole = retriever.search

    def search(queries, k=5, **options):
        assert go.wait(30)
        if error:
            raise error[0]
        return whole(queries, k, **options)

    monkeypatch.setattr(retriever, "search", search)


def test_it_is_ready_while_a_search_succeeds(folder, monkeypatch):
    retriever, go, error = Retriever.load(folder), threading.Event(), []
    slow_search(monkeypatch, retriever, go, error)
    app = make_app(retriever)
    threading.Timer(0.2, go.set).start()
    with client_of(app) as client:
        assert client.get("/ready").json() == {"status": "ready"}
        error.append(UserError("/secret: damaged"))
        wait_until(lambda: client.get("/ready").status_code == 503)
        line = "the server cannot search; see its log"
        assert client.get("/ready").json() == {"error": line}
        assert "\nqpr_ready 0.0\n" in client.get("/metrics").text
        error.clear()
        assert client.get("/ready").status_code == 200


def test_too_many_searches_that_wait(folder, monkeypatch):
    retriever, go = Retriever.load(folder), threading.Event()
    go.set()
    slow_search(monkeypatch, retriever, go)
    many = {"queries": ["rice"] * 1000, "k": 1}
    with client_of(make_app(retriever)) as client:
        go.clear()
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            running = [pool.submit(client.post, "/search", json=many) for _ in range(9)]
            done = concurrent.futures.as_completed(running, timeout=30)
            refused = [next(done).result() for _ in range(3)]
            go.set()
            answered = [task.result() for task in done]
    assert {answer.status_code for answer in refused} == {429}
    assert {answer.headers["Retry-After"] for answer in refused} == {"1"}
    assert {answer.status_code for answer in answered} == {200}


def test_eight_threads_search_during_changes_and_a_reload(mine, folder):
    """Each answer has hits of one index alone, and no request is lost."""
    old = {f"old rice {i}" for i in range(4)}
    new = {f"new rice {i}" for i in range(4)}
    Retriever.build(sorted(old), encoder=folder).save(mine)
    stop = threading.Event()

    def searches(client):
        answers = []
        while not stop.is_set():
            answers.append(search(client))
        return answers

    with serve(mine) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = [pool.submit(searches, client) for _ in range(8)]
        written = []
        for i in range(10):
            far = {"questions": [f"learn python {i}"], "ids": [f"far {i}"]}
            written.append(client.post("/questions", json=far, headers=BEARER))
            written.append(client.delete(f"/questions/far {i}", headers=BEARER))
        Retriever.build(sorted(new), [*range(4)], encoder=folder).save(mine)
        reloaded = client.post("/reload", headers=BEARER)
        last = search(client)
        stop.set()
        answers = [answer for task in running for answer in task.result()]
    assert (reloaded.status_code, reloaded.json()["questions"]) == (200, 4)
    assert {answer.status_code for answer in written} == {200, 204}
    assert {answer.status_code for answer in answers} == {200}
    for answer in answers:
        found = {hit["question"] for hit in answer.json()["results"][0]}
        assert not (found & old and found & new)
    assert {hit["question"] for hit in last.json()["results"][0]} == new


def test_another_process_is_seen(mine, tmp_path):
    """Its changes, and an index of another encoder."""
    with serve(mine) as client:
        Retriever.load(mine).add(["from elsewhere"], ["e"])
        assert client.get("/questions/e").status_code == 200
        assert "from elsewhere" in search(client, "from elsewhere").text
        write_encoder(tmp_path / "other", seed=1)
        Retriever.build(["another"], [1], encoder=tmp_path / "other").save(mine)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [*pool.map(lambda _: search(client), range(4))]
        assert all("another" in answer.text for answer in answers)
        assert client.get("/questions/1").status_code == 200
        assert 'qpr_reloads_total{result="ok"} 1.0' in client.get("/metrics").text
        os.rename(mine / "index", mine / "away")
        assert client.get("/questions/1").status_code == 503
        assert client.get("/health").json() == {"status": "ok", "questions": 1}


def test_a_reload_that_fails_keeps_the_old_index_and_tells_no_path(mine, caplog):
    manifest = mine / "index" / "manifest.json"
    with serve(mine) as client:
        os.rename(manifest, mine / "away")
        manifest.write_bytes(b"{")
        answer = client.post("/reload", headers=BEARER)
        assert answer.status_code == 503
        line = "the index was not reloaded, and the old one stays; see the server's log"
        assert answer.json() == {"error": line}
        assert str(mine) in caplog.text
        assert 'qpr_reloads_total{result="failed"} 1.0' in client.get("/metrics").text
        os.rename(mine / "away", manifest)
        assert client.post("/reload", headers=BEARER).json()["questions"] == 4
        assert search(client).status_code == 200


def test_one_change_is_made_at_a_time(folder):
    live, running, counts = LiveIndex(Retriever.load(folder), None), [], []

    def change(retriever):
        running.append(retriever)
        counts.append(len(running))
        time.sleep(0.05)
        running.pop()

    async def run():
        await asyncio.gather(*(live.write(change) for _ in range(3)))

    asyncio.run(run())
    assert counts == [1, 1, 1]


def test_a_reload_that_failed_is_not_repeated_at_once(folder):
    tried = []

    def open_again():
        tried.append(1)
        raise UserError("gone")

    def fail(retriever):
        raise UserError("another encoder")

    async def run():
        live = LiveIndex(Retriever.load(folder), open_again)
        for error in (HTTPException, UserError):
            with pytest.raises(error):
                await live.read(fail)

    asyncio.run(run())
    assert tried == [1]


@pytest.mark.parametrize("file", ["manifest.json", "another"])
def test_a_damaged_build_that_appears_leaves_the_old_index(mine, tmp_path, caplog, file):
    """Until it is whole. Nothing is written to it meanwhile, and the log names it once."""
    folder = mine / "index"
    with serve(mine) as client:
        before = search(client).json()
        shutil.copytree(mine, tmp_path / "other")
        Retriever.load(tmp_path / "other").compact()
        for path in (tmp_path / "other" / "index").glob("*-*"):
            shutil.copy(path, folder)
        whole = (tmp_path / "other" / "index" / "manifest.json").read_bytes()
        (vectors,) = (folder / p.name for p in (tmp_path / "other" / "index").glob("vectors-*"))
        vectors.write_bytes(vectors.read_bytes() + b"1" * (file == "another"))
        for data in (whole[:-9], whole.replace(b"1", b"2")) if file != "another" else [whole]:
            caplog.clear()
            (tmp_path / "new").write_bytes(data)
            os.replace(tmp_path / "new", folder / "manifest.json")
            for _ in range(3):
                assert search(client).json() == before
            assert client.get("/ready").status_code == 200
            answer = client.post("/questions", json={"questions": ["rye"]}, headers=BEARER)
            assert (answer.status_code, "rye" in answer.text) == (503, False)
            assert caplog.text.count("until then the index before it answers") == 1
        vectors.write_bytes(vectors.read_bytes().removesuffix(b"1"))
        (tmp_path / "new").write_bytes(whole)
        os.replace(tmp_path / "new", folder / "manifest.json")
        assert search(client).json() == before
        answer = client.post("/questions", json={"questions": ["rye"]}, headers=BEARER)
        assert answer.status_code == 200


def test_stores_that_cannot_be_reloaded(folder, monkeypatch):
    def gone(settings):
        raise UnavailableError("milvus://inside:19530/q: Milvus does not answer")

    monkeypatch.setattr(Settings, "open_index", gone)
    for name, status in [("milvus://inside:19530/q", 503), ("", 409)]:
        app = make_app(Retriever.load(folder), Settings(folder=name, token=TOKEN))
        with client_of(app) as client:
            answer = client.post("/reload", headers=BEARER)
        assert (answer.status_code, "inside" in answer.text) == (status, False)


def test_the_factory_of_several_workers(mine, monkeypatch, capsys):
    settings = {"folder": str(mine), "token": TOKEN, "max_body": 99}
    monkeypatch.setenv("QPR_SERVE", json.dumps(settings))
    with client_of(create_app()) as client:
        assert [search(client, "x" * size).status_code for size in (9, 90)] == [200, 413]
    for wrong in ('{"folder": "none"}', "{}", '{"folder": "x", "more": 1}', "{"):
        monkeypatch.setenv("QPR_SERVE", wrong)
        with pytest.raises(SystemExit) as exit:
            create_app()
        assert exit.value.code == 3
        assert capsys.readouterr().err.startswith("error: $QPR_SERVE: ")


def _search_in_child(app, answer):
    with client_of(app) as client:
        client.post("/questions", json={"questions": ["of a child"], "ids": [1]}, headers=BEARER)
        answer.put(search(client, "of a child").text)


def test_a_child_of_a_process_that_has_searched(reranked):
    """As under `gunicorn --preload`: the application is made, and has searched, before the fork."""
    retriever = Retriever.load(reranked)
    retriever.search(["rice"] * 20, k=4)
    app = make_app(retriever, Settings(token=TOKEN))
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    child = context.Process(target=_search_in_child, args=(app, answer))
    child.start()
    child.join(60)
    child.kill()
    child.join()
    assert (child.exitcode, "of a child" in answer.get()) == (0, True)
    assert "of a child" in {hit.question for hit in retriever.search(["of a child"])[0]}
