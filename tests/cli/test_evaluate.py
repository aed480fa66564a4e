import json

import pytest

from qpr_jax.data.beir import write_beir
from tests.cli.conftest import QUESTIONS
from tests.runs import write_reranker


def test_verdicts_are_scored(qpr, run, tmp_path):
    pairs = [("learn python", "Learn Python?", 1), ("learn python", "cook rice", 0)]
    names = ("question1", "question2", "is_duplicate")
    text = "".join(json.dumps(dict(zip(names, pair, strict=True))) + "\n" for pair in pairs)
    for name in ("val.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(text)
    classify = ("evaluate", run, "test.jsonl", "--task", "classification")
    status, out, _ = qpr(*classify, "--validation", "val.jsonl")
    scores = json.loads(out)
    assert status == 0
    assert scores["test"] == scores["validation"]
    assert scores["test"] == {
        "pairs": 2,
        "non_duplicates": 1,
        "majority_accuracy": 0.5,
        **dict.fromkeys(("accuracy", "f1", "precision", "recall", "mcc"), 1.0),
        **dict.fromkeys(("average_precision", "roc_auc"), 1.0),
    }
    status, out, _ = qpr("evaluate", run, "test.jsonl", "--task", "mining")
    scores = json.loads(out)
    assert (scores["questions"], scores["true_pairs"], scores["f1"]) == (3, 1, 1.0)
    assert (scores["labelled_pairs"], scores["non_duplicates"]) == (2, 1)


def test_translations_are_scored(qpr, run, tmp_path):
    texts = [*QUESTIONS.values()][:3]
    (tmp_path / "en.txt").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "de.txt").write_text("".join(f"{text} !\n" for text in reversed(texts)))
    task = ("--task", "translation")
    status, out, stderr = qpr("evaluate", run, f"en-de:{tmp_path / 'en.txt'}+de.txt", *task)
    assert status == 0, stderr
    scores = json.loads(out)
    assert (scores["language"], scores["name"], scores["sentences"]) == ("de", "en.txt+de.txt", 3)
    assert scores["to_source"] == scores["to_target"] == pytest.approx(1 / 3)  # the middle one


def test_a_set_of_beir_is_scored(qpr, run, tmp_path):
    texts = [text for text in QUESTIONS.values() if text.isascii()]
    corpus = [(f"d{i}", text) for i, text in enumerate(texts)]
    queries = [("q1", "how can i learn python QUICKLY"), ("q2", "how to cook rice")]
    rows = [("q1", "d0", 2), ("q1", "d1", 1), ("q2", "d2", 1)]
    write_beir(tmp_path / "set", corpus, queries, {"test": rows, "dev": rows[2:]})
    status, out, stderr = qpr("evaluate", run, "--beir", "set", "--trec", "out/a.run")
    assert status == 0, stderr
    scores = json.loads(out)
    assert (scores["queries"], scores["documents"], scores["mrr@1"]) == (2, 3, 1.0)
    assert scores["ndcg@1"] == 1
    lines = [line.split() for line in (tmp_path / "out" / "a.run").read_text().splitlines()]
    assert [line[:4] for line in lines[::3]] == [["q1", "Q0", "d0", "1"], ["q2", "Q0", "d2", "1"]]
    assert len(lines) == 6
    status, out, _ = qpr("evaluate", run, "--beir", "set", "--split", "dev")
    assert (status, json.loads(out)["queries"]) == (0, 1)


def test_both_stages_are_scored(qpr, index, tmp_path):
    (tmp_path / "pairs.tsv").write_text("question\tid\nhow to learn python\t5\ncook rice\t8\n")
    status, out, _ = qpr("evaluate", index, "pairs.tsv")
    first = json.loads(out)
    assert (status, "reranked" in first) == (0, False)
    write_reranker(index, candidates=3)
    status, out, _ = qpr("evaluate", index, "pairs.tsv")
    both = json.loads(out)
    assert status == 0
    assert both.pop("reranked").keys() == first.keys() == both.keys()
    assert both == first
