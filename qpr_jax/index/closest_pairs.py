"""The closest pairs of vectors, so many as are asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable

import faiss
import numpy as np

from qpr_jax.index.close_pairs import ClosePairs, close_pairs

_ROWS, _OTHERS = 512, 32_768  # compared to guess a distance


def closest_pairs(
    vectors: np.ndarray, count: int, search: Callable[[float], ClosePairs] | None = None
) -> ClosePairs:
    """Find the `count` closest pairs of rows float32 [N, d], or all where there are fewer.

    They are the closest of all pairs within a distance that is guessed from a sample and raised
    until there are enough.

    search: finds the pairs within a distance; None: `close_pairs` among all rows.
    """
    search = search or functools.partial(close_pairs, vectors)
    every = len(vectors) * (len(vectors) - 1) // 2
    sampled = _sampled_distances(vectors)
    aim = 1.5 * count
    while True:
        place = int(aim / max(1, every) * len(sampled)) + 4
        is_last = aim >= every or place >= len(sampled)
        distance = float(np.finfo(np.float32).max) if is_last else float(sampled[place])
        found = search(distance)
        number = len(found.pairs.first)
        if is_last or number >= count:
            return found._replace(pairs=found.pairs.where(slice(count)))
        aim *= max(4.0, 1.5 * count / max(1, number))


def _sampled_distances(vectors: np.ndarray) -> np.ndarray:
    """Distances of some rows to some others, float32, ascending."""
    drawn = np.random.default_rng(0).permutation(len(vectors))
    some, others = np.split(drawn, [min(len(drawn) // 2, _ROWS)])
    left, right = vectors[np.sort(some)], vectors[np.sort(others[:_OTHERS])]
    with np.errstate(invalid="ignore"):  # the search refuses what is not finite
        center = right[:1]
        return np.sort(faiss.pairwise_distances(left - center, right - center), axis=None)
