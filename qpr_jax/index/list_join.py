"""Close pairs among more vectors than can all be compared: by overlapping lists.

Each vector has its home in the list of the nearest centroid, and visits further lists whose border
is near: the plane halfway between the two centroids. Each list compares its members with one
another and with its visitors. Two vectors of different homes at a distance r lie on both sides of
such a plane, at most r from it together, so one of the two is at most r / 2 from it: visits up to
that distance would find every pair. Displacements in many dimensions are hardly ever at a right
angle to a border, so a small share of r finds nearly all: which share, is chosen by the exact pairs
of some sampled vectors, and what it misses is estimated from the pairs of others.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import faiss
import numpy as np

from qpr_jax import progress
from qpr_jax.index.list_files import Lists, has_lists, read_lists, write_lists
from qpr_jax.index.list_kernels import borders_of_pairs, find_visits, visits_list
from qpr_jax.index.pair_codes import Codes
from qpr_jax.index.pair_files import Pairs, join_pairs
from qpr_jax.index.pair_tasks import (
    Compare,
    Task,
    rectangle,
    run_all,
    run_task,
    split_group,
    triangle,
)

if TYPE_CHECKING:
    from qpr_jax.index.pair_search import Setup

MISSED = 0.01  # share of the sampled pairs that may be missed
LISTS = 2  # lists, as a multiple of the square root of all vectors
TRAINED = 32  # sampled vectors for each list
_SAMPLE, _MOST_SAMPLED, _ENOUGH = 2048, 16_384, 2000  # vectors, at most; pairs that are enough
_FEW = 50  # pairs that are too few to choose by
_CHUNK = 2048  # vectors whose distances to all centroids are in memory
_LARGE = 6  # times the mean size, from which a list is divided


def make_lists(
    setup: Setup, codes: Codes, rows: np.ndarray, path: pathlib.Path, log: Callable[[str], object]
) -> Lists:
    """The lists of the vectors of `rows` int64 [n], or those that a killed run left at `path`.

    The facts have the estimated share of pairs `missed`, by how many `sampled_pairs` of them.
    """
    if has_lists(path):
        return read_lists(path)
    rng = np.random.default_rng(setup.seed)
    centroids = _Centroids.of(_fit_centroids(setup.vectors, rows, rng))
    tuning, check = _sample_pairs(setup, codes, rows, rng)
    count = len(centroids.squares)
    sampled = len(tuning.first) + len(check.first)
    log(f"{count:,} lists; {sampled:,} pairs of sampled questions choose their overlap")
    needed = _needed_reach(setup.vectors, centroids, tuning)
    # That which finds every pair, where too few are known to say which finds nearly all.
    whole = 0.5 * setup.most**0.5
    reach = whole if len(needed) < _FEW else min(whole, float(np.quantile(needed, 1 - MISSED)))
    checked = _needed_reach(setup.vectors, centroids, check)
    facts = {
        "reach": reach,
        "missed": float((checked > reach).mean()) if len(checked) else 0.0,
        "sampled_pairs": len(checked),
    }
    parts = _assign(setup.vectors, rows, centroids, reach)
    return write_lists(path, parts, count, facts)


def join_lists(
    lists: Lists, rows: np.ndarray, is_new: np.ndarray | None, compare: Compare
) -> Iterator[Task]:
    """The tasks of all lists: members with one another, and with visitors."""
    members = np.argsort(lists.home, kind="stable")
    begins = np.searchsorted(lists.home, np.arange(lists.count + 1), sorter=members)
    for number in range(lists.count):
        home = rows[members[begins[number] : begins[number + 1]]]
        begin, end = lists.guest_starts[number : number + 2]
        guests = rows[lists.guests[begin:end]]
        for task in split_group(home, is_new, compare):
            yield task._replace(list=number)
        for one, other in _sides(home, guests, is_new, compare):
            for task in rectangle(one, other):
                yield task._replace(list=number)


def _sides(
    home: np.ndarray, guests: np.ndarray, is_new: np.ndarray | None, compare: Compare
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Which members are compared with which visitors."""
    if compare == "all" or is_new is None:
        return [(home, guests)]
    new, old = home[is_new[home]], home[~is_new[home]]
    new_guests, old_guests = guests[is_new[guests]], guests[~is_new[guests]]
    sides = [(new, old_guests), (old, new_guests)]
    return [*sides, (new, new_guests)] if compare == "new" else sides


def keep_once(lists: Lists, rows: np.ndarray, number: int, pairs: Pairs) -> Pairs:
    """The pairs found in list `number`, without those that another list finds, too.

    Where both vectors visit the home of the other, the list of the lower number keeps the pair.
    """
    first, second = np.searchsorted(rows, pairs.first), np.searchsorted(rows, pairs.second)
    homes = lists.home[first], lists.home[second]
    host = np.where(homes[0] == number, first, second)
    other = np.where(homes[0] == number, homes[1], homes[0])
    again = (other < number) & visits_list(lists.starts, lists.visits, host, other)
    return pairs.where(~again)


