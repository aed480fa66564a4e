"""What is scored: `evaluate` and `calibrate`."""

import json
import re

import numpy as np
import pytest

from qpr_jax.cli import judging
from qpr_jax.data.beir_tasks import write_beir
from qpr_jax.locations import read_encoder_and_model
from qpr_jax.retriever import Retriever
from tests.cli.conftest import QUESTIONS
from tests.runs import WORDS, write_encoder, write_words
from tests.tables import HEADER, read_table, write_table


def test_labels_are_scored(objects, run, tmp_path):
    pairs = [("learn python", "Learn Python?", 1), ("learn python", "cook rice", 0)]
    for name in ("val.jsonl", "test.jsonl"):
        write_table(tmp_path / name, HEADER[3:], pairs)
    classify = ("evaluate", run, "test.jsonl", "--task", "classification")
    (scores,) = objects(*classify, "--validation", "val.jsonl")
    assert scores["test"] == scores["validation"]
    perfect = ("accuracy", "f1", "precision", "recall", "mcc", "average_precision", "roc_auc")
    counts = {"pairs": 2, "non_duplicates": 1, "majority_accuracy": 0.5}
    assert scores["test"] == counts | dict.fromkeys(perfect, 1.0)
    (scores,) = objects("evaluate", run, "test.jsonl", "--task", "mining")
    assert (scores["questions"], scores["true_pairs"], scores["f1"]) == (3, 1, 1.0)
    assert (scores["labelled_pairs"], scores["non_duplicates"]) == (2, 1)


def test_translations_are_scored(objects, run, tmp_path):
    texts = [*QUESTIONS.values()][:3]
    (tmp_path / "en.txt").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "de.txt").write_text("".join(f"{text} !\n" for text in reversed(texts)))
    task = ("--task", "translation")
    (scores,) = objects("evaluate", run, f"en-de:{tmp_path / 'en.txt'}+de.txt", *task)
    assert (scores["language"], scores["name"], scores["sentences"]) == ("de", "en.txt+de.txt", 3)
    assert scores["to_source"] == scores["to_target"] == pytest.approx(1 / 3)  # the middle one


def test_a_set_of_beir_is_scored(done, objects, run, tmp_path):
    texts = [text for text in QUESTIONS.values() if text.isascii()]
    corpus = [(f"d{i}", text) for i, text in enumerate(texts)]
    queries = [("q1", "how can i learn python QUICKLY"), ("q2", "how to cook rice")]
    rows = [("q1", "d0", 2), ("q1", "d1", 1), ("q2", "d2", 1), ("q2", "lost", 1)]
    write_beir(tmp_path / "set", corpus, queries, {"test": rows, "dev": rows[2:]})
    out, err = done("evaluate", run, "--beir", "set", "--trec", "out/a.run")
    assert "the corpus lacks relevant documents, which count as missed: 1" in err
    scores = json.loads(out)
    assert (scores["queries"], scores["documents"], scores["mrr@1"]) == (2, 3, 1.0)
    assert len((tmp_path / "out" / "a.run").read_text().splitlines()) == 6
    assert objects("evaluate", run, "--beir", "set", "--split", "dev")[0]["queries"] == 1


def test_both_stages_are_scored(done, objects, index, tmp_path):
    (tmp_path / "pairs.tsv").write_text("question\tid\nhow to learn python\t5\ncook rice\t8\n")
    (first,) = objects("evaluate", index, "pairs.tsv")
    (tmp_path / "named.tsv").write_text("asked\tticket\nhow to learn python\t5\ncook rice\t8\n")
    named = ("named.tsv", "--text-column", "asked", "--id-column", "ticket")
    assert objects("evaluate", index, *named) == [first]
    done("index", "keyed", "named.tsv", *named[1:], "--encoder", index)
    (tmp_path / "own.tsv").write_text("id\tQuestion\tticket\n1\tlearn python\t5\n2\twhy\t\n")
    (own,) = objects("evaluate", "keyed", "own.tsv")
    assert (own["queries"], own["has_answer"]["unanswered"]) == (1, 1)
    write_words(index)
    (both,) = objects("evaluate", index, "pairs.tsv")
    for scores in (first, both):
        assert scores.pop("reranked").keys() == scores.keys()
    assert both == first


def test_queries_that_fail_are_listed(objects, index, tmp_path):
    rows = "query,id\nhow to learn python,5\ncook rice,8\ncook rice,5\nrice,3\nnone,\n"
    (tmp_path / "q.csv").write_text(rows)
    (scores,) = objects("evaluate", index, "q.csv", "--failed", "failed.csv")
    failed = read_table(tmp_path / "failed.csv")
    queries = [row["query"] for row in failed]
    hits = {query: objects("search", index, "--query", query, "-k", 1)[0] for query in queries}
    assert len(failed) == round(scores["queries"] * (1 - scores["hits@1"])) > 0
    for row in failed:
        first = hits[row["query"]]
        assert (row["first_id"], row["first"]) == (str(first["id"]), first["question"])
        assert row["first_id"] not in row["expected_ids"].split()
        assert row["right_place"] == "" or int(row["right_place"]) > 1


