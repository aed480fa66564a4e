"""A retriever: build, search, change, save and load, by the public surface."""

import concurrent.futures
import multiprocessing
import os
import pickle
import re

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from qpr_jax.data.tables import Entry
from qpr_jax.duplicates.search import find_duplicates
from qpr_jax.errors import UserError
from qpr_jax.evaluation.answers import relevance_scores
from qpr_jax.index import milvus
from qpr_jax.index.protocol import IndexConfig
from qpr_jax.locations import index_config_of, read_encoder
from qpr_jax.retriever import Retriever
from qpr_jax.text.cleaning import folded
from tests.encoders.examples import cnn_encoder
from tests.refused import check_refused
from tests.retriever.conftest import QUESTIONS
from tests.runs import calibrate, write_encoder


def texts_of(retriever):
    return {question.id: question.text for question in retriever.store.questions()}


def test_one_text_and_one_id(retriever):
    (hits,) = retriever.search("how to cook rice", 2)
    assert hits == retriever.search(["how to cook rice"], 2)[0]
    many = retriever.search(["rice", "", "🦓\ud800\x00"], 10**9)
    assert [len(hits) for hits in many] == [4, 0, 4]
    assert retriever.search([]) == []
    assert retriever.encode("rice").shape == (1, retriever.encoder.dimension)
    assert retriever.add("What is tea?", ids=["t"]) == ["t"]
    assert retriever["t"].text == "What is tea?"
    assert "t" in retriever
    assert retriever.ids() == [question.id for question in retriever] == [7, 8, 3, 4, "t"]
    assert retriever.explain("rice", id="7") == retriever.explain("rice", QUESTIONS[0])
    assert retriever.remove("t") == 1
    assert retriever.remove(["t", 7], ignore_missing=True) == 1
    assert retriever.add([]) == []
    assert retriever.remove([]) == 0
    assert "t" not in retriever
    with pytest.raises(KeyError):
        retriever["t"]
    with pytest.raises(UserError, match="expected the id of an indexed question, got 'q-4'"):
        retriever.explain("rice", id="q-4")


