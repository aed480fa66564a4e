"""Fit probabilities of found pairs to verdicts of people.

Few verdicts move the old probability p by two numbers, a and b: the new one is the logistic
function of a logit(p) + b. From ISOTONIC verdicts on, isotonic regression on p.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from qpr_jax.data.clusters import connect
from qpr_jax.data.pairs import Verdicts
from qpr_jax.errors import UserError
from qpr_jax.evaluation.metrics import BINS, reliability
from qpr_jax.reranking.calibration import PairCalibration, calibrate

log = logging.getLogger(__name__)

ISOTONIC = 1000  # verdicts
LEAST = 20  # verdicts
_HEAVIEST = 1e12  # the largest weight of a verdict: sums of larger ones lose the others
FOLDS = 5
_CLIP = 1e-4  # probabilities nearer to 0 or 1 than this
_POINTS = 512  # added to a curve, so that linear interpolation follows the logistic function
# Standard deviations of a around 1 and of b around 0 before any verdict is seen.
_SPREAD = np.array([1.0, 3.0])

Map = Callable[[np.ndarray], np.ndarray]


def recalibrate(
    encoder: str, first: PairCalibration | None, given: Verdicts, distances: np.ndarray
) -> tuple[PairCalibration, dict[str, Any]]:
    """Fit the calibration of an encoder to verdicts.

    Args:
      encoder: its identity.
      first: its calibration, or None.
      given: the verdicts.
      distances: float [P], squared, of their pairs.

    Returns:
      The new calibration, which keeps the one before, and facts: how well the probabilities fit the
      verdicts `before` and, by cross-validation, `after`.

    Raises:
      UserError: there are too few verdicts, or their weights or scores cannot be used.
    """
    labels, weights, by_light = given.labeled.is_duplicate, given.weights, False
    _check(labels, weights)
    if first is None:
        old = PairCalibration(encoder, _first_curve(distances), float(distances.max()))
    else:
        old, by_light = _start_of(first, given.scored_by, has_scores=given.scores is not None)
    scores = given.scores if by_light else None
    if old.light is not None and scores is None:
        log.info("the re-ranker's probabilities are left out: not all verdicts have a score by it")
    facts: dict[str, Any] = {"verdicts": len(labels), "duplicates": int(labels.sum())}
    new = _refit(old, distances, scores, labels, weights, facts)
    known = old.probabilities(distances) if scores is None else scores
    pairs, bins = given.labeled.pairs, int(np.clip(len(labels) // 20, 1, BINS))
    facts["before"] = None
    if first is not None:
        before = first.probabilities(distances) if scores is None else scores
        facts["before"] = reliability(before, labels, weights, bins=bins)
    groups = connect(len(given.labeled.questions), pairs)[pairs[:, 0]]
    after = _cross_validate(known, labels, weights, groups)
    facts["after"] = reliability(after, labels, weights, bins=bins)
    return new, facts


def _check(labels: np.ndarray, weights: np.ndarray) -> None:
    if len(labels) < LEAST or not 0 < labels.sum() < len(labels):
        raise UserError(
            f"expected {LEAST} verdicts or more, of both kinds, got {int(labels.sum()):,} "
            f"duplicates and {int((~labels).sum()):,} others"
        )
    if weights.max() > _HEAVIEST:
        raise UserError(
            f"expected weights of verdicts up to {_HEAVIEST:g}, got {weights.max():g}",
            remedy="give the number of found pairs that each verdict stands for, or leave it out",
        )


def _first_curve(distances: np.ndarray) -> np.ndarray:
    """Make a curve for an encoder without one, float64 [2, c]: logistic in the distance.

    distances: float [P], of the pairs with verdicts: their mean has .5, their standard deviation
    is the unit of the logit.
    """
    middle, unit = float(distances.mean()), max(float(distances.std()), 1e-9)
    places = np.linspace(-middle - 9 * unit, -middle + 9 * unit, _POINTS)
    return np.stack([places, 1 / (1 + np.exp(-(places + middle) / unit))])


def _fit_map(old: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> Map:
    """Fit a map from old probabilities to new ones, both float64 [n].

    old, labels, weights: [P], of the pairs with verdicts; see `Verdicts`.
    """
    if len(labels) >= ISOTONIC:
        points = calibrate(old, labels.astype(np.int8), weights)
        return lambda p: np.interp(p, *points)
    slope, shift = _fit_logistic(_logit(old), labels, weights * (len(weights) / weights.sum()))
    return lambda p: 1 / (1 + np.exp(-(slope * _logit(p) + shift)))


def _start_of(
    current: PairCalibration, scored_by: str, *, has_scores: bool
) -> tuple[PairCalibration, bool]:
    """Choose the calibration to fit from, so that no verdict counts twice.

    It is the one that gave the scores of the verdicts. Where none are needed, it is the one before
    any verdict. Also returns whether the scores are by the curve of its re-ranker.

    Args:
      current: of the encoder.
      scored_by: the `PairCalibration.identity` of the scores, "" where it is not known.
      has_scores: whether all verdicts have a score.
    """
    known = [current] if current.before is None else [current, current.before]
    for one in known:
        if scored_by == one.identity(light=False):
            return one, False
        if has_scores and one.light is not None and scored_by == one.identity(light=True):
            return one, True
    if not has_scores or all(one.light is None for one in known):
        return known[-1], False
    if scored_by:
        raise UserError(
            "expected verdicts with scores by the calibration of the run, or by that before it, "
            "got those of another",
            remedy="find the pairs again and judge those, or leave out the column `score`",
        )
    if current.before is not None:
        raise UserError(
            "expected a column `calibration`, which says by what the scores are, since verdicts "
            "have changed those of the run, got none",
            remedy="give the run before that, or leave out the column `score`",
        )
    return current, True


def _refit(
    old: PairCalibration,
    distances: np.ndarray,
    scores: np.ndarray | None,
    labels: np.ndarray,
    weights: np.ndarray,
    settings: dict[str, Any],
) -> PairCalibration:
    """Move the curves of a calibration; without scores, float64 [P], that of the re-ranker goes."""
    moved, light = _fit_map(old.probabilities(distances), labels, weights), None
    if scores is not None and old.light is not None:
        light = _compose(old.light, _fit_map(scores, labels, weights))
    return dataclasses.replace(
        old,
        distance=_compose(old.distance, moved),
        light=light,
        reranker=old.reranker if light is not None else "",
        settings=settings,
        before=dataclasses.replace(old, settings={}, before=None),
    )


def _cross_validate(
    old: np.ndarray, labels: np.ndarray, weights: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    """Compute new probabilities of pairs by maps fitted to the other folds, float64 [P].

    groups: int64 [P], 0, 1, ...: pairs of one group, as those that share questions, are in one
    fold. A fold whose others are all alike keeps the old probabilities.
    """
    order = np.random.default_rng(0).permutation(int(groups.max()) + 1)
    folds, new = order[groups] % FOLDS, old.astype(np.float64)
    for fold in range(FOLDS):
        held, rest = folds == fold, folds != fold
        if held.any() and 0 < labels[rest].sum() < rest.sum():
            new[held] = _fit_map(old[rest], labels[rest], weights[rest])(old[held])
    return new


def _compose(curve: np.ndarray, moved: Map) -> np.ndarray:
    """Apply a map to the probabilities of a curve, float64 [2, c]."""
    places, values = curve
    added = np.linspace(places[0], places[-1], _POINTS)
    places = np.unique(np.concatenate([places, added]))
    values = np.clip(moved(np.interp(places, *curve)), 0, 1)
    return np.maximum.accumulate(np.stack([places, values]), axis=1)


def _fit_logistic(x: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Fit slope, at least 0, and shift of logistic regression on x, float64 [P]; float64 [2]."""
    sign = np.where(labels, 1.0, -1.0)

    def loss(found: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (found[0] * x + found[1])
        slopes = -weights * sign / (1 + np.exp(np.clip(margin, -500, 500)))
        away = (found - [1, 0]) / _SPREAD**2
        value = (weights * np.logaddexp(0, -margin)).sum() + ((found - [1, 0]) @ away) / 2
        return float(value), np.array([slopes @ x, slopes.sum()]) + away

    bounds = [(0, None), (None, None)]
    return np.asarray(minimize(loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=bounds).x)


def _logit(p: np.ndarray) -> np.ndarray:
    clipped = np.clip(p, _CLIP, 1 - _CLIP)
    return np.asarray(np.log(clipped / (1 - clipped)))
