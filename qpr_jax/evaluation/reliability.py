"""How well probabilities fit what is true: reliability curve, calibration error, Brier score."""

from __future__ import annotations

from typing import Any

import numpy as np

BINS = 15


def reliability(
    probabilities: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    bins: int = BINS,
) -> dict[str, Any]:
    """Compare probabilities with labels, in bins of equal count.

    Cases of one probability have the mean of their labels, so their order does not matter.

    Args:
      probabilities: float [n], n > 0.
      labels: bool or int [n], whether it is so.
      weights: float [n], how often each case counts; None: once.
      bins: their number.

    Returns:
      `ece`: the expected calibration error, the mean over bins of the difference between the mean
      probability and the share of true labels. `brier`: the mean squared error; `base_brier`: that
      of giving all the same probability, the share of true labels, `base_rate`. `curve`: [mean
      probability, share of true labels, weight] of each bin, ascending.
    """
    counts = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(probabilities, kind="stable")
    p, y, w = probabilities[order].astype(np.float64), labels[order].astype(float), counts[order]
    _, group = np.unique(p, return_inverse=True)
    mass = np.bincount(group, w)
    shares = (np.bincount(group, w * y) / np.maximum(mass, 1e-300))[group]
    total = w.sum()
    place = np.minimum((np.cumsum(w) - w / 2) * bins / total, bins - 1).astype(int)
    size = np.bincount(place, w, bins)
    kept = size > 0
    mean = np.bincount(place, w * p, bins)[kept] / size[kept]
    share = np.bincount(place, w * shares, bins)[kept] / size[kept]
    rate = float((w * y).sum() / total)
    return {
        "ece": float((size[kept] * abs(mean - share)).sum() / total),
        "brier": float((w * (p - y) ** 2).sum() / total),
        "base_brier": rate * (1 - rate),
        "base_rate": rate,
        "curve": np.stack([mean, share, size[kept]], axis=1).tolist(),
    }
