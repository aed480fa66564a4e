"""The plain model of pairs of an encoder, fitted to labeled tables.

Tables weigh equally, and have at most FEW texts of a group. A missed pair counts as MISSED pairs
that are wrong: by default people look for duplicates. Distances are fitted first; then guards, to
contrasts made by rule, too, since few tables have opposites or other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.pair_evidence import Evidence
from qpr_jax.pair_model.fitting import fit_logistic
from qpr_jax.pair_model.guards import GUARDS
from qpr_jax.pair_model.plain import GUARDED, PlainModel, ratios

FEW = 5
MISSED = 4.0
CONTRASTS = 0.3  # their weight beside that of the nearest pairs
FITTED_HITS = 5  # of a query
DIFFER = GUARDS.index("numbers differ")
LEAST_GUARD = -10.0  # enough to turn any pair down; that of different numbers is as low
LEAST_OF_WORD = -1.5  # of one word that differs; less costs `tatoeba` more than others gain
# Guards of hits. Contrasts alone ask for more, which lowers the first hit of Quora, or "has an
# answer" of clinc150 (by `open_student`, numbers) and clinic (opposites); any of a number on one
# side does. Other encoders have those of `open_student`.
OF_HITS = {
    "minilm": (0.0, -1.2, -1.2, -1.2, -0.5, -1.2, 0.0),
    "open_student": (0.0, -0.5, -1.2, -1.2, -0.5, -1.2, 0.0),
}
_SPREAD = 30.0  # of weights


def fit_plain(name: str, tables: Sequence[Evidence]) -> PlainModel:
    """Fit a model to tables that the encoder of this name has encoded."""
    encoder = tables[0].encoder.fingerprint
    around = float(np.median([np.median(e.neighbors) for e in tables])) / 2
    pairs = _fit_pairs(tables, PlainModel(encoder, (), (), around))
    names = [e.table.name for e in tables]
    hits = _fit_hits(tables, OF_HITS.get(name, OF_HITS["open_student"]))
    return PlainModel(encoder, pairs, hits, around, settings={"tables": names})


def _fit_pairs(tables: Sequence[Evidence], blank: PlainModel) -> tuple[float, ...]:
    near, weights = join([_of_pairs(e, blank) for e in tables])
    labels = near[:, -1]
    weights *= np.where(labels > 0, MISSED, 1)
    # The weight of 1 - u is at least that of r: r alone misleads where groups are large.
    both = near[:, :3] @ np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    start, spreads = np.array([0.0, 1.0, 0.0]), np.full(3, _SPREAD)
    least = np.array([0, 0, -np.inf])
    more, r, bias = fit_logistic(both, labels, weights, start, spreads, least=least)
    distance = np.array([more + r, r, bias])
    opposed, of_opposed = join([_of_contrasts(e, blank) for e in tables])
    rows = np.vstack([near, opposed])
    guards = fit_logistic(
        rows[:, 3:-1],
        rows[:, -1],
        np.append(weights, CONTRASTS * of_opposed * len(near) / len(opposed)),
        np.full(len(GUARDS), -1.0),
        np.full(len(GUARDS), _SPREAD),
        fixed=rows[:, :3] @ distance,
        least=np.append(np.full(len(GUARDS) - 1, LEAST_GUARD), LEAST_OF_WORD),
        most=np.where(np.arange(len(GUARDS)) == DIFFER, LEAST_GUARD, 0),
    )
    return (*distance[:2].tolist(), *guards.tolist(), float(bias))


def _of_pairs(e: Evidence, blank: PlainModel) -> np.ndarray:
    """Return 1 - u, r, 1, guards and label of the nearest pairs: float64 [m, 4 + guards]."""
    few = few_of_groups(e.table.groups, FEW)
    chosen = (e.candidates & few[e.first] & few[e.second])[e.near]
    rows, found = e.near[chosen], e.near_guards[chosen]
    spreads = blank.spreads(e.neighbors)
    u = np.maximum(1 - e.cosines[rows].astype(np.float64), GUARDED * found.any(axis=1))
    r = ratios(u, (spreads[e.first[rows]] + spreads[e.second[rows]]) / 2)
    return np.column_stack([1 - u, r, np.ones(len(u)), found, e.same[rows]])


def _of_contrasts(e: Evidence, blank: PlainModel) -> np.ndarray:
    """Return the same of contrasts."""
    rows, distances, found = e.contrasts
    u = np.maximum(distances / 2, GUARDED)
    r = ratios(u, blank.spreads(e.neighbors)[rows])
    return np.column_stack([1 - u, r, np.ones(len(u)), found, np.zeros(len(u))])


def few_of_groups(groups: np.ndarray, most: int) -> np.ndarray:
    """Return which rows are among the first `most` of their group, bool [n]."""
    return np.asarray(pd.Series(groups).groupby(groups).cumcount() < most)


def _fit_hits(tables: Sequence[Evidence], of_guards: Sequence[float]) -> tuple[float, ...]:
    parts = []
    for e in tables:
        found = e.hits[:, :FITTED_HITS]
        cosines, right = (
            np.take_along_axis(x, found, axis=1).ravel() for x in (e.to_queries, e.answers)
        )
        guards = e.hit_guards[:, :FITTED_HITS].reshape(len(right), -1)
        near = np.minimum(cosines, 1 - GUARDED * guards.any(axis=1))
        parts.append(np.column_stack([near, np.ones(len(near)), guards @ of_guards, right]))
    rows, weights = join(parts)
    s, bias = fit_logistic(
        rows[:, :2],
        rows[:, -1],
        weights,
        np.array([1.0, 0.0]),
        np.full(2, _SPREAD),
        fixed=rows[:, 2],
        least=np.array([0, -np.inf]),
    )
    return (float(s), *of_guards, float(bias))


def join(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate rows of tables, and weigh them so that tables weigh equally, 1 in the mean."""
    joined = np.concatenate(parts)
    weights = [np.full(len(part), len(joined) / len(parts) / max(1, len(part))) for part in parts]
    return joined, np.concatenate(weights)
