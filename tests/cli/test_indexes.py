"""Commands of an index: index, search, add, remove, compact, info; and encode."""

import io
import json
import pathlib

import pytest

from qpr_jax import Retriever
from qpr_jax.encoders.load import MINILM, STUDENT, load_encoder
from qpr_jax.errors import UserError
from tests.cli.conftest import QUESTIONS
from tests.runs import write_words

PAYLOAD = {"url": "x/ü", "tags": ["a\tb"]}


def contents(folder):
    return {question.id: question.text for question in Retriever.load(folder)}


def test_indexed_and_searched(done, objects, index):
    first, second = objects("search", index, "--query", "How to cook rice", "-k", 2)
    assert list(first) == ["query", "id", "question", "distance", "score"]
    assert first["id"] == 8
    assert first["distance"] <= second["distance"]
    assert objects("search", index, "How to cook rice", "-k", 2) == [first, second]
    found = objects("search", index, "-k", 1, given=b"how can i learn python quickly\n\nrice")
    assert [row["query"] for row in found] == ["how can i learn python quickly", "rice"]
    out, _ = done("search", index, "--output", "tsv", "-k", 9, "--query", "a\tb")
    table = [line.split("\t") for line in out.splitlines()]
    assert table[0] == ["query", "query_id", "id", "question", "distance", "score", "payload"]
    assert [len(row) for row in table] == [7] * 5
    assert {(row[1], row[6]) for row in table[1:]} == {("", "")}
    assert all(0 <= float(row[5]) < 1 for row in table[1:])
    assert {int(row[2]) for row in table[1:]} == {*QUESTIONS}
    nothing = ("--output", "tsv", "--query", "rice", "--min-score", 1)
    assert done("search", index, *nothing)[0].split() == table[0]


def test_hits_have_the_ids_of_their_queries(qpr, objects, index, tmp_path):
    rows = [("T-1", "cook rice"), (str(2**63 - 1), "cook rice"), ("007", "learn python")]
    text = "".join(f"{ticket},{question}\n" for ticket, question in rows)
    (tmp_path / "new.csv").write_text("ticket,question\n" + text)
    how = ("search", index, "new.csv", "--id-column", "ticket", "-k", 2)
    found = [(row["query_id"], row["query"]) for row in objects(*how)]
    ids = ["T-1", 2**63 - 1, "007"]
    assert found == [(i, q) for i, (_, q) in zip(ids, rows, strict=True) for _ in range(2)]
    header, *table = qpr(*how, "--output", "tsv")[1].splitlines()
    assert header.split("\t")[:3] == ["query", "query_id", "id"]
    assert [row.split("\t")[1] for row in table[::2]] == [*map(str, ids)]
    assert "query_id" not in qpr(*how[:3], "--no-ids", "--text-column", "question")[1]


def test_searched_in_two_stages(qpr, done, objects, index, tmp_path):
    write_words(index)
    asked = ("search", index, "--query", "how to cook rice", "-k", 4)
    found = objects(*asked)
    scores = [row["score"] for row in found]
    assert all(0 <= score <= 1 for score in scores)
    one_stage = objects(*asked, "--rerank", "false")
    assert [row["distance"] for row in one_stage] == sorted(row["distance"] for row in one_stage)
    assert {row["score"] for row in one_stage} == {None}
    table = qpr(*asked, "--output", "tsv")[1].splitlines()
    assert [row.split("\t")[5] for row in table[1:]] == [*map(str, scores)]
    assert objects("info", index, "--json")[0]["pair_model"] == {"kind": "words", "depth": 3}
    done("index", "other", "questions.jsonl", "--encoder", index)
    assert objects("search", "other", *asked[2:]) == found


def test_replaced_questions_are_counted_and_equal_texts_printed_once(qpr, done, objects, index):
    rows = [{"id": i, "question": "How to cook rye?"} for i in (900, 901, 900)]
    given = "".join(json.dumps(row) + "\n" for row in rows).encode()
    _, stderr = done("add", index, "--format", "jsonl", given=given)
    assert "2 added, 0 replaced" in stderr
    asked = ("search", index, "--query", "how to cook rye", "-k", 3, "--rerank", "false")
    assert {row["score"] for row in objects(*asked, "--min-score", 1)} == {1.0}
    assert {row["id"] for row in objects(*asked)[:2]} == {900, 901}
    assert [row["question"] for row in objects(*asked, "--distinct")].count("How to cook rye?") == 1


def test_what_is_not_found_is_said_on_standard_error(qpr, refused, index, monkeypatch):
    for words, line in (
        (("--query", ""), 'no hits for ""'),
        (("--query", " ", "--query", "\t", "--output", "tsv"), "and 1 other query"),
        (("--query", "rice", "--min-score", 1), '1 or more for "rice"; a lower --min-score'),
    ):
        status, out, said = qpr("search", index, *words)
        assert (status, out.count("\n")) == (0, "tsv" in words)
        assert line in said
    assert "no hits" not in qpr("search", index, "--query", "rice")[2]
    refused("got 88 that no question has (did you mean `8`?)", "remove", index, "--id", "88")
    retriever = Retriever.load(index)
    with pytest.raises(KeyError, match="did you mean `8`"):
        retriever[88]
    with pytest.raises(UserError, match=r"got '88' \(did you mean `8`"):
        retriever.explain("rice", id="88")
    pathlib.Path("q.csv").write_text("query,id\nrice,88\n")
    refused("such as 88 (did you mean `8`?)", "evaluate", index, "q.csv")


