"""The first hits of test queries before and after changes: what `robustness` measures."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from benchmarks.typos import read_test
from experiments.query_changes import CHANGES, Changed, change_queries
from experiments.systems import System, search_others
from experiments.trials import log
from qpr_jax.training.config import TrainConfig

UNCHANGED = "unchanged"


class Corpus(NamedTuple):
    """All questions, their clusters int [Q], and the test queries.

    Attributes:
      rows: of the queries among the questions, int64 [q].
      changed: change -> queries; `UNCHANGED` has all.
    """

    questions: list[str]
    clusters: np.ndarray
    rows: np.ndarray
    changed: dict[str, Changed]


def read_corpus(config: TrainConfig, most: int) -> Corpus:
    """Read the Quora pairs, and change the test questions; the same ones each time."""
    questions, clusters, rows = read_test(config)
    of_cluster = defaultdict(list)
    for row in np.flatnonzero(clusters >= 0).tolist():
        of_cluster[clusters[row]].append(row)
    texts = [questions[row] for row in rows]
    paraphrases = [
        [questions[other] for other in of_cluster[clusters[row]] if other != row]
        for row in rows.tolist()
    ]
    changed = {UNCHANGED: Changed(np.arange(len(rows)), texts)}
    for name in CHANGES:
        changed[name] = change_queries(name, texts, paraphrases, most)
    return Corpus(questions, clusters, rows, changed)


def find_hits(system: System, corpus: Corpus) -> dict[str, np.ndarray]:
    """Search for all changed queries; their own questions are not found.

    Returns:
      `CHANGE STAGE right`: whether the first hit is a paraphrase of the query before the change,
      bool [n], and `CHANGE STAGE score`: of the first hit, float32 [n].
    """
    found = {}
    for stage, search in system.searches.items():
        for name, changed in corpus.changed.items():
            own = corpus.rows[changed.queries]
            rows, scores = search_others(search, changed.texts, own, 1)
            first = rows[:, 0]
            right = (first >= 0) & (corpus.clusters[first] == corpus.clusters[own])
            found[f"{name} {stage} right"] = right
            found[f"{name} {stage} score"] = scores[:, 0].astype(np.float32)
            log.info("%s, %s: %.3f", name, stage, right.mean() if len(right) else 0)
    return found
