"""Search systems that studies compare: runs in one stage and two, a transformer, lexical ones."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from experiments.lexical import TextSearch, bm25_text_search, tfidf_text_search
from experiments.study import Flag
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import read_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, sha256_of
from qpr_jax.index.exact import exact_top_k
from qpr_jax.index.run import run_encoder_folder
from qpr_jax.reranking.light import LIGHT
from qpr_jax.retriever import Retriever, run_encoder, run_recipe
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.training.teacher import cached_vectors

T = TypeVar("T")
ONE, TWO = "one", "two"  # stages
BM25, TFIDF, MINILM = "bm25", "tfidf", "minilm"
# What is no run of this project, and what pages call it.
BASELINES = {BM25: "BM25", TFIDF: "TF-IDF", MINILM: "all-MiniLM-L6-v2"}
# What pages call some runs; others have their own name.
TITLES = BASELINES | {
    "quora_sdml": "`quora_sdml`",
    "quora_distilled": "`quora_distilled`",
    "multilingual_english": "student, English alone",
    "multilingual_distilled": "student, English and German",
    "multilingual_french": "student, English and French",
    "multilingual_czech": "student, English and Czech",
}
# Of every study that compares systems.
FLAGS = {
    "runs": Flag((), "NAME=FOLDER: score these finished runs, each as a row."),
    "baselines": Flag(False, "Score BM25, TF-IDF and all-MiniLM-L6-v2."),
    "teacher_cache": Flag("", "Folder of the transformer's vectors; empty: the user's cache."),
}


class System(NamedTuple):
    """A system over some questions.

    Attributes:
      searches: by stage: texts to rows of the questions and scores, a larger one is better.
      encoder: of the first stage; None for a lexical one.
    """

    searches: Mapping[str, TextSearch]
    encoder: Encoder | None = None


MakeSystem = Callable[[list[str]], System]  # over these questions


def title_of(name: str) -> str:
    """What a page calls a row."""
    return TITLES.get(name, f"`{name}`")


def in_order(rows: Mapping[str, T]) -> dict[str, T]:
    """Rows by name: baselines, then runs that `TITLES` knows, then others."""
    return {name: rows[name] for name in (*TITLES, *rows) if name in rows}


def read_run_folders(
    entries: Iterable[str], names: str, is_name: Callable[[str], bool]
) -> dict[str, pathlib.Path]:
    """Row -> folder, as entries `NAME=FOLDER` of a flag `runs` say; `names`: what a NAME may be."""
    found = {}
    for entry in entries:
        name, _, folder = entry.partition("=")
        if not is_name(name) or not folder:
            raise UserError(f"expected NAME=FOLDER, {names}, got {entry!r}", setting="runs")
        found[name] = pathlib.Path(folder).expanduser()
    return found


def given_runs(entries: Iterable[str]) -> dict[str, pathlib.Path]:
    """Row -> folder, as entries `NAME=FOLDER` of a flag `runs` name them."""
    return read_run_folders(
        entries,
        "NAME of letters, digits and _",
        lambda name: name.isidentifier() and name not in BASELINES,
    )


def baselines(cache: str) -> dict[str, MakeSystem]:
    """The makers of `BASELINES`; `cache` is the folder of the transformer's vectors."""
    return {
        BM25: lambda questions: System({ONE: bm25_text_search(questions)}),
        TFIDF: lambda questions: System({ONE: tfidf_text_search(questions)}),
        MINILM: lambda questions: cached_system(read_encoder(MINILM), questions, cache),
    }


def cached_system(encoder: Encoder, questions: list[str], cache: str) -> System:
    """A slow encoder by exact search; its vectors are computed once."""
    vectors = np.asarray(cached_vectors(cache, encoder, questions))
    row_of = {text: row for row, text in enumerate(questions)}

    def search(texts: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        if row_of.keys() >= {*texts}:
            queries = vectors[[row_of[text] for text in texts]]
        else:
            queries = np.asarray(cached_vectors(cache, encoder, texts))
        distances, rows = exact_top_k(queries, vectors, k)
        return rows, -distances

    return System({ONE: search}, encoder)


def run_identity(run: pathlib.Path) -> list[str]:
    """What the scores of a run depend on: its encoder, and its light re-ranker where it has one."""
    folder = run_encoder_folder(run)
    reranker = folder / LIGHT / MANIFEST
    return [read_encoder(folder).identity, *([sha256_of(reranker)] if reranker.exists() else [])]


def run_system(run: pathlib.Path, questions: list[str]) -> System:
    """A run's encoder by exact search, and its light re-ranker where it has one."""
    recipe = replace(run_recipe(run_encoder(run)), factory="Flat")
    retriever = Retriever.build(questions, run=run, recipe=recipe)

    def search(rerank: Literal[False, "light"]) -> TextSearch:
        def found(texts: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
            rows, scores = np.full((len(texts), k), -1, np.int64), np.zeros((len(texts), k))
            for i, hits in enumerate(retriever.search(texts, k, rerank=rerank)):
                rows[i, : len(hits)] = [hit.id for hit in hits]
                scores[i, : len(hits)] = [hit.score if rerank else -hit.distance for hit in hits]
            return rows, scores

        return found

    searches = {ONE: search(False)}
    if retriever.stages.choose(None, retriever.store):
        searches[TWO] = search("light")
    return System(searches, retriever.encoder)


def search_others(
    search: TextSearch, texts: Sequence[str], own: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `k` questions for each text but its own row, `own` int64 [n]: rows, scores [n, k].

    Fewer than k are -1, with a score of any value.
    """
    rows, scores = search(texts, k + 1)
    order = np.argsort(rows == own[:, None], axis=1, kind="stable")[:, :k]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def unknown_share(encoder: Encoder, texts: Iterable[str]) -> float:
    """The share of the words of texts that have no embedding of their own."""
    known = {*(encoder.summary().words or encoder.word_embeddings()[0])}
    counts = Counter(word for text in texts for word in tokenize(text))
    return sum(count for word, count in counts.items() if word not in known) / counts.total()
