"""Logs of questions and answers in any format, read by this process or by Apache Spark."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from qpr_jax.data.columns import SKIP, BadRows, read_rows
from qpr_jax.data.typed_rows import Fields
from qpr_jax.errors import UserError, needs
from qpr_jax.text.tokenizer import canonical

_ROWS_AT_ONCE = 1000  # of a batch between Java and Python
_SETTINGS = {
    "spark.log.level": "OFF",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS_AT_ONCE),
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

Row = tuple[Any, ...]
NAME_COLUMNS = "name the columns with `question` and `answer`"
_SKIP = f"{NAME_COLUMNS}, or {SKIP}"
_PARTITION = 100_000  # rows of a partition of Spark, about
UNDECIDED = ""  # the answer of a question without a most frequent answer


@contextlib.contextmanager
def open_session(master: str, name: str) -> Iterator[Any]:
    """Start a Spark session of this name on a master: `local[2]`, `spark://host:7077`, `yarn`, ...

    Raises UserError if Spark fails. Only the settings that are necessary are set here; the others
    come from the installation of Spark (`spark-defaults.conf`).
    """
    with needs("Spark", ".[spark]", setting="spark"):
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_DRIVER_MEMORY", "4g")  # in local mode, of all workers together
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in (_SETTINGS | (_LOCAL if master.startswith("local") else {})).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
    except (PySparkException, Py4JError) as error:
        remedy = "install Java 17 or newer (JAVA_HOME), give Spark enough memory "
        remedy += "(SPARK_DRIVER_MEMORY), and make sure that all machines can read the files and "
        remedy += "import qpr_jax"
        what = f"{master}: {_reason(error):.300}"
        raise UserError(what, setting="spark", remedy=remedy) from error


def _reason(error: Exception) -> str:
    """Return the message of an error in Java, or the last line of a Python traceback."""
    java = getattr(error, "java_exception", None)
    lines = str(java or error).strip().splitlines()
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (raised or lines or [type(error).__name__])[-1]


def map_numbers(
    session: Any, count: int, work: Callable[[int], Iterable[Row]], columns: str
) -> Any:
    """Return a frame of the rows that `work` yields for each number below `count`, a task each.

    A UserError of `work` becomes a row of nulls with the columns `what` and `remedy`, which the
    frame has, too; `raise_error` raises it. Otherwise it would come with a traceback of Java.

    Args:
      session: of `open_session`.
      count: the number of tasks.
      work: returns the rows of a number. Workers run a copy of it.
      columns: the names and types of a row, such as "text string, count bigint".
    """
    size = columns.count(",") + 1

    def run(numbers: Iterator[Row]) -> Iterator[Row]:
        for (number,) in numbers:
            try:
                for row in work(number):
                    yield *row, None, None
            except UserError as error:
                yield *(None,) * size, error.what, error.remedy

    numbers = session.range(count).repartitionByRange(count, "id")
    return map_rows(numbers, run, f"{columns}, what string, remedy string")


def map_rows(frame: Any, function: Callable[[Iterator[Row]], Iterable[Row]], columns: str) -> Any:
    """Return a frame of the rows with `columns` that a function makes of each partition's rows."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        types = {"string": pyarrow.string(), "bigint": pyarrow.int64()}
        fields = (column.split() for column in columns.split(", "))
        schema = pyarrow.schema((name, types[kind]) for name, kind in fields)
        tables = ([column.to_pylist() for column in batch.columns] for batch in batches)
        rows = iter(function(row for table in tables for row in zip(*table, strict=True)))
        while chunk := [*itertools.islice(rows, _ROWS_AT_ONCE)]:
            arrays = map(pyarrow.array, zip(*chunk, strict=True), schema.types)
            yield pyarrow.RecordBatch.from_arrays(list(arrays), schema=schema)

    return frame.mapInArrow(run, columns)


def raise_error(what: str | None, remedy: str | None) -> None:
    """Raise the UserError of a row of `map_numbers`, if it has one."""
    if what is not None:
        raise UserError(what, remedy=remedy or "")


