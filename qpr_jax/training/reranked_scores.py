"""The searches that a report scores, and the gain of the second stage over the first."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpr_jax.evaluation.metrics import rank_scores
from qpr_jax.evaluation.retrieval import RankFn, exact_search, index_search
from qpr_jax.index.folder import FolderStore
from qpr_jax.retriever import Retriever


def reranked_scores(
    scores: dict[str, Any], ranks: dict[str, np.ndarray], split: str, name: str
) -> dict[str, Any]:
    """Collect the scores of two stages, by the index and by exact search, and the gain.

    scores: those of the split, by search. ranks, name: see `gains`.
    """
    return {
        **scores[f"{name}_index"],
        "exact": scores[f"{name}_exact"],
        "gain": gains(ranks, split, name),
    }


def gains(ranks: dict[str, np.ndarray], split: str, name: str) -> dict[str, dict[str, Any]]:
    """Compute the gain by a second stage in a split: search -> per_pair or per_query -> score.

    `ranks` are the arrays of ranks.npz; `name` is the name of the second stage in them. A gain is
    [difference, low, high], with the 95 % interval of a bootstrap over clusters.
    """
    found: dict[str, dict[str, Any]] = {}
    names = ("hits@1", "hits@10", "mrr@20")
    for search in ("index", "exact"):
        found[search] = {}
        for over in ("pair", "query"):
            table = rank_scores(ranks, split, f"{name}_{search}", over, minus=search)
            found[search][f"per_{over}"] = dict(zip(names, table.T.tolist(), strict=True))
    return found


def first_searches(retriever: Retriever, vectors: np.ndarray) -> dict[str, RankFn]:
    """Return the searches in one stage: by the index of the run, and exact.

    vectors: float32 [Q, d], those of the questions in the order of the index.
    """
    index = store_of(retriever).vectors
    return {"index": index_search(index, vectors), "exact": exact_search(vectors)}


def store_of(retriever: Retriever) -> FolderStore:
    """Return the index of a run, which is in a folder."""
    if not isinstance(retriever.store, FolderStore):
        raise TypeError(f"expected the index of a folder, got {retriever.store!r}")
    return retriever.store
