"""Groups of duplicates from pairs of them: two linkages, the same whatever the order of rows.

closure    joins what any chain of pairs links, but no texts of different numbers
complete   joins two groups where all pairs between them were found

Both take the strongest pairs first. A pair joins the groups of its two entries unless the linkage
refuses; the last pair that joined a group is its weakest link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.duplicates.order import order_of
from qpr_jax.duplicates.rows import Linkage, Rows, column_of, require_column


class RowGroup(NamedTuple):
    """Rows of one group."""

    members: list[int]  # rows, by id
    last: int  # the place of the pair that joined the group last; -1 for copies of one text
    kept: int  # the row that stands for all


def group_entries(
    numbers: np.ndarray, first: np.ndarray, second: np.ndarray, linkage: Linkage
) -> tuple[np.ndarray, np.ndarray]:
    """Group N entries by pairs of them, int64 [P] each, strongest first.

    Complete linkage takes about 300 bytes a pair.

    Args:
      numbers: int64 [N], equal for entries with the same numbers; 0 for none.
      first, second: the entries of each pair.
      linkage: which pairs join two groups.

    Returns:
      The first entry of the group of each entry, int64 [N], and, at these entries, the place of the
      pair that joined the group last, else -1.
    """
    count = len(numbers)
    parents = [*range(count)]
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    if linkage == "complete":
        joins = np.array(_join_complete(parents, pairs), np.int64)
    else:
        joins = np.array(_join_all(parents, pairs, numbers.tolist()), np.int64)
    roots = np.array([_root(parents, entry) for entry in range(count)], np.int64)
    _, at, inverse = np.unique(roots, return_index=True, return_inverse=True)
    roots = at[inverse]
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, roots[first[joins]], joins)
    return roots, last


def _root(parents: list[int], entry: int) -> int:
    while parents[entry] != entry:
        parents[entry] = parents[parents[entry]]
        entry = parents[entry]
    return entry


def _join_all(
    parents: list[int], pairs: Iterable[tuple[int, int]], numbers: list[int]
) -> list[int]:
    """Change the parents to those of the groups; return the places of the pairs that join two.

    numbers: as of `group_entries`; changed to those of the groups.
    """
    joins = []
    for place, (one, other) in enumerate(pairs):
        a, b = _root(parents, one), _root(parents, other)
        if a != b and (numbers[a] == numbers[b] or not (numbers[a] and numbers[b])):
            joins.append(place)
            parents[max(a, b)] = min(a, b)
            numbers[min(a, b)] = numbers[a] or numbers[b]
    return joins


def _join_complete(parents: list[int], pairs: Iterable[tuple[int, int]]) -> list[int]:
    """As `_join_all`, but a pair joins two groups only if it is the last one between them."""
    sizes, joins = [1] * len(parents), []
    close: dict[int, dict[int, int]] = {}  # root -> other root -> pairs between them so far
    for place, (one, other) in enumerate(pairs):
        a, b = _root(parents, one), _root(parents, other)
        if a == b:
            continue
        of_a, of_b = close.setdefault(a, {}), close.setdefault(b, {})
        of_a[b] = of_b[a] = of_a.get(b, 0) + 1
        if of_a[b] < sizes[a] * sizes[b]:
            continue
        joins.append(place)
        if len(of_a) < len(of_b):
            a, b, of_a, of_b = b, a, of_b, of_a
        parents[b] = a
        sizes[a] += sizes[b]
        del of_a[b], of_b[a], close[b]
        for third, number in of_b.items():
            of_third = close[third]
            del of_third[b]
            of_a[third] = of_third[a] = of_a.get(third, 0) + number
    return joins


def group_rows(
    rows: Rows, entry_roots: np.ndarray, last: np.ndarray, vectors: np.ndarray, keep: str
) -> list[RowGroup]:
    """Make the groups of rows from those of their entries, the largest first.

    Rows of one text are a group, too, unless two tables are compared.

    Args:
      rows: the rows; one that the table is compared with comes before its own.
      entry_roots, last: of `group_entries`.
      vectors, keep: as of `choose_kept`.
    """
    roots = entry_roots[rows.entries]
    sizes = np.bincount(roots, minlength=len(last))
    copies = np.bincount(rows.entries, minlength=len(rows.first))
    copied = (copies > 1) & rows.is_new & (not rows.apart)
    order = row_order(keep, rows)
    grouped = np.flatnonzero((last >= 0) | (copied & (entry_roots == np.arange(len(copied)))))
    by_root = rows.by_id[np.argsort(roots[rows.by_id], kind="stable")]
    starts = np.cumsum(np.append(0, sizes))
    groups = []
    for root in grouped[np.argsort(-sizes[grouped], kind="stable")].tolist():
        members = by_root[starts[root] : starts[root + 1]].tolist()
        allowed = [row for row in members if row >= rows.table_rows] or members
        kept = choose_kept(keep, rows, allowed, vectors, order)
        groups.append(RowGroup(members, int(last[root]), kept))
    return groups


def choose_kept(
    keep: str, rows: Rows, members: Sequence[int], vectors: np.ndarray, order: Sequence[Any]
) -> int:
    """Return the row of a group that is kept, of equal ones the first of `members`.

    Args:
      keep: as of `find_duplicates`.
      rows, members: all rows, and those of the group.
      vectors: float32 [E, d], of the entries.
      order: of `row_order`.
    """
    if keep == "first":
        return min(members)
    if keep == "longest":
        return max(members, key=lambda row: len(rows.questions[row].text))
    if keep == "central":
        return central_row(rows, members, vectors)
    return max(members, key=order.__getitem__)


def central_row(rows: Rows, members: Sequence[int], vectors: np.ndarray) -> int:
    """Return the row of a group that is nearest to the mean of its vectors; see `choose_kept`."""
    exact = vectors[rows.entries[[*members]]].astype(np.float64)
    return members[int(((exact - exact.mean(axis=0)) ** 2).sum(axis=1).argmin())]


def row_order(keep: str, rows: Rows) -> Sequence[Any]:
    """Return what rows are compared by with "max:COLUMN", a key a row; UserError where it fails."""
    if (column := column_of(keep)) is None:
        return []
    if rows.table_rows:
        require_column(column, rows.fields, "keep")
    return order_of([(row.payload or {}).get(column) for row in rows.questions], column)
