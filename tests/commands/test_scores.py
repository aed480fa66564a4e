import json
import re

import pytest

from qpr_jax import Retriever
from tests.commands.conftest import JSONL, QUESTIONS


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("how", [["--threshold", "1e-6"], ["--pairs", "1"]])
def test_duplicates_are_mined(qpr, run, tmp_path, how):
    texts = [*QUESTIONS.values(), "how can I learn python QUICKLY?"]
    status, _, told = qpr(
        "mine",
        "-",
        "--run",
        run,
        "--out",
        "mined",
        *how,
        given="\n".join(texts[:3] + texts[4:]).encode(),
    )
    assert status == 0, told
    assert "mined: 1 pairs, 2 questions in 1 clusters" in told
    (pair,) = lines(tmp_path / "mined" / "pairs.jsonl")
    assert pair.pop("distance") == pytest.approx(0, abs=1e-6)
    assert pair == {"id1": 0, "id2": 3, "question1": texts[0], "question2": texts[4]}
    assert lines(tmp_path / "mined" / "clusters.jsonl") == [
        {"cluster": 0, "id": 0, "question": texts[0]},
        {"cluster": 0, "id": 3, "question": texts[4]},
    ]


def test_a_precision_on_labelled_pairs_chooses_the_threshold(qpr, run, tmp_path):
    rows = ["learn python\tpython learn\t1", "learn python\tcook rice\t0"]
    (tmp_path / "labels.tsv").write_text("\n".join(["question1\tquestion2\tis_duplicate", *rows]))
    (tmp_path / "q.jsonl").write_text(JSONL)
    mine = (
        "mine",
        "q.jsonl",
        "--run",
        run,
        "--out",
        "m",
        "--output",
        "tsv",
        "--labels",
        "labels.tsv",
    )
    status, _, told = qpr(*mine, "--precision", "0.9")
    assert status == 0, told
    a, b = Retriever.build(["a"], run=run).encode(["learn python", "python learn"])
    threshold = float(re.search(r"threshold: (\S+)", told)[1])
    assert threshold == pytest.approx(((a - b) ** 2).sum(), rel=1e-4)
    assert (tmp_path / "m" / "pairs.tsv").read_text().startswith("id1\tid2\tdistance\tquestion1\t")
    assert (tmp_path / "m" / "clusters.tsv").read_text().startswith("cluster\tid\tquestion\n")
    assert qpr(*mine)[0] == 2
    assert qpr("mine", "q.jsonl", "--run", run, "--out", "m")[0] == 2


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
        "accuracy": 1.0,
        "f1": 1.0,
        "precision": 1.0,
        "recall": 1.0,
        "average_precision": 1.0,
    }
    assert qpr(*classify)[0] == 2
    status, out, _ = qpr("evaluate", run, "test.jsonl", "--task", "mining")
    scores = json.loads(out)
    assert (scores["questions"], scores["true_pairs"], scores["f1"]) == (3, 1, 1.0)
