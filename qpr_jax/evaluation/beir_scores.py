"""Score an encoder on a data set in BEIR's format by exact search, and write the run.

The scores are those of trec_eval, as BEIR's: nDCG takes the grade as gain, every other metric
counts a grade of 1 or more as relevant, and each query of the split counts.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO

import numpy as np

from qpr_jax.data.beir_format import Qrels, read_corpus, read_qrels, read_queries
from qpr_jax.errors import UserError, counted
from qpr_jax.evaluation.rankings import ranking_scores, reciprocal_rank
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.vectors import exact_top_k, nearest

CUTOFFS = (1, 3, 5, 10, 100)
DEPTH = 100
CHUNK = 16_384

Encode = Callable[[list[str]], np.ndarray]
Rankings = dict[str, dict[str, float]]  # of each query, the scores of its documents, best first
log = logging.getLogger("qpr_jax")


def beir_scores(
    encode: Encode, folder: StrPath, split: str = "test", *, trec: StrPath | None = None
) -> dict[str, float]:
    """Return `graded_scores` of a split, with the counts of its `queries` and `documents`.

    trec: gets the run in TREC's format, with DEPTH documents a query.
    """
    qrels, texts = read_qrels(folder, split), read_queries(folder)
    if without := [query for query in qrels if query not in texts]:
        what = f"{folder}: expected a text for each query of {split}, got none for {without[0]}"
        raise UserError(what, remedy="add it to queries.jsonl")
    missing = {name for judged in qrels.values() for name, grade in judged.items() if grade > 0}
    documents = 0

    def corpus() -> Iterator[tuple[str, str]]:
        nonlocal documents
        for name, text in read_corpus(folder):
            documents += 1
            missing.discard(name)
            if trec:
                _refuse_blank(name)
            yield name, text

    with write_atomically(trec, "w") if trec else contextlib.nullcontext() as file:
        for query in qrels if file else ():
            _refuse_blank(query)
        queries = {query: texts[query] for query in qrels}
        rankings = ranked_documents(encode, queries, corpus())
        if file:
            write_run(file, rankings)
    if missing:
        log.warning("the corpus lacks relevant documents, which count as missed: %d", len(missing))
    return {"queries": len(queries), "documents": documents, **graded_scores(rankings, qrels)}


def ranked_documents(
    encode: Encode,
    queries: Mapping[str, str],
    corpus: Iterable[tuple[str, str]],
    *,
    depth: int = DEPTH,
    chunk: int = CHUNK,
) -> Rankings:
    """Return the `depth` nearest documents of each query, nearest first, without its own id.

    A score is minus the squared Euclidean distance. Of equal scores the document with the later id
    comes first, as in trec_eval.

    queries: id -> text. corpus: distinct ids and texts, of which `chunk` are in memory at once.
    """
    vectors = encode([*queries.values()])
    ids: list[str] = []
    # One more, since a document with the id of the query may be among them; twice as many, so that
    # the ids decide among equal scores at the end.
    k, stream = 2 * (depth + 1), iter(corpus)
    found = np.zeros((len(vectors), 0), np.float32), np.zeros((len(vectors), 0), np.int64)
    while some := list(itertools.islice(stream, chunk)):
        documents = encode([text for _, text in some])
        distances, rows = exact_top_k(vectors, documents, min(k, len(documents)))
        found = nearest(k, found, (distances, rows + len(ids)))
        ids += [document for document, _ in some]
        log.info("searched %s", counted(len(ids), "document"))
    if not ids:
        raise UserError("corpus: expected documents, got none")
    rankings = {}
    for query, *row in zip(queries, *(part.tolist() for part in found), strict=True):
        hits = [(0 - distance, ids[i]) for distance, i in zip(*row, strict=True) if i >= 0]
        others = sorted((hit for hit in hits if hit[1] != query), reverse=True)
        rankings[query] = {name: score for score, name in others[:depth]}
    return rankings


def graded_scores(rankings: Rankings, qrels: Qrels) -> dict[str, float]:
    """Return `ndcg`, `map`, `recall`, `precision` and `mrr` at CUTOFFS, means over `qrels`.

    A query without a relevant document counts 0, and documents that the corpus lacks are missed.
    """
    grades = np.zeros((len(qrels), DEPTH), np.int64)
    ideal = np.zeros((len(qrels), DEPTH), np.int64)
    for row, (query, judged) in enumerate(qrels.items()):
        first = [judged.get(name, 0) for name in rankings[query]][:DEPTH]
        best = sorted(judged.values(), reverse=True)[:DEPTH]
        grades[row, : len(first)], ideal[row, : len(best)] = first, best
    relevant = np.array([sum(grade > 0 for grade in judged.values()) for judged in qrels.values()])
    scores = ranking_scores(grades, ideal, relevant, CUTOFFS)
    scores |= {f"mrr@{k}": reciprocal_rank(grades > 0, k) for k in CUTOFFS}
    return {name: float(values.mean()) for name, values in scores.items()}


def write_run(file: IO[str], rankings: Rankings) -> None:
    """Write lines `query Q0 document rank score qpr_jax`, as trec_eval reads them."""
    for query, scores in rankings.items():
        for rank, (document, score) in enumerate(scores.items(), start=1):
            # Nine digits identify a float32.
            file.write(f"{query} Q0 {document} {rank} {score:.9g} qpr_jax\n")


def _refuse_blank(name: str) -> None:
    if name.split() != [name]:
        what = f"TREC's format: expected ids without blanks, got {name!r}"
        raise UserError(what, remedy="leave `trec` out")
