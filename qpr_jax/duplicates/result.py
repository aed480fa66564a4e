"""What `find_duplicates` returns: pairs, groups and the rows that stay, as lists and tables."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from qpr_jax.data.questions import Payload
from qpr_jax.duplicates.row_groups import chunks_of
from qpr_jax.duplicates.rows import Rows, order_key
from qpr_jax.duplicates.search import Found
from qpr_jax.errors import UserError
from qpr_jax.ids import Id
from qpr_jax.reranking.stage import Explanation
from qpr_jax.results import (
    TableColumns,
    printable,
    to_arrow_table,
    to_pandas_frame,
    with_payload,
)

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from qpr_jax.retriever import Retriever

T = TypeVar("T")
OTHER = "of_table"  # a column of groups, where there are rows of another table
_SHOWN = 10  # pairs and groups that are printed
_CHUNK = 16_384  # rows that are read from disk at once


class Pair(NamedTuple):
    """Two rows that are duplicates.

    score: the probability of that; None for a run without calibration. distance: squared.
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
      kept: the id of the row that stays.
      keeps_table: whether that row is of the table.
      weakest: the probability of the pair that joined the group last; None as of `Pair`.
      link: the ids of this pair; smaller id first, or the table's with `against`.
      distance: of this pair.
    """

    ids: list[Id]
    questions: list[str]
    payloads: list[Payload | None]
    of_table: list[bool]
    kept: Id
    keeps_table: bool
    weakest: float | None
    link: tuple[Id, Id]
    distance: float

    @property
    def stays(self) -> list[bool]:
        """Whether each row is the one that stays."""
        sides = zip(self.ids, self.of_table, strict=True)
        return [(value, side) == (self.kept, self.keeps_table) for value, side in sides]


class Row(NamedTuple):
    """A row of the table; `rows`: how many it stands for, itself included."""

    id: Id
    question: str
    payload: Payload | None
    rows: int


class Table(Sequence[T]):
    """A list that converts to tables of pandas and PyArrow."""

    def __init__(self, values: Sequence[T], columns: Callable[[], TableColumns]) -> None:
        self._values, self._columns = values, columns

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        more = ["..."] if len(self) > _SHOWN else []
        return "\n".join([*map(repr, self._values[:_SHOWN]), *more])

    def to_pandas(self) -> pandas.DataFrame:
        """A table of pandas; the fields of payloads are columns, as of `Results.to_pandas`."""
        return to_pandas_frame(self._columns())

    def to_arrow(self) -> pyarrow.Table:
        """A table of PyArrow, which Polars and DuckDB read, too; see `Results.to_arrow`."""
        return to_arrow_table(self._columns())


class Duplicates:
    """The duplicates of a table.

        found = find_duplicates(table, run="runs/quora_sdml")
        found.pairs[0].question1, found.groups[0].ids
        found.deduplicated.to_pandas().to_csv("deduplicated.csv")

    Attributes:
      threshold: the least probability of a pair; None where distances decide.
      max_distance: the largest squared distance of a pair that was looked at.
      precision: the mean probability of the pairs of different texts, which is the precision to
        expect; None without a calibration.
      exact: whether all rows were compared; else `missed` is the estimated share of the pairs that
        were missed.
      missed: 0.0 where `exact`.
    """

    def __init__(self, found: Found, explainer: Callable[[Rows], Retriever]) -> None:
        """explainer: makes the retriever that explains pairs of some rows."""
        self._found, self._explainer = found, explainer
        self.threshold, self.max_distance = found.pairs.threshold, found.max_distance
        self.precision, self.exact, self.missed = found.precision, found.exact, found.missed
        self._pairs = [*pairs_of(found)]  # their files may go

    @property
    def pairs(self) -> Table[Pair]:
        """The pairs, most probable first; of rows of one text, each with the first of them."""
        return Table(self._pairs, lambda: TableColumns(_columns(self._pairs, Pair), {}))

    @functools.cached_property
    def groups(self) -> Table[Group]:
        """The groups, largest first; as a table a row for each member."""
        groups = [*groups_of(self._found)]

        def columns() -> TableColumns:
            fixed: dict[str, list[Any]] = {
                "group": [i for i, group in enumerate(groups) for _ in group.ids],
                "id": [value for group in groups for value in group.ids],
                "kept": [is_kept for group in groups for is_kept in group.stays],
                "weakest": [group.weakest for group in groups for _ in group.ids],
                "link1": [group.link[0] for group in groups for _ in group.ids],
                "link2": [group.link[1] for group in groups for _ in group.ids],
                "distance": [group.distance for group in groups for _ in group.ids],
                "question": [text for group in groups for text in group.questions],
            }
            if self._found.rows.has_others:
                fixed[OTHER] = [side for group in groups for side in group.of_table]
            return with_payload(fixed, [p for group in groups for p in group.payloads])

        return Table(groups, columns)

    @functools.cached_property
    def deduplicated(self) -> Table[Row]:
        """The rows of the table with one row a group, in the order of the table."""
        rows = [*kept_of(self._found)]

        def columns() -> TableColumns:
            fixed: dict[str, list[Any]] = {
                "id": [row.id for row in rows],
                "question": [row.question for row in rows],
                "rows": [row.rows for row in rows],
            }
            return with_payload(fixed, [row.payload for row in rows])

        return Table(rows, columns)

    @property
    def kept(self) -> list[Id]:
        """The ids of `deduplicated`."""
        return [row.id for row in self.deduplicated]

    def explain(self, pair: Pair | tuple[Id, Id]) -> Explanation:
        """Why two rows were joined; see `Retriever.explain`.

        pair: one of `pairs`, or two ids of one; with `against`, that of the table first, since
          the other table may have the same ids.
        """
        known = {(found.id1, found.id2): found for found in self._pairs}
        found = known.get(pair[:2])
        if found is None and self._found.settings.compare != "across":
            found = known.get((pair[1], pair[0]))
        if found is None:
            what = f"expected the ids of a pair that was found, got {pair[0]!r} and {pair[1]!r}"
            raise UserError(what, remedy="give one of the pairs")
        return self._retriever.explain(found.question1, found.question2)

    @functools.cached_property
    def _retriever(self) -> Retriever:
        return self._explainer(self._found.rows)

    def __repr__(self) -> str:
        rows = len(self._found.rows.searched)
        lines = [
            f"<Duplicates: {len(self._pairs):,} pairs and {len(self._found.groups):,} groups in "
            f"{rows:,} rows>"
        ]
        for pair in self._pairs[:_SHOWN]:
            score = "" if pair.score is None else f"{pair.score:.3f}  "
            texts = (json.dumps(text, ensure_ascii=False) for text in pair[4:])
            lines.append(f"  {score}{pair.distance:.3f}  {'  '.join(map(printable, texts))}")
        more = len(self._pairs) - _SHOWN
        return "\n".join([*lines, *([f"... and {more:,} more pairs"] if more > 0 else [])])


def _columns(values: Sequence[Any], kind: type) -> dict[str, list[Any]]:
    return {name: [getattr(v, name) for v in values] for name in kind._fields}  # type: ignore[attr-defined]


def pairs_of(found: Found) -> Iterator[Pair]:
    """The pairs of rows, read from disk a part at a time; smaller id first, or the table's."""
    across = found.settings.compare == "across"
    for part in found.row_pairs():
        for start in range(0, len(part.first), _CHUNK):
            some = slice(start, start + _CHUNK)
            ids1, texts1 = found.rows.fields(part.first[some])
            ids2, texts2 = found.rows.fields(part.second[some])
            scores = [None if p != p else p for p in part.scores[some].tolist()]
            columns = (ids1, ids2, scores, part.distances[some].tolist(), texts1, texts2)
            for pair in map(Pair, *columns):
                if not across and order_key(pair.id1) > order_key(pair.id2):
                    a, b, score, distance, one, two = pair
                    pair = Pair(b, a, score, distance, two, one)
                yield pair


