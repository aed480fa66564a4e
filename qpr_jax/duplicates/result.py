"""What `find_duplicates` returns: pairs, groups and the rows that stay, as lists and tables."""

from __future__ import annotations

import collections
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from qpr_jax.data.frames import select_rows
from qpr_jax.data.tables import Payload, Source
from qpr_jax.duplicates.groups import RowGroup
from qpr_jax.duplicates.rows import Rows
from qpr_jax.duplicates.scores import LOWEST, Scored, Scores, at_no_distance
from qpr_jax.errors import UserError, shortened
from qpr_jax.ids import Id, order_key
from qpr_jax.results import TableColumns, Tabular, attributes

T = TypeVar("T")
_SHOWN = 10  # pairs and groups that are printed
SWEPT = (0.3, 0.5, 0.7, 0.9)  # the thresholds of `Duplicates.sweep`
_SWEPT_FACTS = ("pairs", "groups", "kept")


class Pair(NamedTuple):
    """Two rows that are duplicates.

    score: how likely that is, 0 to 1; None without a model of pairs. distance: squared.
    """

    id1: Id
    id2: Id
    score: float | None
    distance: float
    question1: str
    question2: str


class Group(NamedTuple):
    """Rows that are duplicates of each other.

    Attributes:
      ids, questions, payloads: of the rows, in the order of the ids.
      of_table: whether each row is of the table, and not of `against` or of the index.
      stays: whether each row is the one that stays.
      kept: the id of this row.
      weakest: the score of the pair that joined the group last; None as of `Pair`.
      link: the ids of this pair; smaller id first, or the table's with `against`.
      distance: of this pair.
    """

    ids: list[Id]
    questions: list[str]
    payloads: list[Payload | None]
    of_table: list[bool]
    stays: list[bool]
    kept: Id
    weakest: float | None
    link: tuple[Id, Id]
    distance: float


class Row(NamedTuple):
    """A row of the table; `rows`: how many it stands for, itself included."""

    id: Id
    question: str
    payload: Payload | None
    rows: int


class Table(list[T], Tabular):
    """A list that converts to tables of pandas and PyArrow."""

    def __init__(self, values: Iterable[T], columns: Callable[[list[T]], TableColumns]) -> None:
        given = [*values]
        super().__init__(given)
        self._columns = functools.partial(columns, given)

    def columns(self) -> TableColumns:
        """The columns of all tables."""
        return self._columns()

    def __repr__(self) -> str:
        more = ["..."] if len(self) > _SHOWN else []
        return "\n".join([*map(repr, self[:_SHOWN]), *more])


def _pair_columns(pairs: list[Pair]) -> TableColumns:
    return TableColumns(attributes(pairs, Pair._fields), Pair._fields)


