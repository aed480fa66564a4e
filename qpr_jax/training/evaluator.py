"""Validation scores, one of which early stopping watches."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qpr_jax.data.splits import SPLITS, other_candidates
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.evaluation.retrieval import (
    exact_search,
    overlap,
    rank,
    retrieval_scores,
    roc_auc,
    score_set,
)
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.teacher import NEIGHBORS, neighbors
from qpr_jax.training.train_data import TrainDataset

MAX_QUERIES = 2000  # questions of a split to measure agreement on


def make_evaluator(
    dataset: TrainDataset, config: TrainConfig
) -> Callable[[Encoder], dict[str, float]]:
    """Make a function from an encoder to its scores on the validation split.

    The scores are `roc_auc`, if there are pairs, and what early stopping watches: `mrr` and
    `hits@1` per pair, or `agreement` with the teacher, by exact search over all questions; or
    `translation`, the mean accuracy over languages and both directions.
    """
    pairs, metric = dataset.splits.pairs["validation"], config.early_stopping.metric
    questions, translations = dataset.data.questions, dataset.translations
    agreement = make_agreement(dataset, "validation") if metric == "agreement" else None

    def score(encoder: Encoder) -> dict[str, float]:
        def vectors_of(rows: np.ndarray) -> np.ndarray:
            return encoder.encode([questions[row] for row in rows])

        scores = {}
        if len(pairs):
            scores["roc_auc"] = pair_roc_auc(vectors_of, dataset, "validation")
        if metric == "roc_auc" or not all(map(math.isfinite, scores.values())):
            return scores
        if metric == "translation" and translations:
            held_out = translations.splits.held_out["validation"]
            scored = [score_set(texts, encoder.encode) for texts in held_out]
            both = [(found["to_source"], found["to_target"]) for found in scored]
            return scores | {"translation": float(np.mean(both))}
        vectors = encoder.encode(questions)
        if agreement:
            return scores | {"agreement": agreement(vectors)}
        queries = np.unique(pairs[:, 0])
        found = rank(exact_search(vectors), queries)
        per_pair = retrieval_scores(found, queries, pairs, dataset.clusters)["per_pair"]
        return scores | {"mrr": per_pair["mrr@20"], "hits@1": per_pair["hits@1"]}

    return score


def make_agreement(dataset: TrainDataset, split: str) -> Callable[[np.ndarray], float]:
    """Make a function from the vectors of all Q questions to their agreement with the teacher.

    Agreement is the share of the teacher's nearest `teacher.NEIGHBORS` questions that are among
    the student's nearest, averaged over at most MAX_QUERIES questions of the split.
    """
    assert dataset.teacher  # else the settings were refused
    queries = sample_questions(dataset, split, MAX_QUERIES)
    expected = neighbors(dataset.teacher, len(dataset.data.questions), queries)

    def agreement(vectors: np.ndarray) -> float:
        found = rank(exact_search(vectors), queries, NEIGHBORS)
        return overlap(found, expected, NEIGHBORS)

    return agreement


def eval_queries(dataset: TrainDataset, split: str) -> np.ndarray:
    """The queries of a split: the first questions of its pairs or, without pairs, a sample."""
    pairs = dataset.splits.pairs[split]
    return np.unique(pairs[:, 0]) if len(pairs) else sample_questions(dataset, split, MAX_QUERIES)


def sample_questions(dataset: TrainDataset, split: str, most: int) -> np.ndarray:
    """Return rows of the questions of a split, at most `most`, int64 [q]."""
    questions = np.flatnonzero(dataset.splits.split_of == SPLITS.index(split))
    return np.sort(np.random.default_rng(0).permutation(questions)[:most])


def pair_roc_auc(
    vectors_of: Callable[[np.ndarray], np.ndarray], dataset: TrainDataset, split: str
) -> float:
    """ROC AUC of minus the distance: pairs against their queries with candidates of other clusters.

    `vectors_of` is a function from rows of questions to their vectors. NaN if a distance is not
    finite.
    """
    pairs, clusters = dataset.splits.pairs[split], dataset.clusters[: len(dataset.data.questions)]
    triplets = np.column_stack([pairs, other_candidates(pairs, clusters, seed=0)])
    distinct, at = np.unique(triplets, return_inverse=True)
    # The NaN reports weights that diverged; warnings would only repeat it.
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = vectors_of(distinct)
        queries, candidates, others = vectors[at.reshape(triplets.shape).T]
        positive, negative = (((queries - side) ** 2).sum(axis=1) for side in (candidates, others))
    return roc_auc(positive, negative) if np.isfinite(positive + negative).all() else math.nan
