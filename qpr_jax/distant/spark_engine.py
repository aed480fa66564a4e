"""The engine of distant supervision on Apache Spark: the functions of `method` on partitions."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from qpr_jax.distant.folder import ClusterResult, check_clusters_left
from qpr_jax.distant.logs import WHOLE_FILE, BadRow, Logs, bad_row_error, read_log
from qpr_jax.distant.method import (
    UNDECIDED,
    WEIGHTED_WORDS,
    Cluster,
    FinishedCluster,
    LogRow,
    Method,
    distinct_questions,
    find_overlap,
    finish_clusters,
    group_clusters,
    overlap_keys,
    split_bounds,
    word_weights,
    words_of,
)
from qpr_jax.distant.report import LARGEST, SAMPLE
from qpr_jax.errors import UserError
from qpr_jax.extras import needs

_ROWS, _CHARACTERS = 1000, 1 << 24  # of a batch between Java and Python
_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.*\]|yarn|(spark|k8s)://.+")
_WORDS = 1_000_000  # most words that a task counts in memory
_PARTITION = 100_000  # rows, about
_CLUSTER = (
    "answer string, size bigint, coherence double, kept boolean, split_draw bigint, "
    "sample_draw bigint, shown array<string>, questions array<string>"
)
_SETTINGS = {
    "spark.log.level": "OFF",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * _CHARACTERS),
    # The driver reads partitions one by one; merged ones would be too large for its memory.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    # Each partition is a job; the blocks of finished jobs would take most of the memory.
    "spark.memory.fraction": "0.4",
    # Otherwise a driver that is out of memory waits forever.
    "spark.driver.defaultJavaOptions": "-XX:+ExitOnOutOfMemoryError",
}
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

Rows = Iterator[tuple[Any, ...]]


@contextlib.contextmanager
def session(master: str) -> Iterator[Any]:
    """Start a Spark session on a master: `local[2]`, `spark://host:7077`, `yarn`, ...

    Raises UserError if Spark fails. Only the settings that are necessary are set here; the others
    come from the installation of Spark (`spark-defaults.conf`).
    """
    if not _MASTER.fullmatch(master):
        raise UserError(
            f"expected local[4], spark://HOST:PORT, yarn or k8s://HOST, got {master!r}",
            setting="spark",
        )
    with needs("Spark", "qpr_jax[spark]", setting="spark"):
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)  # repeats errors
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_DRIVER_MEMORY", "4g")  # in local mode, of all workers together
    builder = SparkSession.builder.master(master).appName("qpr clusters")
    for name, value in (_SETTINGS | (_LOCAL if master.startswith("local") else {})).items():
        builder = builder.config(name, value)
    try:
        with _own_interrupts():
            spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            with warnings.catch_warnings():  # after Ctrl-C it warns that Java may still run
                warnings.simplefilter("ignore", RuntimeWarning)
                spark.stop()
    except (PySparkException, Py4JError) as error:
        raise UserError(
            f"{master}: {_reason(error):.300}",
            setting="spark",
            remedy="install Java 17 or newer (JAVA_HOME), give Spark enough memory "
            "(SPARK_DRIVER_MEMORY), and make sure that all machines can read the logs and import "
            "qpr_jax",
        ) from error


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, and restore the handler of Ctrl-C after it.

    A Java process that loses its parent while it starts would never end, and PySpark leaves its
    own handler of Ctrl-C behind, which logs stack traces.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())  # otherwise PySpark prints stack traces
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


def _reason(error: Exception) -> str:
    """Return the message of an error in Java, or the last line of a Python traceback."""
    java = getattr(error, "java_exception", None)
    lines = str(java or error).strip().splitlines()
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (raised or lines or [type(error).__name__])[-1]


def make_clusters(
    spark: Any, logs: Logs, method: Method, *, skip_bad_rows: bool = False
) -> ClusterResult:
    """Make the clusters of logs, as `local_engine.make_clusters` does, with little memory.

    All machines must be able to read the files. The result reads from Spark while it is written,
    so the session must stay open until then.
    """
    counts: dict[str, int] = {}
    rows = _read(spark, logs, counts, skip_bad_rows)
    # Starting a task costs as much as thousands of rows, so few rows get few partitions.
    partitions = max(spark.sparkContext.defaultParallelism, counts["rows"] // _PARTITION)
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    questions = _persist(
        _sort_partitions(rows, "key").mapInArrow(
            *_arrow_map(
                lambda rows: distinct_questions(itertools.starmap(LogRow, rows)),
                "text string, answer string, rows bigint, answers bigint",
            )
        )
    )
    counts |= _first_row(
        questions,
        "count(*) as questions",
        "count_if(answers > 1) as questions_of_several_answers",
        f"count_if(answer = '{UNDECIDED}') as undecided_questions",
    )
    weights = word_weights(_word_uses(questions), counts["questions"])
    decided = questions.where(f"answer != '{UNDECIDED}'").select("answer", "text")
    found = _persist(
        _sort_partitions(decided, "answer", "text").mapInArrow(
            *_arrow_map(lambda rows: group_clusters(rows, method, weights), _CLUSTER)
        )
    )
    sizes, coherences, kept, draws = _columns(found, "size", "coherence", "kept", "split_draw")
    decided_questions = counts["questions"] - counts["undecided_questions"]
    counts["questions_alone"] = decided_questions - int(sizes.sum())
    check_clusters_left(counts, kept, coherences, method)
    bounds = split_bounds(draws[kept])
    kept_clusters = found.where("kept")
    words = kept_clusters.mapInArrow(
        *_arrow_map(
            lambda rows: (row for values in rows for row in overlap_keys(Cluster(*values), bounds)),
            "words string, split bigint, answer string, text string",
        )
    )
    dropped = _persist(
        _sort_partitions(words, "words", "split", "answer", "text").mapInArrow(
            *_arrow_map(find_overlap, "answer string, text string")
        )
    )
    counts["overlapping_questions"] = dropped.count()
    dropped_texts = dropped.groupBy("answer").agg({"text": "collect_list"})
    with_dropped = kept_clusters.join(dropped_texts, "answer", "left").orderBy("answer")

    def finish(rows: Rows) -> Iterator[FinishedCluster]:
        clusters = ((Cluster(*cluster), texts or ()) for *cluster, texts in rows)
        return finish_clusters(clusters, bounds, method)

    columns = "answer string, split string, line string, questions bigint, pairs array<string>"
    by_size = ("-size", "answer")
    return ClusterResult(
        counts,
        sizes,
        coherences,
        kept,
        largest_removed=_first_clusters(found.where("not kept"), LARGEST, *by_size),
        largest_kept=_first_clusters(kept_clusters, LARGEST, *by_size),
        sample=_first_clusters(kept_clusters, SAMPLE, "sample_draw", "answer"),
        clusters=itertools.starmap(
            FinishedCluster, with_dropped.mapInArrow(*_arrow_map(finish, columns)).toLocalIterator()
        ),
        texts=(text for (text,) in questions.select("text").orderBy("text").toLocalIterator()),
    )


def _read(spark: Any, logs: Logs, counts: dict[str, int], skip_bad_rows: bool) -> Any:
    """Return the good rows of all files: key, answer, text; count the bad ones, or raise."""
    files = [*map(os.path.abspath, logs.files)]  # Spark may have another working directory

    def read(numbers: Rows) -> Rows:
        for (number,) in numbers:
            for row in read_log(logs, files[number]):
                if isinstance(row, BadRow):
                    yield None, None, None, number, *row
                else:
                    yield *row, number, None, None, None

    columns = "key string, answer string, text string, "
    columns += "number bigint, line bigint, reason string, remedy string"
    numbers = spark.range(len(files)).repartitionByRange(len(files), "id")
    rows = _persist(numbers.mapInArrow(*_arrow_map(read, columns)))
    bad = rows.where("reason is not null").select("number", "line", "reason", "remedy")
    refused = bad.where(f"line = {WHOLE_FILE}") if skip_bad_rows else bad
    for number, *row in _order_by(refused, "number", f"line = {WHOLE_FILE}", "line").take(1):
        raise bad_row_error(logs.files[number], BadRow(*row))
    counts |= _first_row(rows, "count(key) as rows", "count_if(reason is not null) as bad_rows")
    return rows.where("reason is null").select("key", "answer", "text")


def _word_uses(questions: Any) -> list[tuple[str, int]]:
    """Return the most used words with their uses, as `method.most_used` does."""

    def count(rows: Rows) -> Iterator[tuple[str, int]]:
        uses: Counter[str] = Counter()
        for (text,) in rows:
            uses.update(words_of(text))
            if len(uses) > _WORDS:
                yield from uses.items()
                uses.clear()
        yield from uses.items()

    parts = questions.select("text").mapInArrow(*_arrow_map(count, "word string, uses bigint"))
    uses = parts.groupBy("word").agg({"uses": "sum"}).toDF("word", "uses")
    most = uses.orderBy(uses["uses"].desc(), "word").limit(WEIGHTED_WORDS)
    return [(word, used) for word, used in most.collect()]


def _sort_partitions(frame: Any, *columns: str) -> Any:
    """Partition by the first column and sort by all; strings are ordered as in Python."""
    return frame.repartition(columns[0]).sortWithinPartitions(*columns)


def _order_by(frame: Any, *expressions: str) -> Any:
    from pyspark.sql.functions import expr

    return frame.orderBy(*map(expr, expressions))


def _persist(frame: Any) -> Any:
    """Keep the frame on disk after its first use, because it is used more than once."""
    from pyspark import StorageLevel

    return frame.persist(StorageLevel.DISK_ONLY)


def _first_row(frame: Any, *expressions: str) -> dict[str, int]:
    return frame.selectExpr(*expressions).first().asDict()


def _columns(frame: Any, *names: str) -> Iterator[np.ndarray]:
    table = frame.select(*names).toArrow()
    return (table[name].to_numpy() for name in names)


def _first_clusters(frame: Any, count: int, *order: str) -> list[Cluster]:
    """Return the first clusters in an order, without their questions."""
    rows = _order_by(frame.drop("questions"), *order).limit(count).collect()
    return [Cluster(**row.asDict(), questions=[]) for row in rows]


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield batches of rows, smaller ones of long rows: a cluster may have a million questions."""
    chunk: list[Any] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += sum(sum(map(len, cell)) for cell in row if isinstance(cell, list))
        if len(chunk) == _ROWS or characters > _CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _arrow_map(function: Callable[[Rows], Iterable[Any]], columns: str) -> tuple[Any, str]:
    """Return the arguments of `mapInArrow` for a function from rows to rows with `columns`."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        types = {
            "string": pyarrow.string(),
            "bigint": pyarrow.int64(),
            "double": pyarrow.float64(),
            "boolean": pyarrow.bool_(),
            "array<string>": pyarrow.list_(pyarrow.string()),
        }
        fields = (column.split() for column in columns.split(", "))
        schema = pyarrow.schema((name, types[kind]) for name, kind in fields)
        tables = ([column.to_pylist() for column in batch.columns] for batch in batches)
        rows = (row for table in tables for row in zip(*table, strict=True))
        for chunk in _chunks(function(rows)):
            arrays = map(pyarrow.array, zip(*chunk, strict=True), schema.types)
            yield pyarrow.RecordBatch.from_arrays(list(arrays), schema=schema)

    return run, columns
