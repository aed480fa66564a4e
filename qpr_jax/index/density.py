"""How far the texts of a table are from their neighbors."""

from __future__ import annotations

import faiss
import numpy as np

from qpr_jax import progress
from qpr_jax.index.close_pairs import EXACT, index_of_lists

_FIRST, _LAST = 2, 6  # the nearest texts that count; the first may be a duplicate
_CHUNK = 4096
_PROBES = 8  # lists that are searched


def neighbor_distances(vectors: np.ndarray) -> np.ndarray:
    """Return the mean squared distance of each text to its second to sixth nearest, float64 [n].

    NaN where there are fewer than three texts. Above 50,000 texts the nearest are those of a few
    lists.

    vectors: float32 [n, d], of distinct texts.
    """
    count, dimension = vectors.shape
    nearest = min(_LAST + 1, count)  # itself included
    means = np.full(count, np.nan)
    if nearest <= _FIRST:
        return means
    index = faiss.IndexFlatL2(dimension)
    if count > EXACT:
        index = index_of_lists(np.arange(count), vectors.__getitem__)
        index.nprobe = _PROBES
    index.add(vectors)
    with progress.bar("density", count) as show:
        for start in range(0, count, _CHUNK):
            distances, rows = index.search(vectors[start : start + _CHUNK], nearest)
            distances = np.where(rows >= 0, np.maximum(distances, 0), np.nan).astype(np.float64)
            texts = np.arange(start, start + len(distances))[:, None]
            itself = rows == texts
            itself[~itself.any(axis=1), -1] = True  # behind texts with an equal vector
            others = distances[~itself].reshape(len(distances), nearest - 1)
            with np.errstate(invalid="ignore"):
                means[texts[:, 0]] = np.nanmean(others[:, _FIRST - 1 :], axis=1)
            show(start + len(distances), "")
    return means
