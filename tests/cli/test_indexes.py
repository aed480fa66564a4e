"""The command `qpr` as a user meets it."""

import gzip
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

from qpr_jax import Retriever
from qpr_jax.cli import commands
from qpr_jax.encoders import minilm
from qpr_jax.encoders.load import read_encoder
from tests.cli.conftest import QUESTIONS
from tests.runs import write_reranker


def contents(folder):
    return {question.id: question.text for question in Retriever.load(folder).store.questions()}


def lines(out):
    return [json.loads(line) for line in out.splitlines()]


def test_indexed_and_searched(qpr, index):
    status, out, _ = qpr("search", index, "--query", "How to cook rice", "-k", 2)
    assert status == 0
    first, second = lines(out)
    assert list(first) == ["query", "id", "question", "distance", "score"]
    assert first["id"] == 8
    assert first["distance"] <= second["distance"]
    status, out, _ = qpr("search", index, "-k", 1, given=b"how can i learn python quickly\n\nrice")
    assert [(row["query"], row["id"]) for row in lines(out)] == [
        ("how can i learn python quickly", 5),
        ("rice", lines(out)[1]["id"]),
    ]
    status, out, _ = qpr("search", index, "--output", "tsv", "-k", 9, "--query", "a\tb")
    table = [line.split("\t") for line in out.splitlines()]
    assert table[0] == ["query", "id", "question", "distance", "score", "payload"]
    assert [len(row) for row in table] == [6] * 5
    assert {(row[4], row[5]) for row in table[1:]} == {("", "")}
    assert {int(row[1]) for row in table[1:]} == {*QUESTIONS}


def test_searched_in_two_stages(qpr, index, tmp_path):
    write_reranker(index, candidates=3)
    asked = ("search", index, "--query", "how to cook rice", "-k", 4)
    status, out, stderr = qpr(*asked)
    assert status == 0, stderr
    scores = [row["score"] for row in lines(out)]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert scores[3] is None
    assert qpr(*asked, "--rerank", "light")[1] == out
    one_stage = lines(qpr(*asked, "--rerank", "false")[1])
    assert {row["score"] for row in one_stage} == {None}
    assert [row["distance"] for row in one_stage] == sorted(row["distance"] for row in one_stage)
    table = qpr(*asked, "--output", "tsv")[1].splitlines()
    assert [row.split("\t")[4] for row in table[1:]] == [*map(str, scores[:3]), ""]
    (facts,) = json.loads(qpr("info", index)[1])["rerankers"].values()
    assert facts["candidates"] == 3
    assert qpr("index", "other", "questions.jsonl", "--run", index)[0] == 0
    assert qpr("search", "other", *asked[2:])[1] == out


def test_every_input_makes_the_same_index(qpr, run, tmp_path):
    questions = list(QUESTIONS.values())[:3]
    plain = "".join(f"{q}\n" for q in questions).encode()
    inputs = {
        "a.txt": plain,
        "a.txt.gz": gzip.compress(plain),
        "a.tsv": b"question\n" + plain,
        "a.csv": b"question\n" + plain,
        "a.jsonl": "".join(json.dumps({"question": q}) + "\n" for q in questions).encode(),
    }
    for name, data in inputs.items():
        (tmp_path / name).write_bytes(data)
        assert qpr("index", f"of_{name}", name, "--run", run)[0] == 0
        assert contents(f"of_{name}") == dict(enumerate(questions))
    assert qpr("index", "piped", "--run", run, given=plain)[0] == 0
    assert contents("piped") == dict(enumerate(questions))


def test_kept_up_to_date(qpr, index, tmp_path):
    status, out, stderr = qpr("add", index, given=b"where is rye grown\nwhat is a bicycle\n")
    # The greatest id there can be does not end the counter.
    assert [row["id"] for row in lines(out)] == [9, 10]
    assert qpr("remove", index, given=b"9\n10\n")[0] == 0
    assert qpr("remove", index, "--id", 2**63 - 1)[0] == 0
    (tmp_path / "new.csv").write_text("question,id\nrye?,8\nrye!,8\noats,77\n")
    status, out, stderr = qpr("add", index, "new.csv")
    assert status == 0, stderr
    assert lines(out) == [
        {"id": 8, "question": "rye?"},
        {"id": 8, "question": "rye!"},
        {"id": 77, "question": "oats"},
    ]
    expected = {i: q for i, q in QUESTIONS.items() if i < 2**63 - 1} | {8: "rye!", 77: "oats"}
    assert contents(index) == expected
    status, _, stderr = qpr("remove", index, given=b"77\n4\n")
    assert status == 1
    assert "error: `ids`: expected ids of indexed questions, got 4 that no question has" in stderr
    assert contents(index) == expected
    status, _, stderr = qpr("remove", index, "--ignore-missing", given=b"77\n4\n5\n")
    assert status == 0
    assert "2 removed, 2 questions" in stderr
    facts = json.loads(qpr("info", index)[1])
    assert (facts["questions"], facts["removed"], facts["added"]) == (2, 7, 5)
    status, _, stderr = qpr("compact", index)
    assert status == 0
    assert "index: Flat" in stderr
    facts = json.loads(qpr("info", index)[1])
    assert (facts["questions"], facts["removed"], facts["added"]) == (2, 0, 0)
    assert contents(index) == {3: QUESTIONS[3], 8: "rye!"}


