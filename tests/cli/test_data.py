"""Data made of logs and of pairs: `clusters`, `splits` and `negatives`."""

import json
import re

import pytest

from qpr_jax.data.question_pairs import read_question_pairs
from tests.data.log_rows import log_rows, write_rows
from tests.tables import HEADER, write_table


def test_columns_of_other_names_make_the_same(done, tmp_path):
    write_table(tmp_path / "log.csv", ("asked", "said"), log_rows())
    names = ("--question", "asked", "--answer", "said", "--min-coherence", "0.2")
    _, stderr = done("clusters", "log.csv", "--out", "made", *names)
    report = json.loads((tmp_path / "made" / "report.json").read_text())
    assert f"clusters removed: {report['clusters_removed']}, " in stderr
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
    assert (scores["low"], scores["high"]) == pytest.approx((0.2077, 0.9385), abs=1e-4)


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
    assert "dev: questions: 16, clusters: 8, duplicates: 8" in stderr
    dropped = report["dropped"]["non_duplicates_across_parts"]
    assert (
        f"left out: non duplicates across parts: {dropped}, non duplicates of one cluster: 0"
        in stderr
    )
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
