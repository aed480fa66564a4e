"""All close pairs of vectors, by FAISS.

All vectors of a block of up to EXACT are compared. In a larger block a vector is compared with
those in the lists nearest to it; a sample of exact pairs decides how many lists, and estimates the
share of the pairs that is missed. FAISS proposes pairs of centered vectors within a slightly larger
distance; their distances are then computed by subtraction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.running import available_memory, progress

EXACT = 50_000  # vectors of a block that are all compared
PAIR_BYTES = 400  # that a pair takes until its group is known
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
        """Return the pairs of a mask, of positions or of a slice."""
        return Pairs(*(values[which] for values in self))


Keep = Callable[[Pairs], np.ndarray]


class ClosePairs(NamedTuple):
    """Pairs, nearest first, ties by rows; `missed` is the estimated share that was not found.

    exact: whether all vectors were compared.
    """

    pairs: Pairs
    exact: bool
    missed: float


def close_pairs(
    vectors: np.ndarray,
    max_distance: float,
    *,
    keep: Keep | None = None,
    blocks: np.ndarray | None = None,
    is_new: np.ndarray | None = None,
    compare: Compare = "all",
    memory: int | None = None,
    exact: int = EXACT,
) -> ClosePairs:
    """Find all pairs of rows within a squared Euclidean distance.

    Args:
      vectors: float32 [N, d], an array or a memory map; copied where a block has more than `exact`.
      max_distance: the largest squared distance of a pair.
      keep: says which of some close pairs are kept, bool [P]; None: all.
      blocks: int64 [N]; only rows of one block are compared. None: one block.
      is_new: bool [N], for `compare`: "all" pairs; those "across", of one new row and one old; or
        those with a "new" row. None: all rows are new.
      memory: bytes for the pairs; None: half of what the machine has left.
      exact: compare all vectors of a block of at most as many.

    UserError where the pairs would take more than `memory`.
    """
    all_rows = np.ones(len(vectors), bool)
    is_query = all_rows if compare == "all" or is_new is None else is_new
    is_other = ~is_query if compare == "across" else all_rows
    most = (available_memory() // 2 if memory is None else memory) // PAIR_BYTES
    groups = rows_of_blocks(np.zeros(len(vectors), np.int64) if blocks is None else blocks)
    missed, seen, is_exact = 0.0, 0, True
    with progress("compared", int(is_query.sum())) as show:
        center = _check_and_center(vectors)
        join = _Join(vectors, max_distance, keep, center, is_query, is_other, most, show)
        join.work = sum(map(join.work_of, groups))
        join.compare_small([rows for rows in groups if len(rows) <= _SMALL])
        for rows in groups:
            if len(rows) <= _SMALL:
                continue
            queries, others = rows[is_query[rows]], rows[is_other[rows]]
            if len(rows) <= exact:
                join.compare_all(queries, others)
            elif len(queries) and len(others):
                is_exact = False
                share, sampled = join.compare_lists(queries, others)
                missed, seen = missed + share * sampled, seen + sampled
        return ClosePairs(join.sorted(), is_exact, missed / max(1, seen))


@dataclass
class _Join:
    """A search for pairs of a query and another row, and what it has found so far.

    `work` and `done` count comparisons.
    """

    vectors: np.ndarray
    max_distance: float
    keep: Keep | None
    center: np.ndarray
    is_query: np.ndarray
    is_other: np.ndarray
    most: int
    show: Callable[[int, str], object]
    work: float = 0.0
    done: float = 0.0
    parts: list[Pairs] = field(default_factory=list)
    count: int = 0

    def work_of(self, rows: np.ndarray) -> float:
        """About how many comparisons the rows of a block take."""
        queries, others = self.is_query[rows], self.is_other[rows]
        twice = float((queries & others).sum())
        return float(queries.sum()) * float(others.sum()) - twice**2 / 2

    def compare_small(self, blocks: list[np.ndarray]) -> None:
        """Measure all pairs of small blocks, those of one size together."""
        sizes = np.array([len(rows) for rows in blocks])
        for size in np.unique(sizes):
            same = np.stack([blocks[i] for i in np.flatnonzero(sizes == size)])
            one, other = np.triu_indices(size, 1)
            for start in range(0, len(same), _PART // len(one)):
                rows = same[start : start + _PART // len(one)]
                work = sum(map(self.work_of, rows))
                self._add(rows[:, one].ravel(), rows[:, other].ravel(), work)

    def compare_all(self, queries: np.ndarray, others: np.ndarray) -> None:
        """Compare each query with the others; of two queries, the second with the first."""
        rows = others[~self.is_query[others]]
        index = self._index(rows)
        for some in _shuffled(queries, lambda: self.count):
            place = len(rows) + np.arange(len(some))
            if self.is_other[some].all():
                index.add(self._centered(some))
                rows = np.append(rows, some)
            one, other = self._propose(index, some)
            earlier = other < place[one]
            work = len(some) * (len(rows) + place[0]) / 2
            self._add(some[one[earlier]], rows[other[earlier]], work)

    def compare_lists(self, queries: np.ndarray, others: np.ndarray) -> tuple[float, int]:
        """Compare queries with the lists nearest to them; return the share missed, of how many."""
        index = self._index(others, lists=True)
        sampled = self._places(index, *self._sample(queries, others))
        index.nprobe = _PROBES if len(sampled) >= _FEW_PAIRS else _FEW_PROBES
        if len(sampled):
            enough = int(np.quantile(sampled, 1 - _WANTED, method="higher")) + 1
            index.nprobe = min(max(index.nprobe, enough), _MOST_PROBES)
        missed = float((sampled >= min(index.nprobe, index.nlist)).sum()) / max(1, len(sampled))
        for some in _shuffled(queries, lambda: self.count):
            one, other = self._propose(index, some)
            self._add(some[one], others[other], len(some) * len(others))
        return missed, len(sampled)

    def _sample(self, queries: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Find all close pairs of some queries with the others, rows int64 [2, P]."""
        index = self._index(others)
        parts = [np.zeros((2, 0), np.int64)]
        size = max(1, min(_SAMPLE_ROWS, _SAMPLE_WORK // len(others)))
        for some in _shuffled(queries, lambda: sum(part.shape[1] for part in parts), size):
            places, found = self._propose(index, some)
            pairs = np.stack([some[places], others[found]])
            distances = pair_distances(self.vectors, *pairs)
            close = self._is_close(Pairs(pairs[0], pairs[1], distances))
            parts.append(pairs[:, close & (pairs[0] != pairs[1])])
            if sum(part.shape[1] for part in parts) >= _SAMPLE_PAIRS:
                break
        return np.concatenate(parts, axis=1)

    def _index(self, rows: np.ndarray, *, lists: bool = False) -> Any:
        """Index the vectors of rows int64 [n], to compare all of them or those of some lists."""
        flat = faiss.IndexFlatL2(self.vectors.shape[1])
        index = index_of_lists(rows, self._centered) if lists else flat
        for start in range(0, len(rows), _PART):
            index.add(self._centered(rows[start : start + _PART]))
        return index

    def _places(self, index: Any, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return how many lists are nearer to one row than the list of the other, int64 [P].

        If both rows are queries, the smaller of the two numbers counts.
        """
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
        """Return all pairs, each once, nearest first."""
        none = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        pairs = Pairs(*map(np.concatenate, zip(none, *self.parts, strict=True)))
        self.parts.clear()
        pairs = pairs.where(np.lexsort((pairs.second, pairs.first, pairs.distances)))
        changes = (np.diff(pairs.first) != 0) | (np.diff(pairs.second) != 0)
        return pairs.where(np.append(True, changes)[: len(pairs.first)])

    def _add(self, one: np.ndarray, other: np.ndarray, work: float) -> None:
        """Keep the proposed pairs that are close; `work`: of comparing them."""
        counts = self.is_query[one] & self.is_other[other]
        counts |= self.is_query[other] & self.is_other[one]
        counts &= one != other
        first, second = np.minimum(one, other)[counts], np.maximum(one, other)[counts]
        pairs = Pairs(first, second, pair_distances(self.vectors, first, second))
        self.parts.append(pairs.where(self._is_close(pairs)))
        self.count += len(self.parts[-1].first)
        self.done += work
        done = int(self.is_query.sum() * min(1.0, self.done / max(1.0, self.work)))
        self.show(done, f"pairs: {self.count:,}")
        if self.count > self.most:
            raise self._too_many()

    def _is_close(self, pairs: Pairs) -> np.ndarray:
        """Return whether pairs count, bool [P]."""
        near: np.ndarray = pairs.distances <= self.max_distance
        if self.keep is not None:
            near[near] = self.keep(pairs.where(near))
        return near

    def _too_many(self) -> UserError:
        """The error of more pairs than memory holds, with a distance that fits, if there is one."""
        distances = np.concatenate([part.distances for part in self.parts])
        total = self.count * self.work / max(1.0, self.done)
        share = self.most / 2 / total  # in lists a pair may be found twice
        fitting = float(f"{0.95 * np.quantile(distances, 0.8 * min(1.0, share)):.2g}")
        remedy = f"give a max_distance of {fitting:g}"
        if self.keep is not None or (distances <= fitting).mean() > share:
            remedy = "give fewer questions, or use a machine with more memory"
        what = f"about {round(total):,} pairs count, more than memory holds ({self.most:,})"
        return UserError(what, remedy=remedy)

    def _propose(self, index: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return places in `rows` and in an index, int64 [P] each, of pairs that may be close."""
        queries, largest = self._centered(rows), np.float32(np.finfo(np.float32).max)
        norm = float(np.einsum("nd,nd->n", queries, queries).max(initial=0))
        radius = min(self.max_distance + _SLACK * (norm + self.max_distance), float(largest) / 2)
        above = np.nextafter(np.float32(radius), largest)
        limits, _, found = index.range_search(queries, float(above))
        return np.repeat(np.arange(len(rows)), np.diff(limits.astype(np.int64))), found

    def _centered(self, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.asarray(self.vectors[rows]) - self.center, np.float32)


def index_of_lists(rows: np.ndarray, take: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Train an index of lists for rows int64 [n]; `take` returns their vectors, float32 [m, d]."""
    count = min(len(rows), int(3 * len(rows) ** 0.5))
    sample = take(np.sort(np.random.default_rng(0).permutation(rows)[: _PER_LIST * count]))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(sample.shape[1]), sample.shape[1], count)
    index.cp.niter, index.cp.max_points_per_centroid = 5, _PER_LIST
    index.cp.min_points_per_centroid = 1
    index.train(sample)
    return index


def _check_and_center(vectors: np.ndarray) -> np.ndarray:
    """Return the mean of float32 [N, d], float32 [d]; UserError for a number that is not finite."""
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


def rows_of_blocks(blocks: np.ndarray) -> list[np.ndarray]:
    """Return the rows int64 [m] of each block of two or more; rows of one block have one number."""
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


def pair_distances(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute squared distances float32 [P] of pairs of rows of float32 [N, d] by subtraction."""
    distances = np.empty(len(first), np.float32)
    for start in range(0, len(first), _PART):
        part = slice(start, start + _PART)
        apart = np.asarray(vectors[first[part]]) - np.asarray(vectors[second[part]])
        distances[part] = np.einsum("pd,pd->p", apart, apart)
    return distances
