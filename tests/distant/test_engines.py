"""The same clusters from either engine, whatever the order and the files of the rows."""

import functools
import gzip
import json
import pathlib
import random

import pytest

from qpr_jax import spark_session
from qpr_jax.distant import local_engine, spark_engine
from qpr_jax.distant.folder import write_clusters
from qpr_jax.distant.logs import Logs
from qpr_jax.distant.method import Method
from qpr_jax.errors import UserError
from tests.distant.rows import log_rows, write_rows

METHODS = [Method(least=0.2), Method("paper", least=0.1, pairs=7, seed=5)]


@pytest.fixture(scope="module")
def session(spark_master):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # most time is compilation
        with spark_session.session(spark_master, "test") as session:
            yield session


@pytest.fixture(params=["memory", pytest.param("spark", marks=pytest.mark.slow)])
def make_clusters(request):
    """Either engine: (logs, method, skip_bad_rows=...) -> its result."""
    if request.param == "memory":
        return local_engine.make_clusters
    return functools.partial(spark_engine.make_clusters, request.getfixturevalue("session"))


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())}


def made_in_memory(folder, files, method, **how):
    write_clusters(folder, local_engine.make_clusters(Logs(tuple(files)), method, **how), method)
    return contents(folder)


def made_on_spark(session, folder, files, method, **how):
    made = spark_engine.make_clusters(session, Logs(tuple(files)), method, **how)
    write_clusters(folder, made, method)
    return contents(folder)


@pytest.fixture
def shuffled(tmp_path):
    """The same rows in another order, in several files, one of them empty."""
    rows = log_rows()
    random.Random(9).shuffle(rows)
    return [
        write_rows(tmp_path / f"{i}.jsonl", part)
        for i, part in enumerate([rows[:50], [], rows[50:300], rows[300:]])
    ]


@pytest.mark.parametrize("method", METHODS)
def test_the_order_and_the_files_of_the_rows_change_nothing(tmp_path, shuffled, method):
    one = [write_rows(tmp_path / "one.jsonl", log_rows())]
    made = made_in_memory(tmp_path / "a", one, method)
    assert made_in_memory(tmp_path / "b", shuffled, method) == made
    report = json.loads(made["report.json"])
    assert report["overlapping_questions"] > 0
    assert report["clusters_removed"] > 0
    assert all(report["splits"][split]["pairs"] for split in report["splits"])


@pytest.mark.parametrize(
    ("partitions", "method"),
    [
        (None, METHODS[0]),
        pytest.param(None, METHODS[1], marks=pytest.mark.slow),
        pytest.param(7, METHODS[0], marks=pytest.mark.slow),
        pytest.param(7, METHODS[1], marks=pytest.mark.slow),
    ],
)
def test_spark_gives_what_memory_gives(
    session, tmp_path, shuffled, partitions, method, monkeypatch
):
    rows = len(log_rows())
    monkeypatch.setattr(spark_engine, "_PARTITION", rows // partitions if partitions else 10 * rows)
    monkeypatch.setattr(spark_session, "CHARACTERS_AT_ONCE", 500)
    session.conf.set("spark.sql.adaptive.enabled", "false" if partitions else "true")
    made = made_in_memory(tmp_path / "a", shuffled, method)
    assert made_on_spark(session, tmp_path / "b", shuffled, method) == made


@pytest.mark.slow
def test_few_large_clusters(session, tmp_path):
    rows = [(f"question {i} about {i % 7}", f"answer {i % 4}") for i in range(4000)]
    files = [write_rows(tmp_path / "rows.jsonl", rows)]
    method = Method(least=0.0)
    made = made_in_memory(tmp_path / "a", files, method)
    assert made_on_spark(session, tmp_path / "b", files, method) == made
    clusters = [json.loads(line) for line in made["clusters.jsonl"].splitlines()]
    assert [len(cluster["questions"]) for cluster in clusters] == [1000] * 4
    assert len(made["pairs_train.tsv"].splitlines()) == 1 + 2 * 100


BAD_ROWS = (
    (b'{"question": "a"}\n', "line 2: expected the key `answer`"),
    (b'{"question": 5, "answer": "a"}\n', "line 2: expected text in `question`, got 5"),
    (b'{"question": " ", "answer": "a"}\n', "line 2: expected a question, got a blank"),
    (b"\xff\n", "line 2: expected UTF-8"),
)


@pytest.mark.parametrize(("row", "said"), BAD_ROWS)
def test_a_bad_row_is_refused_or_counted(make_clusters, tmp_path, row, said):
    good = write_rows(tmp_path / "good.jsonl", log_rows())
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(
        b'{"question": "q", "answer": "a"}\n' + row + b'{"question": "q2", "answer": "a"}'
    )
    logs, method = Logs((good, str(bad))), METHODS[0]
    with pytest.raises(UserError, match="bad.jsonl, " + said):
        make_clusters(logs, method)
    made = make_clusters(logs, method, skip_bad_rows=True)
    assert (made.counts["bad_rows"], made.counts["rows"]) == (1, len(log_rows()) + 2)


def test_a_file_that_breaks_off_is_refused_even_where_bad_rows_are_skipped(make_clusters, tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    whole = gzip.compress(pathlib.Path(write_rows(tmp_path / "rows", log_rows())).read_bytes())
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"rows.jsonl.gz: not whole gzip"):
        make_clusters(Logs((str(path),)), METHODS[0], skip_bad_rows=True)


def test_a_filter_that_leaves_nothing(make_clusters, tmp_path):
    files = (write_rows(tmp_path / "rows.jsonl", log_rows()),)
    alone = (write_rows(tmp_path / "alone.jsonl", [(f"q {i}", f"a {i}") for i in range(9)]),)
    with pytest.raises(UserError, match="of at least 1, got none: the most coherent of 82"):
        make_clusters(Logs(files), Method(least=1.0))
    with pytest.raises(UserError, match="expected answers with two questions or more"):
        make_clusters(Logs(alone), Method())


def test_rows_that_memory_does_not_hold_are_sent_to_spark(tmp_path, monkeypatch):
    monkeypatch.setattr(local_engine, "available_memory", lambda: 100 * 1024)
    files = (write_rows(tmp_path / "rows.jsonl", log_rows()),)
    with pytest.raises(UserError, match=r"about 1\d\d rows.*; use the option `spark`"):
        local_engine.make_clusters(Logs(files), METHODS[0])
