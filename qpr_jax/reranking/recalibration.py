"""Fit the probability that two texts mean the same: to labeled pairs, and to verdicts of people."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy.optimize import minimize

from qpr_jax.data.clusters import connect
from qpr_jax.data.pairs import QuestionPairs
from qpr_jax.errors import UserError
from qpr_jax.evaluation.metrics import BINS, reliability
from qpr_jax.reranking.calibration import LEAST_VERDICTS, PairCalibration, inputs_of, logistic

_HEAVIEST = 1e12  # the largest weight of a verdict: sums of larger ones lose the others
FOLDS = 5
_SLOPES = 0.3  # standard deviation around 0 of the weights of features, before any label is seen
# Standard deviations before any verdict is seen, of the slope around 1 and of the shift around 0.
_SPREAD = np.array([1.0, 3.0])


def fit_pairs(
    encoder: str,
    features: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    reach: float,
    reranker: str = "",
) -> PairCalibration:
    """Fit what orders pairs to features, float64 [P, f], and labels, bool [P].

    weights: float64 [P], how often each pair counts; None: once.
    """
    mean, spread = features.mean(axis=0), features.std(axis=0)
    # A constant feature gets the scale 0, so that it is ignored on other data, too.
    scale = np.where(spread > 1e-9, 1 / np.maximum(spread, 1e-9), 0)
    count = inputs_of(len(mean))
    blank = PairCalibration(encoder, reach, mean, scale, np.zeros(count), 0.0, reranker)
    spread = np.append(np.full(count, _SLOPES), np.inf)
    values = blank.inputs(features)
    shares = np.ones(len(labels)) if weights is None else weights
    found = _fit_logistic(values, labels, shares, np.zeros(count + 1), spread)
    return dataclasses.replace(blank, weights=found[:-1], bias=float(found[-1]))


def rescale(
    first: PairCalibration, features: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> PairCalibration:
    """Make probabilities of a fit by `fit_pairs`: a slope and a shift of its logits.

    features, labels as of `fit_pairs`. weights: float64 [P], how often each pair counts; mean 1.
    """
    logits = first.logits(features)[:, None]
    slope, shift = _fit_logistic(logits, labels, weights, np.array([1.0, 0.0]), _SPREAD)
    bias = slope * first.bias + shift
    return dataclasses.replace(first, weights=slope * first.weights, bias=float(bias))


def recalibrate(
    encoder: str, first: PairCalibration | None, given: QuestionPairs, features: np.ndarray
) -> tuple[PairCalibration, dict[str, Any]]:
    """Fit slope and shift of the logit to verdicts; those of an earlier fit are replaced.

    UserError for too few verdicts, or for weights that cannot be used.

    Args:
      encoder: its identity.
      first: its calibration; None: the first one is logistic in the distance.
      features: float64 [P, f], of the pairs with verdicts.

    Returns:
      The new calibration and facts: how well the probabilities fit the verdicts `before` and, by
      cross-validation, `after`.
    """
    labels = given.is_duplicate
    weights = np.ones(len(labels)) if given.weights is None else given.weights
    _check(labels, weights)
    old = first or _first_calibration(encoder, features)
    logits, shares = old.logits(features), weights * (len(weights) / weights.sum())

    def fit(rows: np.ndarray) -> np.ndarray:
        start = np.array([1.0, 0.0])
        return _fit_logistic(logits[rows, None], labels[rows], shares[rows], start, _SPREAD)

    slope, shift = fit(np.arange(len(labels))).tolist()
    pairs, bins = given.pairs, int(np.clip(len(labels) // 20, 1, BINS))
    facts: dict[str, Any] = {"verdicts": len(labels), "duplicates": int(labels.sum())}
    facts["before"] = None
    if first is not None:
        facts["before"] = reliability(old.probabilities(features), labels, weights, bins=bins)
    # Pairs that share questions are in one fold.
    groups = connect(len(given.questions), pairs)[pairs[:, 0]]
    folds = np.random.default_rng(0).permutation(int(groups.max()) + 1)[groups] % FOLDS
    after = old.probabilities(features)
    for fold in range(FOLDS):
        held, rest = folds == fold, np.flatnonzero(folds != fold)
        if held.any() and 0 < labels[rest].sum() < len(rest):
            found = fit(rest)
            after[held] = logistic(found[0] * logits[held] + found[1])
    facts["after"] = reliability(after, labels, weights, bins=bins)
    return dataclasses.replace(old, slope=slope, shift=shift, settings=facts), facts


def _check(labels: np.ndarray, weights: np.ndarray) -> None:
    if len(labels) < LEAST_VERDICTS or not 0 < labels.sum() < len(labels):
        got = f"{int(labels.sum()):,} duplicates and {int((~labels).sum()):,} others"
        raise UserError(f"expected {LEAST_VERDICTS} verdicts or more, of both kinds, got {got}")
    if weights.max() > _HEAVIEST:
        what = f"expected weights of verdicts up to {_HEAVIEST:g}, got {weights.max():g}"
        remedy = "give the number of found pairs that each verdict stands for, or leave it out"
        raise UserError(what, remedy=remedy)


def _first_calibration(encoder: str, features: np.ndarray) -> PairCalibration:
    """Make a calibration for an encoder without one.

    The mean squared distance of the pairs with verdicts has .5, their standard deviation is the
    unit of the logit.
    """
    distances = features[:, 1]
    scale = np.array([0.0, 1 / max(float(distances.std()), 1e-9)])
    mean, weights = np.array([0.0, distances.mean()]), np.array([0, -1.0, 0, 0, 0, 0, 0, 0])
    return PairCalibration(encoder, float(distances.max()), mean, scale, weights)


def _fit_logistic(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray, start: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """Fit slopes and a shift of logistic regression on x, float64 [P, f]: float64 [f + 1].

    start, spread: float64 [f + 1], mean and standard deviation before any label is seen. A slope
    that starts at 1 stays positive.
    """
    sign = np.where(labels, 1.0, -1.0)
    x = np.column_stack([x, np.ones(len(x))])
    single = x.astype(np.float32)  # enough for the steps; where they end depends on the slopes

    def loss(found: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (x @ found)
        slopes = -weights * sign * logistic(-margin)
        away = (found - start) / spread**2
        value = (weights * np.logaddexp(0, -margin)).sum() + ((found - start) @ away) / 2
        return float(value), slopes @ x + away

    def curvature(found: np.ndarray) -> np.ndarray:
        shares = logistic(x @ found)
        rows = single * np.sqrt(weights * shares * (1 - shares)).astype(np.float32)[:, None]
        return rows.T @ rows + np.diag(1 / spread**2)

    if start.any():
        bounds = [(0 if value else None, None) for value in start]
        return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x)
    return np.asarray(minimize(loss, start, jac=True, hess=curvature, method="trust-exact").x)
