"""Loops that find all close pairs of two lists of vectors.

A code is short: the coordinates of a vector along its first principal axes, and the length of the
rest. The distance of two codes is a lower bound of that of their vectors, so most pairs are refused
by products of codes; the others get their distance from the differences of the vectors.
"""

from __future__ import annotations

import numpy as np

from qpr_jax.loops import compile_loop

COLUMNS = 512  # codes that are transposed at once; with four rows of products they fit in L1 and L2
_ROWS = 4  # rows whose products are made at once, and coordinates that are added at once
_CHUNK = 32  # coordinates after which a distance above the threshold is given up
ROOM = _ROWS * COLUMNS  # places that `compare` needs in its output
ALL, ACROSS, NEW = 0, 1, 2  # which pairs `compare_blocks` takes, by how many of the two are new
# Sums may be reordered and fused, but infinity stays infinity.
_FAST = {"contract", "reassoc", "nsz"}


@compile_loop(fastmath=_FAST)
def squared_distance(one: np.ndarray, other: np.ndarray, most: float) -> np.float32:
    """The squared distance of two float32 vectors [d], or infinity if it is above `most`."""
    total = np.float64(0)
    for start in range(0, len(one), _CHUNK):
        part = np.float32(0)
        for i in range(start, min(start + _CHUNK, len(one))):
            move = one[i] - other[i]
            part += move * move
        total += part
        if np.float32(total) > most:
            return np.float32(np.inf)
    return np.float32(total)