def test_new_questions_get_new_ids(qpr, run):
    assert qpr("index", "mine", "--run", run, given=b"rice\nrye\n")[0] == 0
    assert qpr("remove", "mine", "--id", 1)[0] == 0
    assert lines(qpr("add", "mine", given=b"oats\n")[1]) == [{"id": 2, "question": "oats"}]


def test_an_index_that_is_replaced_is_named(qpr, run):
    said = "mine: the new index will replace the old one"
    for number in range(2):
        status, _, stderr = qpr("index", "mine", "--run", run, given=b"rice\nrye\n")
        assert (status, said in stderr) == (0, number == 1)


def test_another_recipe(qpr, run):
    given = "".join(f"question {i}\n" for i in range(1000)).encode()
    flags = ("--factory", "IVF20,SQ8", "--metric", "ip", "--probes", 5, "--vectors", "float16")
    assert qpr("index", "mine", "--run", run, *flags, given=given)[0] == 0
    facts = json.loads(qpr("info", "mine")[1])
    assert facts["integrity_check"] == "ok"
    recipe = [facts[name] for name in ("factory", "metric", "probes", "vectors")]
    assert recipe == ["IVF20,SQ8", "ip", 5, "float16"]


def test_info_finds_a_flipped_bit_that_opening_does_not(qpr, index):
    (path,) = pathlib.Path(index, "index").glob("vectors-*.npy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert qpr("search", index, "--query", "rice")[0] == 0
    status, out, stderr = qpr("info", index)
    assert (status, out) == (1, "")
    assert f"{path.name}: the bytes differ from their SHA-256" in stderr


def test_help_has_an_example_for_each_command(qpr):
    assert qpr("--help")[0] == 0
    for name, command in commands.qpr.commands.items():
        if command.hidden:
            continue
        status, out, _ = qpr(name, "--help")
        assert status == 0
        assert f"Example: qpr {name} " in out


def test_needs_no_jax_and_a_closed_pipe_is_no_mistake(run, tmp_path):
    (tmp_path / "many.txt").write_text("".join(f"question {i}\n" for i in range(5000)))
    program = (
        "import sys\n"
        "for name in ('jax', 'jaxlib', 'flax', 'optax', 'orbax'): sys.modules[name] = None\n"
        "from qpr_jax.cli.main import main\n"
        "sys.exit(main())\n"
    )

    def start(*arguments):
        return subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": os.getcwd()},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    with start("index", "mine", "many.txt", "--run", run) as made:
        assert made.wait() == 0, made.stderr.read()
    with start("search", "mine", "many.txt") as searched:
        searched.stdout.readline()
        searched.stdout.close()
        assert searched.wait() == 1
        assert searched.stderr.read() == b""


def test_minilm_names_a_model(qpr, tmp_path, monkeypatch):
    tiny = pathlib.Path(__file__).parent.parent / "encoders" / "tiny_bert"
    monkeypatch.setattr(minilm, "minilm_folder", lambda: tiny)
    (tmp_path / "q.txt").write_text("how do i learn python\nrice\n")
    assert qpr("encode", "minilm", "q.txt", "--out", "v.npy")[0] == 0
    expected = read_encoder(tiny).encode(["how do i learn python", "rice"])
    np.testing.assert_array_equal(np.load("v.npy"), expected)
    status, _, stderr = qpr("index", "my_index", "q.txt", "--run", "minilm")
    assert status == 0, stderr
    status, out, _ = qpr("search", "my_index", "--query", "rice", "-k", 1)
    assert (status, lines(out)[0]["id"]) == (0, 1)
    status, _, stderr = qpr(
        "duplicates", "q.txt", "--run", "minilm", "--out", "mined", "--pairs", 1
    )
    assert status == 0, stderr
    assert not (tmp_path / "minilm").exists()
