"""The commands of an index whose questions have strings as ids, and payload."""

import json

import pytest

from qpr_jax.data.questions import Entry
from qpr_jax.retriever import Retriever

PAYLOAD = {"url": "x/ü", "tags": ["a\tb"]}


@pytest.fixture
def index(qpr, run, tmp_path):
    entries = [
        Entry(1, "007", "how to cook rice", PAYLOAD),
        Entry(2, "7", "what is rye"),
        Entry(3, "q-3", "how can i learn python"),
    ]
    Retriever.build_in(tmp_path / "mine", entries, run=run)
    return "mine"


def lines(out):
    return [json.loads(line) for line in out.splitlines()]


def test_searched(qpr, index):
    (first,) = lines(qpr("search", index, "--query", "how to cook rice", "-k", 1)[1])
    assert (first["id"], first["payload"]) == ("007", PAYLOAD)
    table = qpr("search", index, "--query", "rice", "--output", "tsv")[1].splitlines()
    rows = {row[1]: row[5] for row in (line.split("\t") for line in table[1:])}
    assert {value: text and json.loads(text) for value, text in rows.items()} == {
        "007": PAYLOAD,
        "7": "",
        "q-3": "",
    }


def test_removed_by_an_id_as_it_is_or_as_a_number(qpr, index):
    status, _, stderr = qpr("remove", index, "--id", "07")
    assert status == 1
    assert "got '07' that no question has" in stderr
    assert qpr("remove", index, "--id", "007")[0] == 0
    assert qpr("remove", index, "--format", "jsonl", given=b'{"id": 7}\n{"id": "q-3"}')[0] == 0
    assert len(Retriever.load(index)) == 0