def test_queries_without_an_answer_are_told_by_their_first_hit(refused, objects, index, tmp_path):
    """Columns are found as `search` finds them, and a blank id is none."""
    rows = "Query,ID\nhow to learn python,5\ncook rice,8\nwhat is the capital of france,\n"
    (tmp_path / "q.csv").write_text(rows)
    write_words(index)
    (scores,) = objects("evaluate", index, "q.csv")
    assert (scores["queries"], scores["hits@1"]) == (2, 0.5)
    no_score = "hits in the order of distance have no score"
    assert scores["has_answer"] == {"unanswered": 1, "roc_auc": 0.5, "no_min_score": no_score}
    told = scores["reranked"]["has_answer"]
    # Three queries are too few.
    assert (told["best_min_score"], told["best_balanced_accuracy"]) == (None, None)
    assert "with 2 queries that have an answer and 1 without" in told["no_min_score"]
    assert told["unanswered"] == 1
    assert 0 <= told["roc_auc"] <= 1
    assert told["accuracy"] in (0, 1 / 3, 2 / 3, 1)
    assert told["majority_accuracy"] == 2 / 3
    records = [{"text": "how to learn python", "id": 5}, {"text": "rice", "id": None}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (again,) = objects("evaluate", index, "q.jsonl")
    assert (again["queries"], again["has_answer"]["unanswered"]) == (1, 1)
    (tmp_path / "none.csv").write_text("query,id\nrice,\n")
    refused("none.csv: expected ids of the questions", "evaluate", index, "none.csv")


@pytest.mark.parametrize(
    ("duplicates", "others", "brier", "warns"),
    [
        (9, 3, 0.2, False),
        (9, 9, 0.2, False),  # as sorted as before
        (17, 17, 0.3, False),  # no probabilities, but well sorted
        (12, 22, 0.3, True),
        (18, 32, 0.3, True),  # all labels
        (0, 0, 0.3, True),
        (12, 22, 0.2, False),
    ],
)
def test_new_scores_that_sort_are_not_called_chance(
    done, monkeypatch, tmp_path, duplicates, others, brier, warns
):
    at = {"threshold": 0.5, "duplicates": 9, "others": 9, "precision": None, "recall": None}
    lower = at | {"threshold": 0.125, "duplicates": duplicates, "others": others}
    facts = {"labels": 50, "duplicates": 18, "before": at, "lower": lower}
    facts["after"] = at | {"brier": brier, "base_brier": 0.23}
    fitted = (*read_encoder_and_model("open_student"), facts)
    monkeypatch.setattr(judging, "fit_labels", lambda *_, **__: fitted)
    (tmp_path / "labels.csv").touch()
    err = done("calibrate", "open_student", "labels.csv", "--out", "copy")[1]
    last, no_better = err.splitlines()[-1], (duplicates, others) == (9, 9)
    assert ("judge more found pairs with `qpr review`" in last) == warns
    advised = "next: `qpr duplicates TABLE --encoder copy --threshold 0.125`" in last
    assert advised == (not warns and not no_better)
    assert ("sort pairs no better" in last) == no_better


def test_a_run_gets_a_calibration(done, refused, tmp_path):
    """Of pairs that are duplicates where one repeats its last word."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(120):
        words, other = rng.choice(WORDS, (2, 6))
        if i % 2:
            other = [*words, words[-1]]
        rows.append((" ".join(words), " ".join(other), i % 2))
    labels = write_table(tmp_path / "labels.jsonl", HEADER[3:], rows)
    write_encoder(tmp_path / "run")
    out, err = done("calibrate", "run", labels, "--json")
    facts = json.loads(out)
    labels_on_two_texts = sum(first != second for first, second, _ in rows)
    assert facts["labels"] == labels_on_two_texts
    assert facts["after"]["brier"] < facts["before"]["brier"]
    assert facts["after"]["brier"] < facts["after"]["base_brier"]
    said = (
        r"held-out labels, (\w+): `--threshold 0.5` finds (\d+) of (\d+) duplicates, "
        r"(\d+) of \d+ others; precision (.*), recall (.*) by weight"
    )
    said = re.findall(said, err)
    assert [name for name, *_ in said] == ["before", "after"]
    for name, *numbers in said:
        right, duplicates, others, precision, recall = map(float, numbers)
        assert precision == pytest.approx(right / (right + others), abs=0.006), name
        assert recall == pytest.approx(right / duplicates, abs=0.006), name
    assert "the scores say less" not in err
    model = Retriever.load(tmp_path / "run" / "export").pair_model
    assert model.settings["labels"]["labels"] == labels_on_two_texts
    no_news = "held-out labels fit the new scores no better than the old ones"
    refused(no_news, "calibrate", "run", labels, "--out", "copy")  # the same labels
    assert not (tmp_path / "copy").exists()
    assert Retriever.load(tmp_path / "run" / "export").pair_model == model
    few = [(*texts, int(same and i % 4 == 1)) for i, (*texts, same) in enumerate(rows)]
    others = write_table(tmp_path / "others.jsonl", HEADER[3:], few)
    _, err = done("calibrate", "run", others, "--out", "copy")
    assert "held-out labels, before: `--threshold 0.5` finds " in err
    assert Retriever.load(tmp_path / "copy").pair_model.encoder == model.encoder
    rng.shuffle(labeled := [label for *_, label in rows])  # labels that no text explains
    rows = [(*row[:2], label) for row, label in zip(rows, labeled, strict=True)]
    write_table(labels, HEADER[3:], rows)
    refused("judge more pairs with `qpr review`", "calibrate", "run", labels, "--out", "shuffled")
    assert not (tmp_path / "shuffled").exists()
