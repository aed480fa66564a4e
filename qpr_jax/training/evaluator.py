"""Validation scores, one of which early stopping watches."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qpr_jax.data.splits import SPLITS, other_candidates
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.retrieval import exact_search, overlap, rank, retrieval_scores, roc_auc
from qpr_jax.evaluation.translation import score_translations
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.teacher import NEIGHBORS, Teacher, neighbors

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
    agreement = None
    if metric == "agreement" and dataset.teacher:
        agreement = make_agreement(dataset, dataset.teacher, "validation")

    questions = dataset.data.questions

    def score(encoder: Encoder) -> dict[str, float]:
        def vectors_of(rows: np.ndarray) -> np.ndarray:
            return encoder.encode([questions[row] for row in rows])

        scores = {}
        if len(pairs):
            scores["roc_auc"] = pair_roc_auc(vectors_of, dataset, "validation")
        if metric == "roc_auc" or not all(map(math.isfinite, scores.values())):
            return scores
        if metric == "translation" and dataset.translations:
            accuracies = []
            for texts in dataset.translations.splits.held_out["validation"]:
                sides = encoder.encode(texts.sources), encoder.encode(texts.targets)
                scored = score_translations(*sides, None, texts.sources, texts.targets)
                accuracies += [scored["to_source"], scored["to_target"]]
            return scores | {"translation": float(np.mean(accuracies))}
        vectors = encoder.encode(questions)
        if metric == "mrr":
            queries = np.unique(pairs[:, 0])
            found = rank(exact_search(vectors), queries)
            per_pair = retrieval_scores(found, queries, pairs, dataset.clusters)["per_pair"]
            scores |= {"mrr": per_pair["mrr@20"], "hits@1": per_pair["hits@1"]}
        elif agreement:
            scores["agreement"] = agreement(vectors)
        return scores

    return score


def make_agreement(
    dataset: TrainDataset, teacher: Teacher, split: str
) -> Callable[[np.ndarray], float]:
    """Make a function from the vectors of all Q questions to their agreement with the teacher.

    Agreement is the share of the teacher's nearest `teacher.NEIGHBORS` questions that are among
    the student's nearest, averaged over at most MAX_QUERIES questions of the split.
    """
    queries = sample_questions(dataset, split, MAX_QUERIES)
    expected = neighbors(teacher, len(dataset.data.questions), queries)

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
