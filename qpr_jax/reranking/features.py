"""Provisional: the branch `light` replaces this file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.index.statistics import Statistics

FEATURES = ("distance", "gap", "rank")


class FeatureExtractor:
    """Features of a query and its hits."""

    def __init__(self, encoder: Encoder, statistics: Statistics) -> None:
        self.encoder, self.statistics = encoder, statistics

    def compute(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> np.ndarray:
        """Features float32 [m, len(FEATURES)]."""
        rows = []
        for start, end in itertools.pairwise(starts):
            part = distances[start:end]
            rank = np.argsort(np.argsort(part, kind="stable"), kind="stable")
            rows.append(np.column_stack([part, part - part.min(initial=np.inf), rank]))
        return np.concatenate(rows).astype(np.float32)
