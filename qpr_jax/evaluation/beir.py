"""Scores of an encoder on a set in BEIR's format, by exact search, and the run for other tools.

The scores are those of BEIR's `EvaluateRetrieval.evaluate` and `evaluate_custom(metric="mrr")`,
which are pytrec_eval's, that is trec_eval's: the gain of nDCG is the grade, all else counts a grade
of 1 or more as relevant, and every query of the split counts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import faiss
import numpy as np

from qpr_jax.data.beir import Qrels, read_corpus, read_qrels, read_queries
from qpr_jax.errors import UserError
from qpr_jax.evaluation import metrics
from qpr_jax.files import StrPath, write_atomically

CUTOFFS = (1, 3, 5, 10, 100)
DEPTH = 100
_CHUNK = 16_384  # documents that are held at once, text and vector
_BLOCK = 64  # queries whose distances are taken from differences at once
_ROUNDING = 2e-6  # of distances from products, as a share of the squared lengths
_GAP = np.float32(1e-9)  # between scores that would be equal; larger where float32 is coarser

Encode = Callable[[list[str]], np.ndarray]
Log = Callable[[str], object]


class RankedDocument(NamedTuple):
    """A document that was found; a higher score is nearer."""

    document: str
    score: float


def beir_scores(
    encode: Encode,
    folder: StrPath,
    split: str = "test",
    *,
    run_file: StrPath | None = None,
    log: Log = lambda line: None,
) -> dict[str, float]:
    """`graded_scores` of a split of a set in BEIR's format, with its `queries` and `documents`.

    Of the corpus, some thousands of texts are held at a time, and all ids.

    Args:
      run_file: where the run is written, in TREC's format, of DEPTH documents a query.
      log: is told how far it is, and of relevant documents that the corpus lacks.
    """
    qrels = read_qrels(folder, split)
    texts = read_queries(folder)
    for query in qrels:
        if query not in texts:
            raise UserError(
                f"{folder}: expected a text for each query of {split}, got none for {query}; "
                "mend queries.jsonl"
            )
    lacking = {name for judged in qrels.values() for name, grade in judged.items() if grade > 0}
    documents = 0

    def corpus() -> Iterator[tuple[str, str]]:
        nonlocal documents
        for name, text in read_corpus(folder):
            documents += 1
            lacking.discard(name)
            if run_file:
                _refuse_blank(name)
            yield name, text

    with write_atomically(run_file, "w") if run_file else contextlib.nullcontext() as file:
        for query in qrels if file else ():
            _refuse_blank(query)
        queries = {query: texts[query] for query in qrels}
        rankings = ranked_documents(encode, queries, corpus(), log=log)
        if file:
            write_run(file, rankings)
    if lacking:
        log(f"warning: the corpus lacks {len(lacking):,} relevant documents, which none can find")
    return {"queries": len(queries), "documents": documents, **graded_scores(rankings, qrels)}


def ranked_documents(
    encode: Encode,
    queries: Mapping[str, str],
    corpus: Iterable[tuple[str, str]],
    *,
    depth: int = DEPTH,
    log: Log = lambda line: None,
) -> dict[str, list[RankedDocument]]:
    """The `depth` nearest documents of each query, nearest first, without one that has its id.

    Every document is held against every query, some thousands of documents at a time: what stays
    are their ids. Scores are minus the squared Euclidean distance, from the differences, as
    float32; where they are equal, the document whose id comes later is first, as in trec_eval, and
    its score is lowered a little, so that tools that break ties in another way have the same order.

    Args:
      queries: id -> text.
      corpus: (id, text), ids distinct.
    """
    wanted = list(queries)
    vectors = _finite(encode([queries[query] for query in wanted]))
    ids: list[str] = []
    # One more: a document with the id of the query may be among them.
    near = np.full((len(wanted), depth + 1), np.inf, np.float32)
    found = np.full((len(wanted), depth + 1), -1, np.int64)
    for chunk in _chunks(corpus):
        documents, first = _finite(encode([text for _, text in chunk])), len(ids)
        ids += [document for document, _ in chunk]
        for rows, distances, positions in _candidates(vectors, documents, depth + 1):
            near[rows], found[rows] = _kept(
                np.hstack([near[rows], distances]),
                np.hstack([found[rows], positions + first]),
                depth + 1,
                ids,
            )
        log(f"searched {len(ids):,} documents")
    if not ids:
        raise UserError("corpus: expected documents, got none; give more")
    rankings = {}
    for query, row, scores in zip(wanted, found.tolist(), (0 - near).tolist(), strict=True):
        # Largest first, and of equal scores the later id.
        hits = sorted(
            ((score, ids[i]) for score, i in zip(scores, row, strict=True) if i >= 0), reverse=True
        )
        hits = [hit for hit in hits if hit[1] != query][:depth]
        rankings[query] = _distinct(hits)
    return rankings


def graded_scores(
    rankings: Mapping[str, Sequence[RankedDocument]], qrels: Qrels
) -> dict[str, float]:
    """`ndcg`, `map`, `recall`, `precision` and `mrr` at CUTOFFS, the mean over queries of `qrels`.

    A query without a relevant document counts 0. Documents of `qrels` that are not in the corpus
    count as not found. All in [0, 1]; as fractions, which BEIR rounds to five places.
    """
    grades = np.zeros((len(qrels), DEPTH), np.int64)
    ideal = np.zeros((len(qrels), DEPTH), np.int64)
    for row, (query, judged) in enumerate(qrels.items()):
        first = [judged.get(hit.document, 0) for hit in rankings[query][:DEPTH]]
        best = sorted(judged.values(), reverse=True)[:DEPTH]
        grades[row, : len(first)], ideal[row, : len(best)] = first, best
    relevance = grades > 0
    relevant = np.array([sum(grade > 0 for grade in judged.values()) for judged in qrels.values()])
    scores = {f"ndcg@{k}": metrics.graded_ndcg(grades, ideal, k) for k in CUTOFFS}
    scores |= {f"map@{k}": metrics.average_precision(relevance, relevant, k) for k in CUTOFFS}
    scores |= {f"recall@{k}": metrics.recall(relevance, relevant, k) for k in CUTOFFS}
    scores |= {f"precision@{k}": metrics.precision(relevance, k) for k in CUTOFFS}
    scores |= {f"mrr@{k}": metrics.reciprocal_rank(relevance, k) for k in CUTOFFS}
    return {name: float(values.mean()) for name, values in scores.items()}


def write_run(
    file: IO[str], rankings: Mapping[str, Sequence[RankedDocument]], tag: str = "qpr_jax"
) -> None:
    """Write `query Q0 document rank score tag` lines, ranks from 1, as trec_eval reads them.

    Ids must not have blanks.
    """
    for query, hits in rankings.items():
        for rank, hit in enumerate(hits, start=1):
            # Nine digits are one float32 each.
            file.write(f"{query} Q0 {hit.document} {rank} {hit.score:.9g} {tag}\n")


def _refuse_blank(name: str) -> None:
    if name.split() != [name]:
        raise UserError(
            f"TREC's format: expected ids without blanks, got {name!r}; leave `--trec` out"
        )


def _chunks(corpus: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    stream = iter(corpus)
    return iter(lambda: list(itertools.islice(stream, _CHUNK)), [])


def _finite(vectors: np.ndarray) -> np.ndarray:
    if not np.isfinite(vectors).all():
        raise UserError("`vectors`: expected finite numbers, got others; is the encoder sound?")
    return np.asarray(vectors, np.float32)


def _candidates(
    queries: np.ndarray, documents: np.ndarray, k: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(queries [n], squared distances float32 [n, m], documents [n, m]), with the k nearest of all.

    And with those at the distance of the last of them.
    """
    # The distances that FAISS takes from products lose what the squared lengths outweigh.
    centre = documents.mean(axis=0, dtype=np.float64).astype(np.float32)
    queries_there, there = queries - centre, documents - centre
    reach = min(k + 1, len(documents))
    rough, positions = faiss.knn(queries_there, there, reach)
    sure = np.ones(len(queries), np.bool_)
    if reach > k:  # what is not found is beyond the last, which may be as far as the one before
        lengths = (queries_there**2).sum(axis=1) + (there**2).sum(axis=1).max()
        sure = rough[:, k] - rough[:, k - 1] > _ROUNDING * lengths
    everything = np.arange(len(documents))[None]
    some = np.flatnonzero(sure)
    for start in range(0, len(some), _BLOCK):
        rows = some[start : start + _BLOCK]
        yield rows, _distances(queries[rows], documents[positions[rows]]), positions[rows]
    for row in np.flatnonzero(~sure)[:, None]:
        yield row, _distances(queries[row], documents[None]), everything


