"""The files that `qpr sample` writes."""

import csv
import json

import pytest

from qpr_jax.data.sample import write_sample
from qpr_jax.errors import UserError


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_files_agree(tmp_path):
    counts = write_sample(tmp_path / "a")
    questions, queries = (
        rows(tmp_path / "a" / "questions.csv"),
        rows(tmp_path / "a" / "queries.csv"),
    )
    pairs = rows(tmp_path / "a" / "pairs.csv")
    lines = (tmp_path / "a" / "logs.jsonl").read_text(encoding="utf-8").splitlines()
    found = {"questions": questions, "queries": queries, "pairs": pairs, "logs": lines}
    assert counts == {name: len(values) for name, values in found.items()}
    answers = {
        row["question"].lower().rstrip("?."): row["answer"] for row in map(json.loads, lines)
    }

    def answer(text):
        return answers[text.lower().rstrip("?.")]

    text_of = {row["id"]: row["question"] for row in questions}
    assert len(text_of) == len(questions)
    assert not {*text_of.values()} & {query["question"] for query in queries}
    for query in queries:
        same = {id for id, text in text_of.items() if answer(text) == answer(query["question"])}
        assert same == {row["id"] for row in queries if row["question"] == query["question"]}
    for pair in pairs:
        same = answer(pair["question1"]) == answer(pair["question2"])
        assert same == (pair["is_duplicate"] == "1")
    assert not any("{" in text for text in answers)


def test_it_is_the_same_each_time_and_replaces_nothing(tmp_path):
    for folder in "ab":
        write_sample(tmp_path / folder)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    with pytest.raises(UserError, match="exists already"):
        write_sample(tmp_path / "a")
