"""The service of a review: requests that it refuses, and what a verdict changes."""

import csv
import errno
import json
import os

import httpx
import pytest

from qpr_jax.duplicates.review import open_review
from qpr_jax.serving.review import make_review_app

TOKEN = "a-b_c"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
EVIL = "<img src=x onerror=\"document.title='run'\"> <b>rice</b>"


def write_found(path, count=40):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id1", "id2", "score", "distance", "question1", "question2"])
        for i in range(count):
            texts = (f"How to cook {EVIL} {i} in 2015?", f"how to cook {EVIL} {i} in 2016?")
            writer.writerow([f"<i>{i}", i, (i + 1) / (count + 1), 1.0, *texts])


@pytest.fixture
def session(tmp_path):
    write_found(tmp_path / "pairs.csv")
    with open_review(
        str(tmp_path / "pairs.csv"), tmp_path / "verdicts.csv", precision=0.6
    ) as review:
        yield review


@pytest.fixture
def client(session, serve):
    address = serve(make_review_app(session, token=TOKEN))
    with httpx.Client(base_url=address, headers=BEARER) as client:
        yield client


def test_a_verdict_is_kept_before_it_is_answered(client, session):
    state = client.get("/review").json()
    assert (state["pairs"], state["yes"], state["estimate"]) == (40, 0, None)
    key = state["pair"]["key"]
    after = client.post("/verdict", json={"pair": key, "verdict": "yes"})
    assert after.status_code == 200
    assert session.path.read_text().count("\n") == 2 + EVIL.count("\n")
    state = after.json()
    assert (state["yes"], state["no"], state["can_undo"]) == (1, 0, True)
    assert state["pair"]["key"] != key
    found = state["estimate"]
    assert 0 <= found["low"] <= found["precision"] <= found["high"] <= 1
    state = client.post("/undo", json={}).json()
    assert (state["yes"], state["can_undo"], state["pair"]["key"]) == (0, False, key)


def test_a_verdict_on_another_pair_is_refused(client):
    key = client.get("/review").json()["pair"]["key"]
    for wrong in ("1", "", "x", "\u0663", "9" * 400, None, key + "0"):
        answer = client.post("/verdict", json={"pair": wrong, "verdict": "yes"})
        assert answer.status_code == 409, wrong
    assert client.post("/undo", json={}).status_code == 409
    assert client.get("/review").json()["yes"] == 0


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"pair": "1", "verdict": "yes"}', "text/plain", 415),  # a form of another site
        (b'{"pair": "1", "verdict": "yes"}', "application/x-www-form-urlencoded", 415),
        (b"[]", "application/json", 422),
        (b"{", "application/json", 422),
        (b"\xff", "application/json", 422),
        (b"[" * 9000, "application/json", 422),
        (b'{"pair": "1", "verdict": "maybe"}', "application/json", 422),
        (b'{"pair": "1", "verdict": ["yes"]}', "application/json", 422),
        (b" " * 20_000, "application/json", 413),
    ],
)
def test_requests_that_are_refused(client, content, kind, status):
    answer = client.post("/verdict", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["error"].count("\n") == 0


def test_other_hosts_methods_and_paths_are_refused(client):
    assert client.get("/review", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/verdict").status_code == 405
    assert client.get("/other").status_code == 404


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", f"Basic {TOKEN}", "Bearer \xe9"])
def test_every_request_needs_the_token(client, session, given):
    headers = {"Authorization": given.encode("latin-1")}
    key = client.get("/review").json()["pair"]["key"]
    body = {"pair": key, "verdict": "yes"}
    query = {"token": given.rpartition(" ")[2].replace(TOKEN, "")}
    for answer in (
        client.get("/", params=query, headers=headers),
        client.get("/", headers=BEARER),
        client.get("/review", headers=headers),
        client.get("/review", params={"token": TOKEN}, headers=headers),
        client.post("/verdict", json=body, headers=headers),
        client.post("/undo", json={}, headers=headers),
    ):
        assert answer.status_code == 401
        assert "the token of the address" in answer.json()["error"]
        assert EVIL not in answer.text
    assert not session.history


def test_a_full_disk_is_said_and_the_verdict_not_counted(client, monkeypatch):
    key = client.get("/review").json()["pair"]["key"]

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        answer = client.post("/verdict", json={"pair": key, "verdict": "no"})
    assert answer.status_code == 507
    assert "the verdict was not written" in answer.json()["error"]
    state = client.get("/review").json()
    assert (state["no"], state["pair"]["key"]) == (0, key)


def test_the_page_loads_nothing_else(client):
    page = client.get("/", params={"token": TOKEN})
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "http" not in page.text.replace("<!doctype html>", "")


def test_texts_are_in_the_answer_whole(client):
    state = client.get("/review").json()
    text = "".join(piece for piece, _ in state["pair"]["first"])
    assert EVIL in text
    assert json.dumps(state).isascii()
