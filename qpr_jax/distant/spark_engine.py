"""Distant supervision on Apache Spark: the functions of `distant.method`, on partitions."""

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

from qpr_jax.distant.folder import Made, refuse_nothing_left
from qpr_jax.distant.logs import WHOLE_FILE, BadRow, Logs, read_log, refusal
from qpr_jax.distant.method import (
    UNDECIDED,
    WEIGHTED_WORDS,
    Cluster,
    Finished,
    LogRow,
    Method,
    clusters,
    distinct_questions,
    finished,
    keyed,
    overlapping,
    split_bounds,
    word_weights,
    words_of,
)
from qpr_jax.distant.report import LARGEST, SAMPLE
from qpr_jax.errors import UserError

_ROWS, _CHARACTERS = 1000, 1 << 24  # that go to and from Python at a time
_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.*\]|yarn|(spark|k8s)://.+")
_WORDS = 1_000_000  # that are counted in memory
_PARTITION = 100_000  # rows of one, about
_CLUSTER = (
    "answer string, size bigint, coherence double, kept boolean, split_draw bigint, "
    "sample_draw bigint, shown array<string>, questions array<string>"
)
_SETTINGS = {
    "spark.log.level": "OFF",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * _CHARACTERS),
    # Partitions come one by one to the driver, and merged ones would be too large for it.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    # Each is a job, and blocks of jobs long done would take most of the memory.
    "spark.memory.fraction": "0.4",
    # Else a driver without memory waits forever.
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
    """A Spark session: `local[2]`, `spark://host:7077`, `yarn`, ... UserError where it fails.

    Of Spark's own settings only those are made here without which it could not run at all; the
    others are those of its installation (`spark-defaults.conf`).
    """
    if not _MASTER.fullmatch(master):
        raise UserError(
            f"`--spark`: expected local[4], spark://HOST:PORT, yarn or k8s://HOST, got {master!r}"
        )
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UserError(
            f"`--spark` needs more packages ({error.name}); pip install 'qpr_jax[spark]'"
        ) from None
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)  # says it all twice
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_DRIVER_MEMORY", "4g")  # in local mode, of all
    builder = SparkSession.builder.master(master).appName("qpr clusters")
    for name, value in (_SETTINGS | (_LOCAL if master.startswith("local") else {})).items():
        builder = builder.config(name, value)
    try:
        with _own_interrupts():
            spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            with warnings.catch_warnings():  # after Ctrl-C it warns that Java may be there still
                warnings.simplefilter("ignore", RuntimeWarning)
                spark.stop()
    except (PySparkException, Py4JError) as error:
        raise UserError(
            f"`--spark` {master}: {_reason(error):.300}; is Java 17 or newer there (JAVA_HOME) "
            "with memory enough (SPARK_DRIVER_MEMORY), and can all machines read the logs and "
            "import qpr_jax?"
        ) from error


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Ctrl-C in the block acts after it, and after the block as before it.

    A Java that is left while it starts would stay for ever, and PySpark's own handler of Ctrl-C,
    which it leaves behind, tells its stacks.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())  # else PySpark's stacks go to the terminal
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
    """What went wrong: in Java, or in Python, whose traceback ends in it."""
    java = getattr(error, "java_exception", None)
    lines = str(java or error).strip().splitlines()
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (raised or lines or [type(error).__name__])[-1]


