"""Features of two texts that do not change if the texts swap, and their scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpr_jax.reranking.base import find_copies, starts_of
from qpr_jax.reranking.calibration import PairCalibration
from qpr_jax.reranking.features import FeatureExtractor, symmetric
from qpr_jax.text.cleaning import spelling

_BLOCK = 1 << 17  # pairs whose features are computed at once


class PairFeatures:
    """The distance of two texts and its root and, with word statistics, how their words differ.

    Thread-safe.
    """

    def __init__(self, extractor: FeatureExtractor | None = None) -> None:
        """extractor: of the light re-ranker; None: the features are of the distance alone."""
        self._extractor = extractor

    def of_hits(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> np.ndarray:
        """Compute the features of queries and their hits, float64 [m, f].

        Arguments as of `FeatureExtractor.compute`; distances are squared.
        """
        squares = np.maximum(np.asarray(distances, np.float64), 0)[:, None]
        parts = [np.sqrt(squares), squares]
        if self._extractor is not None:
            words = self._extractor.compute(queries, questions, distances, starts)
            parts.append(symmetric(words))
        return np.hstack(parts)

    def of_pairs(
        self, texts: Sequence[str], first: np.ndarray, second: np.ndarray, distances: np.ndarray
    ) -> np.ndarray:
        """Compute the features of pairs of texts, rows int [P] each: float64 [P, f]."""
        owners, counts = np.unique(first, return_counts=True)
        order = np.argsort(first, kind="stable")
        questions = [texts[i] for i in second[order].tolist()]
        queries = [texts[i] for i in owners.tolist()]
        found = self.of_hits(queries, questions, distances[order], starts_of(counts))
        features = np.empty_like(found)
        features[order] = found
        return features


class PairScorer:
    """The probability that two texts mean the same; 1 for equal spellings. Thread-safe."""

    def __init__(self, calibration: PairCalibration, features: PairFeatures) -> None:
        self._calibration, self._features = calibration, features

    def score_hits(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> np.ndarray:
        """Score queries and their hits, float64 [m]; arguments as of `PairFeatures.of_hits`."""
        features = self._features.of_hits(queries, questions, distances, starts)
        asked, found = map(spelling, queries), map(spelling, questions)
        copies = find_copies([*asked], [*found], starts)
        return np.where(copies, 1.0, self._calibration.probabilities(features))

    def score_pairs(
        self, texts: Sequence[str], first: np.ndarray, second: np.ndarray, distances: np.ndarray
    ) -> np.ndarray:
        """Score pairs of different spellings, float64 [P]; arguments as of `of_pairs`."""
        scores = np.empty(len(first))
        for start in range(0, len(first), _BLOCK):
            part = slice(start, start + _BLOCK)
            features = self._features.of_pairs(texts, first[part], second[part], distances[part])
            scores[part] = self._calibration.probabilities(features)
        return scores
