"""All close pairs of vectors, by FAISS.

Up to EXACT vectors of a block, every vector is compared with every other. Of more, a vector is
compared with those in the lists nearest to it. All pairs of a sample are found first, to choose how
many lists are searched, and to estimate the share of the pairs that is missed.

FAISS proposes pairs of centered vectors within a slightly larger distance; the distances of the
pairs are then computed by subtraction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import faiss
import numpy as np

from qpr_jax import progress
from qpr_jax.errors import UserError
from qpr_jax.machine import available_memory

EXACT = 50_000  # vectors of a block that are all compared
PAIR_BYTES = 100  # that a pair takes while pairs are collected and sorted
_SMALL = 32  # vectors of a block whose pairs are made without FAISS
_FIRST, _CHUNK = 16, 2048  # vectors that are searched at once: first, and at most
_AT_ONCE = 1 << 21  # pairs that are found at once, about
_PART = 65_536  # vectors, or pairs, that are read at once
_SLACK = 1e-5  # of the squared norms: more than the rounding of their products
_LARGEST = 1e18  # of a coordinate; the square of a larger one is no float32
_SAMPLE_ROWS, _SAMPLE_WORK = 4096, 1 << 32  # vectors of the sample; their comparisons
_SAMPLE_PAIRS = 5000  # of the sample, about
_WANTED = 0.005  # share of the pairs of the sample that may be missed
_MOST_PROBES = 512  # lists that are searched for a vector
_FEW_PAIRS, _FEW_PROBES, _PROBES = 500, 16, 4  # lists at least, and where few pairs say how many
_PER_LIST = 40  # vectors that the lists are trained on

Compare = Literal["all", "across", "new"]


class Pairs(NamedTuple):
    """Pairs of rows, `first` < `second` int64 [P], and squared distances float32 [P]."""

    first: np.ndarray
    second: np.ndarray
    distances: np.ndarray

    def where(self, which: np.ndarray | slice) -> Pairs:
        """Those of a mask, of positions or of a slice."""
        return Pairs(*(values[which] for values in self))


class ClosePairs(NamedTuple):
    """What a search found.

    pairs: nearest first, ties by rows. exact: whether all vectors were compared. missed: the
    estimated share of the close pairs that were not found.
    """

    pairs: Pairs
    exact: bool
    missed: float


class TooManyPairsError(UserError):
    """More pairs than memory holds.

    fitting: a squared distance whose pairs fit; None where those of no distance do.
    """

    def __init__(self, what: str, fitting: float | None) -> None:
        remedy = "give fewer questions, or use a machine with more memory"
        if fitting is not None:
            remedy = f"lower it to {fitting:g}"
        super().__init__(what, setting="max_distance", remedy=remedy)
        self.fitting = fitting


def close_pairs(
    vectors: np.ndarray,
    max_distance: float,
    *,
    blocks: np.ndarray | None = None,
    is_new: np.ndarray | None = None,
    compare: Compare = "all",
    memory: int | None = None,
    pair_bytes: int = PAIR_BYTES,
    exact: int = EXACT,
) -> ClosePairs:
    """Find all pairs of rows within a squared Euclidean distance.

    Args:
      vectors: float32 [N, d], an array or a memory map; copied where a block has more than `exact`.
      max_distance: the largest squared distance of a pair.
      blocks: int64 [N]; only rows of one block are compared. None: one block.
      is_new: bool [N], for `compare`; None: all.
      compare: "all" pairs; those "across", of one new row and one old; or those with a "new" row.
      memory: bytes for the pairs; None: half of what the machine has left.
      pair_bytes: bytes of `memory` that a pair takes.
      exact: compare all vectors of a block of at most as many.

    Raises:
      TooManyPairsError: the pairs would take more than `memory`.
      UserError: a number of a vector is not finite.
    """
    every = np.ones(len(vectors), bool)
    is_query = every if compare == "all" or is_new is None else is_new
    is_other = ~is_query if compare == "across" else every
    center = _check_and_center(vectors)
    most = (available_memory() // 2 if memory is None else memory) // pair_bytes
    groups = _groups(len(vectors), blocks) if max_distance >= 0 else []
    missed, seen, is_exact = 0.0, 0, True
    with progress.bar("compared", int(is_query.sum())) as show:
        join = _Join(vectors, max_distance, center, is_query, is_other, most, show)
        join.work = sum(join.work_of(rows) for rows in groups)
        join.compare_small([rows for rows in groups if len(rows) <= _SMALL])
        for rows in (rows for rows in groups if len(rows) > _SMALL):
            queries, others = rows[is_query[rows]], rows[is_other[rows]]
            if len(rows) <= exact:
                join.compare_all(queries, others)
            elif len(queries) and len(others):
                is_exact = False
                share, sampled = join.compare_lists(queries, others)
                missed, seen = missed + share * sampled, seen + sampled
        return ClosePairs(join.sorted(), is_exact, missed / max(1, seen))


def pair_distances(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute squared distances float32 [P] of pairs of rows of float32 [N, d] by subtraction."""
    distances = np.empty(len(first), np.float32)
    for start in range(0, len(first), _PART):
        part = slice(start, start + _PART)
        apart = np.asarray(vectors[first[part]]) - np.asarray(vectors[second[part]])
        distances[part] = np.einsum("pd,pd->p", apart, apart)
    return distances