def make_clusters(spark: Any, logs: Logs, method: Method, *, skip_bad_rows: bool = False) -> Made:
    """As `memory.make_clusters`, from files that all machines read; holds little of them at once.

    What is made is read from Spark as it is written, so the session must live until then.
    """
    counts: dict[str, int] = {}
    rows = _read(spark, logs, counts, skip_bad_rows)
    # A task costs as much as thousands of rows, so few rows make few of them.
    partitions = max(spark.sparkContext.defaultParallelism, counts["rows"] // _PARTITION)
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    questions = _kept(
        _sorted(rows, "key").mapInArrow(
            *_over(
                lambda rows: distinct_questions(itertools.starmap(LogRow, rows)),
                "text string, answer string, rows bigint, answers bigint",
            )
        )
    )
    counts |= _first(
        questions.selectExpr(
            "count(*) as questions",
            "count_if(answers > 1) as questions_of_several_answers",
            f"count_if(answer = '{UNDECIDED}') as undecided_questions",
        )
    )
    weights = word_weights(_word_uses(questions), counts["questions"])
    decided = questions.where(f"answer != '{UNDECIDED}'").select("answer", "text")
    found = _kept(
        _sorted(decided, "answer", "text").mapInArrow(
            *_over(lambda rows: clusters(rows, method, weights), _CLUSTER)
        )
    )
    sizes, coherences, kept, draws = _columns(found, "size", "coherence", "kept", "split_draw")
    alone = counts["questions"] - counts["undecided_questions"] - int(sizes.sum())
    counts["questions_alone"] = alone
    refuse_nothing_left(counts, kept, coherences, method)
    bounds = split_bounds(draws[kept])
    staying = found.where("kept")
    words = staying.mapInArrow(
        *_over(
            lambda rows: (row for cluster in rows for row in keyed(Cluster(*cluster), bounds)),
            "words string, split bigint, answer string, text string",
        )
    )
    dropped = _kept(
        _sorted(words, "words", "split", "answer", "text").mapInArrow(
            *_over(overlapping, "answer string, text string")
        )
    )
    counts["overlapping_questions"] = dropped.count()
    gone = dropped.groupBy("answer").agg({"text": "collect_list"})
    ready = staying.join(gone, "answer", "left").orderBy("answer")

    def finish(rows: Rows) -> Iterator[Finished]:
        for *cluster, texts in rows:
            if done := finished(Cluster(*cluster), bounds, texts or (), method):
                yield done

    columns = "answer string, split string, line string, questions bigint, pairs array<string>"
    by_size = ("-size", "answer")
    return Made(
        counts,
        sizes,
        coherences,
        kept,
        largest_removed=_some(found.where("not kept"), LARGEST, *by_size),
        largest_kept=_some(staying, LARGEST, *by_size),
        sample=_some(staying, SAMPLE, "sample_draw", "answer"),
        clusters=itertools.starmap(
            Finished, ready.mapInArrow(*_over(finish, columns)).toLocalIterator()
        ),
        texts=(text for (text,) in questions.select("text").orderBy("text").toLocalIterator()),
    )


def _read(spark: Any, logs: Logs, counts: dict[str, int], skip_bad_rows: bool) -> Any:
    """The good rows of all files: key, answer, text. The bad ones are counted, or refused."""
    files = [*map(os.path.abspath, logs.files)]  # Spark may work elsewhere

    def read(numbers: Rows) -> Rows:
        for (number,) in numbers:
            for row in read_log(logs, files[number]):
                if isinstance(row, BadRow):
                    yield None, None, None, number, *row
                else:
                    yield *row, number, None, None

    columns = "key string, answer string, text string, number bigint, line bigint, reason string"
    numbers = spark.range(len(files)).repartitionByRange(len(files), "id")
    rows = _kept(numbers.mapInArrow(*_over(read, columns)))
    bad = rows.where("reason is not null")
    refused = bad.where(f"line = {WHOLE_FILE}") if skip_bad_rows else bad
    for number, *what in (
        _ordered(refused, "number", f"line = {WHOLE_FILE}", "line")
        .select("number", "line", "reason")
        .take(1)
    ):
        raise refusal(logs.files[number], BadRow(*what))
    counts |= _first(
        rows.selectExpr("count(key) as rows", "count_if(reason is not null) as bad_rows")
    )
    return rows.where("reason is null").select("key", "answer", "text")


def _word_uses(questions: Any) -> list[tuple[str, int]]:
    """As `method.most_used`."""

    def count(rows: Rows) -> Iterator[tuple[str, int]]:
        uses: Counter[str] = Counter()
        for (text,) in rows:
            uses.update(words_of(text))
            if len(uses) > _WORDS:
                yield from uses.items()
                uses.clear()
        yield from uses.items()

    parts = questions.select("text").mapInArrow(*_over(count, "word string, uses bigint"))
    uses = parts.groupBy("word").agg({"uses": "sum"}).toDF("word", "uses")
    most = uses.orderBy(uses["uses"].desc(), "word").limit(WEIGHTED_WORDS)
    return [(word, used) for word, used in most.collect()]


def _sorted(frame: Any, *columns: str) -> Any:
    """Partitions by the first column, in the order of all: of strings, as Python's."""
    return frame.repartition(columns[0]).sortWithinPartitions(*columns)


def _ordered(frame: Any, *expressions: str) -> Any:
    from pyspark.sql.functions import expr

    return frame.orderBy(*map(expr, expressions))


def _kept(frame: Any) -> Any:
    """On disk once it is made, since it is used more than once."""
    from pyspark import StorageLevel

    return frame.persist(StorageLevel.DISK_ONLY)


def _first(frame: Any) -> dict[str, int]:
    return frame.first().asDict()


def _columns(frame: Any, *names: str) -> Iterator[np.ndarray]:
    table = frame.select(*names).toArrow()
    return (table[name].to_numpy() for name in names)


def _some(frame: Any, count: int, *order: str) -> list[Cluster]:
    """The first clusters in an order, without their questions."""
    rows = _ordered(frame.drop("questions"), *order).limit(count).collect()
    return [Cluster(**row.asDict(), questions=[]) for row in rows]


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Some rows at a time, fewer of long ones: a cluster may have a million questions."""
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


def _over(function: Callable[[Rows], Iterable[Any]], columns: str) -> tuple[Any, str]:
    """What `mapInArrow` takes, for a function from rows of a partition to rows with `columns`."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        types = {
            "string": pyarrow.string(),
            "bigint": pyarrow.int64(),
            "double": pyarrow.float64(),
            "boolean": pyarrow.bool_(),
            "array<string>": pyarrow.list_(pyarrow.string()),
        }
        schema = pyarrow.schema(
            (name, types[kind]) for name, kind in map(str.split, columns.split(", "))
        )
        rows = (
            row
            for batch in batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        for chunk in _chunks(function(rows)):
            arrays = map(pyarrow.array, zip(*chunk, strict=True), schema.types)
            yield pyarrow.RecordBatch.from_arrays(list(arrays), schema=schema)

    return run, columns
