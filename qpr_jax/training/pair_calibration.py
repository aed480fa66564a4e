"""The stage of a run after its re-ranker: the probability that two questions mean the same.

What orders pairs is learned from labeled pairs with a validation question and, with less weight,
from the nearest hits of validation questions, some of which are duplicates that nobody labeled,
and from contrasts of these questions (`data.contrasts`), which are nearer than most paraphrases.
What makes it a probability is learned from the labeled pairs alone, and tested on those with a test
question. They are weighted so that the share of duplicates is that among hits of a search, as
people judged them: results/judged_hits.csv.
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
_UNLABELED = 0.1  # weight of a hit or a contrast; that of a labeled pair is 1 in the mean
_MOST = 5000  # questions of a split whose hits are looked at


def calibrate_pairs(
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    light: LightModel | None,
    taught: tuple[np.ndarray, np.ndarray] | None = None,
) -> PairCalibration | None:
    """Fit and test the calibration of a run; None without clusters.

    `vectors` are those of all questions, float32 [Q, d]; `light` is the re-ranker of the run.
    `taught`: features of other pairs, float64 [P, f], and the probabilities that a teacher gives
    them, float64 [P]; each counts as a hit.
    """
    if (count := len(dataset.splits.pairs["validation"])) < MIN_DUPLICATES:
        log.info("no probabilities of pairs: too few validation pairs (%d)", count)
        return None
    words = FeatureExtractor(encoder, light.frequencies, light.word_weights) if light else None
    features, questions = PairFeatures(words), dataset.data.questions

    def read(pairs: np.ndarray, texts: list[str], vectors: np.ndarray) -> np.ndarray:
        first, second = pairs.T
        return features.of_pairs(texts, first, second, pair_distances(vectors, first, second))

    (pairs, labels), (tested, truth) = (
        labeled_pairs(dataset, vectors, split) for split in HELD_OUT
    )
    if not 0 < labels.sum() < len(labels) or not 0 < truth.sum() < len(truth):
        log.info("no probabilities of pairs: expected duplicates and others among the hits")
        return None
    hits, same, reach = near_pairs(dataset, vectors, "validation")
    known, shares = read(pairs, questions, vectors), share_weights(labels)
    inputs, same = [known, read(hits, questions, vectors)], np.append(labels, same)
    if light:  # by the distance alone a contrast would be like a paraphrase
        texts, others = contrast_pairs(dataset, "validation")
        if len(others):
            inputs.append(read(others, texts, encoder.encode(texts)))
            same = np.append(same, np.zeros(len(others), bool))
    weights = np.append(shares, np.full(len(same) - len(labels), _UNLABELED))
    if taught:
        inputs += [taught[0]] * 2
        same = np.append(same, np.repeat([True, False], len(taught[1])))
        weights = np.append(weights, _UNLABELED * np.append(taught[1], 1 - taught[1]))
    name = light.identity if light else ""
    ordered = fit_pairs(
        encoder.identity, np.vstack(inputs), same, weights, reach=reach, reranker=name
    )
    fitted = rescale(ordered, known, labels, shares)
    found = fitted.probabilities(read(tested, questions, vectors))
    scores = reliability(found, truth, share_weights(truth))
    fitted.settings.update(
        fitted_pairs=len(labels), fitted_duplicates=int(labels.sum()), share=SHARE, test=scores
    )
    text = "probabilities of pairs: calibration error %.3f, Brier score %.3f (base rate %.3f)"
    log.info(text, *(scores[name] for name in ("ece", "brier", "base_brier")))
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
        return near_pairs(dataset, vectors, split)[:2]
    return _learnable(dataset, pairs, labels, split)


def near_pairs(
    dataset: TrainDataset, vectors: np.ndarray, split: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the questions of a split with their nearest hits, as `labeled_pairs`, and the reach.

    Within the reach a question has _REACHED others, in the mean.
    """
    queries = sample_questions(dataset, split, _MOST)
    hits = rank(exact_search(vectors), queries, min(_HITS, len(vectors) - 1))
    distances = np.sort(distances_to(vectors[queries], vectors, hits), axis=None)
    reach = float(distances[min(_REACHED * len(queries), len(distances)) - 1])
    hits = hits[:, :_REACHED]
    pairs = np.stack([np.repeat(queries, hits.shape[1]), hits.ravel()], axis=1)
    labels = in_one_cluster(dataset.clusters, pairs)
    return *_learnable(dataset, pairs, labels, split), reach


def _learnable(
    dataset: TrainDataset, pairs: np.ndarray, labels: np.ndarray, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Leave out pairs with a test question, unless they are for the test."""
    kept = (split == "test") | (dataset.splits.split_of[pairs] != TEST).all(axis=1)
    return pairs[kept], labels[kept]


def contrast_pairs(dataset: TrainDataset, split: str) -> tuple[list[str], np.ndarray]:
    """Return questions of a split and their contrasts, and the rows of pairs, int64 [P, 2]."""
    rng, texts = random.Random(0), list[str]()
    pairs = list[tuple[int, int]]()
    for row in sample_questions(dataset, split, _MOST).tolist():
        own, question = len(texts), dataset.data.questions[row]
        texts += [question, *contrasts(question, rng)]
        pairs += [(own, contrast) for contrast in range(own + 1, len(texts))]
    return texts, np.array(pairs, np.int64).reshape(-1, 2)