@compile_loop(fastmath=_FAST)
def measure(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Squared distances float32 [P] of pairs of rows of float32 [N, d]."""
    distances = np.empty(len(first), np.float32)
    for i in range(len(first)):
        distances[i] = squared_distance(vectors[first[i]], vectors[second[i]], np.inf)
    return distances


@compile_loop(fastmath=_FAST)
def _add_products(codes: np.ndarray, row: int, tile: np.ndarray, sums: np.ndarray) -> None:
    """Add the products of four codes, from `row` on, and of those of tile [K, W] to sums [4, W]."""
    sums0, sums1, sums2, sums3 = sums[0], sums[1], sums[2], sums[3]
    for k in range(0, tile.shape[0], 4):
        a0, a1, a2, a3 = codes[row], codes[row + 1], codes[row + 2], codes[row + 3]
        a00, a01, a02, a03 = a0[k], a0[k + 1], a0[k + 2], a0[k + 3]
        a10, a11, a12, a13 = a1[k], a1[k + 1], a1[k + 2], a1[k + 3]
        a20, a21, a22, a23 = a2[k], a2[k + 1], a2[k + 2], a2[k + 3]
        a30, a31, a32, a33 = a3[k], a3[k + 1], a3[k + 2], a3[k + 3]
        tile0, tile1, tile2, tile3 = tile[k], tile[k + 1], tile[k + 2], tile[k + 3]
        for j in range(tile.shape[1]):
            b0, b1, b2, b3 = tile0[j], tile1[j], tile2[j], tile3[j]
            sums0[j] += a00 * b0 + a01 * b1 + a02 * b2 + a03 * b3
            sums1[j] += a10 * b0 + a11 * b1 + a12 * b2 + a13 * b3
            sums2[j] += a20 * b0 + a21 * b1 + a22 * b2 + a23 * b3
            sums3[j] += a30 * b0 + a31 * b1 + a32 * b2 + a33 * b3


@compile_loop(fastmath=_FAST)
def compare(
    vectors: np.ndarray,
    rows: np.ndarray,
    others: np.ndarray,
    codes: np.ndarray,
    halves: np.ndarray,
    tiles: np.ndarray,
    tile_halves: np.ndarray,
    most: np.float32,
    ordered: bool,
    start: int,
    out: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[int, int]:
    """Find the pairs of a row of `rows` and one of `others` within a squared distance.

    Args:
      vectors: float32 [N, d].
      rows, others: int64 [n], [o].
      codes, halves: of `rows`, float32 [n_4, K] and [n_4]; n_4 is n as a multiple of 4, K one, too.
        A half is half of a squared length.
      tiles, tile_halves: of `others`, float32 [T, K, COLUMNS] and [T, COLUMNS], from `lay_out`.
      most: the largest squared distance, float32.
      ordered: take only pairs whose row is less than the other.
      start: where to go on, 0 at first.
      out: (first, second, distances), each with at least ROOM places.

    Returns:
      (pairs found, where to go on, or -1 at the end).
    """
    first, second, distances = out
    found = 0
    steps = len(codes) // _ROWS
    sums = np.empty((_ROWS, COLUMNS), np.float32)
    # The bound is rounded: `lay_out` and `Codes` made the halves less by more than that.
    limit = -np.float32(most) / np.float32(2)
    for step in range(start, len(tiles) * steps):
        if found + ROOM > len(first):
            return found, step
        tile, row = step // steps, step % steps * _ROWS
        column = tile * COLUMNS
        width = min(COLUMNS, len(others) - column)
        if ordered and rows[row] >= others[column + width - 1]:
            continue
        for i in range(_ROWS):
            sums[i] = -tile_halves[tile]
        _add_products(codes, row, tiles[tile], sums)
        for i in range(row, min(row + _ROWS, len(rows))):
            products, least = sums[i - row], halves[i] + limit
            for chunk in range(0, width, 64):
                hits = np.int32(0)  # int32 as the products are wide, so that the loop is vectorized
                for j in range(chunk, chunk + 64):
                    hits = np.int32(hits + np.int32(products[j] >= least))
                if hits == 0:
                    continue
                for j in range(chunk, min(chunk + 64, width)):
                    if products[j] < least or (ordered and rows[i] >= others[column + j]):
                        continue
                    a, b = rows[i], others[column + j]
                    distance = squared_distance(vectors[a], vectors[b], most)
                    if distance <= most:
                        first[found], second[found] = min(a, b), max(a, b)
                        distances[found] = distance
                        found += 1
    return found, -1


@compile_loop()
def lay_out(codes: np.ndarray, halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Transpose codes [n, K] and halves [n] into tiles [T, K, COLUMNS] and [T, COLUMNS]."""
    count, size = codes.shape
    number = -(-count // COLUMNS)
    tiles = np.zeros((number, size, COLUMNS), np.float32)
    tile_halves = np.full((number, COLUMNS), np.float32(np.inf))
    for i in range(count):
        tile, column = i // COLUMNS, i % COLUMNS
        tile_halves[tile, column] = halves[i]
        for k in range(size):
            tiles[tile, k, column] = codes[i, k]
    return tiles, tile_halves


@compile_loop(fastmath=_FAST)
def compare_blocks(
    vectors: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    is_new: np.ndarray,
    which: int,
    most: np.float32,
    start: int,
    out: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[int, int]:
    """Find the pairs of small blocks within a squared distance, each compared in full.

    Args:
      vectors: float32 [N, d].
      rows: int64 [n], those of a block one after the other, ascending.
      starts: int64 [B + 1], where each block begins.
      is_new: bool [N]; which: ALL, ACROSS or NEW.
      start: the block to go on with, 0 at first.
      most, out: as of `compare`; a block has at most as many pairs as `out` has places.

    Returns:
      (pairs found, the block to go on with, or -1 at the end).
    """
    first, second, distances = out
    found = 0
    for block in range(start, len(starts) - 1):
        size = starts[block + 1] - starts[block]
        if found + size * (size - 1) // 2 > len(first):
            return found, block
        for i in range(starts[block], starts[block + 1]):
            for j in range(i + 1, starts[block + 1]):
                a, b = rows[i], rows[j]
                new = int(is_new[a]) + int(is_new[b])
                if (which == ACROSS and new != 1) or (which == NEW and new == 0):
                    continue
                distance = squared_distance(vectors[a], vectors[b], most)
                if distance <= most:
                    first[found], second[found], distances[found] = a, b, distance
                    found += 1
    return found, -1
