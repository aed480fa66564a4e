"""Data made of logs and of pairs: `clusters`, `splits` and `negatives`."""

import json
import math
import re
import shutil

import pytest

from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.pair_model.cross_encoder import read_cross_encoder
from qpr_jax.training.sources import NEGATIVES
from tests.cli.conftest import TINY
from tests.distant.rows import log_rows, write_rows
from tests.runs import write_words
from tests.tables import HEADER, read_table, write_table


def test_columns_of_other_names_make_the_same(done, tmp_path):
    write_table(tmp_path / "log.csv", ("asked", "said"), log_rows())
    names = ("--question", "asked", "--answer", "said", "--min-coherence", "0.2")
    _, stderr = done("clusters", "log.csv", "--out", "made", *names)
    report = json.loads((tmp_path / "made" / "report.json").read_text())
    assert f" {report['clusters_removed']} clusters removed, " in stderr
    assert "removed clusters is below `--min-coherence 0.2`" in stderr
    write_rows(tmp_path / "rows.jsonl", log_rows())
    done("clusters", "rows.jsonl", "--out", "expected", "--min-coherence", "0.2")
    for name in ("clusters.jsonl", "pairs_train.tsv", "report.json"):
        made, expected = ((tmp_path / folder / name) for folder in ("made", "expected"))
        assert made.read_bytes() == expected.read_bytes()


def test_labels_are_told(objects, tmp_path):
    (tmp_path / "sample.tsv").write_text("label\tanswer\n1\ta\n0\tb\nyes\tc\n\td\n")
    (scores,) = objects("clusters", "--labels", "sample.tsv")
    assert (scores["judged"], scores["accuracy"]) == (3, pytest.approx(2 / 3))


def test_spark_that_cannot_start_is_told(start, tmp_path):
    pytest.importorskip("pyspark")
    write_rows(tmp_path / "rows.jsonl", log_rows())
    command = ("clusters", "rows.jsonl", "--out", "made", "--spark", "local[1]")
    process = start(*command, JAVA_HOME=str(tmp_path))
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.search(r"error: `[-a-z ]*spark`: local\[1\]: .*install Java 17 or newer", stderr)
    assert "Traceback" not in stderr


ROWS = [(2 * i, 2 * i + 1, f"how do i learn {i}", f"learning of {i}", 1) for i in range(40)]
ROWS += [(2 * i, 2 * i + 2, f"how do i learn {i}", f"how do i learn {i + 1}", 0) for i in range(39)]


def write_pairs(path, rows=ROWS):
    write_table(path, HEADER, [(number, *row) for number, row in enumerate(rows)])


def test_parts_are_made_and_scored(done, objects, run, tmp_path):
    write_pairs(tmp_path / "pairs.tsv")
    out, stderr = done("splits", "pairs.tsv", "--out", "parts", "--dev", 0.2, "--test", 0.2)
    assert out == ""
    report = json.loads((tmp_path / "parts" / "report.json").read_text())
    assert "dev: 16 questions, 8 clusters, 8 duplicates" in stderr
    dropped = report["dropped"]["non_duplicates_across_parts"]
    assert f"left out: {dropped} non duplicates across parts, 0 non duplicates of one" in stderr
    # What is made is read by the other commands as it is.
    counts = report["parts"]["train"]
    train = read_question_pairs(tmp_path / "parts" / "train.tsv")
    assert len(train.pairs) == counts["duplicates"] + counts["non_duplicates"]
    classify = ("--task", "classification", "--validation", "parts/dev.tsv")
    assert objects("evaluate", run, "parts/test.tsv", *classify)[0]["test"]["pairs"] > 8
    (scores,) = objects("evaluate", run, "parts/test.tsv", "--task", "mining")
    assert scores["true_pairs"] == 8
    (scores,) = objects("evaluate", run, "--beir", "parts/beir", "--split", "dev")
    assert scores["queries"] == report["parts"]["dev"]["queries"]
    assert scores["documents"] == report["corpus"]
    assert scores["recall@100"] == 1


