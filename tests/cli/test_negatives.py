"""The command `negatives` as a user meets it."""

import json
import math
import pathlib
import shutil

import pytest

from qpr_jax.reranking.cross_encoder import read_cross_encoder
from qpr_jax.reranking.light import LIGHT, read_light
from qpr_jax.training.sources import NEGATIVES
from tests.duplicates.conftest import calibrate
from tests.runs import write_reranker

TINY = pathlib.Path(__file__).parent.parent / "reranking" / "tiny_cross_encoder"

ROWS = (
    ("how can i learn python quickly", "what is the best way to learn python", 1),
    ("how to cook rice", "what is the way to cook rice", 1),
    ("how can i learn rice", "how to cook rice", 0),
    ("How to cook rice?", "how can i learn python quickly", 0),
)


@pytest.fixture
def pairs(tmp_path):
    names = ("question1", "question2", "is_duplicate")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in ROWS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return "pairs.jsonl"


def rows_of(path):
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


def test_an_encoder_alone_searches_the_questions_of_the_pairs(qpr, run, pairs, tmp_path):
    status, out, stderr = qpr("negatives", run, pairs, "--out", "n.tsv", "--count", "2")
    assert (status, out) == (0, ""), stderr
    rows = rows_of(tmp_path / "n.tsv")
    assert [*rows[0]] == [*NEGATIVES, "rank", "distance", "positive", "id"]
    assert len(rows) == 5 * 2
    assert "n.tsv: 5 queries, 10 negatives; 0 queries have fewer than 2" in stderr
    mined = {}
    for row in rows:
        mined.setdefault(row["query"], []).append(row["negative"])
    assert "How to cook rice?" not in mined["what is the way to cook rice"]
    assert all("python" not in text for text in mined[ROWS[0][0]])
    assert qpr("negatives", run, pairs, "--out", "n.jsonl", "--count", "2")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text().splitlines()]
    assert [line["negative"] for line in lines] == [row["negative"] for row in rows]


def test_an_index_is_searched(qpr, index, pairs, tmp_path):
    assert qpr("negatives", index, pairs, "--out", "n.jsonl", "--count", "9")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text().splitlines()]
    of_rice = {line["id"] for line in lines if line["query"] == ROWS[1][0]}
    assert of_rice == {5, 3, 2**63 - 1}


def test_a_split_of_a_run_is_searched_alone(qpr, run, tmp_path):
    lines = ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"]
    lines += [
        f"{i}\t{2 * i}\t{2 * i + 1}\t{a}\t{b}\t{label}" for i, (a, b, label) in enumerate(ROWS)
    ]
    (tmp_path / "quora.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "export").symlink_to(run / "export")
    mine = ("negatives", "work", "quora.tsv", "--out", "n.tsv", "--split", "train")
    (tmp_path / "work" / "splits").mkdir()
    names = ["train"] * 4 + ["validation"] * 4
    table = "".join(f"{i}\t{name}\n" for i, name in enumerate(names))
    (tmp_path / "work" / "splits" / "questions.tsv").write_text("id\tsplit\n" + table)
    status, _, stderr = qpr(*mine)
    assert status == 0, stderr
    texts = {text for row in ROWS[:2] for text in row[:2]}
    rows = rows_of(tmp_path / "n.tsv")
    assert {row[name] for row in rows for name in NEGATIVES} == texts
    assert qpr("negatives", "work", "quora.tsv", "--out", "n.tsv", "--split", "test")[0] == 1


def test_the_models_of_folders_are_asked(qpr, run, pairs, tmp_path):
    """The scores of a run; and the tiny cross-encoder, whose logits become probabilities."""
    folder = tmp_path / "work"
    shutil.copytree(run / "export", folder / "export")
    write_reranker(folder)
    calibrate(folder, read_light(folder / "export" / LIGHT))
    mine = ("negatives", folder, pairs, "--out", "n.tsv", "--count", "1", "--max-score", "1")
    status, _, stderr = qpr(*mine, "--rerank", "light")
    assert status == 0, stderr
    scores = [float(row["score"]) for row in rows_of(tmp_path / "n.tsv")]
    assert all(0 <= score <= 1 for score in scores)
    status, _, stderr = qpr(*mine, "--cross-encoder", TINY)
    assert status == 0, stderr
    rows = rows_of(tmp_path / "n.tsv")
    logits = read_cross_encoder(TINY).predict([(row["query"], row["negative"]) for row in rows])
    for row, logit in zip(rows, logits.tolist(), strict=True):
        assert float(row["score"]) == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)
