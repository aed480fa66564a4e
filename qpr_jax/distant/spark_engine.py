"""Logs on Apache Spark: its workers read the files and find the distinct questions."""

from __future__ import annotations

import itertools
import os
from typing import Any

from qpr_jax.distant.logs import LogQuestions, LogRow, Logs, Question, distinct_questions, read_log
from qpr_jax.errors import UserError
from qpr_jax.spark_session import Rows, arrow_map

_PARTITION = 100_000  # rows, about


def read_questions(spark: Any, logs: Logs, *, skip_bad_rows: bool = False) -> LogQuestions:
    """Read what `logs.read_questions` reads; all machines must be able to read the files."""
    from pyspark import StorageLevel

    files = [*map(os.path.abspath, logs.files)]  # Spark may have another working directory

    def read(numbers: Rows) -> Rows:
        for (number,) in numbers:
            try:
                for row in read_log(logs, files[number], skip_bad_rows=skip_bad_rows):
                    yield *(row or (None, None, None)), None, None
            except UserError as error:  # the driver raises it, without a traceback of Java
                yield None, None, None, error.what, error.remedy

    def group(rows: Rows) -> Rows:
        yield from distinct_questions(itertools.starmap(LogRow, rows))

    columns = "key string, answer string, text string, what string, remedy string"
    numbers = spark.range(len(files)).repartitionByRange(len(files), "id")
    rows = numbers.mapInArrow(*arrow_map(read, columns)).persist(StorageLevel.DISK_ONLY)
    for what, remedy in rows.where("what is not null").select("what", "remedy").take(1):
        raise UserError(what, remedy=remedy)
    count, bad = rows.selectExpr("count(key)", "count_if(key is null)").first()
    # Starting a task costs as much as thousands of rows, so few rows get few partitions.
    partitions = max(spark.sparkContext.defaultParallelism, count // _PARTITION)
    good = rows.where("key is not null").select("key", "answer", "text")
    columns = "text string, answer string, answers bigint"
    questions = good.repartition(partitions, "key").mapInArrow(*arrow_map(group, columns))
    return LogQuestions([Question(*row) for row in questions.toLocalIterator()], count, bad)
