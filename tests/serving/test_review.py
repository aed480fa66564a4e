"""The service of a review: requests that it refuses, and what a label changes."""

import errno
import os

import pytest
from starlette.testclient import TestClient

from qpr_jax.duplicates.review import open_review
from qpr_jax.serving.app import make_review_app
from tests.duplicates.test_review import EVIL, write_found

TOKEN = "a-b_c"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def session(tmp_path):
    path = write_found(tmp_path / "pairs.csv")
    with open_review(path, tmp_path / "labels.csv", precision=0.6) as review:
        yield review


@pytest.fixture
def client(session):
    app = make_review_app(session, token=TOKEN)
    with TestClient(app, base_url="http://localhost", headers=BEARER) as client:
        yield client


def test_a_label_is_kept_before_it_is_answered(client, session):
    state = client.get("/review").json()
    assert (state["pairs"], state["yes"], state["estimate"]) == (60, 0, None)
    assert EVIL in "".join(piece for piece, _ in state["pair"]["first"])
    key = state["pair"]["key"]
    state = client.post("/label", json={"pair": key, "label": "yes"}).json()
    assert session.path.read_text().count("\n") == 3  # one in a question
    assert (state["yes"], state["no"], state["can_undo"]) == (1, 0, True)
    assert state["pair"]["key"] != key
    found = state["estimate"]
    assert 0 <= found["low"] <= found["precision"] <= found["high"] <= 1
    state = client.post("/undo", json={}).json()
    assert (state["yes"], state["can_undo"], state["pair"]["key"]) == (0, False, key)
    assert client.post("/undo", json={}).status_code == 409
    for wrong in ("1", "", "x", "\u0663", "9" * 400):
        body = {"pair": wrong, "label": "yes"}
        assert client.post("/label", json=body).status_code == 409
    page = client.get("/", params={"token": TOKEN})
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "http" not in page.text


def test_requests_that_are_refused(client):
    right = b'{"pair": "1", "label": "yes"}'
    for content, kind, status in [
        (right, "text/plain", 415),  # a form of another site
        (right.replace(b"yes", b"maybe"), "application/json", 422),
        (b" " * 20_000, "application/json", 413),
    ]:
        answer = client.post("/label", content=content, headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["error"].count("\n")) == (status, 0)
    assert client.get("/review", headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("given", ["", "Bearer x", f"Basic {TOKEN}", "Bearer \xe9"])
def test_every_request_needs_the_token(client, session, given):
    headers = {"Authorization": given.encode("latin-1")}
    key = client.get("/review").json()["pair"]["key"]
    for answer in (
        client.get("/", params={"token": "x"}, headers=headers),
        client.get("/", headers=BEARER),
        client.get("/review", params={"token": TOKEN}, headers=headers),
        client.post("/label", json={"pair": key, "label": "yes"}, headers=headers),
        client.post("/undo", json={}, headers=headers),
    ):
        assert answer.status_code == 401
        assert "the token of the address" in answer.json()["error"]
    assert not session.history


def test_pairs_that_are_written_again_end_the_review(client, session, tmp_path):
    key = client.get("/review").json()["pair"]["key"]
    key = client.post("/label", json={"pair": key, "label": "yes"}).json()["pair"]["key"]
    before = session.path.read_text()
    write_found(tmp_path / "pairs.csv")
    for answer in (
        client.post("/label", json={"pair": key, "label": "yes"}),
        client.post("/undo", json={}),
        client.get("/review"),
    ):
        assert answer.status_code == 409
        assert "pairs.csv was written again, so this review keeps no more" in answer.json()["error"]
    assert session.path.read_text() == before


def test_a_full_disk_is_said_and_the_label_not_counted(client, monkeypatch):
    key = client.get("/review").json()["pair"]["key"]

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        answer = client.post("/label", json={"pair": key, "label": "no"})
    assert answer.status_code == 507
    assert "not written" in answer.json()["error"]
    state = client.get("/review").json()
    assert (state["no"], state["pair"]["key"]) == (0, key)
