"""Quality beyond held-out Quora questions: changed queries, and questions of other kinds.

    python -m experiments.quality                           all rows, then the page
    python -m experiments.quality --rows=bm25,open_student  some rows

Test questions of the Quora pairs are changed and searched among all questions as they were, without
their own: typos and the like should not change the first hit, a negation or another number should.
The other sets (`question_sets.py`) come from `qa_logs/` and `parallel/` in `$QPR_DATA_DIR`; a set
that an encoder was trained on is left out.
"""

from __future__ import annotations

import functools
import pathlib
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from experiments import multilingual
from experiments.pages import Column, difference, score_table, section, with_interval
from experiments.query_changes import CHANGES, OTHER, SAME, Changed, change_queries
from experiments.question_sets import MOST, SOURCES, read_set
from experiments.scores import Measured, PerQuery, Scores
from experiments.study import Study, Trial, log
from experiments.systems import (
    BASELINES,
    TWO_STAGES,
    TextSearch,
    baseline,
    run_system,
    search_others,
)
from qpr_jax.evaluation.scores import read_ranks, write_ranks
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.presets import PRESETS
from qpr_jax.training.sources import find_quora

QUERIES = "queries.npz"
CHANGED = 1000  # queries of a change that keeps the meaning
SMALL = 200  # questions of a set and queries of a change, with --smoke
ACCEPTED = 0.9  # the share of right first hits of unchanged queries that the threshold accepts
UNCHANGED = "unchanged"
BM25, PACKAGED = "bm25", "open_student"
SET_METRICS = {"ndcg@10": "nDCG@10", "hits@1": "H@1"}
# The sets that an encoder was trained on.
SEEN = {
    PACKAGED: ("clinc150", "webquestions", "tatoeba", "simplequestions"),
    multilingual.PRESET: ("tatoeba",),
}


class Corpus(NamedTuple):
    """All Quora questions, their clusters int [Q], and the test queries."""

    questions: list[str]
    clusters: np.ndarray
    rows: np.ndarray  # of the queries among the questions, int64 [q]
    changed: dict[str, Changed]  # change -> queries; `UNCHANGED` has all


@functools.cache
def read_corpus(smoke: bool) -> Corpus:
    """Read the Quora pairs and change the test questions; the same ones each time."""
    dataset = load_dataset(Trial("data", "quora_sdml").config(smoke), find_quora())
    questions, clusters = dataset.data.questions, dataset.clusters
    rows = np.unique(dataset.splits.pairs["test"][:, 0])
    texts = [questions[row] for row in rows]
    paraphrases = [
        [questions[other] for other in np.flatnonzero(clusters == clusters[row]) if other != row]
        for row in rows
    ]
    most = SMALL if smoke else CHANGED
    changed = {UNCHANGED: Changed(np.arange(len(rows)), texts)}
    changed |= {name: change_queries(name, texts, paraphrases, most) for name in CHANGES}
    return Corpus(questions, clusters, rows, changed)


def make_row(name: str, folder: pathlib.Path, smoke: bool) -> None:
    """Search with a system; write the scores of each query, as `STAGE|METRIC`."""
    if name in BASELINES:
        system = baseline(name)
    else:
        system = functools.partial(run_system, PACKAGED if name == PACKAGED else folder)
    arrays: dict[str, np.ndarray] = {}
    corpus = read_corpus(smoke)
    log.info("searching among %s Quora questions", f"{len(corpus.questions):,}")
    for stage, search in system(corpus.questions).items():
        for metric, found in changed_scores(search, corpus).items():
            arrays |= _arrays(stage, metric, found)
    for kind in SOURCES:
        if kind in SEEN.get(name, ()):
            continue
        questions = read_set(kind, SMALL if smoke else MOST)
        texts = [questions.texts[i] for i in questions.queries]
        log.info("searching among %s questions of %s", f"{len(questions.texts):,}", kind)
        for stage, search in system(questions.texts).items():
            rows, _ = search_others(search, texts, questions.queries, 10)
            for metric, values in questions.scores(rows).items():
                found = PerQuery(values, questions.clusters)
                arrays |= _arrays(stage, f"{kind} {metric}", found)
    write_ranks(folder / QUERIES, arrays)


def _arrays(stage: str, metric: str, found: PerQuery) -> dict[str, np.ndarray]:
    key = f"{stage}|{metric}"
    return {key: found.values.astype(np.float32), f"{key}|clusters": found.clusters}


