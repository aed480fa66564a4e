"""Lists of vectors that a search reads a quarter of, and finds in what all of it would give.

Each vector is kept once, as it is, and in each of its lists as a code of one byte a number (see
`coded_kernels`). Three lists a row take 7 bytes a number instead of 12.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable

import numpy as np

from qpr_jax.index import coded_kernels, coded_search
from qpr_jax.index.coded_kernels import BLOCK, CODES, COUNT, ERRORS, ROWS, SQUARES, STEPS

_ALIGNED = 32  # numbers of a code that are compared at a time
_CHUNK = 16  # queries that a thread takes at a time, and the fewest pairs
_TOGETHER = 1024  # queries that read a list together, at most
_BOUNDS = 1 << 22  # that are held at once
_SHARES = 8  # of the bounds, for each thread
_COLUMNS = (CODES, STEPS, SQUARES, ERRORS, ROWS)

_Entries = tuple[np.ndarray, ...]  # of a list, by _COLUMNS


class CodedLists:
    """Vectors by list, searched among some of the lists.

    Any number of threads may search lists that no other changes.

    Attributes:
      centers: float32 [L, d], those of the lists.
    """

    def __init__(self, centers: np.ndarray, sizes: np.ndarray, rows: int, *, ip: bool) -> None:
        """Make empty lists.

        Args:
          centers: float32 [L, d].
          sizes: int64 [L], entries for which each list has room; it gets more when it is full.
          rows: for how many there is room at first.
          ip: a distance is the inner product times -1, else squared Euclidean.
        """
        self.centers = np.ascontiguousarray(centers, np.float32)
        self._ip = ip
        self._width = -(-centers.shape[1] // _ALIGNED) * _ALIGNED
        self._starts = np.append(0, np.cumsum(sizes))
        # Memory that is not written yet is not taken.
        self._first = self._entries(int(self._starts[-1]))
        self._own: dict[int, _Entries] = {}  # of lists that had no more room
        self._table = np.zeros((len(centers), 1 + len(_COLUMNS)), np.int64)
        for column, values in zip(_COLUMNS, self._first, strict=True):
            self._table[:, column] = values.ctypes.data + self._starts[:-1] * values[:1].nbytes
        self._vectors: list[np.ndarray] = []
        self._blocks = np.zeros(0, np.int64)
        self._present = np.zeros(0, bool)
        self._make_room(rows)

    def __len__(self) -> int:
        """How many lists there are."""
        return len(self.centers)

    def add(self, number: int, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Add vectors float32 [n, d], as rows int64 [n], to a list."""
        if not len(rows):
            return
        vectors, rows = (
            np.require(vectors, np.float32, ["C", "W"]),
            np.require(rows, np.int64, ["C", "W"]),
        )
        self._make_room(int(rows.max()) + 1)
        coded_kernels.keep(vectors, rows, self._blocks, self._present)
        old = int(self._table[number, COUNT])
        *codes, own = (values[old:] for values in self._with_room(number, old + len(rows)))
        coded_kernels.code(vectors, self.centers[number], *codes)
        own[: len(rows)] = rows
        self._table[number, COUNT] = old + len(rows)

    def entries(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows int64 [n] of a list, and their vectors float32 [n, d]."""
        rows = self._entries_of(number)[-1][: self._table[number, COUNT]]
        vectors = np.empty((len(rows), self.centers.shape[1]), np.float32)
        coded_kernels.fetch(rows, self._blocks, vectors)
        return rows, vectors

    def put_first(self, number: int, rows: np.ndarray, vectors: np.ndarray) -> None:
        """As `add`, before the entries that a list has."""
        others, their_vectors = self.entries(number)
        others = others.copy()
        self._table[number, COUNT] = 0
        self.add(number, rows, vectors)
        self.add(number, others, their_vectors)

    def count(self, number: int) -> int:
        """How many entries a list has."""
        return int(self._table[number, COUNT])

    def search(
        self,
        queries: np.ndarray,
        lists: np.ndarray,
        k: int,
        removed: np.ndarray,
        *,
        copies: int = 1,
        threads: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the `k` nearest rows in lists of each query, nearest first, of equal ones the first.

        Args:
          queries: float32 [n, d], contiguous and writeable, for which the loop is compiled.
          lists: int64 [n, p], likewise; -1 for none.
          removed: bool [rows or more], of those that are not found.
          copies: lists that a row stands in, at most.
          threads: that many queries are divided among.

        Returns:
          Distances float32 [n, k] and rows int64 [n, k]; inf and -1 where there are fewer.
        """
        count, start = len(queries), 0
        distances, rows = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
        lists_are = self.centers, self._table, self._width
        rows_are = self._blocks, removed, copies, self._ip
        if count <= _CHUNK:
            parameters = queries, lists, _BOUNDS, *lists_are, *rows_are
            coded_search.search(*parameters, distances, rows)
            return distances, rows
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            while start < count:
                part = slice(start, start + _TOGETHER)
                some = queries[part], lists[part], distances[part], rows[part]
                start += self._search(pool.map, _SHARES * threads, *some, rows_are)
        return distances, rows

    def _search(
        self,
        each: Callable[[Callable[[int], None], Iterable[int]], Iterable[None]],
        shares: int,
        queries: np.ndarray,
        lists: np.ndarray,
        distances: np.ndarray,
        rows: np.ndarray,
        rows_are: tuple[np.ndarray, np.ndarray, int, bool],
    ) -> int:
        """Search for as many of the first queries as bounds have room for; returns how many.

        First every thread takes pairs of a query and a list, sorted by list: so a list is read
        once for all its queries. Then it takes queries.
        """
        probes = lists.shape[1]
        pairs, starts = coded_kernels.arrange(lists, self._table, _BOUNDS)
        count, step = len(pairs) // probes, max(_CHUNK, -(-len(pairs) // shares))
        lower = np.empty(starts[-1], np.float32)

        def bound(first: int) -> None:
            some = pairs[first : first + step]
            lists_are = self.centers, self._table, self._width, self._ip
            coded_kernels.bound(queries, lists, some, starts, lower, *lists_are)

        def measure(first: int) -> None:
            part = slice(first, min(first + _CHUNK, count))
            own = starts[part.start * probes : part.stop * probes + 1]
            some = queries[part], lists[part], own, lower
            coded_search.measure(*some, self._table, *rows_are, distances[part], rows[part])

        for _ in each(bound, range(0, len(pairs), step)):
            pass
        for _ in each(measure, range(0, count, _CHUNK)):
            pass
        return count

    def _entries(self, count: int) -> _Entries:
        facts = (np.empty(count, np.float32) for _ in (STEPS, SQUARES, ERRORS))
        return np.empty((count, self._width), np.int8), *facts, np.empty(count, np.int64)

    def _entries_of(self, number: int) -> _Entries:
        part = slice(*self._starts[number : number + 2])
        return self._own.get(number) or tuple(values[part] for values in self._first)

    def _with_room(self, number: int, count: int) -> _Entries:
        """The entries of a list, of which there are `count` or more."""
        found = self._entries_of(number)
        if count > len(found[0]):
            more = self._entries(max(count, 2 * len(found[0])))
            for old, new, column in zip(found, more, _COLUMNS, strict=True):
                new[: len(old)] = old
                self._table[number, column] = new.ctypes.data
            self._own[number] = found = more
        return found

    def _make_room(self, rows: int) -> None:
        """Allocate memory for the vectors of `rows` rows in all, unless there is enough."""
        missing = -(-rows // BLOCK) - len(self._vectors)
        if missing > 0:
            shape = (missing, BLOCK, self.centers.shape[1])
            self._vectors += [*np.empty(shape, np.float32)]
            self._blocks = np.array([block.ctypes.data for block in self._vectors])
            self._present = np.append(self._present, np.zeros(missing * BLOCK, bool))
