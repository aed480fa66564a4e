"""Compiled loops of `coded_lists`: the nearest vectors of lists, by their bounds."""

from __future__ import annotations

import numba
import numpy as np

from qpr_jax.index.coded_kernels import (
    ROWS,
    arrange,
    bound,
    pointer,
    product,
    squared_distance,
    vector_of,
)
from qpr_jax.loops import compile_loop

_GROUPS = 4  # of bounds, for each of those that are looked for
_HALVINGS = 8
_ROW_BITS = 40


@compile_loop()
def _before(distance, row, other, other_row):  # type: ignore[no-untyped-def]
    return distance < other or (distance == other and row < other_row)


@compile_loop()
def _sink(distances, rows, count, at):  # type: ignore[no-untyped-def]
    """Put the entry `at` of a heap, whose farthest is first, to its place."""
    distance, row = distances[at], rows[at]
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and _before(
            distances[child], rows[child], distances[child + 1], rows[child + 1]
        ):
            child += 1
        if not _before(distance, row, distances[child], rows[child]):
            break
        distances[at], rows[at] = distances[child], rows[child]
        at = child
    distances[at], rows[at] = distance, row


@compile_loop()
def _is_new(seen, row, query):  # type: ignore[no-untyped-def]
    """Whether a row is not yet in a hash table of a power of two of numbers; puts it there.

    query: a number greater than those of the queries before, whose rows count as empty places.
    """
    last, least = len(seen) - 1, query << _ROW_BITS
    at = row * 0x9E3779B1 >> 16 & last
    while seen[at] >= least:
        if seen[at] == least + row:
            return False
        at = at + 1 & last
    seen[at] = least + row
    return True


@compile_loop()
def _put(distance, row, count, distances, rows):  # type: ignore[no-untyped-def]
    """Put a row among the nearest ones, of which there are `count`; how many there are then."""
    k = len(rows)
    if count < k:
        distances[count], rows[count] = distance, row
        count += 1
        if count == k:
            for at in range(k // 2 - 1, -1, -1):
                _sink(distances, rows, k, at)
    elif _before(distance, row, distances[0], rows[0]):
        distances[0], rows[0] = distance, row
        _sink(distances, rows, k, 0)
    return count


@compile_loop()
def _sort(distances, rows):  # type: ignore[no-untyped-def]
    """Sort rows by distance, the nearest first."""
    for at in range(len(rows) // 2 - 1, -1, -1):
        _sink(distances, rows, len(rows), at)
    for stop in range(len(rows) - 1, 0, -1):  # the farthest to the end
        distances[0], distances[stop] = distances[stop], distances[0]
        rows[0], rows[stop] = rows[stop], rows[0]
        _sink(distances, rows, stop, 0)


@compile_loop()
def _near(bounds, count):  # type: ignore[no-untyped-def]
    """What at least `count` of more bounds are at most, and not many more."""
    size = min(_GROUPS * count, len(bounds))
    least, low, high = np.full(size, np.inf, np.float32), np.float32(np.inf), np.float32(-np.inf)
    for start in range(0, len(bounds), size):
        others = bounds[start : start + size]
        for i in range(len(others)):
            least[i] = np.minimum(least[i], others[i])
    for i in range(size):
        low, high = min(low, least[i]), max(high, least[i])
    for _ in range(_HALVINGS):
        middle, within = (low + high) / np.float32(2), 0
        for i in range(size):
            within += least[i] <= middle
        if within < count:
            low = middle
        else:
            high = middle
    return high


@compile_loop()
def _measure(  # type: ignore[no-untyped-def]
    query, lists, starts, lower, near, table, blocks, removed, ip, seen, number, distances, rows
):
    """Write the nearest of a query by their vectors; those whose bounds are too far are not read.

    Those whose bounds are `near` or less come first, so that others are refused by what these have.
    seen, number: of `_is_new`.
    """
    count, k = 0, len(rows)
    for limit in (near, np.float32(np.inf)):
        if count == k:
            if distances[0] <= near:
                break
            limit = distances[0]
        for i in range(len(lists)):
            bounds = lower[starts[i] : starts[i + 1]]
            if len(bounds) == 0:
                continue
            numbers = numba.carray(pointer(table[lists[i], ROWS]), (len(bounds),), np.int64)
            for j in range(len(bounds)):
                if bounds[j] > limit:
                    continue
                row = numbers[j]
                if removed[row] or not _is_new(seen, row, number):
                    continue
                vector = vector_of(blocks, row, len(query))
                distance = -product(query, vector) if ip else squared_distance(query, vector)
                if distance < np.inf:
                    count = _put(distance, row, count, distances, rows)
                    if count == k and distances[0] < limit:
                        limit = distances[0]
    _sort(distances[:count], rows[:count])


@compile_loop()
def measure(  # type: ignore[no-untyped-def]
    queries, lists, starts, lower, table, blocks, removed, copies, ip, distances, rows
):
    """Write the nearest of the vectors in lists of each query: as of `CodedLists.search`.

    Args:
      queries, lists, table, ip: of `coded_kernels.bound`.
      starts, lower: of its bounds; those of these queries.
      blocks: int64 [B], addresses of the vectors of BLOCK rows each.
      removed: bool, of rows that are not found.
      copies: lists that a row stands in, at most.
      distances, rows: float32 and int64 [n, k], get what is found.
    """
    seen, probes = np.zeros(16, np.int64), lists.shape[1]
    for q in range(len(queries)):
        own = starts[q * probes : (q + 1) * probes + 1]
        bounds, size = lower[own[0] : own[probes]], len(seen)
        for i in range(rows.shape[1]):
            distances[q, i], rows[q, i] = np.inf, -1
        if len(bounds) == 0:
            continue
        while size < 2 * len(bounds):
            size *= 2
        if size > len(seen):
            seen = np.zeros(size, np.int64)
        near = _near(bounds, min(copies * rows.shape[1], len(bounds)))
        found = seen, q + 1, distances[q], rows[q]
        _measure(queries[q], lists[q], own, lower, near, table, blocks, removed, ip, *found)


@compile_loop()
def search(  # type: ignore[no-untyped-def]
    queries, lists, room, centers, table, width, blocks, removed, copies, ip, distances, rows
):
    """Write the nearest of each query by one thread; arguments as of `bound` and `measure`.

    room: for bounds, which are held for as many queries at once as there is room, or for one.
    """
    start = 0
    while start < len(queries):
        pairs, starts = arrange(lists[start:], table, room)
        stop, lower = start + len(pairs) // lists.shape[1], np.empty(starts[-1], np.float32)
        some = queries[start:stop], lists[start:stop]
        bound(*some, pairs, starts, lower, centers, table, width, ip)
        found = distances[start:stop], rows[start:stop]
        measure(*some, starts, lower, table, blocks, removed, copies, ip, *found)
        start = stop
