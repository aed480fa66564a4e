"""Which found pairs a person should judge, and what the verdicts say about every threshold.

Pairs are cut into strata by their probability. A verdict is asked where it lowers the variance of
the precision most (Neyman's allocation, for thresholds that are plausible after the verdicts so
far), and in a stratum in a random order. The precision at a threshold is the difference estimator:
the mean of the probabilities, plus, stratum by stratum, the mean of verdict minus probability. So
it needs no calibrated probabilities; poor ones only cost verdicts. They are fitted to the verdicts
first (shift and scale of their logits, averaged over a grid), which fills strata without a verdict;
the mean of verdict minus fitted probability is drawn towards 0 where a stratum has few.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.9  # of intervals
_QUANTILE = 1.6448536269514722  # of the normal distribution, for CONFIDENCE
_BINS = 4096  # most different thresholds
_RATIO = 0.85  # of what is left below a stratum's top: every threshold has many strata above it
_LEAST = 1e-4  # probabilities are cut off here and at 1 - _LEAST
_FLOOR = 0.02  # added to a variance where strata are cut: no probability is trusted more
_TRUST = 25  # verdicts of a stratum that count as much as the fit to those of all strata


@dataclass(frozen=True, eq=False)
class Strata:
    """Found pairs by probability, K bins in H strata, the most probable first.

    Attributes:
      lowest: float64 [K], the least probability of a bin; equal ones share a bin.
      counts: float64 [K], pairs of a bin.
      stratum: int64 [K], the stratum of a bin, ascending from 0.
      logits: float64 [K], of a bin's mean probability.
      sizes: float64 [H], pairs of a stratum.
    """

    lowest: np.ndarray
    counts: np.ndarray
    stratum: np.ndarray
    logits: np.ndarray
    sizes: np.ndarray

    def of(self, probabilities: np.ndarray) -> np.ndarray:
        """The stratum of each pair, int64 [P]."""
        ascending = self.lowest[::-1]
        bins = np.searchsorted(ascending, np.asarray(probabilities, np.float64), side="right")
        return self.stratum[::-1][np.maximum(bins - 1, 0)]

    @functools.cached_property
    def table(self) -> np.ndarray:
        """Probability of a stratum for each shift and scale of the logits, float64 [G, H]."""
        weights = np.bincount(self.stratum, self.counts * self.logits)
        return _sigmoid(_SHIFTS + _SCALES * (weights / self.sizes))

    @functools.cached_property
    def log_table(self) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of `table` and of 1 - `table`."""
        table = np.clip(self.table, 1e-9, 1 - 1e-9)
        return np.log(table), np.log1p(-table)


@dataclass(frozen=True)
class Estimate:
    """The lowest threshold with a precision, as verdicts have it.

    Attributes:
      threshold: the least probability of an accepted pair.
      precision: estimated share of duplicates among accepted pairs.
      low, high: its interval, of CONFIDENCE.
      pairs: accepted pairs.
      verdicts: what this rests on, those of pairs below the threshold included.
      reached: whether `precision` is at least what was asked; if not, this is the threshold with
        the highest `low`.
    """

    threshold: float
    precision: float
    low: float
    high: float
    pairs: int
    verdicts: int
    reached: bool


def make_strata(probabilities: np.ndarray) -> Strata:
    """Cut pairs into strata by probability, float64 [P], P > 0, in any order."""
    values, counts = np.unique(np.asarray(probabilities, np.float64), return_counts=True)
    values, counts = values[::-1], counts[::-1].astype(np.float64)
    if len(values) > _BINS:
        bins = np.ceil(np.cumsum(counts) * (_BINS / counts.sum())).astype(np.int64)
        begins = np.flatnonzero(np.diff(bins, prepend=-1))
        sums = np.add.reduceat(counts * values, begins)
        lowest = values[np.append(begins[1:], len(values)) - 1]
        counts = np.add.reduceat(counts, begins)
        means = sums / counts
    else:
        lowest = means = values
    means = np.clip(means, _LEAST, 1 - _LEAST)
    spread = counts * np.sqrt(means * (1 - means) + _FLOOR)
    above = np.cumsum(spread) - spread / 2  # of the middle of a bin
    level = np.floor(np.log(above / spread.sum()) / math.log(_RATIO))
    _, stratum = np.unique(-np.minimum(level, 50), return_inverse=True)
    logits = np.log(means / (1 - means))
    return Strata(lowest, counts, stratum, logits, np.bincount(stratum, counts))


def rank_strata(strata: Strata, yes: np.ndarray, no: np.ndarray, precision: float) -> np.ndarray:
    """All strata, int64 [H], in the order in which a verdict in them helps.

    Args:
      yes: int [H], verdicts so far that pairs are duplicates.
      no: int [H], verdicts that they are none.
      precision: the precision that a threshold is sought for.
    """
    given, sizes = yes + no, strata.sizes
    weights = _posterior(strata, yes, no)
    share = weights @ _squared_shares(strata, precision)
    fitted = weights @ strata.table
    gain = share * _variance(fitted, yes, given) / ((given + 0.3) * (given + 1.3))
    gain[given >= sizes] = -1
    return np.argsort(-gain, kind="stable")


