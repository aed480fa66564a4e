"""Logistic regression with a prior: of tables, of labels of people, of labeled pairs."""

from __future__ import annotations

import numpy as np

_STEPS, _ENOUGH = 200, 1e-10  # steps at most; a fall of the mean loss that is none


def fit_logistic(
    inputs: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    prior: np.ndarray,
    spreads: np.ndarray,
    *,
    fixed: np.ndarray | float = 0.0,
    least: np.ndarray | float = -np.inf,
    most: np.ndarray | float = np.inf,
) -> np.ndarray:
    """Fit the weights of inputs [m, f] to labels, 0 or 1, float64 [f]: a maximum a posteriori.

    Newton's method; a weight at a bound that the loss falls beyond stays there.

    Args:
      weights: how often each row counts, [m].
      prior: the weights before any label is seen, [f].
      spreads: their standard deviations, [f].
      fixed: logits that are added, [m].
      least, most: the bounds of the weights.
    """
    precision, total = 1 / np.square(spreads), weights.sum()

    def loss(w: np.ndarray) -> float:
        z = fixed + inputs @ w
        value = weights @ (np.logaddexp(0, z) - labels * z) + precision @ (w - prior) ** 2 / 2
        return float(value / total)

    found = np.clip(np.asarray(prior, np.float64), least, most)
    value = loss(found)
    for _ in range(_STEPS):
        shares = 1 / (1 + np.exp(-np.clip(fixed + inputs @ found, -500, 500)))
        slope = inputs.T @ (weights * (shares - labels)) + precision * (found - prior)
        bound = ((found <= least) & (slope > 0)) | ((found >= most) & (slope < 0))
        curved = inputs.T @ (inputs * (weights * shares * (1 - shares))[:, None])
        curved += np.diag(precision + 1e-12 * total)
        step = np.zeros(len(found))
        free = np.flatnonzero(~bound)
        step[free] = np.linalg.solve(curved[np.ix_(free, free)], slope[free])
        for _ in range(30):
            moved = np.clip(found - step, least, most)
            if (after := loss(moved)) <= value:
                break
            step /= 2
        else:
            return found
        fall, found, value = value - after, moved, after
        if fall < _ENOUGH:
            break
    return found


def logistic(x: np.ndarray) -> np.ndarray:
    """Convert logits to probabilities."""
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -500, 500))))


def calibrate(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Fit labels, 0 or 1, by scores: ascending scores and their probabilities, float64 [2, c].

    Isotonic regression: the probabilities never fall as the scores rise.

    Source: Zadrozny and Elkan (2002).
    """
    # Imported here because only training needs it. scikit-learn's takes two seconds more to import.
    from scipy.optimize import isotonic_regression

    places, entry, counted = np.unique(
        np.asarray(scores, np.float64), return_inverse=True, return_counts=True
    )
    means = np.bincount(entry, labels) / counted
    values = isotonic_regression(means, weights=counted).x.clip(0, 1)
    steps = np.diff(values) != 0
    ends = np.append(True, steps) | np.append(steps, True)  # of each level
    # Rounding may leave the values unsorted in the last bit.
    return np.maximum.accumulate(np.stack([places, values])[:, ends], axis=1)
