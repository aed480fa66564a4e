"""Groups of rows: those of the entries that pairs join, and of the copies of one text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qpr_jax.duplicates.groups import Groups
from qpr_jax.duplicates.keep import choose_kept
from qpr_jax.duplicates.rows import Rows, order_key
from qpr_jax.index.mining import pair_distances
from qpr_jax.reranking.base import starts_of

_CHUNK = 65_536  # rows whose texts are in memory at once, where no group has more


@dataclass(frozen=True)
class RowGroups:
    """G groups of rows, the largest first.

    Attributes:
      members: int64 [M], the rows of all groups, one after the other, by id in each.
      starts: int64 [G + 1], where each group begins.
      links: int64 [G, 2], the rows of the weakest link of each.
      strengths: float64 [G], of these links, as of `groups`; those of copies are 1.
      distances: float32 [G], of these links.
      kept: int64 [G], the row of each that stands for all of it.
    """

    members: np.ndarray
    starts: np.ndarray
    links: np.ndarray
    strengths: np.ndarray
    distances: np.ndarray
    kept: np.ndarray

    def __len__(self) -> int:
        return len(self.kept)

    def members_of(self, group: int) -> np.ndarray:
        """The rows of a group, int64 [n], by id."""
        return self.members[self.starts[group] : self.starts[group + 1]]

    def kept_rows(self, rows: Rows) -> np.ndarray:
        """The rows of the table that stay when groups are reduced to one row, int64 [n]."""
        stays = rows.entries >= 0
        stays[self.members] = False
        stays[self.kept] = True
        return np.flatnonzero(stays[: rows.table_rows])


def group_rows(
    rows: Rows, groups: Groups, vectors: np.ndarray, keep: str, *, copies: bool
) -> RowGroups:
    """Make the groups of rows from those of their entries.

    vectors: float32 [E, d]. keep: as of `choose_kept`; a row that the table is compared with comes
    before those of the table. copies: whether the rows of one text are a group.
    """
    labels, count = groups.labels.copy(), len(groups.strength)
    alone = np.flatnonzero((labels < 0) & (rows.copies > 1)) if copies else np.zeros(0, np.int64)
    if rows.is_new is not None:
        alone = alone[rows.is_new[alone]]
    labels[alone] = count + np.arange(len(alone))
    own = np.where(rows.entries >= 0, np.append(labels, -1)[rows.entries], -1)
    members = np.flatnonzero(own >= 0)
    sizes = np.bincount(own[members], minlength=count + len(alone))
    _, first = np.unique(labels[labels >= 0], return_index=True)
    order = np.lexsort((np.flatnonzero(labels >= 0)[first], -sizes))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    members = members[np.argsort(rank[own[members]], kind="stable")]
    starts = starts_of(sizes[order])
    ends = np.concatenate([groups.weakest, np.stack([alone, alone], axis=1)])[order]
    strengths = np.append(groups.strength, np.ones(len(alone)))[order]
    distances = pair_distances(vectors, *ends.T) if len(ends) else np.zeros(0, np.float32)
    links = rows.first[ends]
    kept = np.empty(len(order), np.int64)
    _order_members(rows, members, starts, vectors, keep, kept)
    twins = ends[:, 0] == ends[:, 1]
    links[twins, 1] = members[starts[:-1][twins] + 1]
    return RowGroups(members, starts, links, strengths, distances, kept)


def _order_members(
    rows: Rows,
    members: np.ndarray,
    starts: np.ndarray,
    vectors: np.ndarray,
    keep: str,
    kept: np.ndarray,
) -> None:
    """Order the rows of each group by id, and set the one that is kept."""
    for begin, end in chunks_of(starts):
        at = starts[begin]
        ids, texts, payloads = rows.columns(members[at : starts[end]])
        for group in range(begin, end):
            own = slice(starts[group] - at, starts[group + 1] - at)
            keys = [*map(order_key, ids[own])]
            order = sorted(range(len(keys)), key=keys.__getitem__)
            some = members[starts[group] : starts[group + 1]][order]
            members[starts[group] : starts[group + 1]] = some
            old = some >= rows.table_rows
            allowed = np.flatnonzero(old) if old.any() else np.arange(len(some))
            places = [own.start + order[i] for i in allowed]
            near = vectors[rows.entries[some[allowed]]] if keep == "central" else vectors[:0]
            chosen = choose_kept(
                *(keep, some[allowed], [texts[i] for i in places]),
                *([payloads[i] for i in places], near),
            )
            kept[group] = some[allowed[chosen]]


def chunks_of(starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Runs of groups, by the numbers of their first and of the one after the last."""
    begin, last = 0, len(starts) - 1
    while begin < last:
        end = int(np.searchsorted(starts, starts[begin] + _CHUNK, "right")) - 1
        end = min(max(end, begin + 1), last)
        yield begin, end
        begin = end
