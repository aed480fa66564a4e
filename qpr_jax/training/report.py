"""The report of a run: scores on held-out clusters, times, data and settings."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from qpr_jax.data.parallel_sentences import file_names
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.evaluation.retrieval import (
    DEPTH,
    Corpus,
    bm25_search,
    exact_search,
    first_ranks,
    index_search,
    known_shares,
    rank,
    retrieval_scores,
    score_set,
    time_queries,
)
from qpr_jax.evaluation.scores import rank_scores, write_ranks
from qpr_jax.files import write_atomically, write_json
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.protocol import PAPER
from qpr_jax.index.vectors import Vectors
from qpr_jax.pair_model.words import WordsModel
from qpr_jax.retriever import Retriever
from qpr_jax.running import cpu_count, peak_memory
from qpr_jax.training.config import TrainConfig, fingerprint
from qpr_jax.training.evaluator import eval_queries, make_agreement, pair_roc_auc
from qpr_jax.training.metrics import read_json_lines
from qpr_jax.training.pair_model_job import score_contrasts, score_hits
from qpr_jax.training.publishing import render
from qpr_jax.training.teacher import NEIGHBORS
from qpr_jax.training.train_data import TrainDataset
from qpr_jax.training.translations import TranslationData

log = logging.getLogger(__name__)

TIMED_QUERIES = 200
FEW_QUESTIONS = 5000  # that a transformer encodes in seconds
SEARCHES = ("exact", "paper", "start", "bm25")  # beside the index of the run
SHOWN = ("hits@1", "hits@10", "mrr@20", "recall@10", "map@20", "ndcg@10")
DEFAULTS = fingerprint(TrainConfig())
PACKAGES = ("faiss-cpu", "flax", "jax", "numpy", "optax", "orbax-checkpoint")


def write_report(
    folder: pathlib.Path,
    config: TrainConfig,
    dataset: TrainDataset,
    retriever: Retriever,
    vectors: np.ndarray,
    *,
    encode_seconds: float,
) -> dict[str, Any]:
    """Score the run in `folder`; write report.md, ranks.npz and, last, report.json; return that.

    `vectors` are those of all questions, float32 [Q, d].
    """
    model, words = retriever.pair_model, None
    if isinstance(model, WordsModel) and "start" not in model.settings:
        words = model  # trained by this run
    store = retriever.store
    assert isinstance(store, FolderStore)  # a run makes no other
    report, gains = _score_splits(folder, dataset, store.vectors, vectors, words)
    report["encoder"] = retriever.encoder.fingerprint
    if words:
        facts: dict[str, Any] = {"depth": words.depth, "farthest": words.farthest}
        facts["above_contrasts"] = score_contrasts(dataset, retriever.encoder, words)
        report["pair_model"] = facts | words.settings
    report["data"] = dataset.report
    report["index"] = {
        "factory": store.vectors.factory,
        "nprobe": store.index_config.nprobe,
        "questions": len(retriever),
        "recall@10": store.vectors.recall(),
    }
    timed = [dataset.data.questions[i] for i in eval_queries(dataset, "test")[:TIMED_QUERIES]]
    if dataset.translations:
        scores = _translation_scores(dataset, dataset.translations, retriever.encoder, vectors)
        report["translations"] = scores
    seconds = [row["seconds"] for row in read_json_lines(folder / "metrics.jsonl")]
    report["timing"] = {
        **time_queries(functools.partial(retriever.search, rerank=False), timed),
        **({"steps": len(seconds), "train_seconds": sum(seconds)} if seconds else {}),
        "encode_questions_per_second": len(vectors) / encode_seconds,
        "peak_memory_gib": peak_memory() / 2**30,
    }
    # An encoder keeps the sizes of the one that its training started from.
    report["settings"] = fingerprint(config) | getattr(retriever.encoder, "settings", {})
    report["machine"] = _machine(config)
    also = {
        "folder": folder,
        "evaluations": read_json_lines(folder / "evaluations.jsonl"),
        "neighbors": NEIGHBORS,
        "rows": _score_rows(report),
        "gains": gains,
        "changed": {n: v for n, v in report["settings"].items() if DEFAULTS.get(n) != v},
    }
    with write_atomically(folder / "report.md", "w") as file:
        file.write(render("report.md", **report, **also))
    # Last, because this file marks the run as finished.
    write_json(folder / "report.json", report)
    return report


def _machine(config: TrainConfig) -> dict[str, Any]:
    """What the run was made with."""
    return {
        "device": jax.devices()[0].device_kind,
        "devices": config.devices or jax.device_count(),
        "cpus": cpu_count(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _score_splits(
    folder: pathlib.Path,
    dataset: TrainDataset,
    index: Vectors,
    vectors: np.ndarray,
    words: WordsModel | None,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Score the held-out splits, and write ranks.npz if they have pairs.

    Also returns Hits@1 of test queries, and the differences of it to the start and to BM25, if both
    are known: [mean, low, high] each, of a 95 % interval.
    """
    exact, indexed = exact_search(vectors), index_search(index, vectors)
    searches = {"index": indexed, "paper": index_search(Vectors.build(PAPER, vectors), vectors)}
    deepest = max(DEPTH, words.depth if words else 0)
    report: dict[str, Any] = {}
    start, questions = dataset.start, dataset.data.questions
    if any(len(dataset.splits.pairs[split]) for split in HELD_OUT):
        by_words = bm25_search(questions)
        searches["bm25"] = lambda rows, k: by_words([questions[row] for row in rows], k)[0]
    if isinstance(start, CnnEncoder) or (start and len(questions) <= FEW_QUESTIONS):
        searches["start"] = exact_search(start.encode(questions))
    ranks: dict[str, np.ndarray] = {}
    for split in HELD_OUT:
        found: dict[str, Any] = {}
        if len(pairs := dataset.splits.pairs[split]):
            queries = eval_queries(dataset, split)
            rankings = {name: rank(search, queries) for name, search in searches.items()}
            first = {
                "index": rank(indexed, queries, deepest),
                "exact": rank(exact, queries, deepest),
            }
            rankings["exact"] = first["exact"][:, :DEPTH]
            reranks = words and split == "test"  # the words model was trained on the others
            if words and reranks:
                for name, places in first.items():
                    logits = score_hits(words, dataset.data.questions, vectors, queries, places)
                    logits[:, words.depth :] = -np.inf
                    order = np.argsort(-logits, axis=1, kind="stable")[:, :DEPTH]
                    rankings[f"reranked_{name}"] = np.take_along_axis(places, order, axis=1)
            ranks |= query_ranks(dataset, split, rankings)
            scores = {
                name: retrieval_scores(places, queries, pairs, dataset.clusters)
                for name, places in rankings.items()
            }
            found |= scores["index"]
            found |= {name: scores[name] for name in SEARCHES if name in scores}
            found["roc_auc"] = pair_roc_auc(vectors.__getitem__, dataset, split)
            if reranks:
                found["reranked"] = scores["reranked_index"] | {
                    "exact": scores["reranked_exact"],
                    "gain": {search: _gain(ranks, split, search) for search in first},
                }
        if dataset.teacher:
            found["agreement"] = make_agreement(dataset, split)(vectors)
        report[split] = found
    if ranks:
        write_ranks(folder / "ranks.npz", ranks)
    return report, _gains(ranks)


