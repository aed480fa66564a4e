import csv
import json
import os
import re
import subprocess
import sys

import pytest

from tests.distant.rows import log_rows, write_rows


def test_columns_of_other_names_make_the_same(qpr, tmp_path):
    with (tmp_path / "log.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("asked", "said"), *log_rows()])
    names = ("--question", "asked", "--answer", "said", "--min-coherence", "0.2")
    status, _, stderr = qpr("clusters", "log.csv", "--out", "made", *names)
    assert status == 0, stderr
    write_rows(tmp_path / "rows.jsonl", log_rows())
    assert qpr("clusters", "rows.jsonl", "--out", "expected", "--min-coherence", "0.2")[0] == 0
    for name in ("clusters.jsonl", "pairs_train.tsv", "report.json"):
        made, expected = ((tmp_path / folder / name) for folder in ("made", "expected"))
        assert made.read_bytes() == expected.read_bytes()


def test_verdicts_are_told(qpr, tmp_path):
    (tmp_path / "sample.tsv").write_text("verdict\tanswer\n1\ta\n0\tb\nyes\tc\n\td\n")
    status, out, _ = qpr("clusters", "--verdicts", "sample.tsv")
    assert status == 0
    scores = json.loads(out)
    assert (scores["judged"], scores["accuracy"]) == (3, pytest.approx(2 / 3))


def test_spark_that_cannot_start_is_told(tmp_path):
    pytest.importorskip("pyspark")
    write_rows(tmp_path / "rows.jsonl", log_rows())
    command = [sys.executable, "-m", "qpr_jax.cli.main", "clusters", "rows.jsonl"]
    done = subprocess.run(
        [*command, "--out", "made", "--spark", "local[1]"],
        cwd=tmp_path,
        env=os.environ | {"JAVA_HOME": str(tmp_path), "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert re.search(r"error: `[-a-z ]*spark`: local\[1\]: ", done.stderr)
    assert "install Java 17 or newer" in done.stderr
    assert "Traceback" not in done.stderr
