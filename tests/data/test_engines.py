"""The same clusters in memory and from Spark, whatever the order and the files of the rows."""

import dataclasses
import functools
import gzip
import json
import pathlib
import random

import pytest

from qpr_jax.data.log_clusters import Method, write_clusters
from qpr_jax.data.logs import Logs, read_questions, read_questions_on_spark
from qpr_jax.data.spark import open_session
from qpr_jax.errors import UserError
from tests.data.log_rows import log_rows, write_rows

METHODS = [Method(min_coherence=0.2), Method("paper", min_coherence=0.1, pairs=7, seed=5)]


@pytest.fixture(scope="module")
def session(spark_master):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # most time is compilation
        with open_session(spark_master, "test") as session:
            yield session


@pytest.fixture(params=["memory", pytest.param("spark", marks=pytest.mark.slow)])
def read(request):
    """Either reader: (logs, skip_bad_rows=...) -> questions."""
    if request.param == "memory":
        return read_questions
    return functools.partial(read_questions_on_spark, request.getfixturevalue("session"))


def made(folder, read, files, method):
    write_clusters(folder, read(Logs(tuple(files))), method)
    return {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())}


@pytest.mark.parametrize("method", METHODS)
def test_the_order_and_the_files_of_the_rows_change_nothing(tmp_path, read, method):
    """In files of another order, one of them empty."""
    one = [write_rows(tmp_path / "one.jsonl", log_rows())]
    rows = log_rows()
    random.Random(9).shuffle(rows)
    parts = [rows[:50], [], rows[50:300], rows[300:]]
    files = [write_rows(tmp_path / f"{i}.jsonl", part) for i, part in enumerate(parts)]
    expected = made(tmp_path / "a", read_questions, one, method)
    assert made(tmp_path / "b", read, files, method) == expected
    report = json.loads(expected["report.json"])
    assert report["overlapping_questions"] > 0
    assert report["clusters_removed"] > 0
    assert all(report["splits"][split]["pairs"] for split in report["splits"])


BAD_ROWS = (
    (b'{"question": "a"}', "line 2: expected the key `answer`"),
    (b'{"question": 5, "answer": "a"}', "line 2: expected a question, got 5"),
    (b'{"question": "a", "answer": " "}', "line 2: expected an answer, got ' '"),
    (b'{"question": "\\ud800", "answer": "a"}', "line 2: expected Unicode text in a question"),
    (b"\xff", "line 2: expected UTF-8"),
)


def test_a_bad_row_is_refused_or_counted(read, tmp_path):
    good = write_rows(tmp_path / "good.jsonl", log_rows())
    row = b'{"question": "q", "answer": 7}\n'
    for i, (wrong, said) in enumerate(BAD_ROWS):
        bad = tmp_path / f"bad{i}.jsonl"
        logs = Logs((good, str(bad)))
        bad.write_bytes(row + wrong + b"\n" + row)
        with pytest.raises(UserError, match=f"bad{i}.jsonl, {said}.*`skip_bad_rows=True`"):
            read(logs)
        found = read(logs, skip_bad_rows=True)
        assert (found.bad_rows, found.rows) == (1, len(log_rows()) + 2)
        assert [one.answer for one in found.questions if one.text == "q"] == ["7"]
        assert read(dataclasses.replace(logs, max_rows=1)).rows == 2


def test_a_file_that_breaks_off_is_refused_even_where_bad_rows_are_skipped(read, tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    whole = gzip.compress(pathlib.Path(write_rows(tmp_path / "rows", log_rows())).read_bytes())
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"rows.jsonl.gz: cannot be read"):
        read(Logs((str(path),)), skip_bad_rows=True)
