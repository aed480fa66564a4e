"""Compiled loops of `coded_lists`: codes of vectors, and the nearest of lists by them.

A vector is coded by its difference r from the center of its list, in whole numbers c of -127 to
127 and a step s: r = s c + e, where the length of the error e is known. A query's difference u is
t w + f, with whole numbers w of 16 bits. The distance of s c and t w is a sum of products of whole
numbers, which is exact, and by the triangle inequality the distance of the vector and the query
is at most |e| + |f| less. So a vector whose bound is too far is refused by a quarter of its bytes;
all others are measured by the vector itself. What is found is what comparing all would find.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from qpr_jax.loops import compile_loop

CODES, FACTS, ROWS, COUNT = range(4)  # columns of the table of lists
BLOCK = 1 << 14  # vectors of a block
_STEPS = 127
# More than float32 rounds bounds and distances off, as a share of the squared lengths.
_ROUNDING = np.float32(2e-5)
_REORDER = {"reassoc", "contract", "nsz"}


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """The pointer of an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@compile_loop()
def _vector(blocks, row, dimension):  # type: ignore[no-untyped-def]
    address = blocks[row // BLOCK] + row % BLOCK * dimension * 4
    return numba.carray(_pointer(address), (dimension,), np.float32)


@compile_loop(fastmath=_REORDER)
def _squared_distance(a, b):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for i in range(len(a)):
        total += (a[i] - b[i]) * (a[i] - b[i])
    return total


@compile_loop(fastmath=_REORDER)
def _product(a, b):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@compile_loop()
def code(vectors, center, codes, facts):  # type: ignore[no-untyped-def]
    """Code vectors float32 [n, d] of a list.

    codes: int8 [n, D], gets c, and zeros from d on. facts: float32 [n, 3], gets s, |s c|^2 and |e|.
    """
    for i in range(len(vectors)):
        largest = np.float32(0)
        for j in range(len(center)):
            largest = max(largest, abs(vectors[i, j] - center[j]))
        step = largest / np.float32(_STEPS)
        whole = np.float32(1) / step if step > 0 else np.float32(0)
        squares, error = np.float64(0), np.float64(0)
        for j in range(len(center)):
            left = vectors[i, j] - center[j]
            value = min(max(np.rint(left * whole), -_STEPS), _STEPS)
            codes[i, j] = np.int8(value)
            coded = np.float64(step) * value
            squares += coded * coded
            error += (left - coded) * (left - coded)
        for j in range(len(center), codes.shape[1]):
            codes[i, j] = 0
        facts[i, 0] = step
        facts[i, 1] = squares
        facts[i, 2] = np.sqrt(error) * (1 + 1e-6)


@compile_loop()
def keep(vectors, rows, blocks, present):  # type: ignore[no-untyped-def]
    """Write the vectors float32 [n, d] of rows that are not `present` to the blocks."""
    dimension = vectors.shape[1]
    for i in range(len(rows)):
        row = rows[i]
        if not present[row]:
            kept = _vector(blocks, row, dimension)
            for j in range(dimension):
                kept[j] = vectors[i, j]
            present[row] = True


@compile_loop()
def fetch(rows, blocks, vectors):  # type: ignore[no-untyped-def]
    """Write the vectors of rows to `vectors` float32 [n, d]."""
    for i in range(len(rows)):
        kept = _vector(blocks, rows[i], vectors.shape[1])
        for j in range(len(kept)):
            vectors[i, j] = kept[j]


@compile_loop()
def _dots(codes, query, out):  # type: ignore[no-untyped-def]
    """Write the products of codes int8 [n, D] and query int16 [D] to `out` int32 [n]."""
    for i in range(len(codes)):
        row, total = codes[i], np.int32(0)
        for j in range(len(query)):
            total = np.int32(total + np.int32(np.int32(row[j]) * np.int32(query[j])))
        out[i] = total


@compile_loop()
def _code_query(vector, limit, out):  # type: ignore[no-untyped-def]
    """Code a vector float32 [d] as w int16 [D], at most `limit`: t, |t w|^2 and |f|."""
    largest = np.float32(0)
    for j in range(len(vector)):
        largest = max(largest, abs(vector[j]))
    step = largest / np.float32(limit)
    whole = np.float32(1) / step if step > 0 else np.float32(0)
    squares, error = np.float32(0), np.float32(0)
    for j in range(len(vector)):
        value = np.rint(vector[j] * whole)
        value = min(max(value, np.float32(-limit)), np.float32(limit))
        out[j] = np.int16(value)
        coded = step * value
        squares += coded * coded
        error += (vector[j] - coded) * (vector[j] - coded)
    return step, squares, np.sqrt(error)


@compile_loop()
def _bound_distances(dots, facts, step, squares, error, out):  # type: ignore[no-untyped-def]
    """Write lower bounds of the squared distances of coded vectors to `out` float32 [n]."""
    for i in range(len(out)):
        size = squares + facts[i, 1]
        squared = size - np.float32(2) * step * facts[i, 0] * np.float32(dots[i])
        squared = max(squared - _ROUNDING * size, np.float32(0))
        least = max(np.sqrt(squared) - facts[i, 2] - error, np.float32(0))
        bound = least * least * (np.float32(1) - _ROUNDING)
        out[i] = bound if size < np.float32(np.inf) else np.float32(0)


@compile_loop()
def _bound_products(  # type: ignore[no-untyped-def]
    dots, facts, step, length, error, center, reach, out
):
    """Write lower bounds of the inner products times -1.

    length: of the query. center, reach: the product with the center of the list, and its length.
    """
    for i in range(len(out)):
        size = np.sqrt(facts[i, 1])
        slack = length * facts[i, 2] + error * size
        slack += _ROUNDING * length * (reach + size + facts[i, 2])
        bound = -(center + step * facts[i, 0] * np.float32(dots[i])) - slack
        out[i] = bound if slack < np.float32(np.inf) else np.float32(-np.inf)


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
def _is_new(seen, row):  # type: ignore[no-untyped-def]
    """Whether a row is not yet in a hash table of a power of two of numbers; puts it there."""
    last = len(seen) - 1
    at = row * 0x9E3779B1 >> 16 & last
    while seen[at] >= 0:
        if seen[at] == row:
            return False
        at = at + 1 & last
    seen[at] = row
    return True


@compile_loop()
def _bound(query, lists, centers, table, ip, coded, left, dots, lower, number):  # type: ignore[no-untyped-def]
    """Write the rows of lists to `number`, and their bounds to `lower`."""
    width = len(coded)
    limit = min(32767, (2**31 - 1) // (_STEPS * width))
    length = np.sqrt(_product(query, query))
    if ip:
        step, squares, error = _code_query(query, limit, coded)
    at = 0
    for entry in lists:
        if entry < 0 or table[entry, COUNT] == 0:
            continue
        count, center = table[entry, COUNT], centers[entry]
        codes = numba.carray(_pointer(table[entry, CODES]), (count, width), np.int8)
        facts = numba.carray(_pointer(table[entry, FACTS]), (count, 3), np.float32)
        rows = numba.carray(_pointer(table[entry, ROWS]), (count,), np.int64)
        for i in range(count):
            number[at + i] = rows[i]
        products, bounds = dots[at : at + count], lower[at : at + count]
        if ip:
            _dots(codes, coded, products)
            middle, reach = _product(query, center), np.sqrt(_product(center, center))
            _bound_products(products, facts, step, length, error, middle, reach, bounds)
        else:
            for j in range(len(query)):
                left[j] = query[j] - center[j]
            step, squares, error = _code_query(left, limit, coded)
            _dots(codes, coded, products)
            _bound_distances(products, facts, step, squares, error, bounds)
        at += count


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
def _measure(  # type: ignore[no-untyped-def]
    query, blocks, removed, ip, lower, number, measured, distances, rows
):
    """Write the nearest of `number` by their vectors; those whose bounds are too far are not read.

    measured: places and their bounds, of those with the least, which are first, so that others are
    refused by what these have; and a hash table of rows.
    """
    places, least, seen = measured
    k, first, count, got = len(rows), len(places), 0, 0
    for i in range(len(lower)):
        got = _put(lower[i], i, got, least, places)
    for i in range(first + len(lower)):
        at = places[i] if i < first else i - first
        if count == k and lower[at] > distances[0]:
            continue
        row = number[at]
        if removed[row] or not _is_new(seen, row):
            continue
        vector = _vector(blocks, row, len(query))
        distance = -_product(query, vector) if ip else _squared_distance(query, vector)
        if distance < np.inf:
            count = _put(distance, row, count, distances, rows)
    for at in range(count // 2 - 1, -1, -1):
        _sink(distances, rows, count, at)
    for stop in range(count - 1, 0, -1):  # the farthest to the end
        distances[0], distances[stop] = distances[stop], distances[0]
        rows[0], rows[stop] = rows[stop], rows[0]
        _sink(distances, rows, stop, 0)


@compile_loop()
def search(  # type: ignore[no-untyped-def]
    queries, lists, centers, table, width, blocks, removed, copies, ip, distances, rows
):
    """Write the nearest of the vectors in lists of each query: as of `CodedLists.search`.

    Args:
      queries: float32 [n, d].
      lists: int64 [n, p], -1 for none.
      centers: float32 [L, d].
      table: int64 [L, 4]: addresses of the codes, facts and rows of lists, and their counts.
      width: D of the codes.
      blocks: int64 [B], addresses of the vectors of BLOCK rows each.
      removed: bool, of rows that are not found.
      copies: lists that a row stands in, at most.
      ip: whether a distance is the inner product times -1, else squared Euclidean.
      distances, rows: float32 and int64 [n, k], get what is found.
    """
    coded, left = np.zeros(width, np.int16), np.empty(queries.shape[1], np.float32)
    lower, dots, least = np.empty(0, np.float32), np.empty(0, np.int32), np.empty(0, np.float32)
    number, places, seen = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    for q in range(len(queries)):
        total = 0
        for i in range(rows.shape[1]):
            distances[q, i], rows[q, i] = np.inf, -1
        for entry in lists[q]:
            total += table[entry, COUNT] if entry >= 0 else 0
        if total == 0:
            continue
        if total > len(lower):
            room, size = total + total // 4, 16
            lower, dots, least = (
                np.empty(room, np.float32),
                np.empty(room, np.int32),
                np.empty(room, np.float32),
            )
            while size < 2 * room:
                size *= 2
            number, places, seen = (
                np.empty(room, np.int64),
                np.empty(room, np.int64),
                np.empty(size, np.int64),
            )
        for i in range(len(seen)):
            seen[i] = -1
        bounds, own = lower[:total], number[:total]
        _bound(queries[q], lists[q], centers, table, ip, coded, left, dots, bounds, own)
        first = min(copies * rows.shape[1], total)
        measured = places[:first], least[:first], seen
        _measure(queries[q], blocks, removed, ip, bounds, own, measured, distances[q], rows[q])
