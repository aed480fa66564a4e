import json
import re

import pytest

from qpr_jax import Retriever
from qpr_jax.data.beir import write_beir
from tests.cli.conftest import QUESTIONS
from tests.runs import write_reranker


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("how", [["--threshold", "1e-6"], ["--pairs", "1"]])
def test_duplicates_are_mined(qpr, run, tmp_path, how):
    texts = [*QUESTIONS.values(), "how can I learn python QUICKLY?"]
    status, _, stderr = qpr(
        "mine",
        "-",
        "--run",
        run,
        "--out",
        "mined",
        *how,
        given="\n".join(texts[:3] + texts[4:]).encode(),
    )
    assert status == 0, stderr
    assert "mined: 1 pairs, 2 questions in 1 clusters, the largest of 2" in stderr
    (pair,) = lines(tmp_path / "mined" / "pairs.jsonl")
    assert pair.pop("distance") == pytest.approx(0, abs=1e-6)
    assert pair == {"id1": 0, "id2": 3, "question1": texts[0], "question2": texts[4]}
    assert lines(tmp_path / "mined" / "clusters.jsonl") == [
        {"cluster": 0, "id": 0, "question": texts[0]},
        {"cluster": 0, "id": 3, "question": texts[4]},
    ]

    info = json.loads((tmp_path / "mined" / "info.json").read_text())
    assert info.pop("threshold") == pytest.approx(0, abs=2e-6)
    assert info == {
        "run": str(run),
        "questions": 4,
        "pairs": 1,
        "clustered_questions": 2,
        "clusters": 1,
        "largest_cluster": 2,
    }


def test_a_precision_on_labelled_pairs_chooses_the_threshold(qpr, run, tmp_path):
    rows = ["learn python\tpython learn\t1", "learn python\tcook rice\t0"]
    (tmp_path / "labels.tsv").write_text("\n".join(["question1\tquestion2\tis_duplicate", *rows]))
    (tmp_path / "q.tsv").write_text("question\nlearn python\npython learn\nwhat is rust\n")
    mine = ("mine", "q.tsv", "--run", run, "--out", "m", "--output", "tsv")
    labels = ("--labels", "labels.tsv")
    status, _, stderr = qpr(*mine, *labels, "--precision", "0.9")
    assert status == 0, stderr
    a, b = Retriever.build(["a"], run=run).encode(["learn python", "python learn"])
    threshold = float(re.search(r"threshold: (\S+)", stderr)[1])
    assert threshold == pytest.approx(((a - b) ** 2).sum(), rel=1e-4)
    assert "warning" not in stderr
    more = "\n".join(f"what is {i}" for i in range(7)).encode()
    stderr = qpr("mine", "-", *mine[2:], *labels, "--precision", "0.9", given=more)[2]
    assert "warning: this is the precision among the 3 labeled questions; each of 7 has" in stderr
    assert qpr(*mine, *labels, "--precision", "0.9")[0] == 0
    pairs = (tmp_path / "m" / "pairs.tsv").read_text().splitlines()
    assert pairs[0] == "id1\tid2\tdistance\tquestion1\tquestion2"
    assert pairs[1].endswith("\tlearn python\tpython learn")
    assert (tmp_path / "m" / "clusters.tsv").read_text().startswith("cluster\tid\tquestion\n")
    # The threshold that was printed finds the same pairs.
    before = (tmp_path / "m" / "pairs.tsv").read_text()
    assert qpr(*mine, "--threshold", repr(threshold))[0] == 0
    assert (tmp_path / "m" / "pairs.tsv").read_text() == before
    assert qpr(*mine)[0] == 2
    assert qpr(*mine, *labels)[0] == 2
    assert qpr(*mine, "--threshold", "1", *labels, "--precision", "0.9")[0] == 2


@pytest.mark.parametrize(
    "how",
    [
        *(["--threshold", value] for value in ("nan", "inf", "-1", "x")),
        *(["--labels", "labels.tsv", "--precision", value] for value in ("nan", "0", "1.5")),
    ],
)
def test_thresholds_that_are_none(qpr, run, how):
    status, _, stderr = qpr("mine", "q.tsv", "--run", run, "--out", "m", *how)
    assert status == 2
    assert f"Invalid value for '{how[-2]}'" in stderr


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("question\n", "q.tsv: expected questions, got none"),
        ("id\tquestion\n5\ta\n7\tb\n5\tc\n", "q.tsv, line 4: the id 5 stands twice"),
        ('{"question": "a", "id": 5}\n{"question": "b"}\n', "line 2: expected an id"),
    ],
)
def test_questions_that_cannot_be_mined(qpr, run, tmp_path, rows, said):
    (tmp_path / "q.tsv").write_text(rows)
    format = "jsonl" if rows[0] == "{" else "tsv"
    status, _, stderr = qpr(
        *("mine", "q.tsv", "--run", run, "--out", "m", "--pairs", "1", "--format", format)
    )
    assert status == 1
    assert said in stderr


