"""The stage of a run after its re-ranker: the probability that two questions mean the same.

It is learned from labeled pairs with a validation question, and tested on those with a test
question: labels are people's, while hits have duplicates that nobody labeled. Contrasts of
validation questions (`data.contrasts`), nearer than most paraphrases, count as others. Duplicates
and others are weighted so that the share of duplicates is that among hits of a search, as people
judged them: results/judged_hits.csv.
"""

from __future__ import annotations

import logging
import random

import numpy as np

from qpr_jax.data.clusters import in_one_cluster
from qpr_jax.data.contrasts import contrasts
from qpr_jax.data.splits import HELD_OUT, SPLITS, TEST
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.metrics import reliability
from qpr_jax.evaluation.retrieval import exact_search, rank
from qpr_jax.index.vectors import distances_to, pair_distances
from qpr_jax.reranking.calibration import PairCalibration
from qpr_jax.reranking.features import FeatureExtractor
from qpr_jax.reranking.light import LightModel
from qpr_jax.reranking.pairs import PairFeatures
from qpr_jax.reranking.recalibration import fit_pairs, rescale
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.evaluator import sample_questions

log = logging.getLogger(__name__)

SHARE = 34 / 300  # of results/judged_hits.csv
MIN_LABELED = 100  # of each label; fewer are too few to fit
MIN_DUPLICATES = 20  # pairs of validation questions
_HITS, _REACHED = 50, 20  # hits that the reach is chosen from; those within it, in the mean
_CONTRAST = 0.1  # weight of a contrast, that of a labeled pair is 1 in the mean
_MOST = 5000  # questions of a split whose hits are looked at


def calibrate_pairs(
    dataset: TrainDataset, encoder: Encoder, vectors: np.ndarray, light: LightModel | None
) -> PairCalibration | None:
    """Fit and test the calibration of a run; None without clusters.

    `vectors` are those of all questions, float32 [Q, d]; `light` is the re-ranker of the run.
    """
    if len(dataset.splits.pairs["validation"]) < MIN_DUPLICATES:
        log.info("no probabilities of pairs: there are no clusters to fit them on")
        return None
    features = PairFeatures()
    if light:
        words = FeatureExtractor(encoder, light.frequencies, light.word_weights)
        features = PairFeatures(words)

    def read(pairs: np.ndarray) -> np.ndarray:
        first, second = pairs.T
        distances = pair_distances(vectors, first, second)
        return features.of_pairs(dataset.data.questions, first, second, distances)

    (pairs, labels), (tested, truth) = (
        labeled_pairs(dataset, vectors, split) for split in HELD_OUT
    )
    if not 0 < labels.sum() < len(labels) or not 0 < truth.sum() < len(truth):
        log.info("no probabilities of pairs: expected duplicates and others among the hits")
        return None
    known, shares = read(pairs), share_weights(labels)
    inputs, same, weights = known, labels, shares
    if light:  # by the distance alone a contrast would be like a paraphrase
        texts, first, second = contrast_pairs(dataset, "validation")
        if len(first):
            distances = pair_distances(encoder.encode(texts), first, second)
            inputs = np.vstack([known, features.of_pairs(texts, first, second, distances)])
            same = np.append(same, np.zeros(len(first), bool))
            weights = np.append(weights, np.full(len(first), _CONTRAST))
    name = light.identity if light else ""
    reach = find_reach(dataset, vectors)
    ordered = fit_pairs(encoder.identity, inputs, same, weights, reach=reach, reranker=name)
    fitted = rescale(ordered, known, labels, shares)  # contrasts are no share of the hits
    scores = reliability(fitted.probabilities(read(tested)), truth, share_weights(truth))
    fitted.settings.update(
        fitted_pairs=len(labels), fitted_duplicates=int(labels.sum()), share=SHARE, test=scores
    )
    log.info(
        "probabilities of pairs: calibration error %.3f, Brier score %.3f (base rate %.3f)",
        *(scores[name] for name in ("ece", "brier", "base_brier")),
    )
    return fitted


def share_weights(labels: np.ndarray) -> np.ndarray:
    """Weights of pairs, of mean 1, such that the share of duplicates is SHARE: float64 [P]."""
    rate = labels.mean()
    return np.where(labels, SHARE / rate, (1 - SHARE) / (1 - rate))


def labeled_pairs(
    dataset: TrainDataset, vectors: np.ndarray, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs with a question of a held-out split, int [P, 2], and their labels.

    Nothing is learned from pairs with a test question. Data without labels of both kinds lend the
    nearest hits of the questions of the split; duplicates are those of one cluster.
    """
    data, split_of = dataset.data, dataset.splits.split_of
    kept = (split_of[data.pairs] == SPLITS.index(split)).any(axis=1)
    pairs, labels = data.pairs[kept], data.is_duplicate[kept]
    if np.bincount(labels, minlength=2).min() < MIN_LABELED:
        queries, hits, _ = nearest(dataset, vectors, split, _REACHED)
        pairs = np.stack([np.repeat(queries, hits.shape[1]), hits.ravel()], axis=1)
        labels = in_one_cluster(dataset.clusters, pairs)
    if split == "validation":
        kept = (split_of[pairs] != TEST).all(axis=1)
        pairs, labels = pairs[kept], labels[kept]
    return pairs, labels


def contrast_pairs(dataset: TrainDataset, split: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return questions of a split and their contrasts, and which form pairs.

    Returns:
      The texts; rows of a question and of its contrast, int64 [P] each.
    """
    rng, texts = random.Random(0), list[str]()
    first, second = list[int](), list[int]()
    for row in sample_questions(dataset, split, _MOST).tolist():
        texts.append(question := dataset.data.questions[row])
        own = len(texts) - 1
        for contrast in contrasts(question, rng):
            first.append(own)
            second.append(len(texts))
            texts.append(contrast)
    return texts, np.array(first, np.int64), np.array(second, np.int64)


def nearest(
    dataset: TrainDataset, vectors: np.ndarray, split: str, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return questions of a split [q], their nearest others [q, count], and the distances."""
    queries = sample_questions(dataset, split, _MOST)
    hits = rank(exact_search(vectors), queries, min(count, len(vectors) - 1))
    return queries, hits, distances_to(vectors[queries], vectors, hits)


def find_reach(dataset: TrainDataset, vectors: np.ndarray) -> float:
    """The distance within which a validation question has _REACHED others, in the mean."""
    queries, _, distances = nearest(dataset, vectors, "validation", _HITS)
    distances = np.sort(distances, axis=None)
    return float(distances[min(_REACHED * len(queries), len(distances)) - 1])
