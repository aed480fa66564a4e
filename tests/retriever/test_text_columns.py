"""Rows of several texts: found by the best one, once, and changed as a whole."""

import json
import pathlib

import pytest

from qpr_jax import Retriever, find_duplicates, read_table
from qpr_jax.cli import main
from qpr_jax.errors import UserError
from qpr_jax.index.protocol import Question
from qpr_jax.pair_model.hits import text_of
from qpr_jax.serving.app import Settings, make_app
from tests.refused import check_refused
from tests.runs import calibrate
from tests.serving.conftest import BEARER, TOKEN, client_of

COLUMNS = ["question", "answer"]
ROWS = [
    {"id": "a", "question": "How to cook rice?", "answer": "Boil it in water", "n": 1},
    {"id": "b", "question": "What is rice", "answer": " ", "n": 2},
    {"id": "c", "question": "How can I learn Python?", "answer": "Read a good book", "n": 3},
    {"id": 7, "question": "What is the best bike?", "answer": None, "n": 4},
]


@pytest.fixture
def built(run):
    calibrate(run)
    return Retriever.build(ROWS, text_column=COLUMNS, encoder=run)


def found(retriever, text, k=9, **more):
    return [(hit.id, hit.column) for hit in retriever.search(text, k, **more)[0]]


def test_a_row_is_found_once_by_its_best_text(built):
    assert found(built, "boil it in water?", 1) == [("a", "answer")]
    assert found(built, "What is rice", 1) == [("b", None)]
    for text in ("Read a good book", "rice", "bike"):
        hits = built.search(text, 9)[0]
        assert sorted(str(hit.id) for hit in hits) == ["7", "a", "b", "c"]
        assert {hit.column for hit in hits if hit.id in ("b", 7)} == {None}
        for hit in hits:
            texts = [row["question"] for row in ROWS if row["id"] == hit.id]
            texts += [row["answer"] for row in ROWS if row["id"] == hit.id and hit.column]
            said = built.explain(text, id=hit.id)
            assert (hit.question, text_of(hit)) == (texts[0], texts[-1])
            assert (said.distance, said.score) == pytest.approx((hit.distance, hit.score), abs=1e-6)
            assert said.distance <= built.explain(text, hit.question).distance + 1e-6
    hit = built.search("Read a good book")[0][0]
    assert (hit.question, hit.payload) == (
        "How can I learn Python?",
        {"answer": "Read a good book", "n": 3},
    )
    assert hit.score == 1
    assert len(built) == len([*built]) == 4
    assert built["a"].payload == {"answer": "Boil it in water", "n": 1}
    assert built.store.facts()["removed"] == built.store.facts()["added"] == 0


def test_a_row_is_changed_as_a_whole_wherever_it_is(built, tmp_path):
    built.save(tmp_path / "saved")
    other = Retriever.load(tmp_path / "saved")
    built.add([{"id": "a", "question": "Where is my car?", "answer": "In the garage"}])
    assert other["a"].payload == {"answer": "In the garage"}
    assert "Boil it in water" not in {text_of(hit) for hit in other.search("Boil it in water")[0]}
    assert found(other, "In the garage", 1) == [("a", "answer")]
    (new,) = other.add("a text alone")
    assert (found(built, "a text alone", 1), len(built)) == ([(new, None)], 5)
    assert built.add(["tea"], payload=[{"answer": "hot leaves"}]) == [new + 1]
    assert other.add([]) == []
    assert other.remove(["c", 7]) == 2
    assert "c" not in built
    assert (built.store.facts()["removed"], built.store.facts()["added"]) == (3, 3)
    before = {text: built.search(text, 9) for text in ("hot leaves", "In the garage", "rice")}
    built.compact()
    built.save(tmp_path / "copy")
    for retriever in (other, built, Retriever.load(tmp_path / "copy")):
        assert {text: retriever.search(text, 9) for text in before} == before
        assert retriever.ids() == ["b", "a", new, new + 1]
        assert retriever.store.index_config.text_columns == ("answer",)
        assert retriever.store.facts()["removed"] == 0


def test_a_row_with_any_text_is_a_question(run):
    """A blank first text gives way to the next one, in an index and in what is added."""
    rows = [{"id": "a", "question": " ", "answer": "Boil it"}, ROWS[1]]
    built = Retriever.build(rows, text_column=COLUMNS, encoder=run)
    assert found(built, "boil it", 1) == [("a", None)]
    assert built["a"] == ("a", "Boil it", {"answer": "Boil it"})
    built.add([{"id": "b", "question": None, "answer": "hot leaves"}])
    assert found(built, "hot leaves", 1) == [("b", None)]
    none = [{"id": "c", "question": "", "answer": None}]
    for call in (lambda: built.add(none), lambda: Retriever.build(none, text_column=COLUMNS)):
        with pytest.raises(UserError, match="expected a question in `question` or `answer`, got"):
            call()


