"""Hits of the same meaning against opposites and other numbers, on the Quora pairs.

    python -m benchmarks.opposites [--quick]

H@1 and MRR of test questions by exact search, and in how many triples of test questions the same
meaning is above a contrast. A triple is a query, a paraphrase, and a negation, another number or an
opposite of one of the two, made by rule (`qpr_jax.data.contrasts`). `open_student`'s re-ranker has
learned from no labels: the logit of the score, times a weight, is added to its order of hits
(`python -m experiments.calibration --order`).
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
from qpr_jax.evaluation.retrieval import retrieval_scores
from qpr_jax.index.vectors import pair_distances
from qpr_jax.reranking.base import TextLists
from qpr_jax.reranking.light import LightReranker
from qpr_jax.reranking.stages import read_stages
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import TrainDataset, load_dataset
from qpr_jax.training.rerank_data import Finder
from qpr_jax.training.teacher import cached_vectors

TRIPLES = 500
WEIGHTS = 0.0, 2.0, 3.0, 4.0, 5.0, 6.0


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


def as_lists(encoder: Encoder, texts: list[str]) -> TextLists:
    """The paraphrase and the contrast of each triple as hits of the query."""
    rows = np.arange(len(texts)).reshape(-1, 3)
    vectors = encoder.encode(texts)
    distances = pair_distances(vectors, np.repeat(rows[:, 0], 2), rows[:, 1:].ravel())
    hits = [text for i, text in enumerate(texts) if i % 3]
    return TextLists(texts[::3], hits, distances, np.arange(0, len(hits) + 1, 2))


def share(scores: np.ndarray) -> str:
    """Of the scores of paraphrases and contrasts, in turns: how many paraphrases are ahead."""
    return f"{(scores[::2] > scores[1::2]).mean():.3f}"


def measure(dataset: TrainDataset, texts: list[str]) -> list[list[str]]:
    """One row of each order of hits of `open_student`."""
    encoder, stages = read_stages("open_student")
    light, known = stages.light, stages.require_calibration()
    assert light
    vectors = np.asarray(cached_vectors(encoder, dataset.data.questions), np.float32)
    triples, scored = as_lists(encoder, texts), stages.pair_features()
    rows = [["distance", "", "", share(-triples.distances)]]
    rows.append(["score", "", "", share(scored.score_hits(known, triples))])
    pairs = dataset.splits.pairs["test"]
    queries = np.unique(pairs[:, 0])
    assert scored.extractor
    finder = Finder(dataset.data.questions, vectors, scored.extractor, light.candidates)
    hits = finder.find(queries)
    lists, found = finder.texts(hits), hits.rows.reshape(len(queries), -1)
    for weight in WEIGHTS:
        fitted = dataclasses.replace(known, order=weight)
        reranker = LightReranker(light, encoder, calibration=fitted)
        places = np.argsort(-reranker.score(lists)[1].reshape(found.shape), kind="stable")
        ranking = np.take_along_axis(found, places, axis=1)
        per = retrieval_scores(ranking, queries, pairs, dataset.clusters)["per_query"]
        metrics = (f"{per[metric]:.3f}" for metric in ("hits@1", "mrr@20"))
        scores = share(reranker.score(triples)[1])
        rows.append([f"two stages, weight {weight:g}", *metrics, scores])
    return [[f"`open_student`, {row[0]}", *row[1:]] for row in rows]


def main() -> int:
    """Measure."""
    given = report.parser(__doc__).parse_args()
    changes = {"data.max_rows": 20_000} if given.quick else {}
    dataset = load_dataset(load_config("quora_sdml", changes), find_quora())
    texts = make_triples(dataset)
    minilm = share(-as_lists(read_stages("minilm")[0], texts).distances)
    rows = [["all-MiniLM-L6-v2, distance", "", "", minilm], *measure(dataset, texts)]
    head = ["by", "test H@1", "MRR", "same above the contrast"]
    note = f"{len(texts) // 3} triples. The package has the weight 5."
    report.finish("opposites", given, [report.Table("Orders of hits", head, rows, note)])
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
