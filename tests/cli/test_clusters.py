import csv
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.distant.rows import log_rows, write_rows


@pytest.fixture(params=["jsonl", "csv", "tsv", "parquet", "jsonl.gz", "csv.zst"])
def log(request, tmp_path):
    """A file of logs in a format, with columns of other names."""
    path = tmp_path / f"log.{request.param}"
    kind = request.param.split(".")[0]
    rows = [{"asked": question, "said": answer} for question, answer in log_rows()]
    plain = tmp_path / "plain"
    if kind == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    with plain.open("w", newline="") as file:
        if kind == "jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            delimiter, quoting = ("\t", csv.QUOTE_NONE) if kind == "tsv" else (",", csv.QUOTE_ALL)
            writer = csv.DictWriter(file, ["asked", "said"], delimiter=delimiter, quoting=quoting)
            writer.writeheader()
            writer.writerows(rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(plain.read_bytes()))
    elif path.suffix == ".zst":
        import pyarrow

        with pyarrow.CompressedOutputStream(str(path), "zstd") as out:
            out.write(plain.read_bytes())
    else:
        plain.rename(path)
    return path


def test_any_format_makes_the_same(qpr, tmp_path, log):
    names = ("--question", "asked", "--answer", "said", "--min-coherence", "0.2")
    status, _, stderr = qpr("clusters", log, "--out", "made", *names)
    assert status == 0, stderr
    assert "clusters of" in stderr
    write_rows(tmp_path / "rows.jsonl", log_rows())
    assert qpr("clusters", "rows.jsonl", "--out", "expected", "--min-coherence", "0.2")[0] == 0
    for name in ("clusters.jsonl", "pairs_train.tsv", "report.json"):
        assert (tmp_path / "made" / name).read_bytes() == (
            tmp_path / "expected" / name
        ).read_bytes()


def test_verdicts_are_told(qpr, tmp_path):
    (tmp_path / "sample.tsv").write_text("verdict\tanswer\n1\ta\n0\tb\nyes\tc\n\td\n")
    status, out, _ = qpr("clusters", "--verdicts", "sample.tsv")
    assert status == 0
    scores = json.loads(out)
    assert (scores["judged"], scores["accuracy"]) == (3, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("rows.jsonl",),
        ("--out", "made"),
        ("rows.jsonl", "--verdicts", "sample.tsv"),
        ("rows.jsonl", "--out", "made", "--verdicts", "sample.tsv"),
        ("rows.jsonl", "--out", "made", "--min-coherence", "2"),
        ("rows.jsonl", "--out", "made", "--min-coherence", "nan"),
    ],
)
def test_commands_that_are_none(qpr, arguments):
    assert qpr("clusters", *arguments)[0] == 2


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('{"question": "a", "answer": "b"}\n{"question": "a"}\n', "line 2: expected the key"),
        ("", "expected answers with two questions or more"),
        (None, "rows.jsonl: cannot be read (No such file or directory); name a file"),
    ],
)
def test_logs_that_cannot_be_used_are_told(qpr, tmp_path, rows, said):
    if rows is not None:
        (tmp_path / "rows.jsonl").write_text(rows)
    status, _, stderr = qpr("clusters", "rows.jsonl", "--out", "made")
    assert status == 1
    assert said in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "made").exists()


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


def test_a_master_that_is_none_is_told(qpr, tmp_path):
    write_rows(tmp_path / "rows.jsonl", log_rows())
    status, _, stderr = qpr("clusters", "rows.jsonl", "--out", "made", "--spark", "local[x]")
    assert status == 1
    expected = "expected local[4], spark://HOST:PORT, yarn or k8s://HOST, got 'local[x]'"
    assert re.fullmatch(rf"error: `[-a-z ]*spark`: {re.escape(expected)}\n", stderr)


@pytest.mark.slow
def test_ctrl_c_while_spark_starts_leaves_nothing(tmp_path, spark_master):
    write_rows(tmp_path / "rows.jsonl", log_rows())
    command = [sys.executable, "-m", "qpr_jax.cli.main", "clusters", "rows.jsonl"]
    running = subprocess.Popen(
        [*command, "--out", "made", "--spark", spark_master],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr.readline()  # Java's first
    os.killpg(running.pid, signal.SIGINT)
    stderr = running.communicate(timeout=120)[1]
    assert running.returncode == 130
    assert stderr.endswith("stopped\n")
    assert "Traceback" not in stderr
    assert not (tmp_path / "made").exists()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # for Java to end
        try:
            os.killpg(running.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("Java is there still")
