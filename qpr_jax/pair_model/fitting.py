"""Fit a model of pairs: to labels of people, or to labeled pairs.

The weights so far are what is known before a label is seen. A few labels move slope and bias of the
logits, some hundred all weights.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.question_pairs import QuestionPairs, connect
from qpr_jax.errors import UserError
from qpr_jax.evaluation.scores import BINS, reliability
from qpr_jax.index.close_pairs import pair_distances
from qpr_jax.pair_model.guards import GUARDS, compare_words
from qpr_jax.pair_model.plain import (
    GUARDED,
    PlainModel,
    logit_of,
    neighbor_distances,
    probability,
    ratios,
)
from qpr_jax.pair_model.words import WordsModel

LEAST_LABELS = 20
FOLDS = 5
_HEAVIEST = 1e12  # the largest weight of a label: sums of larger ones lose the others
_NEAREST = 10  # of a text: pairs that nobody labeled are taken for others than duplicates
_UNLABELED = 0.25  # their weight: a missed pair counts as four wrong ones
# Standard deviations before a label is seen: of slope and shift, and of the changes of weights.
_SLOPE, _SHIFT, _CHANGE = 1.0, 3.0, 1.0
_LEAST_SLOPE = 0.05
_MORE = "judge more pairs with `qpr review`, some of `qpr duplicates --threshold 0.2`"
_STEPS, _ENOUGH = 200, 1e-10  # steps at most; a fall of the mean loss that is none


class _Rows(NamedTuple):
    """Pairs of texts that a model is fitted to."""

    pairs: np.ndarray  # int64 [m, 2]
    labels: np.ndarray  # bool [m]
    weights: np.ndarray  # float64 [m]
    inputs: np.ndarray  # float64 [m, f]: 1 - u, r and guards; or the logits of a words model


def refit(
    model: PlainModel | WordsModel,
    labeled: QuestionPairs,
    vectors: np.ndarray,
) -> tuple[PlainModel | WordsModel, dict[str, Any]]:
    """Fit the weights of pairs and of hits to labeled pairs; of a words model slope and shift.

    Pairs with weights are labels on found pairs, which the model has scored. Without them, the
    labeled texts are a table, of which near pairs of different clusters without a label are no
    duplicates, either.

    Args:
      model: the one so far.
      vectors: float32 [n, d] of the questions.

    Returns:
      The model and facts: how well its scores fit the labels `before`, and, by cross-validation,
      `after`; and a `lower` threshold, None where 0.5 finds as many duplicates as before.

    Raises:
      UserError: there are too few labels, or held-out labels fit the new scores no better.
    """
    weights = np.ones(len(labeled.pairs)) if labeled.weights is None else labeled.weights
    _check(weights)
    rows = _read(model, labeled, vectors, weights * (len(weights) / weights.sum()))
    if not 0 < rows.labels.sum() < len(rows.labels):
        what = "expected labels of duplicates and of others, got one kind"
        raise UserError(what, remedy="judge more pairs with `qpr review`")
    start = np.array([1.0, 0.0] if isinstance(model, WordsModel) else model.pairs)
    count = len(weights)
    facts: dict[str, Any] = {"labels": count, "duplicates": int(labeled.is_duplicate.sum())}
    bins = int(np.clip(count // 20, 1, BINS))
    scores = probability(_logits(start, rows.inputs))
    clusters = connect(len(labeled.questions), labeled.pairs[labeled.is_duplicate])
    held_out = _held_out_scores(start, rows, clusters)
    for name, each in (("before", scores), ("after", held_out)):
        fit = reliability(each, rows.labels, rows.weights, bins=bins)
        facts[name] = fit | _found(each[:count], labeled.is_duplicate, weights, 0.5)
    _require_gain(facts)
    sought = facts["before"]["duplicates"]
    least = np.sort(held_out[:count][labeled.is_duplicate])[-max(sought, 1)]
    least = math.floor(1000 * least) / 1000
    lower = _found(held_out[:count], labeled.is_duplicate, weights, least)
    facts["lower"] = lower if facts["after"]["duplicates"] < sought else None
    pairs, settings = _fit(start, rows), {"labels": facts}
    if isinstance(model, WordsModel):
        return model.rescaled(float(pairs[0]), float(pairs[1]), settings), facts
    of_hits = rows._replace(inputs=np.delete(rows.inputs, 1, axis=1))
    hits = _fit(np.array(model.hits), of_hits)
    if not (pairs[:2].sum() > 0 and hits[0] > 0):
        what = "the labels do not tell near pairs from others, so no scores can be fitted"
        raise UserError(what, remedy=_MORE)
    fitted = dataclasses.replace(
        model,
        pairs=tuple(pairs.tolist()),
        hits=tuple(hits.tolist()),
        precisions={},
        settings=model.settings | settings,
    )
    return fitted, facts


def _held_out_scores(start: np.ndarray, rows: _Rows, clusters: np.ndarray) -> np.ndarray:
    """Score each pair by a fit to those of other clusters, int64 [n] of the texts: float64 [m]."""
    names, numbers = np.unique(clusters[rows.pairs], return_inverse=True)
    folds = np.random.default_rng(0).permutation(len(names)) % FOLDS
    sides = folds[numbers.reshape(rows.pairs.shape)]
    scores = np.full(len(rows.labels), np.average(rows.labels, weights=rows.weights))
    for fold in range(FOLDS):
        rest = (sides != fold).all(axis=1)
        if 0 < rows.labels[rest].sum() < rest.sum():
            found = _fit(start, _Rows(*(values[rest] for values in rows)))
            scores[~rest] = probability(_logits(found, rows.inputs[~rest]))
    return scores


def _require_gain(facts: dict[str, Any]) -> None:
    """UserError where held-out labels fit the new scores no better than the old ones."""
    before, after = (facts[name]["brier"] for name in ("before", "after"))
    if after >= before:
        what = "held-out labels fit the new scores no better than the old ones "
        what += f"(Brier score {after:.3f}, {before:.3f})"
        raise UserError(what, remedy=f"take the threshold that `qpr review` recommends, or {_MORE}")


def _read(
    model: PlainModel | WordsModel, labeled: QuestionPairs, vectors: np.ndarray, weights: np.ndarray
) -> _Rows:
    pairs, labels = labeled.pairs.astype(np.int64), labeled.is_duplicate
    is_sample = labeled.weights is not None  # of found pairs
    if not is_sample:
        clusters = connect(len(vectors), pairs[labels])
        others = _near_pairs(vectors)
        labeled_pairs = {(*sorted(pair),) for pair in pairs.tolist()}
        apart = clusters[others[:, 0]] != clusters[others[:, 1]]
        new = [pair not in labeled_pairs for pair in map(tuple, others.tolist())]
        others = others[apart & np.array(new, bool)]
        pairs = np.concatenate([pairs, others])
        labels = np.append(labels, np.zeros(len(others), bool))
        weights = np.append(weights, np.full(len(others), _UNLABELED))
    first, second = pairs.T
    one, other = ([labeled.questions[i] for i in side.tolist()] for side in (first, second))
    distances = pair_distances(vectors, first, second).astype(np.float64)
    if isinstance(model, WordsModel):
        return _Rows(pairs, labels, weights, model.logits(one, other, distances)[:, None])
    found = compare_words(one, other)
    u = np.maximum(distances / (2 * model.scale), GUARDED * found[:, :-1].any(axis=1))
    spreads = model.spreads(neighbor_distances(vectors))
    r = ratios(u, (spreads[first] + spreads[second]) / 2)
    if is_sample and labeled.scores is not None:
        # The scores of found pairs tell how dense their table is, which a sample does not.
        scored = np.isfinite(labeled.scores) & (labeled.scores < 1) & (model.pairs[1] > 0)
        logits = np.array([logit_of(score) for score in labeled.scores[scored]])
        others = (1 - u) * model.pairs[0] + found @ model.pairs[2:-1] + model.pairs[-1]
        r[scored] = (logits - others[scored]) / model.pairs[1]
    return _Rows(pairs, labels, weights, np.column_stack([1 - u, r, found]))


def _near_pairs(vectors: np.ndarray) -> np.ndarray:
    """Return the pairs of each text and its nearest ones, the smaller row first: int64 [m, 2]."""
    products = vectors @ vectors.T
    squares = np.diag(products)
    distances = squares[:, None] + squares[None] - 2 * products
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1)[:, : min(_NEAREST, len(vectors) - 1)]
    pairs = np.stack([np.repeat(np.arange(len(vectors)), nearest.shape[1]), nearest.ravel()])
    return np.unique(np.sort(pairs, axis=0).T, axis=0)


def _fit(start: np.ndarray, rows: _Rows) -> np.ndarray:
    """Fit weights of inputs, then a bias, float64 [f + 1], to rows."""
    logits = _logits(start, rows.inputs)
    inputs = np.column_stack([logits, np.ones(len(logits)), rows.inputs])
    count = rows.inputs.shape[1]
    prior = np.array([1.0, 0.0, *np.zeros(count)])
    spreads = np.array([_SLOPE, _SHIFT, *np.full(count, _CHANGE if count > 1 else 1e-9)])
    least = np.array([_LEAST_SLOPE, *np.full(count + 1, -np.inf)])
    slope, shift, *changes = fit_logistic(
        inputs, rows.labels, rows.weights, prior, spreads, least=least
    )
    weights, bias = slope * start[:-1] + changes, slope * start[-1] + shift
    bounded = weights.copy()
    of_words = max(1, count - len(GUARDS) - 1)  # weights before are at least 0, these at most 0
    bounded[:of_words] = np.maximum(weights[:of_words], 0)
    bounded[of_words:] = np.minimum(weights[of_words:], 0)
    if (bounded == weights).all():
        return np.append(weights, bias)
    inputs = np.column_stack([rows.inputs @ bounded, np.ones(len(logits))])
    prior, spreads, least = np.array([1.0, bias]), spreads[:2], least[:2]
    slope, bias = fit_logistic(inputs, rows.labels, rows.weights, prior, spreads, least=least)
    return np.append(slope * bounded, bias)


def _logits(weights: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    return np.asarray(inputs @ weights[:-1] + weights[-1])


def _found(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, threshold: float
) -> dict[str, Any]:
    """Count the duplicates and the others from a threshold on; weigh precision and recall."""
    chosen = scores >= threshold
    right, total = weights[chosen & labels].sum(), weights[chosen].sum()
    return {
        "threshold": threshold,
        "duplicates": int((chosen & labels).sum()),
        "others": int((chosen & ~labels).sum()),
        "precision": float(right / total) if total else None,
        "recall": float(right / weights[labels].sum()) if labels.any() else None,
    }


def _check(weights: np.ndarray) -> None:
    if len(weights) < LEAST_LABELS:
        what = f"expected {LEAST_LABELS} labels or more, got {len(weights):,}"
        raise UserError(what, remedy="judge more pairs with `qpr review`, which goes on")
    if weights.max() > _HEAVIEST:
        what = f"expected weights of labels up to {_HEAVIEST:g}, got {weights.max():g}"
        remedy = "give the number of found pairs that each label stands for, or leave it out"
        raise UserError(what, remedy=remedy)


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
