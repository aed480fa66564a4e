"""Hits of the same meaning against opposites and other numbers, on the Quora pairs.

    python -m benchmarks.opposites [--quick]

`open_student`'s re-ranker has learned from no labels. The logit of its score, of at least .05, is
added to its order of hits, times a weight (`python -m experiments.calibration --order`). This
program compares weights: H@1 and MRR of two stages, by exact search, and in how many triples of
test questions the same meaning is above a contrast. A triple is a query, a paraphrase, and a
negation, another number or an opposite of one of the two, made by rule (`qpr_jax.data.contrasts`).
"""

from __future__ import annotations

import dataclasses
import random
import sys

import numpy as np

from benchmarks import report
from qpr_jax.cli.program import run_program
from qpr_jax.data.contrasts import contrasts
from qpr_jax.data.sources import find_quora
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.retrieval import exact_search, rank, retrieval_scores
from qpr_jax.index.vectors import distances_to, pair_distances
from qpr_jax.reranking.base import TextLists
from qpr_jax.reranking.light import LightReranker
from qpr_jax.reranking.stages import Stages, read_stages
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import TrainDataset, load_dataset
from qpr_jax.training.teacher import cached_vectors

WEIGHTS = 0.0, 1.0, 2.0, 3.0, 4.0, 6.0
TRIPLES = 500


def make_triples(dataset: TrainDataset) -> list[str]:
    """Query, paraphrase and contrast, one triple of a test cluster, one after another."""
    rng = random.Random(0)
    texts: list[str] = []
    seen: set[int] = set()
    questions, pairs = dataset.data.questions, dataset.splits.pairs["test"].tolist()
    rng.shuffle(pairs)
    for first, second in pairs:
        query, same = questions[first], questions[second]
        cluster = dataset.clusters[first]
        made = contrasts(rng.choice([query, same]), rng)
        if made and cluster not in seen and len(seen) < TRIPLES:
            seen.add(cluster)
            texts += [query, same, rng.choice(made)]
    return texts


def triple_distances(encoder: Encoder, texts: list[str]) -> np.ndarray:
    """Distances of the queries to the same and to the contrasts, float32 [2 T], in turns."""
    queries = np.repeat(np.arange(0, len(texts), 3), 2)
    others = queries + np.tile([1, 2], len(texts) // 3)
    return pair_distances(encoder.encode(texts), queries, others)


def as_lists(queries: list[str], hits: list[str], distances: np.ndarray) -> TextLists:
    """Lists of equally many hits."""
    starts = np.arange(len(queries) + 1) * (len(hits) // len(queries))
    return TextLists(queries, hits, distances.ravel(), starts)


def share(scores: np.ndarray) -> str:
    """Of the scores of the same and of the contrasts, in turns: how many times the same wins."""
    return f"{(scores[::2] > scores[1::2]).mean():.3f}"


def measure_weights(
    dataset: TrainDataset, vectors: np.ndarray, stages: Stages, triples: TextLists
) -> list[list[str]]:
    """One row for each weight."""
    light, known, questions = stages.light, stages.calibration, dataset.data.questions
    assert light
    assert known
    searched = {}
    for split in ("validation", "test"):
        queries = np.unique(dataset.splits.pairs[split][:, 0])
        found = rank(exact_search(vectors), queries, light.candidates)
        distances = distances_to(vectors[queries], vectors, found)
        texts, hits = ([questions[i] for i in rows.ravel().tolist()] for rows in (queries, found))
        searched[split] = queries, found, as_lists(texts, hits, distances)
    rows = []
    for weight in WEIGHTS:
        fitted = dataclasses.replace(known, order=weight)
        reranker = LightReranker(light, stages.encoder, calibration=fitted)
        row = [f"{weight:g}"]
        for split, (queries, found, lists) in searched.items():
            scores = reranker.score(lists)[1].reshape(found.shape)
            places = np.argsort(-scores, axis=1, kind="stable")
            ranking = np.take_along_axis(found, places, axis=1)
            pairs = dataset.splits.pairs[split]
            per = retrieval_scores(ranking, queries, pairs, dataset.clusters)["per_query"]
            row += [f"{per['hits@1']:.3f}", f"{per['mrr@20']:.4f}"]
        rows.append([*row, share(reranker.score(triples)[1])])
    return rows


def main() -> int:
    """Measure."""
    given = report.parser(__doc__).parse_args()
    changes = {"data.max_rows": 20_000} if given.quick else {}
    dataset = load_dataset(load_config("quora_sdml", changes), find_quora())
    encoder, stages = read_stages("open_student")
    texts = make_triples(dataset)
    distances = triple_distances(encoder, texts)
    hits = [text for i, text in enumerate(texts) if i % 3]
    triples = as_lists(texts[::3], hits, distances)
    assert stages.calibration
    scores = stages.pair_features().score_hits(stages.calibration, triples)
    minilm = read_stages("minilm")[0]
    others = [
        ["all-MiniLM-L6-v2, distance", share(-triple_distances(minilm, texts))],
        ["`open_student`, distance", share(-distances)],
        ["`open_student`, score", share(scores)],
    ]
    vectors = np.asarray(cached_vectors(encoder, dataset.data.questions), np.float32)
    rows = measure_weights(dataset, vectors, stages, triples)
    head = ["weight", "validation H@1", "MRR", "test H@1", "MRR", "same above the contrast"]
    title = "Two stages of `open_student`, by the weight of the score's logit in their order"
    note = f"{len(texts) // 3} triples. The package has the weight 3."
    tables = [
        report.Table(title, head, rows, note),
        report.Table("Triples with the same above the contrast", ["by", "share"], others),
    ]
    report.finish("opposites", given, tables)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
