"""Distant supervision on one machine, in memory."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from qpr_jax.distant.folder import Made, refuse_nothing_left
from qpr_jax.distant.logs import WHOLE_FILE, BadRow, Logs, read_log, refusal
from qpr_jax.distant.method import (
    UNDECIDED,
    Cluster,
    Finished,
    LogRow,
    Method,
    clusters,
    distinct_questions,
    finished,
    keyed,
    most_used,
    overlapping,
    split_bounds,
    word_weights,
    words_of,
)
from qpr_jax.distant.report import LARGEST, SAMPLE
from qpr_jax.errors import UserError
from qpr_jax.machine import available_memory

_ROW, _CHARACTER = 512, 8  # bytes of memory that a row takes, and a character of its texts


def make_clusters(logs: Logs, method: Method, *, skip_bad_rows: bool = False) -> Made:
    """The clusters of logs; UserError for a bad row, unless skipped, and where no cluster is left.

    And for logs that memory does not hold: half a kilobyte a row, and its texts.
    """
    rows, bad_rows = _read(logs, skip_bad_rows)
    rows.sort()
    questions = list(distinct_questions(rows))
    counts = {
        "rows": len(rows),
        "bad_rows": bad_rows,
        "questions": len(questions),
        "questions_of_several_answers": sum(question.answers > 1 for question in questions),
        "undecided_questions": sum(question.answer == UNDECIDED for question in questions),
    }
    del rows
    uses = Counter(word for question in questions for word in words_of(question.text))
    weights = word_weights(most_used(uses), len(questions))
    decided = sorted((q.answer, q.text) for q in questions if q.answer != UNDECIDED)
    found = list(clusters(decided, method, weights))
    counts["questions_alone"] = len(decided) - sum(cluster.size for cluster in found)
    kept = np.array([cluster.kept for cluster in found], np.bool_)
    coherences = np.array([cluster.coherence for cluster in found], np.float64)
    refuse_nothing_left(counts, kept, coherences, method)
    staying = [cluster for cluster in found if cluster.kept]
    bounds = split_bounds(np.array([cluster.split_draw for cluster in staying], np.int64))
    dropped: dict[str, list[str]] = defaultdict(list)
    for answer, text in overlapping(sorted(row for c in staying for row in keyed(c, bounds))):
        dropped[answer].append(text)
    counts["overlapping_questions"] = sum(map(len, dropped.values()))

    def ready() -> Iterator[Finished]:
        for cluster in staying:
            if done := finished(cluster, bounds, dropped.get(cluster.answer, ()), method):
                yield done

    def by_size(cluster: Cluster) -> tuple[int, str]:
        return -cluster.size, cluster.answer

    return Made(
        counts,
        np.array([cluster.size for cluster in found], np.int64),
        coherences,
        kept,
        largest_removed=heapq.nsmallest(LARGEST, (c for c in found if not c.kept), by_size),
        largest_kept=heapq.nsmallest(LARGEST, staying, by_size),
        sample=heapq.nsmallest(SAMPLE, staying, lambda cluster: cluster.sample_draw),
        clusters=ready(),
        texts=sorted(question.text for question in questions),
    )


def _read(logs: Logs, skip_bad_rows: bool) -> tuple[list[LogRow], int]:
    rows: list[LogRow] = []
    bad = needed = 0
    answers: dict[str, str] = {}  # each once, however long and often given
    most = available_memory()
    for file in logs.files:
        for row in read_log(logs, file):
            if not isinstance(row, BadRow):
                if row.answer not in answers:
                    needed += _CHARACTER * len(row.answer)
                needed += _ROW + _CHARACTER * len(row.text)
                answer = answers.setdefault(row.answer, row.answer)
                rows.append(LogRow(row.key, answer, row.text))
            elif skip_bad_rows and row.line != WHOLE_FILE:
                bad += 1
            else:
                raise refusal(file, row)
            if needed > most:
                raise UserError(
                    f"expected logs that memory holds, about {len(rows):,} rows, got more; use "
                    "`--spark 'local[*]'`, which needs little, or a cluster"
                )
    return rows, bad
