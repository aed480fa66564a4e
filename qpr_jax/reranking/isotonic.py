"""Isotonic regression: from scores to probabilities that never fall as the scores rise."""

from __future__ import annotations

import numpy as np


def calibrate(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Fit labels, 0 or 1, by scores: ascending scores and their probabilities, float64 [2, c].

    weights: float [m], how often each counts; None: once.

    Source: Zadrozny and Elkan (2002).
    """
    # Imported here because only training needs it. scikit-learn's takes two seconds more to import.
    from scipy.optimize import isotonic_regression

    counts = np.ones(len(scores)) if weights is None else weights
    kept = counts > 0
    places, entry = np.unique(np.asarray(scores, np.float64)[kept], return_inverse=True)
    counted = np.bincount(entry, counts[kept])
    means = np.bincount(entry, (counts * labels)[kept]) / counted
    values = isotonic_regression(means, weights=counted).x.clip(0, 1)
    steps = np.diff(values) != 0
    ends = np.append(True, steps) | np.append(steps, True)  # of each level
    # Rounding may leave the values unsorted in the last bit.
    return np.maximum.accumulate(np.stack([places, values])[:, ends], axis=1)
