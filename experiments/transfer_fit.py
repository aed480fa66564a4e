"""A model of pairs without words, fitted to all tables but one.

The score of a pair is the logistic of a linear function of its cosine, of its distance over the
mean distance around its texts (`distance_ratio`), and of guards, which can only lower it. The mean
is that to the second to sixth nearest texts. A hit of a search has the cosine and guards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from experiments.pair_evidence import GUARDS, Evidence, distance_ratio
from experiments.transfer import HitScores, PairScores, first_hits
from experiments.transfer_scores import best_bound
from qpr_jax.reranking.calibration import logistic

PENALTY = 1e-3  # of squared weights
SHRINK = 3.0  # rows at which half of a density is that of the other tables
HITS = 10  # of a query, fitted
BLOCK = 500_000  # pairs scored at once
# A number, name or negation on one side only lowers perlfaq and webquestions: a title has fewer.
USED = [
    GUARDS.index(guard)
    for guard in ("other number", "other order of numbers", "opposite word", "other name")
]


class Logistic:
    """Logistic regression; rows are weighted, and weights of guards are at most 0."""

    def __init__(
        self, inputs: np.ndarray, true: np.ndarray, weights: np.ndarray, *, free: int
    ) -> None:
        mean = np.average(inputs[:, :free], axis=0, weights=weights)
        scale = np.sqrt(np.average((inputs[:, :free] - mean) ** 2, axis=0, weights=weights))
        x = inputs.astype(np.float64)
        x[:, :free] = (x[:, :free] - mean) / scale
        share = weights / weights.sum()

        def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
            z = x @ w[:-1] + w[-1]
            rest = share * (logistic(z) - true)
            value = (share * (np.logaddexp(0, z) - true * z)).sum() + PENALTY * w[:-1] @ w[:-1]
            return value, np.append(x.T @ rest + 2 * PENALTY * w[:-1], rest.sum())

        count = inputs.shape[1]
        bounds = [(None, None)] * free + [(None, 0.0)] * (count - free) + [(None, None)]
        found = minimize(loss, np.zeros(count + 1), jac=True, method="L-BFGS-B", bounds=bounds).x
        self.weights = found[:-1]
        self.weights[:free] /= scale
        self.bias = float(found[-1] - self.weights[:free] @ mean)

    def logits(self, inputs: np.ndarray) -> np.ndarray:
        """Compute logits [P] of inputs [P, f]."""
        return np.asarray(inputs @ self.weights + self.bias)


class PairModel:
    """The fitted scorer."""

    def __init__(
        self,
        fitted: Sequence[Evidence],
        *,
        use_density: bool = True,
        used: Sequence[int] = USED,
        shrink: float = SHRINK,
    ) -> None:
        self.use_density, self.used, self.shrink = use_density, [*used], shrink
        self.typical = float(np.mean([np.median(e.densities()) for e in fitted]))
        near = [np.flatnonzero(e.candidates) for e in fitted]
        inputs = [self.pair_inputs(e, rows) for e, rows in zip(fitted, near, strict=True)]
        same = [e.same[rows] for e, rows in zip(fitted, near, strict=True)]
        self.of_pairs = fit_tables(inputs, same, free=1 + use_density)
        found = [np.argsort(-e.to_queries, axis=1)[:, :HITS] for e in fitted]
        inputs = [
            np.take_along_axis(self.hit_inputs(e), rows[..., None], 1).reshape(rows.size, -1)
            for e, rows in zip(fitted, found, strict=True)
        ]
        right = [
            np.take_along_axis(e.answers, rows, 1).ravel()
            for e, rows in zip(fitted, found, strict=True)
        ]
        self.of_hits = fit_tables(inputs, right, free=1)
        first = [self.of_hits.logits(self.hit_inputs(e)).max(axis=1) for e in fitted]
        self.hit_bound = best_bound(first, [e.table.answers >= 0 for e in fitted], "accuracy")

    def pair_inputs(self, e: Evidence, rows: np.ndarray) -> np.ndarray:
        """Compute the inputs of some of the pairs: float64 [P, f]."""
        first, second = e.first[rows], e.second[rows]
        columns = [e.cosines[first, second]]
        if self.use_density:
            count = len(e.table.texts)
            densities = (count * e.densities() + self.shrink * self.typical) / (count + self.shrink)
            columns.append(distance_ratio(columns[0], densities, first, second))
        columns += [e.pair_guards[guard][first, second] for guard in self.used]
        return np.stack(columns, axis=1).astype(np.float64)

    def hit_inputs(self, e: Evidence) -> np.ndarray:
        """Compute the inputs of queries and indexed texts: float64 [q, k, f]."""
        columns = [e.to_queries, *e.hit_guards[self.used]]
        return np.stack(columns, axis=-1).astype(np.float64)

    def pairs(self, evidence: Evidence) -> PairScores:
        """Score all pairs."""
        parts = np.array_split(np.arange(len(evidence.first)), 1 + len(evidence.first) // BLOCK)
        logits = [self.of_pairs.logits(self.pair_inputs(evidence, part)) for part in parts]
        joined = np.concatenate(logits)
        return PairScores(joined, joined >= 0, logistic(joined))

    def hits(self, evidence: Evidence) -> HitScores:
        """Search with all queries."""
        return first_hits(self.of_hits.logits(self.hit_inputs(evidence)), self.hit_bound)


def fit_tables(inputs: Sequence[np.ndarray], true: Sequence[np.ndarray], *, free: int) -> Logistic:
    """Fit tables that weigh equally."""
    weights = np.concatenate([np.full(len(same), 1 / len(same)) for same in true])
    return Logistic(np.concatenate(inputs), np.concatenate(true), weights, free=free)
