"""All pairs of questions that lie close together, and the groups that they link."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import faiss
import numpy as np

from qpr_jax import progress
from qpr_jax.errors import UserError

TILE, SLICE = 8192, 1024  # vectors that are compared at once
_SLACK = 1e-3  # error of distances from products, as a share of the largest squared length


class Pairs(NamedTuple):
    """Pairs of rows, nearest first: `first` < `second` int64 [P], squared distances float32 [P]."""

    first: np.ndarray
    second: np.ndarray
    distances: np.ndarray


def close_pairs(vectors: np.ndarray, threshold: float, *, most: int) -> Pairs:
    """All pairs of rows at a squared Euclidean distance of at most `threshold`.

    Exact: every row is compared with every other, 300 N^2 operations for N rows of 300.

    Args:
      vectors: float32 [N, d].
      threshold: the largest squared distance of a pair.
      most: a UserError is raised as soon as there are more pairs than this.
    """
    parts, count = [_none()], 0

    def take(found: Pairs) -> float:
        nonlocal count
        parts.append(found)
        count += len(found.distances)
        if count > most:
            raise UserError(
                f"expected at most {most:,} pairs within {threshold:g}, got more",
                remedy="lower {threshold}, or raise {most}",
            )
        return threshold

    _scan(vectors, threshold, take)
    return _nearest(parts)


def closest_pairs(vectors: np.ndarray, count: int) -> Pairs:
    """The `count` closest pairs of rows of float32 [N, d]; all where there are fewer.

    Of equal distances, those of the first rows. About three times as many pairs are in memory.
    """
    parts, threshold = [_none()], float("inf")

    def take(found: Pairs) -> float:
        nonlocal threshold
        parts.append(found)
        if sum(len(part.distances) for part in parts) > 2 * count:
            parts[:] = [_nearest(parts, count)]
            threshold = float(parts[0].distances[-1])
        return threshold

    if count:
        _scan(vectors, threshold, take)
    return _nearest(parts, count)


def pair_distances(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Squared distances float32 [P] of pairs of rows of float32 [N, d], from their differences."""
    distances = np.empty(len(first), np.float32)
    for start in range(0, len(first), TILE):
        some = slice(start, start + TILE)
        moves = vectors[first[some]] - vectors[second[some]]
        distances[some] = np.einsum("nd,nd->n", moves, moves)
    return distances


def _scan(vectors: np.ndarray, threshold: float, take: Callable[[Pairs], float]) -> None:
    """Give `take` all pairs within a squared distance; it returns the distance for the next."""
    if len(vectors) < 2:
        return
    # FAISS computes distances from products, whose error grows with the squared lengths.
    centered = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    lengths = np.einsum("nd,nd->n", centered, centered)
    if not np.isfinite(lengths).all():
        raise UserError("`vectors`: expected finite numbers, got others; is the encoder sound?")
    blocks, done = count_blocks(len(vectors)), 0
    with progress.bar("block", blocks) as show:
        for start in range(0, len(vectors), TILE):
            stop = min(start + TILE, len(vectors))
            tile = faiss.IndexFlatL2(vectors.shape[1])
            tile.add(centered[start:stop])
            for other in range(start, len(vectors), SLICE):
                some = slice(other, other + SLICE)
                off = _SLACK * max(lengths[start:stop].max(), lengths[some].max())
                wide = np.nextafter(np.float32(threshold + off), np.float32(np.inf))
                limits, _, first = tile.range_search(centered[some], float(wide))
                counts = np.diff(limits).astype(np.int64)
                second = other + np.repeat(np.arange(len(limits) - 1), counts)
                threshold = take(_exact(vectors, start + first, second, threshold))
                done += 1
                show(done, f"{stop:,} of {len(vectors):,} questions")


def count_blocks(count: int) -> int:
    """How many times SLICE questions are compared with TILE others, to compare all pairs."""
    return sum(-(-(count - start) // SLICE) for start in range(0, count, TILE))


def _exact(vectors: np.ndarray, first: np.ndarray, second: np.ndarray, threshold: float) -> Pairs:
    """Those of the pairs with `first` < `second` that are within the threshold."""
    ordered = first < second
    first, second = first[ordered], second[ordered]
    distances = pair_distances(vectors, first, second)
    near = distances <= threshold
    return Pairs(first[near], second[near], distances[near])


def _nearest(parts: list[Pairs], count: int | None = None) -> Pairs:
    """The pairs, nearest first; at most `count` of them."""
    first, second, distances = map(np.concatenate, zip(*parts, strict=True))
    if count is not None and count < len(distances):
        near = distances <= np.partition(distances, count)[count]
        first, second, distances = first[near], second[near], distances[near]
    order = np.lexsort((second, first, distances))[:count]
    return Pairs(first[order], second[order], distances[order])


def _none() -> Pairs:
    return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
