import urllib.parse

import pytest

from qpr_jax import Retriever
from tests.serving.conftest import BEARER, QUESTIONS


@pytest.mark.parametrize(("id", "size"), [("", 0), ("9" * 1025, 1025), ("\u00e9" * 513, 1026)])
def test_ids_that_are_none(client, id, size):
    answer = client.delete(f"/questions/{id}", headers=BEARER)
    assert answer.status_code == 422
    expected = "a whole number from 0 to 2^63 - 1, or a string of 1 to 1,024 bytes"
    assert answer.json()["error"].startswith(f"`id`: expected {expected}, got ")


@pytest.mark.parametrize(
    "id", ["-1", "x", "1.5", "+5", "05", "%0A5", "\u0665", str(2**63), "%00", "a%2Fb", "a/b", "%FF"]
)
def test_ids_that_no_question_has(client, id):
    answer = client.delete(f"/questions/{id}", headers=BEARER)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("no question has the id ")
    assert answer.json()["error"].isprintable()


def test_ids_of_both_kinds_and_payload(own_client, tmp_path):
    client = own_client
    ids = ["a/b?c#d%20", "007", 2**63 - 1, "\u00e9\U0001f600", "12"]
    payload = [{"url": "https://example.com", "n": [1, {"x": None}]}, None, {}, {"\u00e9": 1}, None]
    body = {"questions": [f"rice {i}" for i in range(5)], "ids": ids, "payload": payload}
    answer = client.post("/questions", json=body, headers=BEARER)
    assert answer.json() == {"ids": ids}
    hits = client.post("/search", json={"queries": ["rice"], "k": 50}).json()["results"][0]
    kept = {hit["id"]: hit["payload"] for hit in hits}
    payload[2] = None  # without a name it is none
    assert [kept[id] for id in ids] == payload
    assert {kept[id] for id in QUESTIONS} == {None}
    again = {"questions": ["new"], "ids": [12]}  # the same id as "12"
    assert client.post("/questions", json=again, headers=BEARER).json() == {"ids": [12]}
    for id in (*ids[:-1], "12"):
        path = urllib.parse.quote(str(id), safe="")
        assert client.delete(f"/questions/{path}", headers=BEARER).status_code == 204
    assert {*dict(Retriever.load(tmp_path / "mine").index)} == {*QUESTIONS}


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 500])
def test_payload_that_is_no_json(client, value):
    body = b'{"questions": ["a"], "payload": [{"x": ' + value + b"}]}"
    answer = client.post("/questions", content=body, headers=BEARER)
    assert answer.status_code == 422
    assert "expected " in answer.json()["error"]