def _distances(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Squared, of queries [n, d] and the documents [n, m, d] of each: float32 [n, m]."""
    moves = queries[:, None] - documents
    return np.einsum("nmd,nmd->nm", moves, moves)


def _kept(
    near: np.ndarray, found: np.ndarray, k: int, ids: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of the candidates [n, m > k]; of those as far as the last, the later ids."""
    order = np.argsort(near, axis=1, kind="stable")
    near, found = np.take_along_axis(near, order, axis=1), np.take_along_axis(found, order, axis=1)
    last = near[:, k - 1]
    for row in np.flatnonzero((last == near[:, k]) & np.isfinite(last)):
        tied = np.flatnonzero(near[row] == last[row])
        found[row, tied] = sorted(found[row, tied].tolist(), key=ids.__getitem__, reverse=True)
    return near[:, :k], found[:, :k]


def _distinct(hits: Sequence[tuple[float, str]]) -> list[RankedDocument]:
    """The hits with scores that fall strictly, also as float32."""
    distinct: list[RankedDocument] = []
    before = np.float32(np.inf)
    for score, document in hits:
        below = min(np.nextafter(before, np.float32(-np.inf)), before - _GAP)
        before = min(np.float32(score), below)
        distinct.append(RankedDocument(document, float(before)))
    return distinct
