"""All close pairs of vectors that may not fit in memory, in the files of a folder.

Up to EXACT_LIMIT vectors all are compared (`pair_tasks`), above it those of lists (`list_join`),
and the share of pairs that this misses is estimated. A run that was killed goes on.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from qpr_jax import progress
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.index.list_files import Lists
from qpr_jax.index.list_join import LISTS, TRAINED, join_lists, keep_once, make_lists
from qpr_jax.index.pair_codes import (
    NO_CODES,
    Codes,
    check_finite,
    empty_codes,
    encode_all,
    fit_axes,
)
from qpr_jax.index.pair_files import PairFolder, Pairs, digest_of
from qpr_jax.index.pair_tasks import (
    OTHERS,
    ROWS,
    SMALL,
    Compare,
    SmallBlocks,
    Task,
    count_pairs,
    run_all,
    run_task,
    split_group,
    split_small,
)
from qpr_jax.machine import cpu_count

EXACT_LIMIT = 300_000  # vectors; all pairs of as many are compared

_log = logging.getLogger("qpr_jax")


@dataclasses.dataclass(frozen=True)
class FoundPairs:
    """The pairs that a search found, in the files of its folder.

    Attributes:
      count: of pairs.
      exact: whether all vectors were compared.
      missed: the estimated share of pairs that are not found, 0.0 if `exact`.
      facts: what the search chose and counted, as JSON.
    """

    folder: PairFolder
    count: int
    exact: bool
    missed: float
    facts: dict[str, Any]

    def parts(self) -> Iterator[Pairs]:
        """All pairs, at most 2^20 at a time, in a fixed order."""
        return self.folder.parts()

    @classmethod
    def of(cls, folder: PairFolder, facts: dict[str, Any]) -> FoundPairs:
        """The pairs of a folder that is finished with these facts."""
        return cls(folder, facts["count"], facts["exact"], facts["missed"], facts)


class Setup(NamedTuple):
    """What is searched. vectors: float32 [N, d]; the largest squared distance; which pairs."""

    vectors: np.ndarray
    most: float
    is_new: np.ndarray | None
    compare: Compare
    seed: int


class _Group(NamedTuple):
    """A block: its rows int64 [n], ascending, and how it is compared."""

    rows: np.ndarray
    lists: Lists | None


def find_pairs(
    vectors: np.ndarray,
    max_distance: float,
    folder: StrPath,
    *,
    memory: int,
    blocks: np.ndarray | None = None,
    is_new: np.ndarray | None = None,
    compare: Compare = "all",
    exact: bool | None = None,
    seed: int = 0,
    log: Callable[[str], object] = _log.info,
) -> FoundPairs:
    """Find all pairs of rows at a squared Euclidean distance of at most `max_distance`.

    Args:
      vectors: float32 [N, d], an array or an `np.memmap`.
      folder: for the pairs and for what a second call with the same arguments goes on from; a call
        with others empties it.
      memory: bytes that the search may use; the codes of the vectors are in a file of the folder.
      blocks: int64 [N]; only pairs of one block are found. There may be a million.
      is_new: bool [N].
      compare: "all"; "across": exactly one of the two is new; "new": at least one is.
      exact: compare all pairs. None: where a block has no more than EXACT_LIMIT vectors have.
      seed: of samples.
      log: gets a line for each stage.

    Raises:
      UserError: a vector is not finite, or the memory is too little.
    """
    if is_new is None and compare != "all":
        raise ValueError(f"`compare={compare}` needs `is_new`")
    vectors = check_vectors(vectors)
    settings = {
        "max_distance": float(max_distance), "compare": compare, "exact": exact, "seed": seed,
        "limit": EXACT_LIMIT, "tasks": [ROWS, OTHERS, SMALL],
    }  # fmt: skip
    spool = PairFolder(folder, digest_of([vectors, blocks, is_new], settings))
    if facts := spool.found():
        return FoundPairs.of(spool, facts)
    check_finite(vectors)
    setup = Setup(vectors, float(max_distance), is_new, compare, seed)
    order, starts = _sort_blocks(len(vectors), blocks)
    codes = NO_CODES
    if np.diff(starts).max(initial=0) > SMALL and max_distance >= 0:
        _check_memory(memory, setup)
        codes = _codes_of(setup, spool.path)
    facts = _run(setup, codes, order, starts, spool, exact, log)
    return FoundPairs.of(spool, spool.finish(facts))


def _run(
    setup: Setup,
    codes: Codes,
    order: np.ndarray,
    starts: np.ndarray,
    spool: PairFolder,
    exact: bool | None,
    log: Callable[[str], object],
) -> dict[str, Any]:
    """Compare what is not compared yet; returns the facts of the search."""
    if not setup.most >= 0:
        order, starts = order[:0], starts[:1]
    small, groups = _split_sizes(order, starts)
    made: list[_Group] = []
    for number, rows in enumerate(groups):
        new = 0 if setup.is_new is None else int(setup.is_new[rows].sum())
        every = count_pairs(len(rows), new, setup.compare)
        lists = None
        if exact is False or (exact is None and every > count_pairs(EXACT_LIMIT, 0, "all")):
            lists = make_lists(setup, codes, rows, spool.path / f"lists-{number}", log)
        made.append(_Group(rows, lists))
    tasks, total = _tasks(setup, small, made), _count_tasks(setup, small, made)
    _compare(setup, codes, tasks, total, made, spool)
    joined = [group.lists for group in made if group.lists is not None]
    seen = sum(lists.facts["sampled_pairs"] for lists in joined)
    missed = sum(lists.facts["missed"] * lists.facts["sampled_pairs"] for lists in joined)
    return {
        "exact": not joined,
        "missed": missed / max(seen, 1),
        "vectors": len(setup.vectors),
        "max_distance": None if np.isinf(setup.most) else setup.most,
        "code_size": codes.values.shape[1],
        "lists": [lists.facts for lists in joined],
    }


def _compare(
    setup: Setup,
    codes: Codes,
    tasks: Iterator[Task | SmallBlocks],
    total: int,
    groups: list[_Group],
    spool: PairFolder,
) -> None:
    """Run the tasks from the first that is not done, and keep their pairs."""
    for _ in range(spool.next_task):
        next(tasks, None)

    def work(task: Task | SmallBlocks) -> Pairs:
        pairs = run_task(
            task, setup.vectors, codes, setup.most, is_new=setup.is_new, compare=setup.compare
        )
        if isinstance(task, SmallBlocks) or task.ordered:
            return pairs
        rows, lists = groups[task.block]
        return pairs if lists is None else keep_once(lists, rows, task.list, pairs)

    with progress.bar("task", total, start=spool.next_task) as show:
        for _, pairs in run_all(tasks, work):
            spool.add(pairs)
            show(spool.next_task, "")
    spool.write()


def _tasks(
    setup: Setup, small: tuple[np.ndarray, np.ndarray], groups: list[_Group]
) -> Iterator[Task | SmallBlocks]:
    """All tasks, in the order that a run which goes on relies on."""
    yield from split_small(*small)
    for number, group in enumerate(groups):
        if group.lists is None:
            pieces = split_group(group.rows, setup.is_new, setup.compare)
        else:
            pieces = join_lists(group.lists, group.rows, setup.is_new, setup.compare)
        for task in pieces:
            yield task._replace(block=number)


def _count_tasks(setup: Setup, small: tuple[np.ndarray, np.ndarray], groups: list[_Group]) -> int:
    return sum(1 for _ in _tasks(setup, small, groups))


def _sort_blocks(count: int, blocks: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows int64 [N] block by block, ascending in each, and where each begins [B + 1]."""
    if blocks is None:
        return np.arange(count), np.array([0, count])
    order = np.argsort(blocks, kind="stable")
    begins = np.flatnonzero(np.diff(blocks[order])) + 1
    return order, np.concatenate([[0], begins, [count]])


