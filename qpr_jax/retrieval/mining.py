"""All pairs of questions that lie close together, and the groups that they link."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import faiss
import numpy as np

from qpr_jax.errors import UserError

_TILE = 8192  # vectors that are held against as many others at once
_SAMPLE = 1 << 26  # distances that say how many pairs a threshold has
_SLACK = 1e-3  # of the largest squared length: what distances from products may be off


class Pairs(NamedTuple):
    """Pairs of rows, nearest first: `first` < `second` int64 [P], squared distances float32 [P]."""

    first: np.ndarray
    second: np.ndarray
    distances: np.ndarray


def close_pairs(
    vectors: np.ndarray,
    threshold: float,
    *,
    most: int,
    log: Callable[[str], object] = lambda line: None,
) -> Pairs:
    """All pairs of rows at a squared Euclidean distance of at most `threshold`.

    Exact: every row is held against every other, 300 N^2 operations for N rows of 300.

    Args:
      vectors: float32 [N, d].
      most: UserError as soon as there are more pairs than this.
      log: is told how far it is.
    """
    if len(vectors) < 2:
        return _none()
    # The distances that FAISS takes from products lose what the squared lengths outweigh.
    centred = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    largest = float(np.einsum("nd,nd->n", centred, centred).max())
    reach = np.nextafter(np.float32(threshold + _SLACK * largest), np.float32(np.inf))
    parts, count, tiles = [_none()], 0, range(0, len(vectors), _TILE)
    for start in tiles:
        tile = faiss.IndexFlatL2(vectors.shape[1])
        tile.add(centred[start : start + _TILE])
        for other in range(start, len(vectors), _TILE):
            limits, _, first = tile.range_search(centred[other : other + _TILE], float(reach))
            second = other + np.repeat(np.arange(len(limits) - 1), np.diff(limits).astype(np.int64))
            found = _exact(vectors, start + first, second, threshold)
            parts.append(found)
            count += len(found.distances)
            if count > most:
                raise UserError(
                    f"expected at most {most:,} pairs within {threshold:g}, got more among the "
                    f"first {start + _TILE:,} questions; lower the threshold, or allow more pairs"
                )
        log(f"compared {min(start + _TILE, len(vectors)):,} of {len(vectors):,} questions")
    return _sorted(parts)


def closest_pairs(
    vectors: np.ndarray, count: int, *, log: Callable[[str], object] = lambda line: None
) -> Pairs:
    """The `count` closest pairs of rows of float32 [N, d], all where there are fewer."""
    rows = len(vectors)
    count = min(count, rows * (rows - 1) // 2)
    if count == 0:
        return _none()
    sample = np.random.default_rng(0).permutation(rows)[: max(1, min(rows, _SAMPLE // rows))]
    distances = faiss.pairwise_distances(vectors[sample], vectors)
    distances[np.arange(len(sample)), sample] = np.inf
    distances = distances.ravel()
    # Where pairs are few, a sample may say too little of them.
    wanted = 2 * count * len(sample) // rows + 10
    while True:
        inside = wanted < len(distances) - len(sample)
        threshold = np.partition(distances, wanted)[wanted] if inside else np.inf
        pairs = close_pairs(vectors, float(threshold), most=rows * rows, log=log)
        if len(pairs.distances) >= count:
            return Pairs(*(values[:count] for values in pairs))
        wanted *= 4


def pair_distances(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Squared distances float32 [P] of pairs of rows of float32 [N, d], from their differences."""
    distances = np.empty(len(first), np.float32)
    for start in range(0, len(first), _TILE):
        some = slice(start, start + _TILE)
        moves = vectors[first[some]] - vectors[second[some]]
        distances[some] = np.einsum("nd,nd->n", moves, moves)
    return distances


def _exact(vectors: np.ndarray, first: np.ndarray, second: np.ndarray, threshold: float) -> Pairs:
    """Those of the pairs with `first` < `second` that are within the threshold."""
    ordered = first < second
    first, second = first[ordered], second[ordered]
    distances = pair_distances(vectors, first, second)
    near = distances <= threshold
    return Pairs(first[near], second[near], distances[near])


def _sorted(parts: list[Pairs]) -> Pairs:
    first, second, distances = map(np.concatenate, zip(*parts, strict=True))
    order = np.lexsort((second, first, distances))
    return Pairs(first[order], second[order], distances[order])


def _none() -> Pairs:
    return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