LABELED = (
    ("how can i learn python quickly", "what is the best way to learn python", 1),
    ("how to cook rice", "what is the way to cook rice", 1),
    ("how can i learn rice", "how to cook rice", 0),
    ("How to cook rice?", "how can i learn python quickly", 0),
)


@pytest.fixture
def pairs(tmp_path):
    return write_table(tmp_path / "pairs.jsonl", HEADER[3:], LABELED)


def test_the_questions_of_the_pairs_or_an_index_are_searched(
    refused, done, run, index, pairs, tmp_path
):
    out, stderr = done("negatives", run, pairs, "--out", "n.tsv", "--count", "2")
    assert out == ""
    rows = read_table(tmp_path / "n.tsv")
    assert [*rows[0]] == [*NEGATIVES, "rank", "distance", "positive_distance", "id"]
    assert len(rows) == 5 * 2
    assert "n.tsv: 5 queries, 10 negatives; 0 queries have fewer than asked for" in stderr
    mined = {}
    for row in rows:
        mined.setdefault(row["query"], []).append(row["negative"])
    assert "How to cook rice?" not in mined["what is the way to cook rice"]
    assert all("python" not in text for text in mined[LABELED[0][0]])

    done("negatives", run, pairs, "--out", "none.tsv", "--from-rank", "40")
    assert (tmp_path / "none.tsv").read_text().split() == [*rows[0]]

    done("negatives", index, pairs, "--out", "n.jsonl", "--count", "9")
    lines = read_table(tmp_path / "n.jsonl")
    of_rice = {line["id"] for line in lines if line["query"] == LABELED[1][0]}
    assert of_rice == {5, 3, 2**63 - 1}

    done("index", "ip", "--encoder", run, "--metric", "ip", given=b"how to cook rice")
    with_margin = ("--out", "n.jsonl", "--relative-margin", 0.1)
    refused("by inner product", "negatives", "ip", pairs, *with_margin)


def test_a_split_of_a_run_is_searched_alone(refused, done, run, tmp_path):
    write_pairs(tmp_path / "quora.tsv", [(2 * i, 2 * i + 1, *row) for i, row in enumerate(LABELED)])
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "export").symlink_to(run / "export")
    mine = ("negatives", "work", "quora.tsv", "--out", "n.tsv", "--split", "train")
    (tmp_path / "work" / "splits").mkdir()
    names = ["train"] * 4 + ["validation"] * 4
    table = "".join(f"{i}\t{name}\n" for i, name in enumerate(names))
    (tmp_path / "work" / "splits" / "questions.tsv").write_text("id\tsplit\n" + table)
    done(*mine)
    texts = {text for row in LABELED[:2] for text in row[:2]}
    rows = read_table(tmp_path / "n.tsv")
    assert {row[name] for row in rows for name in NEGATIVES} == texts
    refused("expected", *mine[:-1], "test")


def test_the_models_of_folders_are_asked(done, run, pairs, tmp_path):
    """The scores of a run; and the tiny cross-encoder, whose logits become probabilities."""
    folder = tmp_path / "work"
    shutil.copytree(run / "export", folder / "export")
    write_words(folder)
    mine = ("negatives", folder, pairs, "--out", "n.tsv", "--count", "1", "--max-score", "1")
    done(*mine, "--scored")
    scores = [float(row["score"]) for row in read_table(tmp_path / "n.tsv")]
    assert all(0 <= score <= 1 for score in scores)
    done(*mine, "--cross-encoder", TINY)
    rows = read_table(tmp_path / "n.tsv")
    logits = read_cross_encoder(TINY).predict([(row["query"], row["negative"]) for row in rows])
    for row, logit in zip(rows, logits.tolist(), strict=True):
        assert float(row["score"]) == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)
