"""Ids that are strings, and payload, from a build to a hit, in every way that questions come."""

import numpy as np
import pytest

from qpr_jax.data.questions import Entry
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import relevance_scores
from qpr_jax.index.base import StoredQuestion
from qpr_jax.retriever import Retriever
from tests.retriever.conftest import QUESTIONS
from tests.runs import write_reranker

IDS = ["007", 7, "q-3", "\ud800"]
PAYLOADS = [
    {"tag": "a", "n": 1},
    None,
    {"url": "x/ü", "more": [1, {"x": None}]},
    {},
]
ENTRIES = [Entry(2 + i, IDS[i], QUESTIONS[i], PAYLOADS[i]) for i in range(4)]
EXPECTED = {IDS[i]: (QUESTIONS[i], PAYLOADS[i] or None) for i in range(4)}


@pytest.fixture(params=["one stage", "light"])
def built(request, run, tmp_path):
    if request.param == "light":
        write_reranker(run, candidates=3)
    return Retriever.build_in(tmp_path / "mine", ENTRIES, run=run)


def found_by(retriever):
    """What a search for anything returns, by id, in any order."""
    (hits,) = retriever.search(["how to cook rice"], 20)
    assert all(hit.distance >= -1e-6 for hit in hits)
    return {hit.id: (hit.question, hit.payload) for hit in hits}


def test_they_come_back_with_the_hits(built, tmp_path):
    loaded = Retriever.load(tmp_path / "mine")
    assert found_by(built) == found_by(loaded) == EXPECTED
    loaded.save(tmp_path / "copy")
    assert found_by(Retriever.load(tmp_path / "copy")) == EXPECTED
    assert loaded.index.live_ids() == IDS
    assert loaded.index.questions(["7", "q-3", "q-4", 8]) == [
        QUESTIONS[1],
        QUESTIONS[2],
        None,
        None,
    ]


def test_changes_keep_them(built, tmp_path):
    given = ["q-3", "8", 9, "new"]
    payload = [{"n": 2}, None, {"n": 3}, {"n": 4}]
    assert built.add(["rye?", "oats?", "wheat?", "barley?"], given, payload) == given
    assert built.add(["7 again"], ["7"]) == ["7"]
    assert built.add(["no id"]) == [10]
    assert built.remove(["\ud800", "9"]) == 2
    expected = {
        "007": EXPECTED["007"],
        "q-3": ("rye?", {"n": 2}),
        "8": ("oats?", None),
        "new": ("barley?", {"n": 4}),
        "7": ("7 again", None),
        10: ("no id", None),
    }
    loaded = Retriever.load(tmp_path / "mine")
    assert found_by(built) == found_by(loaded) == expected
    built.compact()
    assert found_by(built) == expected
    again = Retriever.load(tmp_path / "mine")
    assert found_by(again) == expected
    assert [type(value) for value in again.index.live_ids()] == [str, str, str, str, str, int]
    assert again.remove(["x", 8, "10"], ignore_missing=True) == 2
    assert again.add(["next"]) == [11]
    again.index.store.check_integrity()


def test_rows_that_spell_one_id_name_the_line(run, tmp_path):
    entries = [Entry(2, "a", "one"), Entry(3, 5, "two"), Entry(4, "5", "three")]
    with pytest.raises(UserError, match="`entries`, line 4: the id 5 stands twice"):
        Retriever.build_in(tmp_path / "mine", entries, run=run)
    entries[2] = Entry(9, "a", "three")
    with pytest.raises(UserError, match="`entries`, line 9: the id a stands twice"):
        Retriever.build_in(tmp_path / "mine", entries, run=run)
    with pytest.raises(UserError, match=r"`payload`: expected values of JSON .*, of the id 1"):
        Retriever.build_in(tmp_path / "mine", [Entry(1, 1, "x", {"a": np.nan})], run=run)
    assert [*(tmp_path / "mine" / "index").glob("*")] in ([], [tmp_path / "mine/index/.lock"])


def test_one_payload_a_question(built):
    with pytest.raises(UserError, match=r"`payload`: expected a mapping a question \(2\), got 1"):
        built.add(["one", "two"], None, [{"a": 1}])
    assert len(built) == 4


def test_explained_by_an_id(built):
    assert built.explain("rice", id="q-3") == built.explain("rice", QUESTIONS[2])
    assert built.explain("rice", id="7") == built.explain("rice", id=7)
    with pytest.raises(UserError, match="expected the id of an indexed question, got 'q-4'"):
        built.explain("rice", id="q-4")


def test_evaluated_by_ids(built):
    built.add(["oats"], ["8"])
    scores = relevance_scores(built.search, {QUESTIONS[2]: {"q-3"}, "oats": {8}})
    assert (scores["queries"], scores["recall@10"]) == (2, 1.0)


def test_an_index_in_memory_keeps_them(run):
    retriever = Retriever.build(QUESTIONS, IDS, run=run)
    assert retriever.add(["rye"], ["q-3"], [{"a": 1}]) == ["q-3"]
    assert found_by(retriever)["q-3"] == ("rye", {"a": 1})
    retriever.compact()
    assert found_by(retriever)["q-3"] == ("rye", {"a": 1})
    assert [*retriever.index.store][-1] == StoredQuestion("q-3", "rye", {"a": 1})
