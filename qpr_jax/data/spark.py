"""Apache Spark: a session, and functions of Python that it maps over numbers and rows."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from qpr_jax.errors import UserError, needs

Row = tuple[Any, ...]
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