@dataclass(frozen=True)
class Logs:
    """Files, the names of their two columns, their format ("": by their names), and a limit."""

    files: tuple[str, ...]
    question_column: str = "question"
    answer_column: str = "answer"
    format: str = ""
    max_rows: int = 0  # of each file; 0: all


class LogRow(NamedTuple):
    """A row of a log: question and answer in `canonical` form, and the text of the question."""

    key: str
    answer: str
    text: str


class Question(NamedTuple):
    """A distinct question: its first spelling, and its answer out of a number of answers."""

    text: str
    answer: str
    answers: int


class LogQuestions(NamedTuple):
    """The distinct questions of logs, and the numbers of good rows and of bad ones."""

    questions: list[Question]
    rows: int
    bad_rows: int


def read_log(logs: Logs, bad: BadRows) -> Iterator[LogRow]:
    """Yield the good rows of the file `bad.source`."""
    columns = (logs.question_column, logs.answer_column)

    def parse(line: int, fields: Fields) -> LogRow:
        question, answer = (fields[name] for name in columns)
        texts = []
        label = f"{answer}" if isinstance(answer, int) else answer
        for name, value in (("a question", question), ("an answer", label)):
            if not isinstance(value, str) or not value.strip():
                raise UserError(f"expected {name}, got {value!r:.60}")
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise UserError(f"expected Unicode text in {name} ({error.reason})") from None
            texts.append(" ".join(value.split()))
        return LogRow(canonical(texts[0]), canonical(texts[1]), texts[0])

    rows = read_rows(bad.source, columns, format=logs.format, remedy=NAME_COLUMNS)
    return bad.good(itertools.islice(rows, logs.max_rows or None), parse)


def distinct_questions(rows: Iterable[LogRow]) -> Iterator[Question]:
    """Yield each question once: its first spelling by code points, its most frequent answer."""
    texts: dict[str, str] = {}
    answers: dict[str, Counter[str]] = {}
    for key, answer, text in rows:
        texts[key] = min(texts.get(key, text), text)
        answers.setdefault(key, Counter())[answer] += 1
    for key, text in texts.items():
        (first, most), *others = answers[key].most_common(2)
        tied = bool(others) and others[0][1] == most
        yield Question(text, UNDECIDED if tied else first, len(answers[key]))


def read_questions(logs: Logs, *, skip_bad_rows: bool = False) -> LogQuestions:
    """Read the distinct questions of logs; UserError for a bad row unless `skip_bad_rows`."""
    bad = [BadRows(file, skip_bad_rows, _SKIP) for file in logs.files]
    count = 0

    def rows() -> Iterator[LogRow]:
        nonlocal count
        for row in itertools.chain.from_iterable(read_log(logs, each) for each in bad):
            count += 1
            yield row

    questions = [*distinct_questions(rows())]
    return LogQuestions(questions, count, sum(each.count for each in bad))


def read_questions_on_spark(
    session: Any, logs: Logs, *, skip_bad_rows: bool = False
) -> LogQuestions:
    """Read what `read_questions` reads; all machines must be able to read the files."""
    from pyspark import StorageLevel

    files = [*map(os.path.abspath, logs.files)]  # Spark may have another working directory

    def read(number: int) -> Iterator[tuple[str | None, ...]]:
        bad = BadRows(files[number], skip_bad_rows, _SKIP)
        yield from read_log(logs, bad)
        yield from [(None, None, None)] * bad.count

    columns = "key string, answer string, text string"
    rows = map_numbers(session, len(files), read, columns).persist(StorageLevel.DISK_ONLY)
    for error in rows.where("what is not null").select("what", "remedy").take(1):
        raise_error(*error)
    count, bad = rows.selectExpr("count(key)", "count_if(key is null)").first()
    # Starting a task costs as much as thousands of rows, so few rows get few partitions.
    partitions = max(session.sparkContext.defaultParallelism, count // _PARTITION)
    good = rows.where("key is not null").select("key", "answer", "text")
    questions = map_rows(
        good.repartition(partitions, "key"),
        lambda rows: distinct_questions(itertools.starmap(LogRow, rows)),
        "text string, answer string, answers bigint",
    )
    return LogQuestions([Question(*row) for row in questions.toLocalIterator()], count, bad)