def test_a_wait_for_standard_input_on_a_terminal_is_announced(qpr, index, monkeypatch):
    hint = "reading standard input, which Ctrl-D"
    for terminal in (False, True):
        kind = type("Bytes", (io.BytesIO,), {"isatty": lambda _, is_one=terminal: is_one})
        monkeypatch.setattr("tests.cli.conftest.io.BytesIO", kind)
        for words in (("add", index), ("search", index), ("remove", index), ("encode", index)):
            more = ("--out", "v.npy") if words[0] == "encode" else ()
            assert (hint in qpr(*words, *more, given=b"9\n")[2]) is terminal, words


def test_kept_up_to_date(qpr, done, objects, index, tmp_path):
    added = objects("add", index, given=b"where is rye grown\nwhat is a bicycle\n")
    # The greatest id there can be does not end the counter.
    assert [row["id"] for row in added] == [9, 10]
    done("remove", index, given=b"9\n10\n")
    done("remove", index, "--id", 2**63 - 1)
    (tmp_path / "new.csv").write_text("question,id\nrye?,8\nrye!,8\noats,77\n")
    added = [(row["id"], row["question"]) for row in objects("add", index, "new.csv")]
    assert added == [(8, "rye!"), (77, "oats")]
    expected = {i: q for i, q in QUESTIONS.items() if i < 2**63 - 1} | {8: "rye!", 77: "oats"}
    assert contents(index) == expected
    assert qpr("remove", index, given=b"77\n4\n")[0] == 1
    assert contents(index) == expected
    _, stderr = done("remove", index, "--ignore-missing", given=b"77\n4\n5\n")
    assert "2 removed, 2 questions" in stderr
    facts = objects("info", index, "--json")[0]
    assert (facts["questions"], facts["removed"], facts["added"]) == (2, 6, 4)
    done("compact", index)
    facts = objects("info", index, "--json")[0]
    assert (facts["questions"], facts["removed"], facts["added"]) == (2, 0, 0)
    assert contents(index) == {3: QUESTIONS[3], 8: "rye!"}


def test_strings_are_ids_and_a_payload_comes_back(qpr, refused, done, objects, run):
    rows = [{"id": "007", "question": "how to cook rice", **PAYLOAD}]
    rows += [{"id": value, "question": "what is rye"} for value in ("7", "q-3")]
    given = "".join(json.dumps(row) + "\n" for row in rows).encode()
    done("index", "mine", "--encoder", run, "--format", "jsonl", given=given)
    (first,) = objects("search", "mine", "--query", "how to cook rice", "-k", 1)
    assert (first["id"], first["payload"]) == ("007", PAYLOAD)
    table = qpr("search", "mine", "--query", "rice", "--output", "tsv")[1].splitlines()
    payloads = {row[2]: row[6] for row in (line.split("\t") for line in table[1:])}
    assert json.loads(payloads.pop("007")) == PAYLOAD
    assert payloads == {"7": "", "q-3": ""}
    refused("got '07' that no question has", "remove", "mine", "--id", "07")
    done("remove", "mine", "--id", "007")
    done("remove", "mine", "--format", "jsonl", given=b'{"id": 7}\n{"id": "q-3"}')
    assert len(Retriever.load("mine")) == 0


def test_standard_input_and_another_kind_for_an_index_that_is_replaced(done, objects, run):
    said = "mine: replaced an index of 1 question"
    assert said not in done("index", "mine", "--encoder", run, given=b"rice\n")[1]
    given = "".join(f"question {i}\n" for i in range(1000)).encode()
    flags = ("--factory", "IVF20,SQ8", "--metric", "ip", "--nprobe", 5, "--vectors", "float16")
    assert said in done("index", "mine", "--encoder", run, *flags, given=given)[1]
    before = objects("info", "mine")[0]["encoder"]
    assert before == load_encoder(run / "export").fingerprint
    assert "open_student" not in done("index", "mine", *flags, given=given)[1]
    facts = objects("info", "mine")[0]
    assert facts["encoder"] == before
    assert facts["integrity_check"] == "ok"
    index_config = [facts[name] for name in ("factory", "metric", "nprobe", "vectors")]
    assert index_config == ["IVF20,SQ8", "ip", 5, "float16"]


def test_info_finds_a_flipped_bit_that_opening_does_not(refused, done, index):
    (path,) = pathlib.Path(index, "index").glob("vectors-*.npy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done("search", index, "--query", "rice")
    refused(f"{path.name}: the bytes differ from their SHA-256", "info", index)


def test_a_closed_pipe_is_no_mistake(start, done, run, tmp_path):
    (tmp_path / "many.txt").write_text("".join(f"question {i}\n" for i in range(5000)))
    done("index", "mine", "many.txt", "--encoder", run)
    searched = start("search", "mine", "many.txt")
    searched.stdout.readline()
    searched.stdout.close()
    assert searched.wait() == 1
    assert searched.stderr.read() == ""


def test_a_command_that_names_no_encoder_takes_that_of_the_package_and_says_so(done, tmp_path):
    (tmp_path / "q.txt").write_text("rice\n")
    for command in (("index", "mine", "q.txt"), ("duplicates", "q.txt", "--out", "o")):
        _, stderr = done(*command)
        assert stderr.count(f"encoder: {MINILM}; `--encoder {STUDENT}`") == 1
    assert (
        load_encoder(tmp_path / "mine" / "export").fingerprint == load_encoder(MINILM).fingerprint
    )
