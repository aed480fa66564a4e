"""The engine of distant supervision in memory."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict

import numpy as np

from qpr_jax.distant.folder import ClusterResult, check_clusters_left
from qpr_jax.distant.logs import WHOLE_FILE, BadRow, Logs, bad_row_error, read_log
from qpr_jax.distant.method import (
    UNDECIDED,
    LogRow,
    Method,
    distinct_questions,
    find_overlap,
    finish_clusters,
    group_clusters,
    most_used,
    overlap_keys,
    split_bounds,
    word_weights,
    words_of,
)
from qpr_jax.distant.report import SAMPLE
from qpr_jax.errors import UserError
from qpr_jax.machine import available_memory

_ROW, _CHARACTER = 512, 8  # bytes of memory for a row, and for a character of its texts


def make_clusters(logs: Logs, method: Method, *, skip_bad_rows: bool = False) -> ClusterResult:
    """Make the clusters of logs.

    Raises UserError for a bad row unless `skip_bad_rows`, if no cluster is left, and for logs that
    do not fit into memory: half a kilobyte a row, and its texts.
    """
    rows, bad_rows = _read(logs, skip_bad_rows)
    rows.sort()
    questions = list(distinct_questions(rows))
    counts = {
        "rows": len(rows),
        "bad_rows": bad_rows,
        "questions": len(questions),
        "questions_of_several_answers": sum(q.answers > 1 for q in questions),
        "undecided_questions": sum(q.answer == UNDECIDED for q in questions),
    }
    del rows
    uses = Counter(word for question in questions for word in words_of(question.text))
    weights = word_weights(most_used(uses), len(questions))
    decided = sorted((q.answer, q.text) for q in questions if q.answer != UNDECIDED)
    found = list(group_clusters(decided, method, weights))
    counts["questions_alone"] = len(decided) - sum(cluster.size for cluster in found)
    kept = np.array([cluster.kept for cluster in found], np.bool_)
    coherences = np.array([cluster.coherence for cluster in found], np.float64)
    check_clusters_left(counts, kept, coherences, method)
    kept_clusters = [cluster for cluster in found if cluster.kept]
    bounds = split_bounds(np.array([cluster.split_draw for cluster in kept_clusters], np.int64))
    dropped: dict[str, list[str]] = defaultdict(list)
    keys = sorted(row for cluster in kept_clusters for row in overlap_keys(cluster, bounds))
    for answer, text in find_overlap(keys):
        dropped[answer].append(text)
    counts["overlapping_questions"] = sum(map(len, dropped.values()))
    with_dropped = ((cluster, dropped.get(cluster.answer, ())) for cluster in kept_clusters)

    return ClusterResult(
        counts,
        np.array([cluster.size for cluster in found], np.int64),
        coherences,
        kept,
        sample=heapq.nsmallest(SAMPLE, kept_clusters, lambda cluster: cluster.sample_draw),
        clusters=finish_clusters(with_dropped, bounds, method),
        texts=sorted(question.text for question in questions),
    )


def _read(logs: Logs, skip_bad_rows: bool) -> tuple[list[LogRow], int]:
    rows: list[LogRow] = []
    bad = needed = 0
    answers: dict[str, str] = {}  # each object once, to save memory
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
                raise bad_row_error(file, row)
            if needed > most:
                raise UserError(
                    f"expected logs that fit into memory, about {len(rows):,} rows, got more",
                    remedy="use the option `spark` of `qpr clusters`, for example local[*], which "
                    "needs little memory",
                )
    return rows, bad
