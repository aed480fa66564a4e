"""Search systems that studies compare: lexical ones, a transformer, and finished runs."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from experiments.study import Trial
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.evaluation.retrieval import TextSearch, bm25_search, rank, score_search
from qpr_jax.evaluation.scores import write_ranks
from qpr_jax.files import StrPath
from qpr_jax.locations import index_config_of, read_encoder
from qpr_jax.retriever import Retriever
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.training.sources import find_quora

TWO_STAGES = "two stages"
MINILM = "minilm"
# The systems without a run of their own: what pages call them.
BASELINES = {"bm25": "BM25", "tfidf": "TF-IDF", MINILM: "all-MiniLM-L6-v2"}

# Indexes questions; returns a search for each stage, "" being the first.
System = Callable[[list[str]], Mapping[str, TextSearch]]


def tfidf_search(questions: Sequence[str]) -> TextSearch:
    """Cosine of TF-IDF vectors; a question that shares no word with the query is never found."""
    vectorizer = TfidfVectorizer(analyzer=tokenize, dtype=np.float32)
    by_word = vectorizer.fit_transform(questions).T.tocsr()
    return score_search(lambda text: (vectorizer.transform([text]) @ by_word).toarray()[0])


def baseline(name: str) -> System:
    """Return a system of `BASELINES`."""
    if name == MINILM:
        return functools.partial(run_system, MINILM)
    search = {"bm25": bm25_search, "tfidf": tfidf_search}[name]
    return lambda questions: {"": search(questions)}


def run_system(run: StrPath, questions: list[str]) -> Mapping[str, TextSearch]:
    """Search exactly by the encoder of a run, and by its model of pairs if it has one."""
    index_config = replace(index_config_of(read_encoder(run)), factory="Flat")
    retriever = Retriever.build(questions, encoder=run, index_config=index_config)

    def search(
        rerank: Literal[False] | None, texts: Sequence[str], k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, scores = np.full((len(texts), k), -1, np.int64), np.zeros((len(texts), k))
        for i, hits in enumerate(retriever.search(texts, k, rerank=rerank)):
            rows[i, : len(hits)] = [hit.id for hit in hits]
            scores[i, : len(hits)] = [
                -hit.distance if rerank is False else hit.score for hit in hits
            ]
        return rows, scores

    stages = {"": functools.partial(search, False)}
    if retriever.ordering(None):
        stages[TWO_STAGES] = functools.partial(search, None)
    return stages


def search_others(
    search: TextSearch, texts: Sequence[str], query_rows: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `k` questions for each text but itself: rows and scores, [n, k].

    query_rows: of the texts. Rows are -1, with any score, if fewer than k are found.
    """
    rows, scores = search(texts, k + 1)
    order = np.argsort(rows == query_rows[:, None], axis=1, kind="stable")[:, :k]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def baseline_trial(name: str, preset: str, changes: Mapping[str, Any]) -> Trial:
    """Return the trial of a baseline on the held-out Quora pairs of a preset."""

    def make(folder: pathlib.Path, smoke: bool) -> None:
        from qpr_jax.training.dataset import load_dataset
        from qpr_jax.training.report import query_ranks

        dataset = load_dataset(Trial(name, preset, changes).config(smoke), find_quora())
        questions = dataset.data.questions
        search = baseline(name)(questions)[""]

        def by_row(rows: np.ndarray, k: int) -> np.ndarray:
            return search([questions[row] for row in rows], k)[0]

        ranks: dict[str, np.ndarray] = {}
        for split in HELD_OUT:
            rankings = {"exact": rank(by_row, np.unique(dataset.splits.pairs[split][:, 0]))}
            ranks |= query_ranks(dataset, split, rankings)
        write_ranks(folder / "ranks.npz", ranks)

    return Trial(name, title=BASELINES[name], make=make)