@functools.lru_cache(maxsize=4)
def _squared_shares(strata: Strata, precision: float) -> np.ndarray:
    """The square of each stratum's share of the accepted pairs, float64 [G, H].

    Accepted, for each shift and scale, are the pairs of the lowest threshold with this precision.
    """
    accepted = np.cumsum(strata.sizes)
    means = np.cumsum(strata.sizes * strata.table, axis=1) / accepted
    reached = means >= precision
    # The last stratum that is accepted; the best one where none reaches the precision.
    last = accepted.size - 1 - np.argmax(reached[:, ::-1], axis=1)
    last = np.where(reached.any(axis=1), last, np.argmax(means, axis=1))
    inside = np.arange(accepted.size) <= last[:, None]
    return np.asarray(inside * (strata.sizes / accepted[last][:, None]) ** 2)


def precision_at(strata: Strata, yes: np.ndarray, no: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The precision of the pairs of each bin and those above it, and its standard error.

    Returns:
      float64 [K] each; arguments are those of `rank_strata`.
    """
    given, sizes, stratum = yes + no, strata.sizes, strata.stratum
    weights = _posterior(strata, yes, no)
    fitted = _interpolate(strata, weights @ strata.table)
    mean = np.bincount(stratum, strata.counts * fitted) / sizes
    # A stratum whose few verdicts are favorable would be let in by them, so they count less.
    left = 1 - np.minimum(given / sizes, 1)
    residual = (yes - given * mean) / np.maximum(given + _TRUST * left, 1)
    accepted = np.cumsum(strata.counts)
    sums = np.cumsum(strata.counts * np.clip(fitted + residual[stratum], 0, 1))
    # The share of each bin's stratum that is accepted is 1 but for the stratum that is cut.
    variance = _variance(mean, yes, given)
    whole = np.where(given > 0, sizes**2 * left * variance / np.maximum(given, 1), 0)
    before = np.concatenate([[0], np.cumsum(whole)])[stratum]
    within = accepted - np.concatenate([[0], np.cumsum(sizes)])[stratum]
    share = within / sizes[stratum]
    # A stratum that is cut may have its duplicates on either side.
    cut = share * (1 - share) * sizes[stratum] * variance[stratum]
    errors = before + share**2 * whole[stratum] + cut
    # Strata without a verdict are as uncertain as the fit is.
    unseen = np.where(given > 0, 0, sizes)
    sums_of_fits = np.cumsum(unseen * strata.table, axis=1)
    spread = weights @ sums_of_fits**2 - (weights @ sums_of_fits) ** 2
    errors += np.maximum(spread, 0)[stratum]
    return sums / accepted, np.sqrt(errors) / accepted


def choose_threshold(strata: Strata, yes: np.ndarray, no: np.ndarray, precision: float) -> Estimate:
    """The lowest threshold whose estimated precision is at least `precision`."""
    estimates, errors = precision_at(strata, yes, no)
    reached = np.flatnonzero(estimates >= precision)
    # The highest lower end, since the highest estimate may be chance.
    unreached = int(np.argmax(estimates - _QUANTILE * errors))
    best = int(reached[-1]) if len(reached) else unreached
    value, error = float(estimates[best]), _QUANTILE * float(errors[best])
    return Estimate(
        threshold=float(strata.lowest[best]),
        precision=value,
        low=max(0.0, value - error),
        high=min(1.0, value + error),
        pairs=int(strata.counts[: best + 1].sum()),
        verdicts=int((yes + no).sum()),
        reached=len(reached) > 0,
    )


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(values / 2))


_GRID = np.meshgrid(np.linspace(-4, 4, 33), np.linspace(-1.4, 1.4, 15), indexing="ij")
_SHIFTS, _SCALES = _GRID[0].reshape(-1, 1), np.exp(_GRID[1].reshape(-1, 1))
_PRIOR = -0.5 * (_GRID[0] / 1.5) ** 2 - 0.5 * (_GRID[1] / 0.7) ** 2


def _posterior(strata: Strata, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    """The weight of each shift and scale of the logits after the verdicts, float64 [G]."""
    log_yes, log_no = strata.log_table
    likelihood = log_yes @ yes + log_no @ no + _PRIOR.ravel()
    weights = np.exp(likelihood - likelihood.max())
    return weights / weights.sum()


def _variance(fitted: np.ndarray, yes: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Variance of a verdict in each stratum, float64 [H]; nowhere 0, however sure the fit is."""
    mean = (yes + 2 * fitted + 0.3) / (given + 2.6)
    return mean * (1 - mean)


def _interpolate(strata: Strata, fitted: np.ndarray) -> np.ndarray:
    """Probabilities of bins, float64 [K], from those of strata."""
    centers = np.bincount(strata.stratum, strata.counts * strata.logits) / strata.sizes
    return np.interp(strata.logits, centers[::-1], fitted[::-1])