def test_quoras_own_file_is_mined(qpr, run, tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = "0\t11\t12\tlearn python\tLearn Python?\t1\n1\t13\t11\tcook rice\tlearn python\t0\n"
    (tmp_path / "quora.tsv").write_text(header + rows)
    status, _, stderr = qpr("mine", "quora.tsv", "--run", run, "--out", "m", "--pairs", "1")
    assert status == 0, stderr
    (pair,) = lines(tmp_path / "m" / "pairs.jsonl")
    assert (pair["id1"], pair["id2"]) == (11, 12)


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
    assert qpr(*classify)[0] == 2
    status, out, _ = qpr("evaluate", run, "test.jsonl", "--task", "mining")
    scores = json.loads(out)
    assert (scores["questions"], scores["true_pairs"], scores["f1"]) == (3, 1, 1.0)
    assert (scores["labelled_pairs"], scores["non_duplicates"]) == (2, 1)
    assert qpr("evaluate", run, "test.jsonl", "--task", "mining", "--other-texts")[0] == 2
    assert qpr("evaluate", run, "-", "--task", "classification", "--validation", "-")[0] == 2
    (tmp_path / "one.jsonl").write_text(text.splitlines()[0])
    stderr = qpr(*classify, "--validation", "one.jsonl")[2]
    assert stderr.startswith("error: one.jsonl: expected labeled pairs of both kinds")


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
    status, _, stderr = qpr("evaluate", run, "--beir", "set", "--split", "train")
    assert status == 1
    assert stderr.startswith(
        "error: set: expected qrels/train.tsv in it, found none (splits: dev, t"
    )
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--split", "dev"),
        ("--trec", "a.run"),
        ("pairs.tsv", "--beir", "set"),
        ("--beir", "set", "--task", "mining"),
        ("--beir", "set", "--other-texts"),
        ("--beir", "set", "--cross-encoder", "cross"),
        ("pairs.tsv", "--task", "mining", "--cross-encoder", "cross"),
        ("--beir", "set", "--format", "tsv"),
        ("--beir", "set", "--validation", "pairs.tsv", "--task", "classification"),
        ("--beir", "set", "--validation", "pairs.tsv"),
        ("--beir", "set", "--duplicates", "pairs.tsv"),
    ],
)
def test_options_that_do_not_go_together(qpr, run, options):
    assert qpr("evaluate", run, *options)[0] == 2


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


def test_ids_that_the_index_does_not_have_are_no_scores(qpr, index, tmp_path):
    (tmp_path / "pairs.tsv").write_text("question\tid\na\t5\nb\t77\nc\t8\nd\t9\nb\t9\n")
    status, out, stderr = qpr("evaluate", index, "pairs.tsv")
    assert (status, out) == (1, "")
    assert stderr == (
        f"error: pairs.tsv, line 3: expected the id of a question in {index}, got 77; 2 of 4 ids "
        "are missing in the index; remove their rows, or name the index of these ids\n"
    )


@pytest.mark.parametrize(
    "how",
    [
        ("--threshold", "1", "--precision", "0.9"),
        ("--threshold", "1", "--labels", "labels.tsv"),
        ("--pairs", "1", "--precision", "0.9"),
        ("--precision", "0.9"),
        (),
    ],
)
def test_mining_by_two_ways_or_none_is_refused(qpr, run, tmp_path, how):
    status, _, stderr = qpr("mine", "q.tsv", "--run", run, "--out", "m", *how)
    assert status == 2
    assert "give one of --threshold, --pairs, or --labels with --precision" in stderr
    assert not (tmp_path / "m").exists()


def test_mining_that_fails_leaves_no_folder(qpr, run, tmp_path):
    mine = ("mine", "none.txt", "--run", run, "--threshold", "1", "--out")
    assert qpr(*mine, "new/m")[0] == 1
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    assert qpr(*mine, "old/m")[0] == 1
    assert qpr(*mine, "old")[0] == 1
    assert [*(tmp_path / "old").iterdir()] == []
