"""What a report says of a second stage: its scores, and the difference to the first."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpr_jax.evaluation.bootstrap import Scores


def reranked_scores(
    scores: dict[str, Any], ranks: dict[str, np.ndarray], split: str, name: str
) -> dict[str, Any]:
    """The scores of two stages, by the index and by exact search, and what the second adds.

    scores: of the split, by search. ranks, name: as of `gains`.
    """
    return {
        **scores[f"{name}_index"],
        "exact": scores[f"{name}_exact"],
        "gain": gains(ranks, split, name),
    }


def gains(ranks: dict[str, np.ndarray], split: str, name: str) -> dict[str, dict[str, Any]]:
    """What a second stage adds to a split's scores: search -> over -> score -> interval.

    `ranks` are the arrays of ranks.npz, `name` is the second stage's in them. An interval is the
    difference and its 95 % interval, by a bootstrap over clusters: [difference, low, high].
    """
    found: dict[str, dict[str, Any]] = {}
    for search in ("index", "exact"):
        reranked = ranks | {f"{split}_{search}": ranks[f"{split}_{name}_{search}"]}
        found[search] = {}
        for over in ("pair", "query"):
            rows = {"first": [ranks], "both": [reranked]}
            scores = Scores(rows, split, over, search=search)
            mean = scores.mean("both") - scores.mean("first")
            table = np.concatenate([mean[None], scores.interval("both", minus="first")])
            names = ("hits@1", "hits@10", "mrr@20")
            found[search][f"per_{over}"] = dict(zip(names, table.T.tolist(), strict=True))
    return found
