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

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from qpr_jax.files import write_atomically
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

MISSED = 0.012  # share of the sampled pairs that may be missed
_TRAINED = 64  # sampled vectors for each list
_SAMPLE, _MOST_SAMPLED, _ENOUGH = 2048, 16_384, 2000  # vectors, at most; pairs that are enough
_CHUNK = 8192  # vectors whose distances to all centroids are in memory
_LARGE = 6  # times the mean size, from which a list is divided


@dataclasses.dataclass(frozen=True)
class Lists:
    """The lists of n vectors, which are numbered from 0.

    Attributes:
      home: int32 [n], the list of each.
      starts, visits: int64 [n + 1], int32 [V]: the further lists of each, ascending.
      count: of lists.
      missed: the estimated share of pairs that are missed, by `sampled_pairs` of them.
      facts: how the lists were chosen, as JSON.
    """

    home: np.ndarray
    starts: np.ndarray
    visits: np.ndarray
    count: int
    missed: float
    sampled_pairs: int
    facts: dict[str, Any]


def make_lists(
    setup: Setup, codes: Codes, rows: np.ndarray, file: pathlib.Path, log: Callable[[str], object]
) -> Lists:
    """The lists of the vectors of `rows` int64 [n], or those that a killed run left in `file`."""
    if file.exists():
        with np.load(file, allow_pickle=False) as kept:
            return _unpack({name: kept[name] for name in kept.files})
    rng = np.random.default_rng(setup.seed)
    centroids = _fit_centroids(setup.vectors, rows, rng)
    tuning, check = _sample_pairs(setup, codes, rows, rng)
    log(
        f"{len(centroids):,} lists; {len(tuning.first) + len(check.first):,} pairs of sampled "
        "questions choose their overlap"
    )
    needed = _needed_reach(setup.vectors, centroids, tuning)
    # That which finds every pair, where too few are known to say which finds nearly all.
    whole = 0.5 * setup.most**0.5
    reach = whole if len(needed) < 50 else min(whole, float(np.quantile(needed, 1 - MISSED)))
    checked = _needed_reach(setup.vectors, centroids, check)
    missed = float((checked > reach).mean()) if len(checked) else 0.0
    home, starts, visits = _assign(setup.vectors, rows, centroids, reach)
    sizes = np.bincount(home, minlength=len(centroids))
    facts = {
        "lists": len(centroids),
        "largest": int(sizes.max()),
        "reach": reach,
        "visits": len(visits) / len(rows),
        "sampled_pairs": len(checked),
        "missed": missed,
    }
    arrays: dict[str, Any] = {
        "home": home,
        "starts": starts,
        "visits": visits,
        "count": len(centroids),
    }
    arrays |= {f"fact_{name}": value for name, value in facts.items()}
    with write_atomically(file) as part:
        np.savez(part, allow_pickle=False, **arrays)
    return _unpack(arrays)


def _unpack(kept: dict[str, Any]) -> Lists:
    facts = {
        name.removeprefix("fact_"): np.asarray(value).item()
        for name, value in kept.items()
        if name.startswith("fact_")
    }
    arrays = (kept["home"], kept["starts"], kept["visits"])
    return Lists(*arrays, int(kept["count"]), facts["missed"], facts["sampled_pairs"], facts)


def join_lists(
    lists: Lists, rows: np.ndarray, is_new: np.ndarray | None, compare: Compare
) -> Iterator[Task]:
    """The tasks of all lists: members with one another, and with visitors."""
    members = np.argsort(lists.home, kind="stable")
    begins = np.searchsorted(lists.home[members], np.arange(lists.count + 1))
    owners = np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(lists.starts))
    order = np.argsort(lists.visits, kind="stable")
    visitors, visited = owners[order], lists.visits[order]
    visit_begins = np.searchsorted(visited, np.arange(lists.count + 1))
    for number in range(lists.count):
        home = rows[members[begins[number] : begins[number + 1]]]
        guests = rows[visitors[visit_begins[number] : visit_begins[number + 1]]]
        for task in split_group(home, is_new, compare):
            yield task._replace(list=number)
        if compare == "all" or is_new is None:
            sides = [(home, guests)]
        else:
            new, old = home[is_new[home]], home[~is_new[home]]
            sides = [(new, guests[~is_new[guests]]), (old, guests[is_new[guests]])]
            if compare == "new":
                sides.append((new, guests[is_new[guests]]))
        for one, other in sides:
            for task in rectangle(one, other):
                yield task._replace(list=number)


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
    """Distinct centroids float32 [L, d] of about sqrt(n) lists, none of which is very large."""
    number = max(1, round(len(rows) ** 0.5))
    drawn = np.sort(rng.choice(len(rows), min(len(rows), _TRAINED * number), replace=False))
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
        min_points_per_centroid=1, max_points_per_centroid=_TRAINED * 4,
    )  # fmt: skip
    means.train(np.ascontiguousarray(sample))
    return np.unique(means.centroids, axis=0)


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """The list of each of float32 [n, d]."""
    squares = np.einsum("ld,ld->l", centroids, centroids)
    home = np.empty(len(vectors), np.int32)
    for start in range(0, len(vectors), _CHUNK):
        some = slice(start, start + _CHUNK)
        home[some] = (squares - 2 * vectors[some] @ centroids.T).argmin(axis=1)
    return home


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


def _needed_reach(vectors: np.ndarray, centroids: np.ndarray, pairs: Pairs) -> np.ndarray:
    """For each pair the least reach of visits that finds it [P]."""
    needed = [np.zeros(0, np.float32)]
    gaps = _gaps(centroids)
    for start in range(0, len(pairs.first), _CHUNK // 2):
        some = slice(start, start + _CHUNK // 2)
        sides = [
            _centroid_distances(np.asarray(vectors[rows[some]]), centroids)
            for rows in (pairs.first, pairs.second)
        ]
        needed.append(borders_of_pairs(*sides, gaps))
    return np.concatenate(needed)


def _assign(
    vectors: np.ndarray, rows: np.ndarray, centroids: np.ndarray, reach: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Home int32 [n] of each vector, and the lists whose border is within reach."""
    home = np.empty(len(rows), np.int32)
    counts = np.empty(len(rows), np.int64)
    visits = [np.zeros(0, np.int32)]
    gaps = _gaps(centroids)
    for start in range(0, len(rows), _CHUNK):
        some = slice(start, start + _CHUNK)
        distances = _centroid_distances(np.asarray(vectors[rows[some]]), centroids)
        home[some], counts[some], found = find_visits(distances, gaps, np.float32(reach))
        visits.append(found)
    return home, np.concatenate([[0], np.cumsum(counts)]), np.concatenate(visits)


def _gaps(centroids: np.ndarray) -> np.ndarray:
    """Twice the distances of all centroids float32 [L, L]."""
    moved = (centroids - centroids.mean(axis=0)).astype(np.float64)
    squares = np.einsum("ld,ld->l", moved, moved)
    gaps = squares[:, None] + squares - 2 * moved @ moved.T
    return (2 * np.sqrt(np.maximum(gaps, 1e-30))).astype(np.float32)


def _centroid_distances(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Squared distances [n, L] less the squared length of each vector."""
    center = centroids.mean(axis=0)
    centroids, vectors = centroids - center, vectors - center
    return np.einsum("ld,ld->l", centroids, centroids) - 2 * (vectors @ centroids.T)