def test_a_file_is_named_by_its_suffix_in_every_call(retriever, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("invoice", "invoice.csv"):
        (tmp_path / name).write_text("question\nWhere is my invoice?\n")
        assert [hits.query for hits in retriever.search(name)] == [name]
    builds = Retriever.build, find_duplicates, lambda given: find_duplicates(["a"], against=given)
    for call in builds:
        check_refused(call, ("invoice", "strings, got str"), ("no.csv", "no file 'no.csv'"))
    check_refused(retriever.add, ("no.csv", "no file 'no.csv'"))
    assert [retriever[id].text for id in retriever.add("invoice")] == ["invoice"]
    (id,) = retriever.add("invoice.csv")
    assert retriever[id].text == "Where is my invoice?"
    assert len(Retriever.build("invoice.csv", encoder=retriever.encoder)) == 1


def test_a_saved_retriever_keeps_its_changes_in_the_folder(retriever, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    payload = {"url": "x/ü", "more": [1, {"x": None}]}
    retriever.add(["What is rye?"], payload=[payload])
    retriever.remove([7])
    retriever.compact()
    retriever.save("deep/saved")
    monkeypatch.chdir("/")
    folder = tmp_path / "deep" / "saved"
    loaded = Retriever.load(folder)
    assert loaded[9] == (9, "What is rye?", payload)
    assert loaded.encoder.settings == {"steps": 3}
    assert texts_of(loaded) == texts_of(retriever)
    retriever.remove([9])
    assert loaded.add(["7 again"], ["7"]) == ["7"]
    assert loaded.add(["next"]) == [10]  # 9 was another question
    retriever.compact()
    calibrate(folder)  # meanwhile
    loaded.save(folder)  # over itself
    assert Retriever.load(folder).pair_model is not None
    expected = dict(zip([8, 3, 4, "7", 10], [*QUESTIONS[1:], "7 again", "next"], strict=True))
    for same in (retriever, loaded, Retriever.load(folder)):
        assert texts_of(same) == expected
        assert {hit.id for hit in same.search("rice", 20)[0]} == expected.keys()
    assert relevance_scores(loaded.search, {"next": {10}})["recall@10"] == 1
    assert sorted(path.name for path in folder.iterdir()) == ["export", "index"]


def test_hits_are_bounded(retriever, run):
    (hits,) = retriever.search("How to cook rice?", 4)
    assert hits[0].distance < hits[1].distance < hits[2].distance
    found = retriever.search("How to cook rice?", 4, max_distance=hits[1].distance)[0]
    assert found == hits[:2]
    assert retriever.search("rice", min_score=0.1) == [[]]  # without a re-ranker: no scores
    calibrate(run)
    scored = Retriever.build(QUESTIONS, encoder=run)
    (hits,) = scored.search("rice", 3)
    found = scored.search("rice", 3, min_score=hits[1].score)[0]
    assert hits[1] in found
    assert found == [hit for hit in hits if hit.score >= hits[1].score]


def test_what_is_wrong_is_refused_and_changes_nothing(retriever, run):
    for questions, ids in (([], None), ("rice", None), (["a", None], None), (["a", "b"], [1, 1])):
        with pytest.raises(UserError, match="`"):
            Retriever.build(questions, ids, encoder=run)
    check_refused(retriever.search, ([None], 5, "`"), (["rice"], 0, "`"), (["rice"], 2.5, "`"))
    removed = ([7, 5], [7, 7], ["7", 7], "12", [b"7"])
    check_refused(retriever.remove, *((ids, "`ids`") for ids in removed))
    for how in ({"ids": [1, 2]}, {"payload": [{}, {}]}, {"payload": [{"a": float("nan")}]}):
        with pytest.raises(UserError, match="`"):
            retriever.add(["one"], **how)
    some_ids = [{"question": "a"}, {"question": "b", "id": 1}]
    check_refused(retriever.add, (some_ids, "`questions`, position 1: expected no id"))
    assert texts_of(retriever) == dict(zip([7, 8, 3, 4], QUESTIONS, strict=True))


def test_a_failed_build_leaves_the_index_and_its_encoder(retriever, run, tmp_path):
    retriever.save(tmp_path / "saved")
    other = tmp_path / "other"
    write_encoder(other, seed=1)
    names = len([*(tmp_path / "saved").rglob("*")])

    def broken():
        yield Entry(1, None, "one")
        raise UserError("a bad row")

    rows = ((2, "a", "x"), (3, 5, "y"), (4, "5", "z"))
    for entries, message in (
        (broken(), "a bad row"),
        ([], "got none"),
        ([Entry(1, -1, "x")], "position 1"),
        ([Entry(1, None, None)], "NoneType"),
        ([Entry(*row) for row in rows], "`questions`, position 4: the id 5"),
    ):
        with pytest.raises(UserError, match=message):
            Retriever.build(entries, location=tmp_path / "saved", encoder=other)
        assert texts_of(Retriever.load(tmp_path / "saved")) == texts_of(retriever)
    Retriever.build(["one"], location=tmp_path / "saved", encoder=other)
    again = Retriever.load(tmp_path / "saved")
    assert texts_of(again) == {0: "one"}
    assert again.encoder.fingerprint != retriever.encoder.fingerprint
    # The vectors of the first retriever do not fit any more.
    check_refused(retriever.add, (["two"], "expected an index of the encoder"))
    Retriever.build(["one"], location=tmp_path / "saved", encoder=run)
    assert Retriever.load(tmp_path / "saved").encoder.fingerprint == retriever.encoder.fingerprint
    assert len([*(tmp_path / "saved").rglob("*")]) == names


def test_leftovers_of_a_kill_go_with_the_next_build(retriever, tmp_path):
    folder = tmp_path / "saved"
    retriever.save(folder)
    for name in (".export.old", ".export-0123456789abcdef.part", "export-fedcba9876543210", ".me"):
        (folder / name).mkdir()
    (folder / "index" / "vectors-0123456789abcdef.npy").write_text("x")
    loaded = Retriever.load(folder)
    assert len([*folder.iterdir()]) == 6  # reading changes nothing
    loaded.compact()
    assert sorted(path.name for path in folder.iterdir()) == [".me", "export", "index"]
    assert len([*(folder / "index").glob("vectors-*")]) == 1


def test_after_compaction_no_byte_of_a_removed_question_is_left(retriever, tmp_path):
    secrets = ["My secret name is Eve", "Where do I live \ud800 really?", "Replaced secret"]
    retriever.add([*secrets, *QUESTIONS], range(100, 107))
    retriever.save(tmp_path / "saved")
    retriever.add(["Another secret"], [200])
    retriever.add(["harmless"], [102])
    retriever.remove([100, 101, 200])

    def left() -> int:
        files = [path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()]
        hidden = [text.encode("utf-8", "surrogatepass") for text in (*secrets, "Another secret")]
        return sum(any(secret in data for data in files) for secret in hidden)

    assert left() == 4
    Retriever.load(tmp_path / "saved").compact()
    assert left() == 0


def test_what_is_missing_or_does_not_fit_is_named(run, retriever, tmp_path):
    (tmp_path / "empty").mkdir()
    retriever.save(tmp_path / "saved")
    write_encoder(tmp_path / "saved", seed=1)
    check_refused(
        Retriever.load,
        (tmp_path / "nowhere", "expected an index or an encoder, found none at"),
        (tmp_path / "empty", "expected an index, found none at .*empty"),
        (run, "run: expected an index, got an encoder; `qpr index FOLDER TABLE --encoder"),
        (tmp_path / "saved", "expected an index of the encoder"),
    )


THINGS = ["cook rice", "learn python", "what is rust", "a new car", "mend a bike", "rye?"]


@given(things=st.permutations(THINGS), new=st.sampled_from(["<b>oats</b>", "Tom &amp; Jerry"]))
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
def test_html_and_shared_sentences_are_shown_and_not_encoded(things, new, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    plain = Retriever.build(things)
    wrapped = [f"<p>Hi there,</p>\n{thing}<br>Sent from my phone" for thing in things]
    index = Retriever.build(wrapped)
    assert {*index.store.cleaner.shared} == {"hi there", "sent from my phone"}
    index.save(folder)
    for retriever in (plain, index):
        assert retriever.add([new if retriever is plain else f"Hi there,\n{new}"]) == [6]
        retriever.remove([0])
        retriever.compact()
    for same in (index, Retriever.load(folder)):
        for thing, text in zip(things, wrapped, strict=True):
            (expected,), (found,) = plain.search(thing, 9), same.search(text, 9)
            assert [hit.id for hit in found] == [hit.id for hit in expected]
            assert [hit.distance for hit in found] == [hit.distance for hit in expected]
            assert {hit.question for hit in found} == {*wrapped[1:], f"Hi there,\n{new}"}
    (pair,) = find_duplicates([things[1]], ["new"], against=index, max_distance=0).pairs
    assert {pair.question1, pair.question2} == {things[1], wrapped[1]}


ALIKE = [f"{city}: {thing}?" for thing in ("where is it", "is it new") for city in ("Rome", "Oslo")]
ALIKE += ["<b>where</b> is it", "where is it", "WHERE is it\u3002", "where is it? :)", "is <b> new"]
ALIKE += ["d\xf3nde est\xe1", "donde esta?", "is <i> new", "10\u2076", "106", "where is\u200b it"]


@given(st.lists(st.sampled_from(ALIKE), min_size=1, unique=True), st.booleans())
@settings(max_examples=10, deadline=None)
def test_the_text_of_a_query_is_its_first_hit(texts, distinct):
    retriever = Retriever.build(texts * 6)
    for text in texts:
        found = retriever.search(text, 2, distinct=distinct)[0]
        assert found[0].score == 1
        assert found[0].distance < 1e-6
        assert distinct or found[0].question == text
        for hit in retriever.search(text, 9)[0]:
            assert (hit.score == 1) == (folded(hit.question) == folded(text))
            assert retriever.explain(text, hit.question).score == pytest.approx(hit.score, abs=2e-6)


def test_the_settings_of_an_encoder_say_how_to_index():
    encoder = cnn_encoder(settings={"index.clean": False, "index.nprobe": 3})
    assert index_config_of(encoder) == IndexConfig(clean=False, nprobe=3)
    assert index_config_of(encoder, nprobe=4).nprobe == 4


def test_an_index_can_encode_texts_as_they_are(tmp_path):
    tags = ["What does <b> do?", "What does <i> do?"]
    Retriever.build(tags, index_config=IndexConfig(clean=False)).save(tmp_path)
    index = Retriever.load(tmp_path)
    index.add("what does <u> do?")
    index.compact()
    distances = [hit.distance for hit in index.search(tags[0], 3, rerank=False)[0]]
    assert distances[0] < 1e-6 < distances[1]
    found = find_duplicates(["What does <em> do?"], ["new"], against=index, max_distance=0)
    assert not found.pairs


@given(texts=st.lists(st.sampled_from(["rice", "Rice?", " RICE ", "python", "rye"]), min_size=1))
@example(texts=["rice"] * 1000 + ["python", "rye"])
@settings(max_examples=5, deadline=None)
def test_distinct_hits_are_the_nearest_of_each_text(texts):
    retriever = Retriever.build(texts)
    (every,) = retriever.search("how to cook rice", len(texts), rerank=False)
    (found,) = retriever.search("how to cook rice", 3, rerank=False, distinct=True)
    expected = {hit.question.strip(" ?").lower(): hit for hit in reversed(every)}
    assert [*found] == sorted(expected.values(), key=every.index)[:3]


def test_another_process_loads_a_pickled_retriever_from_its_folder(retriever, tmp_path):
    check_refused(pickle.dumps, (retriever, "in memory"))
    retriever.save(tmp_path / "saved")
    expected = retriever.search(["rice"])
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        assert pool.submit(Retriever.search, retriever, ["rice"]).result() == expected


def test_an_index_that_cannot_be_written_is_compared_and_stays(retriever, tmp_path, monkeypatch):
    retriever.save(tmp_path / "saved")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = find_duplicates(["what is rye"], against=retriever, max_distance=0.3)
    with pytest.raises(PermissionError, match="saved"):
        retriever.add_new(found)


class OneCollection:
    """A server of one collection, whose properties name an encoder."""

    opened, consistency, encoder_name, encoder = 0, "session", "", ""

    def __init__(self, address):
        self.address, self.name = address, "questions"
        type(self).opened += 1

    def call(self, method, *_, **how):
        facts = {"format": milvus.FORMAT, "encoder_name": self.encoder_name}
        facts |= {
            "encoder": self.encoder,
            "dimension": "16",
            "index_config": "{}",
            "shared": "null",
        }
        properties = {f"qpr.{name}": value for name, value in facts.items()}
        found = {"collection_name": "build", "properties": properties}
        return {"has_collection": True, "describe_collection": found}[method]


def test_a_collection_is_opened_once_to_load_it(encoder_run, monkeypatch):
    encoder, address = read_encoder(encoder_run), "milvus://localhost/questions"
    monkeypatch.setattr(milvus, "Server", OneCollection)
    monkeypatch.setattr(OneCollection, "opened", 0)
    monkeypatch.setattr(OneCollection, "encoder_name", str(encoder_run))
    monkeypatch.setattr(OneCollection, "encoder", encoder.fingerprint)
    loaded = Retriever.load(address)
    assert (OneCollection.opened, loaded.encoder_name) == (1, str(encoder_run))
    assert loaded.encoder.fingerprint == loaded.store.encoder == encoder.fingerprint
    monkeypatch.setattr(OneCollection, "encoder", "another one")
    check_refused(Retriever.load, (address, "expected an index of the encoder .* another one"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_score": 50}, "`min_score`: expected a score, 0 to 1, got 50"),
        ({"min_score": "0.5"}, "`min_score`: expected a score, 0 to 1, got '0.5'"),
        ({"max_distance": "near"}, "`max_distance`: expected a number, got 'near'"),
        ({"max_distance": float("nan")}, "`max_distance`: expected a number, got nan"),
        ({"queries": None}, "`queries`: expected a list of strings, got NoneType; pass a string"),
        ({"queries": 5}, "`queries`: expected a list of strings, got int; pass a string"),
    ],
)
def test_arguments_of_a_search_that_cannot_be_are_refused(arguments, message):
    retriever = Retriever.build(["how to cook rice"], encoder="open_student")
    with pytest.raises(UserError, match=re.escape(message)):
        retriever.search(**{"queries": "rice", **arguments})
