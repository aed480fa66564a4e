"""The files that `qpr sample` writes."""

import csv
import json

import pytest

from qpr_jax.data.pairs import read_question_pairs
from qpr_jax.data.questions import read_questions
from qpr_jax.data.sample import write_sample
from qpr_jax.errors import UserError


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_queries_have_a_paraphrase_among_the_questions(tmp_path):
    counts = write_sample(tmp_path / "a", clusters=50, seed=3)
    questions = {row["id"]: row for row in rows(tmp_path / "a" / "questions.csv")}
    queries = rows(tmp_path / "a" / "queries.csv")
    lines = (tmp_path / "a" / "logs.jsonl").read_text(encoding="utf-8").splitlines()
    log = [json.loads(line) for line in lines]
    pairs = read_question_pairs(tmp_path / "a" / "pairs.tsv")
    found = {"questions": questions, "queries": queries, "pairs": pairs.pairs, "logs": log}
    assert counts == {name: len(values) for name, values in found.items()}
    assert len(queries) == 5
    answers = {row["question"]: row["answer"] for row in log}
    assert {*answers} == {*pairs.questions}
    texts = {row["question"] for row in questions.values()}
    for query in queries:
        same = questions[query["id"]]
        assert query["question"] not in texts
        assert answers[query["question"]] == answers[same["question"]]
        assert answers[same["question"]] == f"See article {same['article']}."
    assert len([*read_questions(tmp_path / "a" / "questions.csv")]) == len(texts)


def test_a_seed_gives_the_same_bytes(tmp_path):
    names = ("questions.csv", "queries.csv", "pairs.tsv", "logs.jsonl")
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_sample(tmp_path / folder, clusters=20, seed=seed)
    a, b, c = ([(tmp_path / f / name).read_bytes() for name in names] for f in "abc")
    assert a == b != c


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="expected 1 to"):
        write_sample(tmp_path / "a", clusters=0)
    with pytest.raises(UserError, match="`seed`: expected 0 or more, got -1"):
        write_sample(tmp_path / "a", seed=-1)
    write_sample(tmp_path / "a", clusters=1)
    with pytest.raises(UserError, match="exists already"):
        write_sample(tmp_path / "a")