def _split_sizes(
    order: np.ndarray, starts: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], list[np.ndarray]]:
    """The rows and starts of the small blocks, and the rows of each large one."""
    sizes = np.diff(starts)
    large = sizes > SMALL
    groups = [order[starts[i] : starts[i + 1]] for i in np.flatnonzero(large)]
    rows = order[np.repeat(~large, sizes)]
    return (rows, np.concatenate([[0], np.cumsum(sizes[~large])])), groups


def _codes_of(setup: Setup, folder: pathlib.Path) -> Codes:
    """The codes of all vectors in files of the folder, or those of a run that was killed."""
    files = [folder / "codes.npy", folder / "halves.npy"]
    if not all(file.exists() for file in files):
        axes = fit_axes(setup.vectors, setup.most, seed=setup.seed)
        parts = [file.with_suffix(".part") for file in files]
        mapped = [
            np.lib.format.open_memmap(part, "w+", np.float32, (len(setup.vectors), *one.shape[1:]))
            for part, one in zip(parts, empty_codes(axes, 0), strict=True)
        ]
        encode_all(axes, setup.vectors, Codes(*mapped))
        for part, file, array in zip(parts, files, mapped, strict=True):
            array.flush()
            part.replace(file)
    return Codes(*(np.asarray(np.load(file, mmap_mode="r")) for file in files))


def _check_memory(memory: int, setup: Setup) -> None:
    """UserError if the arrays of the search cannot fit."""
    count, dimension = setup.vectors.shape
    lists = 0 if count <= EXACT_LIMIT else LISTS * count**0.5
    # What each task holds, the sample of the axes, the rows of all vectors; then the vectors that
    # centroids are fitted to, with copies, and the distances of all centroids.
    need = (64 + 40 * cpu_count()) << 20
    need += 12 * min(count, 20_000) * dimension + 32 * count
    need += round(lists * (12 * TRAINED * dimension + 24 * lists))
    if memory < need:
        raise UserError(
            f"expected at least {need / 2**30:.1f} GiB of memory for {count:,} questions, got "
            f"{memory / 2**30:.1f}",
            remedy="raise {memory}",
        )


def check_vectors(vectors: np.ndarray) -> np.ndarray:
    """The same array [N, d] of float32, in the order that the loops read; UserError for others."""
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise UserError(
            f"`vectors`: expected float32 [N, d], got {vectors.dtype} {list(vectors.shape)}"
        )
    return np.asarray(vectors) if vectors.flags.c_contiguous else np.ascontiguousarray(vectors)
