"""Features of two texts that do not change if the texts swap, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpr_jax.reranking.base import TextLists, starts_of
from qpr_jax.reranking.calibration import PairCalibration
from qpr_jax.reranking.features import FeatureExtractor, symmetric
from qpr_jax.text.folding import folded
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import fold

MOST = 0.999  # the largest score of a pair that is no copy
_BLOCK = 1 << 17  # pairs whose features are computed at once
_NONE = 1e-6  # a squared distance of equal vectors, where they are rounded


def pair_features(distances: np.ndarray, features: np.ndarray | None = None) -> np.ndarray:
    """Join squared distances [m], their roots, and symmetric FEATURES, if given: float64 [m, f]."""
    squares = np.maximum(np.asarray(distances, np.float64), 0)[:, None]
    words = [] if features is None else [symmetric(features)]
    return np.hstack([np.sqrt(squares), squares, *words])


@dataclass(frozen=True)
class PairFeatures:
    """The distance of two texts and its root and, with word statistics, how their words differ.

    A score is the probability that the texts mean the same. Thread-safe.
    """

    # Of the light re-ranker; None: the features are of the distance alone.
    extractor: FeatureExtractor | None = None

    def of_hits(self, lists: TextLists) -> np.ndarray:
        """Compute the features of queries and their hits, float64 [m, f]; distances are squared."""
        found = None if self.extractor is None else self.extractor.compute(lists)
        return pair_features(lists.distances, found)

    def of_pairs(
        self, texts: Sequence[str], first: np.ndarray, second: np.ndarray, distances: np.ndarray
    ) -> np.ndarray:
        """Compute the features of pairs of texts, rows int [P] each: float64 [P, f]."""
        owners, counts = np.unique(first, return_counts=True)
        order = np.argsort(first, kind="stable")
        questions = [texts[i] for i in second[order].tolist()]
        queries = [texts[i] for i in owners.tolist()]
        found = self.of_hits(TextLists(queries, questions, distances[order], starts_of(counts)))
        features = np.empty_like(found)
        features[order] = found
        return features

    def score_hits(self, calibration: PairCalibration, lists: TextLists) -> np.ndarray:
        """Score queries and their hits, float64 [m]; 1 for copies, at most MOST for others."""
        scores = self._scores(calibration, self.of_hits(lists), lists.distances, lists.pairs())
        queries, questions = ([*map(folded, texts)] for texts in lists[:2])
        return np.where(lists._replace(queries=queries, questions=questions).copies(), 1.0, scores)

    def score_pairs(
        self,
        calibration: PairCalibration,
        texts: Sequence[str],
        first: np.ndarray,
        second: np.ndarray,
        distances: np.ndarray,
    ) -> np.ndarray:
        """Score pairs that are no copies, float64 [P]; other arguments as of `of_pairs`."""
        scores = np.empty(len(first))
        for start in range(0, len(first), _BLOCK):
            part = slice(start, start + _BLOCK)
            rows = first[part], second[part]
            features = self.of_pairs(texts, *rows, distances[part])
            pairs = [(texts[i], texts[j]) for i, j in np.stack(rows, axis=1).tolist()]
            scores[part] = self._scores(calibration, features, distances[part], pairs)
        return scores

    def _scores(
        self,
        calibration: PairCalibration,
        features: np.ndarray,
        distances: np.ndarray,
        pairs: Sequence[tuple[str, str]],
    ) -> np.ndarray:
        """Score pairs that are no copies, float64 [P], from their features."""
        scores = np.minimum(calibration.probabilities(features), MOST)
        if self.extractor is None:
            # The encoder has not read in what they differ, so their distance says nothing.
            farthest = calibration.probabilities(pair_features(np.array([calibration.reach])))
            for at in np.flatnonzero(distances < _NONE).tolist():
                first, second = pairs[at]
                if _words(first) != _words(second):
                    scores[at] = min(scores[at], farthest[0])
        return scores


def _words(text: str) -> list[str]:
    """The words and signs of a text without accents."""
    return [*map(fold, tokenize(text, signs=True))]
