"""Quality beyond held-out Quora questions: changed queries, and questions of other kinds.

    python -m experiments.quality                         baselines and the packaged encoder
    python -m experiments.quality --runs=NAME=FOLDER,...  and finished runs, each as a row

Test questions of the Quora pairs are changed and searched among all questions as they were, without
their own: typos and the like should not change the first hit, a negation or another number should.
The other sets (`question_sets.py`) come from `qa_logs/` and `parallel/` in `$QPR_DATA_DIR`; a set
that an encoder was trained on is left out.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.pages import Column, difference, score_table, section, with_interval
from experiments.query_changes import CHANGES, OTHER, SAME, Changed, change_queries
from experiments.question_sets import MOST, SOURCES, has_seen, read_set
from experiments.scores import Measured, PerQuery, Scores
from experiments.study import Options, Study, Trial, log
from experiments.systems import (
    BASELINES,
    TWO_STAGES,
    System,
    TextSearch,
    baseline,
    run_system,
    search_others,
)
from qpr_jax.data.find_data import find_quora
from qpr_jax.errors import UserError
from qpr_jax.evaluation.rankings import read_ranks, write_ranks
from qpr_jax.retriever import read_encoder
from qpr_jax.training.dataset import load_dataset

QUERIES = "queries.npz"
CHANGED = 1000  # queries of a change that keeps the meaning
SMALL = 200  # questions of a set and queries of a change, with --smoke
ACCEPTED = 0.9  # the share of right first hits of unchanged queries that the threshold accepts
UNCHANGED = "unchanged"
BM25, PACKAGED = "bm25", "open_student"
SET_METRICS = {"ndcg@10": "nDCG@10", "hits@1": "H@1"}
# What the packaged encoder was trained on.
PACKAGED_SETS = ("clinc150", "webquestions", "tatoeba", "simplequestions")


class Corpus(NamedTuple):
    """All Quora questions, their clusters int [Q], and the test queries."""

    questions: list[str]
    clusters: np.ndarray
    rows: np.ndarray  # of the queries among the questions, int64 [q]
    changed: dict[str, Changed]  # change -> queries; `UNCHANGED` has all


@functools.cache
def read_corpus(smoke: bool) -> Corpus:
    """Read the Quora pairs and change the test questions; the same ones each time."""
    dataset = load_dataset(Trial("data", "quora_sdml").config(smoke=smoke), find_quora())
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


def trials(options: Options) -> list[Trial]:
    """The baselines, the packaged encoder, and the runs that `--runs` names."""
    systems: dict[str, tuple[System, Sequence[str]]] = {
        name: (baseline(name), [*SOURCES]) for name in BASELINES
    }
    folders = given_runs(options.runs)
    for name, folder in {PACKAGED: PACKAGED, **folders}.items():
        seen = has_seen(read_encoder(folder).settings) if name in folders else PACKAGED_SETS
        unseen = [one for one in SOURCES if one not in seen]
        systems[name] = (functools.partial(run_system, folder), unseen)
    return [
        Trial(
            name,
            make=functools.partial(make_row, system=system, sets=sets, smoke=options.smoke),
            facts={"run": str(folders[name])} if name in folders else {},
        )
        for name, (system, sets) in systems.items()
    ]


def given_runs(text: str) -> dict[str, str]:
    """Row -> folder, from `NAME=FOLDER,...`."""
    found = {}
    for entry in filter(None, text.split(",")):
        name, _, folder = entry.partition("=")
        if not name.isidentifier() or not folder or name in (*BASELINES, PACKAGED):
            raise UserError(f"expected NAME=FOLDER, got {entry!r}", setting="--runs")
        found[name] = str(pathlib.Path(folder).expanduser())
    return found


def make_row(folder: pathlib.Path, *, system: System, sets: Sequence[str], smoke: bool) -> None:
    """Search with a system; write the scores of each query, as `STAGE|METRIC`."""
    arrays: dict[str, np.ndarray] = {}
    corpus = read_corpus(smoke)
    log.info("searching among %s Quora questions", f"{len(corpus.questions):,}")
    for stage, search in system(corpus.questions).items():
        for metric, found in changed_scores(search, corpus).items():
            arrays |= _arrays(stage, metric, found)
    for name in sets:
        questions = read_set(name, SMALL if smoke else MOST)
        texts = [questions.texts[i] for i in questions.queries]
        log.info("searching among %s questions of %s", f"{len(questions.texts):,}", name)
        for stage, search in system(questions.texts).items():
            rows, _ = search_others(search, texts, questions.queries, 10)
            for metric, values in questions.scores(rows).items():
                found = PerQuery(values, questions.clusters)
                arrays |= _arrays(stage, f"{name} {metric}", found)
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
        own = corpus.rows[changed.queries]
        rows, scores = search_others(search, changed.texts, own, 1)
        first = rows[:, 0]
        right[name] = (first >= 0) & (corpus.clusters[first] == corpus.clusters[own])
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
    """The scores of a row by stage."""
    arrays = read_ranks(folder / QUERIES)
    found: dict[str, dict[str, PerQuery | float]] = {}
    for key, values in arrays.items():
        if not key.endswith("|clusters"):
            stage, _, metric = key.partition("|")
            found.setdefault(stage, {})[metric] = PerQuery(values, arrays[f"{key}|clusters"])
    return dict(found)


def compare(row: str) -> Sequence[str]:
    """BM25."""
    return [] if row == BM25 else [BM25]


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Sets of other kinds, changes that keep the meaning, and changes of the meaning."""
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


STUDY = Study(
    name="quality",
    results="quality",
    trials=trials,
    measure=measure,
    compare=compare,
    page=page,
    smoke=(BM25, PACKAGED),
    options={"runs": "NAME=FOLDER,...: finished runs, each as a row."},
)

if __name__ == "__main__":
    STUDY.main()