def groups_of(found: Found) -> Iterator[Group]:
    """The groups, read from disk a part at a time."""
    groups, rows = found.groups, found.rows
    known = found.pairs.calibration is not None
    across = found.settings.compare == "across"
    for begin, end in chunks_of(groups.starts):
        at = groups.starts[begin]
        ids, texts, payloads = rows.columns(groups.members[at : groups.starts[end]])
        of_table = (groups.members[at : groups.starts[end]] < rows.table_rows).tolist()
        ends = groups.links[begin:end]  # rows of the table have the smaller numbers
        links = rows.fields((np.sort(ends, axis=1) if across else ends).reshape(-1))[0]
        kept = rows.fields(groups.kept[begin:end])[0]
        for i in range(begin, end):
            own = slice(groups.starts[i] - at, groups.starts[i + 1] - at)
            distance = float(groups.distances[i])
            link = links[2 * (i - begin)], links[2 * (i - begin) + 1]
            score = float(groups.strengths[i]) + 1e-9 * distance / (1 + distance)
            yield Group(
                ids[own],
                texts[own],
                payloads[own],
                of_table[own],
                kept[i - begin],
                bool(groups.kept[i] < rows.table_rows),
                min(1.0, score) if known else None,
                link if across else _ordered(*link),
                distance,
            )


def _ordered(one: Id, two: Id) -> tuple[Id, Id]:
    return (one, two) if order_key(one) <= order_key(two) else (two, one)


def kept_of(found: Found) -> Iterator[Row]:
    """The rows that stay, read from disk a part at a time."""
    groups = found.groups
    kept = groups.kept_rows(found.rows)
    sizes = np.ones(len(found.rows), np.int64)
    sizes[groups.kept] = np.diff(groups.starts)
    for start in range(0, len(kept), _CHUNK):
        some = kept[start : start + _CHUNK]
        yield from map(Row, *found.rows.columns(some), sizes[some].tolist())
