"""`Pairs`: rows that mean the same, the groups that they form, and one row a group."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qpr_jax import kinds
from qpr_jax.data.entries import Id, order_key
from qpr_jax.data.tables import Table
from qpr_jax.duplicates.groups import (
    RowGroup,
    central_row,
    group_entries,
    group_rows,
    group_words,
    row_order,
)
from qpr_jax.duplicates.output import (
    TABLES,
    Group,
    Pair,
    Row,
    TableName,
    member_columns,
    with_table,
    write_tables,
)
from qpr_jax.duplicates.rows import Linkage, Rows, check_bound, check_linkage
from qpr_jax.errors import UserError, counted, shortened
from qpr_jax.files import StrPath
from qpr_jax.index.protocol import Question
from qpr_jax.locations import FittedModel
from qpr_jax.results import TableColumns, arrow_table, attributes, pandas_table, rows_of

if TYPE_CHECKING:
    import pandas
    import pyarrow

Encode = Callable[[list[str]], np.ndarray]
Clean = Callable[[str], str]
THRESHOLD = 0.5  # the least score of a pair where no bound is given
SWEPT = (0.3, 0.5, 0.7, 0.9)  # the thresholds of `Pairs.sweep`
_SWEPT_FACTS = ("pairs", "groups", "kept")
_SHOWN = 10  # pairs that are printed


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """The pairs of a table, most alike first, and what follows from them.

        found = find_duplicates(table)
        found.pairs[0].question1, found.groups[0].ids
        found.at_least(0.7).cluster("closure").keep("longest").write("found")
        found.to_pandas("deduplicated").to_csv("deduplicated.csv")

    `at_least`, `nearer_than`, `cluster` and `keep` return another `Pairs` and search nothing again.

    Attributes:
      threshold: the least score of a pair that counts; None: any.
      max_distance: the largest squared distance of a pair that counts; None: any.
      linkage: how pairs join groups (`duplicates.groups`).
      rule: which row of a group stays, as `keep` of `find_duplicates`.
      missed: the estimated share of the pairs that were not found; None: all rows were compared.
      least, farthest: the least score and the largest distance that were looked for; None: any.
    """

    rows: Rows
    table: Table
    vectors: np.ndarray  # float32 [E, d], of the entries
    model: FittedModel
    first: np.ndarray  # int64 [P], an entry
    second: np.ndarray  # int64 [P]
    scores: np.ndarray  # float64 [P]
    distances: np.ndarray  # float32 [P], squared
    least: float | None
    farthest: float | None
    missed: float | None
    threshold: float | None = None
    max_distance: float | None = None
    linkage: Linkage = "complete"
    rule: str = "first"
    version: str = ""  # of the index that the table was compared with
    labels: str | None = None  # the file of labels that decide

    def at_least(self, threshold: float) -> Pairs:
        """Move the least score. UserError where such pairs were not looked for."""
        value, least = check_bound("threshold", threshold) or 0.0, self.least or 0.0
        if value < least:
            what = f"pairs were looked for from a score of {least:g} on, got {threshold:g}"
            raise UserError(what, setting="threshold", remedy="find the duplicates again with it")
        return dataclasses.replace(self, threshold=value)

    def nearer_than(self, max_distance: float) -> Pairs:
        """Move the largest squared distance. UserError where such pairs were not looked for."""
        value = check_bound("max_distance", max_distance) or 0.0
        if self.farthest is not None and value > self.farthest:
            what = f"pairs were looked for up to a distance of {self.farthest:g}, got {value:g}"
            remedy = "find the duplicates again with it"
            raise UserError(what, setting="max_distance", remedy=remedy)
        return dataclasses.replace(self, max_distance=value)

    def cluster(self, linkage: Linkage) -> Pairs:
        """Join groups otherwise: "complete" or "closure" (`duplicates.groups`)."""
        return dataclasses.replace(self, linkage=check_linkage(linkage))

    def keep(self, rule: str) -> Pairs:
        """Choose the row of a group that stays otherwise, as `keep` of `find_duplicates`."""
        row_order(rule, self.rows)
        return dataclasses.replace(self, rule=rule)

    def write(self, folder: StrPath, output: str = "csv", *, excel: str = "") -> None:
        """Write the pairs, the groups and the rows that stay, as `duplicates.output` says."""
        kinds.refuse_output(folder, kinds.PAIRS)
        tables = {name: self._columns(name) for name in TABLES}
        write_tables(pathlib.Path(folder), tables, output, excel=excel)

    @functools.cached_property
    def pairs(self) -> list[Pair]:
        """The pairs, best first; of rows of one text, each with the first of them."""
        first, second = self._copies
        exact = np.ones(len(first)), np.zeros(len(first), np.float32)
        copies = self._pairs_of(first, second, *exact)
        return [*copies, *self._pairs_at(self._counted)]

    @functools.cached_property
    def groups(self) -> list[Group]:
        """The groups, largest first."""
        questions = self.rows.questions
        texts = [[questions[row].text for row in group.members] for group in self._row_groups]
        words = group_words(texts, (question.text for question in questions))
        return [*map(self._group_of, self._row_groups, words)]

    @functools.cached_property
    def deduplicated(self) -> list[Row]:
        """The rows of the table with one row a group, in the order of the table."""
        counts = self._stands_for
        stay = np.flatnonzero(counts[: self.rows.table_rows]).tolist()
        return [Row(*self.rows.questions[row], int(counts[row])) for row in stay]

    @property
    def kept(self) -> list[Id]:
        """The ids of `deduplicated`."""
        return [row.id for row in self.deduplicated]

    def to_dicts(self, table: TableName = "pairs") -> list[dict[str, Any]]:
        """Return the rows of a table.

        table: "pairs"; "groups", with a row for each member; "deduplicated". The last two have the
        columns of the input, `id` if none of them has the ids, and some of their own.
        """
        return rows_of(self._columns(table))

    def to_pandas(self, table: TableName = "pairs") -> pandas.DataFrame:
        """Return a table, as of `to_dicts`, for pandas."""
        return pandas_table(self._columns(table))

    def to_arrow(self, table: TableName = "pairs") -> pyarrow.Table:
        """Return a table, as of `to_dicts`, for PyArrow, which Polars and DuckDB read."""
        return arrow_table(self._columns(table))

    def facts(self) -> dict[str, Any]:
        """Return the numbers of the search, as in info.json."""
        sizes = [len(group.members) for group in self._row_groups]
        return {
            "questions": self.rows.table_rows,
            "texts": len(self.rows.first),
            "threshold": self.threshold,
            "max_distance": self.max_distance,
            "pairs": len(self.pairs) - len(self._copies[0]),
            "copies": len(self._copies[0]),
            "groups": len(sizes),
            "grouped_questions": sum(sizes),
            "largest_group": max(sizes, default=0),
            "kept": len(self.deduplicated),
            "missed": self.missed,
            "labels": self.labels,
            "id_column": self.table.chosen.id or "id",
            "payload": [*self.rows.fields],
        }

    def sweep(self) -> list[dict[str, Any]]:
        """Return what other thresholds give: pairs, groups and rows left of each.

        precision: the range of the precision on tables that the score was not fitted to; None
        where that is not known. weakest: the texts of the pair with the least score; None: none.
        """
        precisions, swept = getattr(self.model, "precisions", {}), []
        for threshold in SWEPT:
            moved = self.at_least(threshold)
            facts = moved.facts()
            row = {"threshold": threshold} | {name: facts[name] for name in _SWEPT_FACTS}
            texts = [[*pair[4:]] for pair in moved.pairs[facts["copies"] :][-1:]]
            row["weakest"] = texts[0] if texts else None
            swept.append(row | {"precision": precisions.get(f"{threshold:g}")})
        return swept

    def around(self, count: int = 5) -> list[Pair]:
        """Return the pairs of different texts with scores nearest to the threshold, best first."""
        if self.threshold is None:
            return []
        near = np.argsort(np.abs(self.scores - self.threshold), kind="stable")[:count]
        return [*self._pairs_at(np.sort(near))]

    def new_rows(self, encode: Encode, clean: Clean) -> tuple[list[Question], np.ndarray]:
        """Return the rows of the table and their vectors, each of its text as an index cleans it.

        Args:
          encode: cleaned texts to vectors, float32 [n, d], of the encoder of the search.
          clean: a text to what is encoded of it.
        """
        count = self.rows.table_rows
        questions, entries = self.rows.questions[:count], self.rows.entries[:count].tolist()
        texts = [clean(question.text) for question in questions]
        vectors, encoded = self.vectors[entries], self.rows.entry_texts
        others = [i for i, entry in enumerate(entries) if encoded[entry] != texts[i]]
        vectors[others] = encode([texts[i] for i in others])
        return questions, vectors

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def __repr__(self) -> str:
        pairs = counted(len(self.pairs), "pair")
        groups = counted(len(self._row_groups), "group")
        lines = [f"<Pairs: {pairs} and {groups} in {counted(self.rows.table_rows, 'row')}>"]
        for pair in self.pairs[:_SHOWN]:
            texts = (json.dumps(text, ensure_ascii=False) for text in pair[4:])
            lines.append(
                f"  {pair.score:.3f}  {pair.distance:.3f}  {'  '.join(map(shortened, texts))}"
            )
        more = len(self.pairs) - _SHOWN
        return "\n".join([*lines, *([f"... and {more:,} more pairs"] if more > 0 else [])])

    @functools.cached_property
    def _counted(self) -> np.ndarray:
        """The places of the pairs that count."""
        counts = np.ones(len(self.first), bool)
        if self.threshold is not None:
            counts &= self.scores >= self.threshold
        if self.max_distance is not None:
            counts &= self.distances <= self.max_distance
        return np.flatnonzero(counts)

    @functools.cached_property
    def _copies(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of one text, each with the row that stands for all of them."""
        rows = self.rows
        second = rows.by_id[: 0 if rows.apart else None]
        first = rows.first[rows.entries[second]]
        copied = (first != second) & (np.minimum(first, second) < rows.table_rows)
        return first[copied], second[copied]

    @functools.cached_property
    def _row_groups(self) -> list[RowGroup]:
        first, second = self.first[self._counted], self.second[self._counted]
        joined = group_entries(self.rows.numbers, first, second, self.linkage)
        return group_rows(self.rows, *joined, self.vectors, self.rule)

    @property
    def _stands_for(self) -> np.ndarray:
        """How many rows each row stands for, int64 [R]; 0 where another one stays."""
        counts = np.ones(len(self.rows), np.int64)
        for members, _, kept in self._row_groups:
            counts[members] = 0
            counts[kept] = len(members)
        return counts

    def _pairs_at(self, places: np.ndarray) -> Iterator[Pair]:
        """Yield pairs of rows that stand for entries; with `against`, of all rows of the table."""
        rows, first, second = self.rows, self.first[places], self.second[places]
        scores, distances = self.scores[places], self.distances[places]
        if rows.apart:
            is_new = rows.is_new[first]
            new, old = np.where(is_new, first, second).tolist(), np.where(is_new, second, first)
            members: dict[int, list[int]] = collections.defaultdict(list)
            for row in rows.by_id[rows.by_id < rows.table_rows].tolist():
                members[int(rows.entries[row])].append(row)
            each = np.repeat(np.arange(len(new)), [len(members[entry]) for entry in new])
            ones = np.array([row for entry in new for row in members[entry]], np.int64)
            return self._pairs_of(ones, rows.first[old[each]], scores[each], distances[each])
        return self._pairs_of(rows.first[first], rows.first[second], scores, distances)

    def _pairs_of(self, *columns: np.ndarray) -> Iterator[Pair]:
        """Yield pairs of rows from their first and second rows, scores and distances."""
        for first, second, score, distance in zip(*map(np.ndarray.tolist, columns), strict=True):
            a, b = self._in_order(first, second)
            yield Pair(a.id, b.id, score, distance, a.text, b.text)

    def _in_order(self, one: int, other: int) -> tuple[Question, Question]:
        """Return two rows, that of the table first with `against`, else that of the smaller id."""
        a, b = (self.rows.questions[row] for row in sorted((one, other)))
        return (b, a) if not self.rows.apart and order_key(a.id) > order_key(b.id) else (a, b)

    def _group_of(self, group: RowGroup, words: list[str]) -> Group:
        rows, members = self.rows, group.members
        ends, score, distance = members[:2], 1.0, 0.0  # of copies
        if group.last >= 0:
            place = self._counted[group.last]
            ends = [int(rows.first[entries[place]]) for entries in (self.first, self.second)]
            score, distance = float(self.scores[place]), float(self.distances[place])
        one, other = self._in_order(*ends)
        ids, questions, payloads = zip(*(rows.questions[row] for row in members), strict=True)
        return Group(
            ids=[*ids],
            questions=[*questions],
            payloads=[*payloads],
            of_table=[row < rows.table_rows for row in members],
            stays=[row == group.kept for row in members],
            central=rows.questions[central_row(rows, members, self.vectors)].text,
            words=words,
            kept=rows.questions[group.kept].id,
            weakest=score,
            link=(one.id, other.id),
            distance=distance,
        )

    def _columns(self, table: str) -> TableColumns:
        rows = self.rows
        if table == "pairs":
            return TableColumns(attributes(self.pairs, Pair._fields), Pair._fields)
        if table == "groups":
            numbers = [row for group in self._row_groups for row in group.members]
            added = member_columns(self.groups, with_others=len(rows) > rows.table_rows)
            return with_table(self.table, rows.questions, numbers, added)
        if table == "deduplicated":
            counts = self._stands_for[: rows.table_rows]
            stay = np.flatnonzero(counts)
            added = {"rows": counts[stay].tolist()}
            return with_table(self.table, rows.questions, stay.tolist(), added)
        raise UserError(f"expected one of {', '.join(TABLES)}, got {table!r:.80}")