@dataclass
class _Join:
    """The comparisons of a search and the pairs that they have found so far.

    A pair counts if one of its rows is a query and the other one of the others. `work` and `done`
    count comparisons; a pair is found `times` at most.
    """

    vectors: np.ndarray
    max_distance: float
    center: np.ndarray
    is_query: np.ndarray
    is_other: np.ndarray
    most: int
    show: Callable[[int, str], object]
    work: float = 0.0
    done: float = 0.0
    parts: list[Pairs] = field(default_factory=list)
    count: int = 0
    searched: int = 0
    times: int = 1

    def work_of(self, rows: np.ndarray) -> float:
        """About how many comparisons the rows of a block take."""
        queries, others = self.is_query[rows], self.is_other[rows]
        twice = float((queries & others).sum())
        return float(queries.sum()) * float(others.sum()) - twice**2 / 2

    def compare_small(self, blocks: list[np.ndarray]) -> None:
        """Measure all pairs of small blocks, of many blocks at once."""
        sizes = np.array([len(rows) for rows in blocks])
        for size in np.unique(sizes):
            same = np.stack([blocks[i] for i in np.flatnonzero(sizes == size)])
            one, other = np.triu_indices(size, 1)
            for start in range(0, len(same), _PART // len(one)):
                rows = same[start : start + _PART // len(one)]
                work = sum(map(self.work_of, rows))
                self._add(rows[:, one].ravel(), rows[:, other].ravel(), rows.ravel(), work)

    def compare_all(self, queries: np.ndarray, others: np.ndarray) -> None:
        """Compare each query with the others; of two queries, the second with the first."""
        rows = others[~self.is_query[others]]
        index = self._filled(faiss.IndexFlatL2(self.vectors.shape[1]), rows)
        for some in _shuffled(queries, lambda: self.count):
            place = len(rows) + np.arange(len(some))
            if self.is_other[some].all():
                index.add(self._centered(some))
                rows = np.append(rows, some)
            one, other = self._propose(index, some)
            earlier = other < place[one]
            work = len(some) * (len(rows) + place[0]) / 2
            self._add(some[one[earlier]], rows[other[earlier]], some, work)

    def compare_lists(self, queries: np.ndarray, others: np.ndarray) -> tuple[float, int]:
        """Compare each query with the others in the lists nearest to it.

        Returns:
          The estimated share of the pairs that is missed, and how many pairs this rests on.
        """
        one, other = self._sample(queries, others)
        index = self._make_lists(others)
        sampled = self._places(index, one, other)
        index.nprobe = _PROBES if len(sampled) >= _FEW_PAIRS else _FEW_PROBES
        if len(sampled):
            enough = int(np.quantile(sampled, 1 - _WANTED, method="higher")) + 1
            index.nprobe = min(max(index.nprobe, enough), _MOST_PROBES)
        missed = float((sampled >= min(index.nprobe, index.nlist)).sum()) / max(1, len(sampled))
        self.times = 1 + bool(self.is_query[others].any())
        for some in _shuffled(queries, lambda: self.count):
            one, other = self._propose(index, some)
            self._add(some[one], others[other], some, len(some) * len(others))
        return missed, len(sampled)

    def _sample(self, queries: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All close pairs of some queries with the others, rows int64 [P] each."""
        index = self._filled(faiss.IndexFlatL2(self.vectors.shape[1]), others)
        ones, twos = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        size = max(1, min(_SAMPLE_ROWS, _SAMPLE_WORK // len(others)))
        for some in _shuffled(queries, lambda: sum(map(len, ones)), size):
            places, found = self._propose(index, some)
            one, other = some[places], others[found]
            close = pair_distances(self.vectors, one, other) <= self.max_distance
            close &= one != other
            ones.append(one[close])
            twos.append(other[close])
            if sum(map(len, ones)) >= _SAMPLE_PAIRS:
                break
        return np.concatenate(ones), np.concatenate(twos)

    def _make_lists(self, rows: np.ndarray) -> Any:
        """Build an inverted file of the vectors of rows int64 [n]."""
        dimension, number = self.vectors.shape[1], min(len(rows), int(3 * len(rows) ** 0.5))
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dimension), dimension, number)
        index.cp.niter, index.cp.max_points_per_centroid = 5, _PER_LIST
        index.cp.min_points_per_centroid = 1
        drawn = np.random.default_rng(0).permutation(rows)[: _PER_LIST * number]
        index.train(self._centered(np.sort(drawn)))
        return self._filled(index, rows)

    def _filled(self, index: Any, rows: np.ndarray) -> Any:
        """The same index with the vectors of rows int64 [n]."""
        for start in range(0, len(rows), _PART):
            index.add(self._centered(rows[start : start + _PART]))
        return index

    def _places(self, index: Any, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Where the list of one row is among those nearest to the other, int64 [P].

        A pair is found if the place is less than the number of lists searched. If both rows are
        queries, the smaller of the two places counts.
        """
        if not len(one):
            return np.zeros(0, np.int64)
        most = min(index.nlist, _MOST_PROBES)
        rows, at = np.unique(np.append(one, other), return_inverse=True)
        _, lists = index.quantizer.search(self._centered(rows), most)

        def place(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            same = lists[a] == lists[b, :1]
            return np.where(same.any(axis=1), same.argmax(axis=1), most)

        a, b = at[: len(one)], at[len(one) :]
        forth = place(a, b)
        mutual = self.is_query[other] & self.is_other[one]
        return np.where(mutual, np.minimum(forth, place(b, a)), forth)

    def sorted(self) -> Pairs:
        """All pairs, each once, nearest first."""
        none = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        pairs = Pairs(*map(np.concatenate, zip(none, *self.parts, strict=True)))
        self.parts.clear()
        pairs = pairs.where(np.lexsort((pairs.second, pairs.first, pairs.distances)))
        changes = (np.diff(pairs.first) != 0) | (np.diff(pairs.second) != 0)
        return pairs.where(np.append(True, changes)[: len(pairs.first)])

    def _add(self, one: np.ndarray, other: np.ndarray, searched: np.ndarray, work: float) -> None:
        """Keep the proposed pairs that are close; `searched`: the rows that they were found for."""
        counts = self.is_query[one] & self.is_other[other]
        counts |= self.is_query[other] & self.is_other[one]
        counts &= one != other
        first, second = np.minimum(one, other)[counts], np.maximum(one, other)[counts]
        distances = pair_distances(self.vectors, first, second)
        pairs = Pairs(first, second, distances)
        self.parts.append(pairs.where(distances <= self.max_distance))
        self.count += len(self.parts[-1].first)
        self.done += work
        self.searched += int(self.is_query[searched].sum())
        self.show(self.searched, f"{self.count:,} pairs")
        if self.count > self.most:
            raise self._too_many()

    def _too_many(self) -> TooManyPairsError:
        distances = np.concatenate([part.distances for part in self.parts])
        every = self.count * self.work / max(1.0, self.done)
        most = self.most // self.times
        fitting = float(np.quantile(distances, 0.8 * min(1.0, most / every)))
        fitting = float(f"{0.95 * fitting:.2g}")
        fits = (distances <= fitting).mean() * every <= most
        what = f"about {round(every):,} pairs are within {self.max_distance:g}, more than memory "
        what += f"holds ({most:,})"
        return TooManyPairsError(what, fitting if fits else None)

    def _propose(self, index: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places in `rows` and in an index, int64 [P] each, of pairs that may be close."""
        queries, largest = self._centered(rows), np.float32(np.finfo(np.float32).max)
        norm = float(np.einsum("nd,nd->n", queries, queries).max(initial=0))
        radius = min(self.max_distance + _SLACK * (norm + self.max_distance), float(largest) / 2)
        limits, _, found = index.range_search(
            queries, float(np.nextafter(np.float32(radius), largest))
        )
        return np.repeat(np.arange(len(rows)), np.diff(limits.astype(np.int64))), found

    def _centered(self, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.asarray(self.vectors[rows]) - self.center, np.float32)


def _check_and_center(vectors: np.ndarray) -> np.ndarray:
    """The mean of float32 [N, d], float32 [d]; UserError where a number is not finite."""
    total = np.zeros(vectors.shape[1])
    for start in range(0, len(vectors), _PART):
        part = np.asarray(vectors[start : start + _PART])
        good = (np.abs(part) < _LARGEST).all(axis=1)
        if not good.all():
            row = start + int(good.argmin())
            what = f"expected vectors of finite numbers, got others in row {row:,}"
            raise UserError(what, remedy="encode the questions again")
        total += part.sum(axis=0, dtype=np.float64)
    return (total / max(1, len(vectors))).astype(np.float32)


def _groups(count: int, blocks: np.ndarray | None) -> list[np.ndarray]:
    """The rows of each block of two or more."""
    if blocks is None:
        return [np.arange(count)] if count > 1 else []
    order = np.argsort(blocks, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1)
    return [rows for rows in groups if len(rows) > 1]


def _shuffled(
    rows: np.ndarray, found: Callable[[], int], most: int | None = None
) -> Iterator[np.ndarray]:
    """Yield some of the rows, or all, in a random order; those of a chunk in their own order.

    found: how many pairs there are so far. Chunks are small where a row has many.
    """
    order = np.random.default_rng(1).permutation(rows)[:most]
    start, size, before = 0, _FIRST, found()
    while start < len(order):
        yield np.sort(order[start : start + size])
        start += size
        size = int(np.clip(_AT_ONCE * start / max(1, found() - before), 1, _CHUNK))