class Duplicates:
    """The duplicates of a table.

        found = find_duplicates(table, encoder="runs/quora_sdml")
        found.pairs[0].question1, found.groups[0].ids
        found.deduplicated.to_pandas().to_csv("deduplicated.csv")

    Attributes:
      threshold: the least score of a pair; None where distances alone decide.
      max_distance: the largest squared distance of a pair that was looked at.
      exact: whether all rows were compared; else `missed` is the estimated share of the pairs that
        were missed.
      missed: 0.0 where `exact`.
    """

    def __init__(
        self,
        rows: Rows,
        scores: Scores,
        group: Callable[[Scores], list[RowGroup]],
        table: Source,
    ) -> None:
        self._rows, self._scores, self._group, self._table = rows, scores, group, table
        self._groups = group(scores)
        self.threshold, self.max_distance = scores.choice.threshold, scores.max_distance
        self.exact, self.missed = scores.exact, scores.missed

    def at_least(self, threshold: float, max_distance: float | None = None) -> Duplicates:
        """Move the threshold, without a new search.

        UserError below the threshold of the search, or below 0.3, whichever is lower.
        """
        searched = self._scores.choice.threshold
        lowest = 0.0 if searched is None else min(searched, LOWEST)
        scores = self._scores.at_least(threshold, max_distance)
        if threshold < lowest or not self._scores.model:
            what = f"pairs were looked for from a score of {lowest:g} on, got {threshold:g}"
            if not self._scores.model:
                what = "these pairs have no scores"
            raise UserError(what, setting="threshold", remedy="find the duplicates again with it")
        return Duplicates(self._rows, scores, self._group, self._table)

    def sweep(self) -> list[dict[str, Any]]:
        """What other thresholds give: pairs, groups and rows left of each.

        precision: the range of the precision on tables that the score was not fitted to; None
        where that is not known.
        """
        model, swept = self._scores.model, []
        for threshold in SWEPT:
            facts = self.at_least(threshold).facts()
            row = {"threshold": threshold} | {name: facts[name] for name in _SWEPT_FACTS}
            precisions = getattr(model, "precisions", {})
            precision = precisions.get(f"{threshold:g}")
            swept.append(row | {"precision": precision})
        return swept

    def around(self, count: int = 5) -> list[Pair]:
        """The pairs of different texts whose scores are nearest to the threshold, best first."""
        found, threshold = self._scores.found, self.threshold
        if threshold is None or not self._scores.model:
            return []
        near = np.argsort(np.abs(found.scores - threshold), kind="stable")[:count]
        return [*self._pairs_of(self._row_pairs(found.where(np.sort(near))))]

    @functools.cached_property
    def pairs(self) -> Table[Pair]:
        """The pairs, best first; of rows of one text, each with the first of them."""
        found = self._row_pairs(self._scores.pairs)
        copies, others = map(self._pairs_of, (self._copies(), found))
        return Table(itertools.chain(copies, others), _pair_columns)

    @functools.cached_property
    def groups(self) -> Table[Group]:
        """The groups, largest first; as a table a row for each member, as of `deduplicated`."""
        return Table(self._make_groups(), self._group_columns)

    @functools.cached_property
    def deduplicated(self) -> Table[Row]:
        """The rows of the table with one row a group, in the order of the table.

        As a table it has the columns of the table, `id` if none of them has the ids, and `rows`.
        """
        rows, counts = self._rows, np.ones(len(self._rows), np.int64)
        for members, _, kept in self._groups:
            counts[members] = 0
            counts[kept] = len(members)
        stay = np.flatnonzero(counts[: rows.table_rows]).tolist()

        def columns(kept: list[Row]) -> TableColumns:
            return self._with_own(stay, {"rows": [row.rows for row in kept]})

        return Table((Row(*rows.questions[row], int(counts[row])) for row in stay), columns)

    @property
    def kept(self) -> list[Id]:
        """The ids of `deduplicated`."""
        return [row.id for row in self.deduplicated]

    def facts(self) -> dict[str, Any]:
        """The numbers of the search, as in info.json."""
        rows, groups = self._rows, self._groups
        sizes = [len(members) for members, *_ in groups]
        copies = len(self._copies().first)
        return {
            "questions": rows.table_rows,
            "texts": len(rows.first),
            "threshold": self.threshold,
            "max_distance": self.max_distance,
            "pairs": len(self.pairs) - copies,
            "copies": copies,
            "groups": len(sizes),
            "grouped_questions": sum(sizes),
            "largest_group": max(sizes, default=0),
            "kept": len(self.deduplicated),
            "exact": self.exact,
            "missed": self.missed,
        }

    def __repr__(self) -> str:
        counts = len(self.pairs), len(self._groups), self._rows.table_rows
        pairs, groups, rows = (f"{count:,}" for count in counts)
        lines = [f"<Duplicates: {pairs} pairs and {groups} groups in {rows} rows>"]
        for pair in self.pairs[:_SHOWN]:
            score = "" if pair.score is None else f"{pair.score:.3f}  "
            texts = (json.dumps(text, ensure_ascii=False) for text in pair[4:])
            lines.append(f"  {score}{pair.distance:.3f}  {'  '.join(map(shortened, texts))}")
        more = counts[0] - _SHOWN
        return "\n".join([*lines, *([f"... and {more:,} more pairs"] if more > 0 else [])])

    def _pairs_of(self, found: Scored) -> Iterator[Pair]:
        """Yield pairs of rows."""
        rows = self._rows
        columns = zip(*(values.tolist() for values in found), strict=True)
        for first, second, score, distance in columns:
            one, other = self._in_order(first, second)
            a, b = rows.questions[one], rows.questions[other]
            yield Pair(a.id, b.id, None if score != score else score, distance, a.text, b.text)

    def _in_order(self, one: int, other: int) -> tuple[int, int]:
        """Two rows, that of the table first with `against`, else that of the smaller id."""
        if self._rows.apart:
            return min(one, other), max(one, other)
        a, b = (order_key(self._rows.questions[row].id) for row in (one, other))
        return (other, one) if a > b else (one, other)

    def _copies(self) -> Scored:
        """Rows of one text, each with the row that stands for all of them."""
        rows = self._rows
        second = rows.by_id[: 0 if rows.apart else None]
        first = rows.first[rows.entries[second]]
        copied = (first != second) & (np.minimum(first, second) < rows.table_rows)
        score = 1.0 if self._scores.model else np.nan
        return at_no_distance(first[copied], second[copied], score)

    def _row_pairs(self, pairs: Scored) -> Scored:
        """Pairs of entries as those of the rows that stand for them.

        With `against` of all rows of the table.
        """
        rows = self._rows
        if not rows.apart:
            return pairs._replace(first=rows.first[pairs.first], second=rows.first[pairs.second])
        is_new = rows.is_new[pairs.first]
        new = np.where(is_new, pairs.first, pairs.second).tolist()
        old = np.where(is_new, pairs.second, pairs.first)
        members: dict[int, list[int]] = collections.defaultdict(list)
        for row in rows.by_id[rows.by_id < rows.table_rows].tolist():
            members[int(rows.entries[row])].append(row)
        each = np.repeat(np.arange(len(new)), [len(members[entry]) for entry in new])
        first = np.array([row for entry in new for row in members[entry]], np.int64)
        return pairs.where(each)._replace(first=first, second=rows.first[old[each]])

    def _make_groups(self) -> Iterator[Group]:
        rows, pairs = self._rows, self._scores.pairs
        for members, last, kept in self._groups:
            ends, score, distance = members[:2], 1.0, 0.0  # of copies
            if last >= 0:
                ends = [int(rows.first[end[last]]) for end in (pairs.first, pairs.second)]
                score, distance = float(pairs.scores[last]), float(pairs.distances[last])
            one, other = self._in_order(*ends)
            ids, questions, payloads = zip(*(rows.questions[row] for row in members), strict=True)
            yield Group(
                ids=[*ids],
                questions=[*questions],
                payloads=[*payloads],
                of_table=[row < rows.table_rows for row in members],
                stays=[row == kept for row in members],
                kept=rows.questions[kept].id,
                weakest=score if self._scores.model else None,
                link=(rows.questions[one].id, rows.questions[other].id),
                distance=distance,
            )

    def _group_columns(self, groups: list[Group]) -> TableColumns:
        numbered = [(i, group, n) for i, group in enumerate(groups) for n in range(len(group.ids))]
        fixed: dict[str, list[Any]] = {
            "group": [i for i, _, _ in numbered],
            "kept": [group.stays[n] for _, group, n in numbered],
            "weakest": [group.weakest for _, group, _ in numbered],
            "link1": [group.link[0] for _, group, _ in numbered],
            "link2": [group.link[1] for _, group, _ in numbered],
            "distance": [group.distance for _, group, _ in numbered],
        }
        if len(self._rows) > self._rows.table_rows:
            fixed["of_table"] = [group.of_table[n] for _, group, n in numbered]
        return self._with_own([row for members, *_ in self._groups for row in members], fixed)

    def _with_own(self, numbers: list[int], added: dict[str, list[Any]]) -> TableColumns:
        """The columns of rows, named as in their table, then `id` if it has none, and others."""
        table, rows = self._table, [self._rows.questions[number] for number in numbers]
        names = dict.fromkeys(table.chosen.names)
        for row in rows:
            names |= dict.fromkeys(row.payload or ())
        values: dict[str, list[Any]]
        values = {name: [(row.payload or {}).get(name) for row in rows] for name in names}
        values[table.chosen.text] = [row.text for row in rows]
        if table.chosen.id:
            values[table.chosen.id] = [row.id for row in rows]
        else:
            added = attributes(rows, ["id"]) | added
        fixed = {}
        for name, column in added.items():
            while name in values:
                name = f"qpr_{name}"
            fixed[name] = column
        own, lines = None if "of_table" in added else table.own, [e.line for e in table.entries]
        return TableColumns(values | fixed, fixed, select_rows(own, lines, numbers, names))