def changed_scores(search: TextSearch, corpus: Corpus) -> dict[str, PerQuery]:
    """Score the first hits before and after each change.

    A hit is right if it is a paraphrase of the query before the change. The threshold is the score
    that `ACCEPTED` of the right hits of unchanged queries reach.
    """
    right: dict[str, np.ndarray] = {}
    score: dict[str, np.ndarray] = {}
    for name, changed in corpus.changed.items():
        itself = corpus.rows[changed.queries]
        rows, scores = search_others(search, changed.texts, itself, 1)
        first = rows[:, 0]
        right[name] = (first >= 0) & (corpus.clusters[first] == corpus.clusters[itself])
        score[name] = scores[:, 0]
    accepted = score[UNCHANGED][right[UNCHANGED]]
    threshold = np.quantile(accepted, 1 - ACCEPTED) if len(accepted) else np.inf
    clusters = corpus.clusters[corpus.rows]
    some = corpus.changed[SAME[0]].queries
    found = {f"H@1, {UNCHANGED}": PerQuery(right[UNCHANGED][some], clusters[some])}
    for name in SAME:
        queries = corpus.changed[name].queries
        found[f"H@1, {name}"] = PerQuery(right[name], clusters[queries])
    for name in OTHER:
        queries = corpus.changed[name].queries
        before = right[UNCHANGED][queries]
        if before.any():
            still, of = right[name][before], clusters[queries][before]
            above = still & (score[name][before] >= threshold)
            found[f"old hit still first, {name}"] = PerQuery(still, of)
            found[f"old hit still first and above the threshold, {name}"] = PerQuery(above, of)
    return found


def measure(folder: pathlib.Path) -> dict[str, Measured]:
    """Read the scores of a row by stage."""
    arrays = read_ranks(folder / QUERIES)
    found: dict[str, dict[str, PerQuery | float]] = {}
    for key, values in arrays.items():
        if not key.endswith("|clusters"):
            stage, _, metric = key.partition("|")
            found.setdefault(stage, {})[metric] = PerQuery(values, arrays[f"{key}|clusters"])
    return dict(found)


def quality_trial(trial: Trial) -> Trial:
    """Return a trial with its searches, compared with BM25."""
    return replace(trial, make=functools.partial(make_row, trial.name), minus=(BM25,))


TRIALS = [
    *map(quality_trial, (Trial(name) for name in (*BASELINES, PACKAGED))),
    *(
        quality_trial(Trial(name, name, {"rerank.candidates": PRESETS[name]["rerank.candidates"]}))
        for name in ("quora_sdml", "quora_distilled", "quora_distilled_sums")
    ),
    *map(quality_trial, multilingual.ROWS[:2]),
]


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format sets of other kinds, changes that keep the meaning, and changes of the meaning."""
    rows = {}
    for row in scores.table["row"].unique():
        name, _, stage = row.partition(", ")
        title = BASELINES.get(name, f"`{name}`")
        rows[row] = f"{title}, {TWO_STAGES}" if stage else title
    kinds: list[str] = []
    for metric, title in SET_METRICS.items():
        columns = [Column(name, f"{name} {metric}") for name in SOURCES]
        kinds += score_table(scores, rows, columns, title)
    columns = [Column(name, f"{name} ndcg@10", difference) for name in SOURCES]
    others = {row: title for row, title in rows.items() if row != BM25}
    kinds += score_table(scores, others, columns, "nDCG@10 less BM25's")
    columns = [Column("unchanged", f"H@1, {UNCHANGED}")]
    columns += [Column(CHANGES[name].title, f"H@1, {name}") for name in SAME]
    same = score_table(scores, rows, columns, "H@1")
    columns = []
    for name in OTHER:
        start = "old hit still first"
        columns += [Column(CHANGES[name].title, f"{start}, {name}", with_interval)]
        metric = f"{start} and above the threshold, {name}"
        columns += [Column("and above the threshold", metric, with_interval)]
    other = score_table(scores, rows, columns)
    return [
        *section("Questions of other kinds", kinds),
        *section("The same meaning: how many first hits are right", same),
        *section("Another meaning: how many first hits stay, though they are wrong now", other),
    ]


STUDY = Study(name="quality", trials=TRIALS, measure=measure, page=page, smoke=(BM25, PACKAGED))

if __name__ == "__main__":
    STUDY.main()