def test_an_index_remembers_the_columns_that_were_named(run, tmp_path, monkeypatch, capfd):
    """For `add` and for duplicates, in files and tables that have them; other names still do."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a.csv").write_text("nr,question,head,body\nx,no,How to cook rice,Boil it\n")
    pathlib.Path("b.csv").write_text("nr,body,head,question\ny,hot leaves,What is tea,no\n")
    named = {"text_column": ["head", "body"], "id_column": "nr"}
    words = ["--text-column", "head", "--text-column", "body", "--id-column", "nr"]

    def qpr(*words):
        monkeypatch.setattr("sys.argv", ["qpr", *map(str, words)])
        assert main.main() == 0
        return capfd.readouterr()

    qpr("index", "by_command", "a.csv", "--encoder", run, *words)
    Retriever.build("a.csv", encoder=run, location="by_python", **named)
    for name in ("by_command", "by_python"):
        copy = Retriever.load(name)
        copy.save(f"{name}_2")
        assert Retriever.load(f"{name}_2").add(pathlib.Path("b.csv")) == ["y"]
        qpr("add", name, "b.csv", "--payload", "question")
        for retriever in (Retriever.load(name), Retriever.load(f"{name}_2")):
            assert retriever["y"].text == "What is tea"
            assert found(retriever, "hot leaves", 1) == [("y", "body")]
        assert copy.add([{"nr": "z", "head": "rye", "body": None}]) == ["z"]
        assert copy.add([{"id": "q", "question": "oats"}]) == ["q"]
        assert copy.add("a text alone") == [0]
        new = [{"nr": "w", "head": "What is hay", "body": "dry grass"}]
        assert copy.add_new(find_duplicates(new, against=copy, max_distance=0)) == 1
        assert found(copy, "dry grass", 1) == [("w", "body")]
    pathlib.Path("c.csv").write_text("nr,head,body,question\nv,What is mud,wet earth,no\n")
    how = ("--max-distance", "0", "--out", "d")
    qpr("duplicates", "c.csv", "--incremental", "by_command", *how)
    assert Retriever.load("by_command")["v"].text == "What is mud"


def test_copies_of_questions_and_the_rows_of_duplicates(built):
    built.add([{"id": "d", "question": "how to cook RICE", "answer": "Boil it in water"}])
    texts = [hit.question for hit in built.search("Boil it in water", 9, distinct=True)[0]]
    assert len(texts) == 4
    new = [{"id": "e", "question": "What is tea?", "answer": "hot leaves"}, ROWS[0]]
    pairs = find_duplicates(new, against=built, threshold=0.9)
    assert built.add_new(pairs) == 1
    assert found(built, "hot leaves", 1) == [("e", "answer")]


def test_refusals(built, run):
    def build(columns, rows=ROWS, **more):
        Retriever.build(rows, text_column=columns, encoder=run, **more)

    check_refused(
        build,
        (["question", "reply"], "no row has `reply`.*text_column"),
        (["question", "question"], "expected distinct columns"),
        (["question", "n"], "position 0: expected a text in `n`, got 1"),
    )
    add = [{"id": "z", "question": "a", "answer": "b", "note": "c"}]
    for columns in (["question", "note"], ["question", "answer", "note"]):
        with pytest.raises(UserError, match="texts of the question and `answer`"):
            built.add(add, text_column=columns)
    with pytest.raises(UserError, match="texts of the question, expected no others"):
        Retriever.build(ROWS, encoder=run).add(add, text_column=COLUMNS)
    for call in (built.search, built.encode, find_duplicates):
        with pytest.raises(UserError, match=r"expected one column.*join them"):
            call(ROWS, text_column=COLUMNS)
    kept = Retriever.build(ROWS, None, ["n"], text_column=COLUMNS, encoder=run)
    assert kept["c"].payload == {"n": 3, "answer": "Read a good book"}


def test_by_command_and_by_http(run, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("faq.csv").write_text(
        "id,question,answer\n" + "".join(f"{r['id']},{r['question']},{r['answer']}\n" for r in ROWS)
    )
    columns = ["--text-column", "question", "--text-column", "answer"]

    def qpr(*words):
        monkeypatch.setattr("sys.argv", ["qpr", *words])
        status = main.main()
        return status, *capfd.readouterr()

    assert qpr("index", "faq", "faq.csv", "--encoder", str(run), *columns)[0] == 0
    assert qpr("add", "faq", "faq.csv")[0] == qpr("add", "faq", "faq.csv", *columns)[0] == 0
    _, out, _ = qpr("search", "faq", "Read a good book", "-k", "4")
    hits = [json.loads(line) for line in out.splitlines()]
    assert sorted(str(hit["id"]) for hit in hits) == ["7", "a", "b", "c"]
    assert (hits[0]["id"], hits[0]["column"]) == ("c", "answer")
    _, out, _ = qpr("search", "faq", "What is rice", "-k", "1", "--output", "tsv")
    assert [line.split("\t")[-1] for line in out.splitlines()] == ["column", ""]
    assert json.loads(qpr("info", "faq")[1])["text_columns"] == ["answer"]
    for words in (["duplicates", "faq.csv", "--out", "d"], ["search", "faq", "faq.csv"]):
        status, _, said = qpr(*words, *columns)
        assert status == 2
        assert "join them in one column" in said
    with pytest.raises(UserError, match="join them"):
        find_duplicates(read_table("faq.csv", text=COLUMNS), encoder=run)
    with client_of(make_app(Retriever.load("faq"), Settings(token=TOKEN))) as client:
        body = {"questions": ["tea"], "ids": ["t"], "payload": [{"answer": "hot leaves"}]}
        assert client.post("/questions", json=body, headers=BEARER).json() == {"ids": ["t"]}
        query = {"query": "hot leaves", "k": 5}
        hits = client.post("/search", json=query).json()["results"][0]
        assert [hit.get("column") for hit in hits[:1]] == ["answer"]
        assert len({hit["id"] for hit in hits}) == len(hits) == 5
        assert client.get("/questions/t").json()["payload"] == {"answer": "hot leaves"}
        assert client.delete("/questions/t", headers=BEARER).status_code < 300
        hits = client.post("/search", json=query).json()["results"][0]
        assert "t" not in {hit["id"] for hit in hits}


def test_the_text_of_a_question_stands_for_a_missing_one():
    question = Question(1, "a", {"blank": " ", "number": 7, "more": "b"})
    assert question.texts(["blank", "number", "gone", "more"]) == ["a", "a", "a", "a", "b"]
