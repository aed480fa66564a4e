"""Compiled loops of `coded_lists`: codes of vectors, and bounds of distances by them.

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

from qpr_jax.index.code_products import TOGETHER, write_products
from qpr_jax.loops import compile_loop

CODES, STEPS, SQUARES, ERRORS, ROWS, COUNT = range(6)  # columns of the table of lists
BLOCK = 1 << 14  # vectors of a block
_LARGEST = 127  # number of a code
_TILE = 256  # codes that are in a core's cache while the queries of a run are compared with them
_RUN = 16  # queries of a list that are compared with a tile of it, and then with the next
# More than float32 rounds bounds and distances off, as a share of the squared lengths.
_ROUNDING = np.float32(2e-5)
_REORDER = {"reassoc", "contract", "nsz"}


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """The pointer of an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@compile_loop()
def vector_of(blocks, row, dimension):  # type: ignore[no-untyped-def]
    """The vector float32 [d] of a row."""
    address = blocks[row // BLOCK] + row % BLOCK * dimension * 4
    return numba.carray(pointer(address), (dimension,), np.float32)


@compile_loop(fastmath=_REORDER)
def squared_distance(a, b):  # type: ignore[no-untyped-def]
    """The squared distance of two vectors float32 [d]."""
    total = np.float32(0)
    for i in range(len(a)):
        total += (a[i] - b[i]) * (a[i] - b[i])
    return total


@compile_loop(fastmath=_REORDER)
def product(a, b):  # type: ignore[no-untyped-def]
    """The inner product of two vectors float32 [d]."""
    total = np.float32(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@compile_loop()
def code(vectors, center, codes, steps, squares, errors):  # type: ignore[no-untyped-def]
    """Code vectors float32 [n, d] of a list.

    codes: int8 [n, D], gets c, and zeros from d on. steps, squares, errors: float32 [n], get s,
    |s c|^2 and |e|.
    """
    for i in range(len(vectors)):
        largest = np.float32(0)
        for j in range(len(center)):
            largest = max(largest, abs(vectors[i, j] - center[j]))
        step = largest / np.float32(_LARGEST)
        whole = np.float32(1) / step if step > 0 else np.float32(0)
        square, error = np.float64(0), np.float64(0)
        for j in range(len(center)):
            left = vectors[i, j] - center[j]
            value = min(max(np.rint(left * whole), -_LARGEST), _LARGEST)
            codes[i, j] = np.int8(value)
            coded = np.float64(step) * value
            square += coded * coded
            error += (left - coded) * (left - coded)
        for j in range(len(center), codes.shape[1]):
            codes[i, j] = 0
        steps[i] = step
        squares[i] = square
        errors[i] = np.sqrt(error) * (1 + 1e-6)


@compile_loop()
def keep(vectors, rows, blocks, present):  # type: ignore[no-untyped-def]
    """Write the vectors float32 [n, d] of rows that are not `present` to the blocks."""
    dimension = vectors.shape[1]
    for i in range(len(rows)):
        row = rows[i]
        if not present[row]:
            kept = vector_of(blocks, row, dimension)
            for j in range(dimension):
                kept[j] = vectors[i, j]
            present[row] = True


@compile_loop()
def fetch(rows, blocks, vectors):  # type: ignore[no-untyped-def]
    """Write the vectors of rows to `vectors` float32 [n, d]."""
    for i in range(len(rows)):
        kept = vector_of(blocks, rows[i], vectors.shape[1])
        for j in range(len(kept)):
            vectors[i, j] = kept[j]


@compile_loop(fastmath=_REORDER)
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
def _code_for(query, center, ip, limit, left, coded, terms):  # type: ignore[no-untyped-def]
    """Code a query for the list of a center; writes what bounds need to `terms` float32 [5]."""
    if ip:
        terms[0], _, terms[2] = _code_query(query, limit, coded)
        terms[1] = np.sqrt(product(query, query))
        terms[3], terms[4] = product(query, center), np.sqrt(product(center, center))
    else:
        for j in range(len(query)):
            left[j] = query[j] - center[j]
        terms[0], terms[1], terms[2] = _code_query(left, limit, coded)


@compile_loop()
def _bound_distances(dots, steps, squares, errors, terms, out):  # type: ignore[no-untyped-def]
    """Write lower bounds of the squared distances of coded vectors to `out` float32 [n].

    terms: t, |t w|^2 and |f|, of the query's difference from the center.
    """
    step, square, error = terms[0], terms[1], terms[2]
    for i in range(len(out)):
        size = square + squares[i]
        squared = size - np.float32(2) * step * steps[i] * np.float32(dots[i])
        squared = max(squared - _ROUNDING * size, np.float32(0))
        least = max(np.sqrt(squared) - errors[i] - error, np.float32(0))
        bound = least * least * (np.float32(1) - _ROUNDING)
        out[i] = bound if size < np.float32(np.inf) else np.float32(0)


@compile_loop()
def _bound_products(dots, steps, squares, errors, terms, out):  # type: ignore[no-untyped-def]
    """Write lower bounds of the inner products times -1.

    terms: t, the length and |f| of the query, its product with the center, the center's length.
    """
    step, length, error, center, reach = terms[0], terms[1], terms[2], terms[3], terms[4]
    for i in range(len(out)):
        size = np.sqrt(squares[i])
        slack = length * errors[i] + error * size
        slack += _ROUNDING * length * (reach + size + errors[i])
        bound = -(center + step * steps[i] * np.float32(dots[i])) - slack
        out[i] = bound if slack < np.float32(np.inf) else np.float32(-np.inf)


@compile_loop()
def _array(address, at, like):  # type: ignore[no-untyped-def]
    """As long an array of float32 as `like`, from the number `at` of an address on."""
    return numba.carray(pointer(address + 4 * at), (len(like),), np.float32)


@compile_loop()
def arrange(lists, table, room):  # type: ignore[no-untyped-def]
    """Sort pairs of a query and a list by list, so that the queries of a list follow each other.

    Those of the first queries, for whose bounds there is `room`, and of one at least.

    Args:
      lists: int64 [n, p], -1 for none. Pair i is the list i % p of the query i // p.
      table: of `bound`.

    Returns:
      The pairs of these m queries, int64 [m p], and where the bounds of each pair begin and the
      last end, int64 [m p + 1].
    """
    count, probes = lists.shape
    starts = np.zeros(count * probes + 1, np.int64)
    for q in range(count):
        for i in range(probes):
            pair, entry = q * probes + i, lists[q, i]
            starts[pair + 1] = starts[pair] + (table[entry, COUNT] if entry >= 0 else 0)
        if q > 0 and starts[(q + 1) * probes] > room:
            count = q
            break
    pairs = np.arange(count * probes)
    if count > 1:  # one query has no list twice
        before = np.zeros(len(table) + 2, np.int64)
        for pair in range(len(pairs)):
            before[lists[pair // probes, pair % probes] + 2] += 1
        for entry in range(1, len(before)):
            before[entry] += before[entry - 1]
        for pair in range(len(pairs)):
            entry = lists[pair // probes, pair % probes]
            pairs[before[entry + 1]] = pair
            before[entry + 1] += 1
    return pairs, starts[: len(pairs) + 1]


@compile_loop()
def bound(queries, lists, pairs, starts, lower, centers, table, width, ip):  # type: ignore[no-untyped-def]
    """Write lower bounds of the distances of queries and the vectors of their lists.

    Args:
      queries: float32 [n, d].
      lists: int64 [n, p], -1 for none.
      pairs, starts: of `arrange`; some of the pairs.
      lower: float32, gets the bounds.
      centers: float32 [L, d].
      table: int64 [L, 6]: addresses of what lists have, and how many entries.
      width: D of the codes.
      ip: whether a distance is the inner product times -1, else squared Euclidean.
    """
    limit = min(32767, (2**31 - 1) // (_LARGEST * width))
    coded, left = np.zeros((_RUN, width), np.int16), np.empty(queries.shape[1], np.float32)
    dots, terms = np.empty((TOGETHER, _TILE), np.int32), np.empty((_RUN, 5), np.float32)
    probes, next_one = lists.shape[1], 0
    while next_one < len(pairs):
        run = pairs[next_one : next_one + _RUN]
        entry = lists[run[0] // probes, run[0] % probes]
        same = 0
        while same < len(run) and lists[run[same] // probes, run[same] % probes] == entry:
            same += 1
        next_one += same
        count = starts[run[0] + 1] - starts[run[0]]
        for i in range(same if count else 0):
            query = queries[run[i] // probes]
            _code_for(query, centers[entry], ip, limit, left, coded[i], terms[i])
        for first in range(0, count, _TILE):
            size = min(_TILE, count - first)
            address = pointer(table[entry, CODES] + first * width)
            codes = numba.carray(address, (size, width), np.int8)
            for i in range(same):
                if i % TOGETHER == 0:
                    write_products(codes, coded[i:same], dots)
                start = starts[run[i]] + first
                out = lower[start : start + size]
                steps = _array(table[entry, STEPS], first, out)
                squares = _array(table[entry, SQUARES], first, out)
                errors = _array(table[entry, ERRORS], first, out)
                products = dots[i % TOGETHER]
                if ip:
                    _bound_products(products, steps, squares, errors, terms[i], out)
                else:
                    _bound_distances(products, steps, squares, errors, terms[i], out)