def _fit_centroids(vectors: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Distinct centroids float32 [L, d] of about 2 sqrt(n) lists, none of which is very large."""
    number = max(1, round(LISTS * len(rows) ** 0.5))
    drawn = np.sort(rng.choice(len(rows), min(len(rows), TRAINED * number), replace=False))
    sample = np.asarray(vectors[rows[drawn]])
    centroids = _means(sample, number, rng)
    for _ in range(3):
        sizes = np.bincount(home := _nearest(sample, centroids), minlength=len(centroids))
        large = np.flatnonzero(sizes > _LARGE * len(sample) / number)
        if not len(large):
            break
        divided = [
            _means(sample[home == one], int(sizes[one] * number // len(sample)) + 1, rng)
            for one in large
        ]
        kept = np.delete(centroids, large, axis=0)
        centroids = np.unique(np.concatenate([kept, *divided]), axis=0)
    return centroids


def _means(sample: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """At most `number` distinct means of float32 [n, d]."""
    distinct = np.unique(sample[: 4 * number], axis=0)
    if len(distinct) < number:
        distinct = np.unique(sample, axis=0)
    if len(distinct) <= number:
        return distinct
    means = faiss.Kmeans(
        sample.shape[1], number, niter=8, seed=int(rng.integers(1 << 31)),
        min_points_per_centroid=1, max_points_per_centroid=TRAINED * 4,
    )  # fmt: skip
    means.train(np.ascontiguousarray(sample))
    return np.unique(means.centroids, axis=0)


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """The list of each of float32 [n, d]."""
    fitted = _Centroids.of(centroids)
    parts = (vectors[start : start + _CHUNK] for start in range(0, len(vectors), _CHUNK))
    return np.concatenate([fitted.distances(part).argmin(axis=1) for part in parts])


def _sample_pairs(
    setup: Setup, codes: Codes, rows: np.ndarray, rng: np.random.Generator
) -> tuple[Pairs, Pairs]:
    """All pairs of some sampled vectors with any others, and of as many others."""
    able = rows if setup.is_new is None or setup.compare == "all" else rows[setup.is_new[rows]]
    drawn = rng.permutation(able)[:_MOST_SAMPLED]
    found: tuple[list[Pairs], list[Pairs]] = ([], [])
    for start in range(0, len(drawn), _SAMPLE):
        for part, some in zip(
            found, np.array_split(drawn[start : start + _SAMPLE], 2), strict=True
        ):
            part.append(_pairs_of(setup, codes, rows, np.sort(some)))
        if all(sum(len(part.first) for part in parts) >= _ENOUGH for parts in found):
            break
    return join_pairs(found[0]), join_pairs(found[1])


def _pairs_of(setup: Setup, codes: Codes, rows: np.ndarray, some: np.ndarray) -> Pairs:
    """All pairs that are searched of one of `some` int64 [s] and one of `rows`."""
    others = rows[~np.isin(rows, some)]
    tasks = [*triangle(some), *rectangle(some, others)]

    def work(task: Task) -> Pairs:
        return run_task(task, setup.vectors, codes, setup.most)

    pairs = join_pairs([pairs for _, pairs in run_all(tasks, work)])
    if setup.is_new is None or setup.compare == "all":
        return pairs
    new = setup.is_new[pairs.first].astype(int) + setup.is_new[pairs.second]
    kept = new == 1 if setup.compare == "across" else new > 0
    return pairs.where(kept)


class _Centroids(NamedTuple):
    """Centroids as products need them: the center, -2 times each less it [d, L], squares [L]."""

    center: np.ndarray
    factors: np.ndarray
    squares: np.ndarray
    gaps: np.ndarray  # twice the distances of all float32 [L, L]

    @classmethod
    def of(cls, centroids: np.ndarray) -> _Centroids:
        """Those of float32 [L, d]."""
        center = centroids.mean(axis=0)
        moved = (centroids - center).astype(np.float64)
        squares = np.einsum("ld,ld->l", moved, moved)
        gaps = squares[:, None] + squares - 2 * moved @ moved.T
        # Of equal centroids the border is anywhere, so all visit both.
        gaps = 2 * np.sqrt(np.maximum(gaps, 1e-30))
        factors = np.ascontiguousarray(-2 * moved.T, np.float32)
        return cls(center, factors, squares.astype(np.float32), gaps.astype(np.float32))

    def distances(self, vectors: np.ndarray) -> np.ndarray:
        """Squared distances [n, L] of float32 [n, d], less the squared length of each vector."""
        found = (vectors - self.center) @ self.factors
        found += self.squares
        return found


def _needed_reach(vectors: np.ndarray, centroids: _Centroids, pairs: Pairs) -> np.ndarray:
    """For each pair the least reach of visits that finds it [P]."""
    needed = [np.zeros(0, np.float32)]
    for start in range(0, len(pairs.first), _CHUNK):
        some = slice(start, start + _CHUNK)
        one = centroids.distances(np.asarray(vectors[pairs.first[some]]))
        other = centroids.distances(np.asarray(vectors[pairs.second[some]]))
        needed.append(borders_of_pairs(one, other, centroids.gaps))
    return np.concatenate(needed)


def _assign(
    vectors: np.ndarray, rows: np.ndarray, centroids: _Centroids, reach: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For some vectors after others home, number of visits, and lists of which a border is near."""

    def work(start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        distances = centroids.distances(np.asarray(vectors[rows[start : start + _CHUNK]]))
        return find_visits(distances, centroids.gaps, np.float32(reach))

    with progress.bar("vector", len(rows)) as show:
        for start, found in run_all(range(0, len(rows), _CHUNK), work):
            yield found
            show(start + len(found[0]), "in lists")