def _gains(ranks: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """Compare the final order of the hits of test queries with other searches, by Hits@1."""
    final = "reranked_index" if "test_reranked_index" in ranks else "index"
    found = {}
    for name in ("", "start", "bm25"):
        if f"test_{final}" in ranks and (not name or f"test_{name}" in ranks):
            table = rank_scores(ranks, "test", final, "query", minus=name)
            found[name or "all"] = table[:, 0].tolist()
    return found


def _score_rows(report: Mapping[str, Any]) -> list[tuple[list[str], list[float]]]:
    """Return the rows of the table of scores: what is scored, and SHOWN; equal ones once."""
    rows: list[tuple[list[str], list[float]]] = []
    for split in HELD_OUT:
        shown: list[list[float]] = []
        for stage, title in (("", ""), ("reranked", ", re-ranked")):
            scores = report[split].get(stage, {}) if stage else report[split]
            for search in ("index", *SEARCHES):
                found = scores if search == "index" else scores.get(search, {})
                for over, label in (("per_pair", "pairs"), ("per_query", "queries")):
                    values = [found[over][name] for name in SHOWN] if over in found else []
                    if values and values not in shown:
                        shown.append(values)
                        rows.append(([split, search + title, label], values))
    return rows


def query_ranks(
    dataset: TrainDataset, split: str, rankings: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The arrays of ranks.npz for a split with pairs, of whose queries these are the rankings.

    They are named `SPLIT_...` and have an entry per query: `ids`, `clusters`, `pairs` (how many
    start with it), and by search the rank of the first relevant question, from 1, or 0 for none.
    """
    queries, counts = np.unique(dataset.splits.pairs[split][:, 0], return_counts=True)
    clusters = dataset.clusters
    found = {"ids": dataset.data.ids[queries], "clusters": clusters[queries], "pairs": counts}
    for name, places in rankings.items():
        found[name] = first_ranks(places, queries, clusters).astype(np.uint8)
    return {f"{split}_{name}": values for name, values in found.items()}


def _gain(ranks: dict[str, np.ndarray], split: str, search: str) -> dict[str, Any]:
    """What the pair model adds: [difference, low, high] of each score, a 95 % interval."""
    found, names = {}, ("hits@1", "hits@10", "mrr@20")
    for over in ("pair", "query"):
        table = rank_scores(ranks, split, f"reranked_{search}", over, minus=search)
        found[f"per_{over}"] = dict(zip(names, table.T.tolist(), strict=True))
    return found


def _translation_scores(
    dataset: TrainDataset, translations: TranslationData, encoder: Encoder, vectors: np.ndarray
) -> dict[str, Any]:
    """Score translations; held-out ones also search the questions, of vectors float32 [Q, d]."""
    splits, teacher = translations.splits, dataset.teacher
    corpus = Corpus(dataset.data.questions, vectors)
    # What the student learned for a text, unless only the vectors of the teacher are there.
    expected = teacher.encode if teacher and teacher.encoder else None
    sets = []
    for split in (*HELD_OUT, ""):
        for texts in splits.held_out[split] if split else splits.tests:
            named = texts._replace(name=split or file_names(texts.name))
            among = corpus if split else None
            sets.append(score_set(named, encoder.encode, teacher=expected, corpus=among))
    return {
        "source_language": splits.train[0].source_language,
        "files": translations.files(),
        "counts": splits.report,
        "known": known_shares(dataset.tokenizer, splits.train),
        "sets": sets,
    }
