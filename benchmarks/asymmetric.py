"""Questions encoded by a teacher and queries by its student: H@1 and MRR on Quora, exact search.

    python -m benchmarks.asymmetric runs/quora_distilled runs/imitation --documents-by minilm
    python -m benchmarks.asymmetric runs/quora_distilled --map

Means over the queries of validation and test, among all questions. `both` are the normalized sums
of the two vectors of a question. Differences, with 95 % intervals of a bootstrap over clusters of
questions, are to the run's queries among the run's own questions. `itself`: how many queries find
themselves first, before they are left out. The teacher's vectors are cached, as in a training.

With --map, the student's vectors are multiplied by the matrix that brings them nearest to the
teacher's, by least squares over half of the questions outside the held-out clusters.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from benchmarks.typos import difference
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.evaluation.metrics import reciprocal_rank
from qpr_jax.evaluation.retrieval import DEPTH
from qpr_jax.index.exact import exact_top_k
from qpr_jax.retriever import run_encoder
from qpr_jax.training.overrides import load_config
from qpr_jax.training.sources import SOURCES
from qpr_jax.training.teacher import cached_vectors
from qpr_jax.unit_vectors import unit_rows

_HEAD = ("split", "queries by", "questions by", "itself", "H@1", "difference", "MRR", "difference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="Folders of students.")
    parser.add_argument("--documents-by", default="minilm", help="The teacher.")
    parser.add_argument("--cache", default="", help="Folder of the teacher's vectors.")
    parser.add_argument("--map", action="store_true", help="Map the student's vectors first.")
    args = parser.parse_args()
    config = load_config("quora_distilled")
    source = SOURCES[config.data.source]
    path = source.find(config) if source.find else None
    if path is None:
        raise SystemExit("expected the Quora pairs; set QPR_DATA_DIR")
    data, clusters, splits = source.read(config, path)
    teacher = unit_rows(
        np.asarray(cached_vectors(args.cache, run_encoder(args.documents_by), data.questions))
    )
    print(f"| {' | '.join(_HEAD)} |\n{'|---' * len(_HEAD)}|", flush=True)
    queries = {split: np.unique(splits.pairs[split][:, 0]) for split in HELD_OUT}
    if not args.map:
        for line in rows(args.documents_by, teacher, teacher, clusters, queries, {}):
            print(line, flush=True)
    held_out = np.isin(clusters, clusters[np.concatenate([*queries.values()])])
    for run in args.runs:
        own = unit_rows(run_encoder(run).encode(data.questions))
        first: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        near = mapped(own, teacher, np.flatnonzero(~held_out)[::2]) if args.map else own
        by = f"{run}, mapped" if args.map else run
        for name, asked, vectors in (
            (run, own, own),
            (args.documents_by, near, teacher),
            ("both", near, unit_rows(near + teacher)),
        ):
            who = run if asked is own else by
            for line in rows(who, asked, vectors, clusters, queries, first, name):
                print(line, flush=True)


def mapped(vectors: np.ndarray, teacher: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The vectors times the matrix that is best for these rows, of length 1: float32 [Q, d]."""
    matrix, *_ = np.linalg.lstsq(vectors[rows], teacher[rows])
    return unit_rows(vectors @ matrix)


def rows(
    by: str,
    vectors: np.ndarray,
    documents: np.ndarray,
    clusters: np.ndarray,
    queries: dict[str, np.ndarray],
    first: dict[str, tuple[np.ndarray, np.ndarray]],
    name: str = "",
) -> Iterator[str]:
    """A line of the table for each split; `first` keeps the scores that others are compared to."""
    for split, own in queries.items():
        itself, hits, reciprocal = scores(vectors[own], documents, own, clusters)
        cells = [split, by, name or by, f"{itself:.3f}"]
        base = first.setdefault(split, (hits, reciprocal))
        for values, others in zip((hits, reciprocal), base, strict=True):
            same = values is others
            cells += [f"{values.mean():.4f}"]
            cells += ["" if same else difference(values, others, clusters[own])]
        yield f"| {' | '.join(cells)} |"


def scores(
    vectors: np.ndarray, documents: np.ndarray, queries: np.ndarray, clusters: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """The share that find themselves; Hits@1 and the reciprocal rank of each query, float [n]."""
    _, found = exact_top_k(vectors, documents, DEPTH + 1)
    others = np.stack([row[row != own][:DEPTH] for row, own in zip(found, queries, strict=True)])
    relevance = clusters[others] == clusters[queries][:, None]
    itself = float((found[:, 0] == queries).mean())
    return itself, relevance[:, 0].astype(float), reciprocal_rank(relevance, DEPTH)


if __name__ == "__main__":
    main()
