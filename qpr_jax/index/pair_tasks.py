"""Which vectors are compared with which: numbered tasks, run by all cores, in a fixed order."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from qpr_jax.index import pair_kernels as kernels
from qpr_jax.index.pair_codes import Codes
from qpr_jax.index.pair_files import Pairs, join_pairs
from qpr_jax.machine import cpu_count

T = TypeVar("T")
R = TypeVar("R")

Compare = Literal["all", "across", "new"]
WHICH = {"all": kernels.ALL, "across": kernels.ACROSS, "new": kernels.NEW}

ROWS, OTHERS = 1024, 4096  # of a task: at most 4 million pairs, 84 MB, which take milliseconds
SMALL = 48  # vectors of a block that is compared in full, without codes
_SMALL_PAIRS = 1 << 20  # pairs of the small blocks of a task
_ROOM = 1 << 16  # pairs that a loop finds before it returns; at least ROOM and those of a block


class Task(NamedTuple):
    """Compare `rows` int64 [n] with `others` int64 [o], both ascending.

    ordered: only pairs whose row is less than the other; else no row is in both.
    block, list: of whose pairs it has some; list -1 for none.
    """

    rows: np.ndarray
    others: np.ndarray
    ordered: bool
    block: int = 0
    list: int = -1


class SmallBlocks(NamedTuple):
    """Compare the vectors of each block: `rows` int64 [n] by block; `starts` int64 [B + 1]."""

    rows: np.ndarray
    starts: np.ndarray


def split_group(rows: np.ndarray, is_new: np.ndarray | None, compare: Compare) -> Iterator[Task]:
    """The tasks of all pairs of `rows` int64 [n], ascending, of which as many are new as asked."""
    if compare == "all" or is_new is None:
        yield from triangle(rows)
        return
    new = is_new[rows]
    if compare == "new":
        yield from triangle(rows[new])
    yield from rectangle(rows[new], rows[~new])


def triangle(rows: np.ndarray) -> Iterator[Task]:
    """The tasks of all pairs of `rows` int64 [n], ascending."""
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        for other in range(start, len(rows), OTHERS):
            yield Task(some, rows[other : other + OTHERS], True)


def rectangle(rows: np.ndarray, others: np.ndarray) -> Iterator[Task]:
    """The tasks of all pairs of one of `rows` and one of `others`, which have none in common."""
    if len(others) < len(rows):
        rows, others = others, rows
    for start in range(0, len(rows), ROWS):
        for other in range(0, len(others), OTHERS):
            yield Task(rows[start : start + ROWS], others[other : other + OTHERS], False)


def count_pairs(count: int, new: int, compare: Compare) -> int:
    """Pairs among `count` vectors of which `new` are new."""
    old = count - new
    if compare == "all":
        return count * (count - 1) // 2
    return new * old + (new * (new - 1) // 2 if compare == "new" else 0)


def split_small(rows: np.ndarray, starts: np.ndarray) -> Iterator[SmallBlocks]:
    """The tasks of blocks of at most SMALL vectors; starts: int64 [B + 1]."""
    sizes = np.diff(starts)
    work = np.cumsum(sizes * (sizes - 1) // 2) // _SMALL_PAIRS
    edges = np.flatnonzero(np.diff(work, prepend=-1, append=-2))
    for begin, end in itertools.pairwise(edges.tolist()):
        base = starts[begin]
        yield SmallBlocks(rows[base : starts[end]], starts[begin : end + 1] - base)


def run_task(
    task: Task | SmallBlocks,
    vectors: np.ndarray,
    codes: Codes,
    most: float,
    *,
    is_new: np.ndarray | None = None,
    compare: Compare = "all",
) -> Pairs:
    """The pairs of a task within a squared distance of `most`; codes: of all vectors."""
    limit = np.float32(most)
    if isinstance(task, SmallBlocks):
        which = WHICH["all" if is_new is None else compare]
        news = np.zeros(len(vectors), bool) if is_new is None else is_new

        def advance(start: int, out: Pairs) -> tuple[int, int]:
            return kernels.compare_blocks(
                vectors, task.rows, task.starts, news, which, limit, start, tuple(out)
            )

        return _collect(advance)
    row_codes, other_codes = codes.take(task.rows), codes.take(task.others)
    some = slice(len(task.others))
    tiles = kernels.lay_out(other_codes.values[some], other_codes.halves[some])
    sides = (task.rows, task.others, *row_codes, *tiles)

    def advance_tiles(start: int, out: Pairs) -> tuple[int, int]:
        return kernels.compare(vectors, *sides, limit, task.ordered, start, tuple(out))

    return _collect(advance_tiles)


def _collect(advance: Callable[[int, Pairs], tuple[int, int]]) -> Pairs:
    """The pairs of a loop that returns when its output is full."""
    out = Pairs(np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64), np.empty(_ROOM, np.float32))
    parts, start = [], 0
    while start >= 0:
        found, start = advance(start, out)
        if found:
            parts.append(Pairs(*(values[:found].copy() for values in out)))
    return join_pairs(parts)


def run_all(tasks: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Each task with its result, in their order; all cores work, at most two tasks each ahead."""
    threads = cpu_count()
    waiting: collections.deque[tuple[T, Future[R]]] = collections.deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for task in tasks:
                waiting.append((task, pool.submit(work, task)))
                if len(waiting) > 2 * threads:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            for _, result in waiting:
                result.cancel()
