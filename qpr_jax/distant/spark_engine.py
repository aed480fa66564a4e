"""The engine of distant supervision on Apache Spark: the functions of `method` on partitions."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from qpr_jax.distant.folder import ClusterResult, check_clusters_left
from qpr_jax.distant.logs import WHOLE_FILE, BadRow, Logs, bad_row_error, read_log
from qpr_jax.distant.method import (
    UNDECIDED,
    WEIGHTED_WORDS,
    Bounds,
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
from qpr_jax.distant.report import SAMPLE
from qpr_jax.spark_session import Rows, arrow_map

_WORDS = 1_000_000  # most words that a task counts in memory
_PARTITION = 100_000  # rows, about
_CLUSTER = (
    "answer string, size bigint, coherence double, kept boolean, split_draw bigint, "
    "sample_draw bigint, shown array<string>, questions array<string>"
)


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
            *arrow_map(
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
            *arrow_map(lambda rows: group_clusters(rows, method, weights), _CLUSTER)
        )
    )
    sizes, coherences, kept, draws = _columns(found, "size", "coherence", "kept", "split_draw")
    decided_questions = counts["questions"] - counts["undecided_questions"]
    counts["questions_alone"] = decided_questions - int(sizes.sum())
    check_clusters_left(counts, kept, coherences, method)
    bounds = split_bounds(draws[kept])
    kept_clusters = found.where("kept")
    dropped = _overlap(kept_clusters, bounds)
    counts["overlapping_questions"] = dropped.count()
    return ClusterResult(
        counts,
        sizes,
        coherences,
        kept,
        sample=_sample(kept_clusters),
        clusters=_finished(kept_clusters, dropped, bounds, method),
        texts=(text for (text,) in questions.select("text").orderBy("text").toLocalIterator()),
    )


def _overlap(kept_clusters: Any, bounds: Bounds) -> Any:
    """Find the questions of validation and test that are also in train, as `find_overlap`."""
    words = kept_clusters.mapInArrow(
        *arrow_map(
            lambda rows: (row for values in rows for row in overlap_keys(Cluster(*values), bounds)),
            "words string, split bigint, answer string, text string",
        )
    )
    ordered = _sort_partitions(words, "words", "split", "answer", "text")
    return _persist(ordered.mapInArrow(*arrow_map(find_overlap, "answer string, text string")))


def _finished(
    kept_clusters: Any, dropped: Any, bounds: Bounds, method: Method
) -> Iterator[FinishedCluster]:
    """Yield the clusters without the questions of `_overlap`, sorted by answer."""

    def finish(rows: Rows) -> Iterator[FinishedCluster]:
        clusters = ((Cluster(*cluster), texts or ()) for *cluster, texts in rows)
        return finish_clusters(clusters, bounds, method)

    columns = "answer string, split string, line string, questions bigint, pairs array<string>"
    texts = dropped.groupBy("answer").agg({"text": "collect_list"})
    with_dropped = kept_clusters.join(texts, "answer", "left").orderBy("answer")
    rows = with_dropped.mapInArrow(*arrow_map(finish, columns)).toLocalIterator()
    return itertools.starmap(FinishedCluster, rows)


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
    rows = _persist(numbers.mapInArrow(*arrow_map(read, columns)))
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

    parts = questions.select("text").mapInArrow(*arrow_map(count, "word string, uses bigint"))
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


def _sample(kept_clusters: Any) -> list[Cluster]:
    """Return the sample for verdicts, without all questions of its clusters."""
    ordered = kept_clusters.drop("questions").orderBy("sample_draw", "answer")
    rows = ordered.limit(SAMPLE).collect()
    return [Cluster(**row.asDict(), questions=[]) for row in rows]
