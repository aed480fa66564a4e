"""All pairs of questions that lie close together, in memory.

`pair_search` does the same for more questions than memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from qpr_jax import progress
from qpr_jax.errors import UserError
from qpr_jax.index.closest_pairs import MORE, further, sample_distances
from qpr_jax.index.pair_codes import check_finite, encode_all, fit_axes
from qpr_jax.index.pair_files import Pairs, join_pairs, sort_pairs
from qpr_jax.index.pair_kernels import measure
from qpr_jax.index.pair_search import check_vectors
from qpr_jax.index.pair_tasks import OTHERS, ROWS, run_all, run_task, triangle

__all__ = ["Pairs", "close_pairs", "closest_pairs", "pair_distances"]

_SPARE = 1 << 16  # pairs that are held before the farthest are left out


def close_pairs(vectors: np.ndarray, threshold: float, *, most: int) -> Pairs:
    """All pairs of rows at a squared Euclidean distance of at most `threshold`, nearest first.

    Exact: every row is compared with every other.

    Args:
      vectors: float32 [N, d].
      threshold: the largest squared distance of a pair.
      most: a UserError is raised as soon as there are more pairs than this.
    """
    check_finite(vectors := check_vectors(vectors))
    parts, count = [], 0
    for found in _scan(vectors, lambda: threshold):
        parts.append(found)
        count += len(found.distances)
        if count > most:
            raise UserError(
                f"expected at most {most:,} pairs within {threshold:g}, got more",
                remedy="lower `threshold`, or raise `most`",
            )
    return sort_pairs(join_pairs(parts))


def closest_pairs(vectors: np.ndarray, count: int) -> Pairs:
    """The `count` closest pairs of rows of float32 [N, d]; all where there are fewer.

    Of equal distances, those of the first rows. About three times as many pairs are in memory.
    """
    if not count:
        return join_pairs([])
    check_finite(vectors := check_vectors(vectors))
    sampled, aim = sample_distances(vectors), MORE * count
    while True:
        distance = sampled.distance_of(aim)
        found = _closest_within(vectors, distance, count)
        if len(found.first) == count or distance == np.inf:
            return found
        aim = further(aim, count, len(found.first))


def _closest_within(vectors: np.ndarray, distance: float, count: int) -> Pairs:
    """The `count` closest pairs within a squared distance; all where there are fewer."""
    parts, held, limit = [join_pairs([])], 0, [distance]
    for part in _scan(vectors, lambda: limit[0]):
        parts.append(part)
        held += len(part.first)
        if held > 2 * count + _SPARE:
            parts = [sort_pairs(join_pairs(parts)).where(slice(count))]
            held, limit[0] = count, float(parts[0].distances[-1])
    return sort_pairs(join_pairs(parts)).where(slice(count))


def pair_distances(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Squared distances float32 [P] of pairs of rows of float32 [N, d], from their differences."""
    return measure(check_vectors(vectors), first.astype(np.int64), second.astype(np.int64))


def _scan(vectors: np.ndarray, threshold: Callable[[], float]) -> Iterator[Pairs]:
    """All pairs within a squared distance, a few at a time; the threshold may fall meanwhile."""
    if len(vectors) < 2:
        return
    rows = np.arange(len(vectors))
    codes = encode_all(fit_axes(vectors, threshold()), vectors)
    total = count_tasks(len(vectors))
    with progress.bar("task", total) as show:
        work = run_all(triangle(rows), lambda task: run_task(task, vectors, codes, threshold()))
        for done, (_, found) in enumerate(work, start=1):
            yield found
            show(done, "")


def count_tasks(count: int) -> int:
    """How many tasks compare all pairs of `count` vectors."""
    return sum(-(-(count - start) // OTHERS) for start in range(0, count, ROWS))
