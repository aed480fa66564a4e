"""The plain model of pairs, fitted to labeled tables: slope and bias; weights of words are kept.

Tables weigh equally, and have at most FEW texts of a group. A missed pair counts as MISSED pairs
that are wrong: by default people look for duplicates. What ships are rounded weights of such fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.pair_evidence import Evidence
from qpr_jax.pair_model.fitting import fit_logistic
from qpr_jax.pair_model.plain import GUARDED, OF_HITS, OF_PAIRS, PlainModel, general_model, ratios

FEW = 5
MISSED = 2.0
FITTED_HITS = 5  # of a query
_SPREAD = 30.0  # of weights


def fit_plain(tables: Sequence[Evidence]) -> PlainModel:
    """Fit a model to tables that one encoder has encoded."""
    model = general_model(tables[0].encoder)
    slope, bias = _fit([_of_pairs(e, model) for e in tables], MISSED)
    of_hits, bias_of_hits = _fit([_of_hits(e, model) for e in tables], 1)
    return dataclasses.replace(
        model,
        pairs=(slope, slope, *OF_PAIRS, bias),
        hits=(of_hits, *OF_HITS, bias_of_hits),
        settings={"tables": [e.table.name for e in tables]},
    )


def _fit(parts: Sequence[np.ndarray], missed: float) -> list[float]:
    """Fit slope and bias to rows of tables: number, logit that is added, label."""
    rows, weights = join(parts)
    number, added, labels = rows.T
    inputs = np.column_stack([number, np.ones(len(rows))])
    weights *= np.where(labels > 0, missed, 1)
    start, spreads = np.array([1.0, 0.0]), np.full(2, _SPREAD)
    return fit_logistic(inputs, labels, weights, start, spreads, fixed=added).tolist()


def _of_pairs(e: Evidence, model: PlainModel) -> np.ndarray:
    """Return 1 - u + r, logit of words and label of the nearest pairs: float64 [m, 3]."""
    few = few_of_groups(e.table.groups, FEW)
    chosen = (e.candidates & few[e.first] & few[e.second])[e.near]
    rows, found = e.near[chosen], e.near_words[chosen]
    spreads = model.spreads(e.neighbors)
    u = np.maximum((1 - e.cosines[rows]) / model.scale, GUARDED * found[:, :-1].any(axis=1))
    r = ratios(u, (spreads[e.first[rows]] + spreads[e.second[rows]]) / 2)
    return np.column_stack([1 - u + r, found @ OF_PAIRS, e.same[rows]])


def _of_hits(e: Evidence, model: PlainModel) -> np.ndarray:
    """Return the same of the nearest hits, with 1 - u."""
    hits = e.hits[:, :FITTED_HITS]
    cosines, right = (
        np.take_along_axis(x, hits, axis=1).ravel() for x in (e.to_queries, e.answers)
    )
    found = e.hit_words[:, :FITTED_HITS].reshape(len(right), -1)
    u = np.maximum((1 - cosines) / model.scale, GUARDED * found[:, :-1].any(axis=1))
    return np.column_stack([1 - u, found @ OF_HITS, right])


def few_of_groups(groups: np.ndarray, most: int) -> np.ndarray:
    """Return which rows are among the first `most` of their group, bool [n]."""
    return np.asarray(pd.Series(groups).groupby(groups).cumcount() < most)


def join(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate rows of tables, and weigh them so that tables weigh equally, 1 in the mean."""
    joined = np.concatenate(parts)
    weights = [np.full(len(part), len(joined) / len(parts) / max(1, len(part))) for part in parts]
    return joined, np.concatenate(weights)
