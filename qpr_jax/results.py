"""What a search returns: lists of hits that print as tables and convert to pandas and Arrow."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from qpr_jax.errors import needs, shortened
from qpr_jax.index.protocol import Hit

if TYPE_CHECKING:
    import pandas
    import pyarrow

_SURROGATES = re.compile("[\ud800-\udfff]")
# What is printed at most; the rest is counted.
_SHOWN_QUERIES, _SHOWN_HITS, _SHOWN_FIELDS = 10, 20, 8


class TableColumns(NamedTuple):
    """The columns of a table by name.

    fixed: the names of those that every table has; the others are of payloads, or of the input.
    typed: the columns of the input in their own types, as a table of narwhals; None: not known.
    """

    values: dict[str, list[Any]]
    fixed: Collection[str]
    typed: Any = None


class Tabular:
    """What converts to tables."""

    def columns(self) -> TableColumns:
        """Return the columns of all tables."""
        raise NotImplementedError

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as mappings."""
        return rows_of(self.columns())

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table of pandas; UserError if pandas is not installed.

        A payload field whose name another column has gets "payload_" before it. Whole numbers with
        gaps are of type Int64.
        """
        return pandas_table(self.columns())

    def to_arrow(self) -> pyarrow.Table:
        """Return the columns of `to_pandas` as a table of PyArrow, which Polars and DuckDB read.

        Ids are int64 if all are whole numbers, otherwise strings. Payload fields without a common
        type are strings, or JSON. Lone surrogates become U+FFFD. UserError if PyArrow is not
        installed.
        """
        return arrow_table(self.columns())


def rows_of(columns: TableColumns) -> list[dict[str, Any]]:
    """Return the rows of columns as mappings."""
    names, values = columns.values.keys(), columns.values.values()
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def pandas_table(columns: TableColumns) -> pandas.DataFrame:
    """Convert columns, as of `Tabular.to_pandas`."""
    with needs("to_pandas()", "pandas"):
        import pandas

    found, fixed, typed = columns
    series = {}
    for name, values in found.items():
        dtype = _TYPES.get(name) if name in fixed else None
        if dtype is None:
            dtype = _WITH_GAPS.get(frozenset(map(type, values)))
        try:
            series[name] = pandas.Series(values, dtype=dtype)
        except (OverflowError, TypeError):  # a number that no type of pandas holds
            series[name] = pandas.Series(values, dtype="object")
    table = pandas.DataFrame(series)
    if typed is None:
        return table
    return typed.to_pandas().assign(**{name: table[name].array for name in fixed})


def arrow_table(columns: TableColumns) -> pyarrow.Table:
    """Convert columns, as of `Tabular.to_arrow`."""
    with needs("to_arrow()", ".[parquet]"):
        import pyarrow as arrow

    found, fixed, typed = columns
    names = [] if typed is None else typed.columns
    of_input = {f"{name}": typed.get_column(name) for name in names}
    ids = [value for name in _IDS if name in fixed for value in found[name]]
    kinds = dict.fromkeys(fixed, "string") | _TYPES
    kinds |= dict.fromkeys(_IDS, "int64" if all(type(i) is int for i in ids) else "")
    arrays = {}
    for name, values in found.items():
        kind = arrow.type_for_alias(kinds[name]) if name in fixed and kinds[name] else None
        try:
            typed_values = of_input[name].to_arrow() if name in of_input else None
            array = arrow.array(values, kind) if typed_values is None else typed_values
        except (arrow.ArrowException, OverflowError, UnicodeError):
            texts = [None if value is None else _as_text(value) for value in values]
            array = arrow.array(texts, arrow.string())
        arrays[_unicode(name)] = array
    return arrow.table(arrays)


class Hits(list[Hit], Tabular):
    """The hits of one query, best first: a list of `Hit`, shown as a table.

    As a table of pandas or PyArrow it has a row per hit: rank (from 1), id, question, distance,
    score, payload fields.

    Attributes:
      query: the text that was searched for.
    """

    def __init__(self, query: str, hits: Iterable[Hit] = ()) -> None:
        super().__init__(hits)
        self.query = query

    def columns(self) -> TableColumns:
        """Return the columns of all tables."""
        return _columns(self, {"rank": [*range(1, 1 + len(self))]})

    def __repr__(self) -> str:
        return "\n".join(_lines(self))


class Results(list[Hits], Tabular):
    """What `Retriever.search` found: the `Hits` of each query, in the order of the queries.

    Tables of pandas and PyArrow have a row per hit: query_number (from 0), query, and the columns
    of `Hits`.

        results = retriever.search(["how can i learn python", "how to cook rice"], k=3)
        results[0][0].question
        results.to_pandas().to_csv("hits.csv")
    """

    @classmethod
    def of(cls, queries: Sequence[str], hits: Iterable[Iterable[Hit]]) -> Self:
        """Join each query to its hits."""
        return cls(map(Hits, queries, hits))

    def columns(self) -> TableColumns:
        """Return the columns of all tables."""
        fixed: dict[str, list[Any]] = {
            "query_number": [i for i, hits in enumerate(self) for _ in hits],
            "query": [hits.query for hits in self for _ in hits],
            "rank": [rank for hits in self for rank in range(1, 1 + len(hits))],
        }
        return _columns([hit for hits in self for hit in hits], fixed)

    def __repr__(self) -> str:
        found = sum(map(len, self))
        lines = [f"{_count(len(self), 'query', 'queries')}, {_count(found, 'hit', 'hits')}"]
        for hits in self[:_SHOWN_QUERIES]:
            lines += _lines(hits)
        return "\n".join([*lines, *_more(len(self) - _SHOWN_QUERIES, "query", "queries")])


# The types of the fixed columns of all tables; the others are text, but for ids.
_TYPES = dict.fromkeys(("query_number", "rank", "group", "rows"), "int64")
_TYPES |= dict.fromkeys(("distance", "score", "weakest"), "float64")
_TYPES |= dict.fromkeys(("kept", "of_table"), "bool")
_IDS = ("id", "id1", "id2", "link1", "link2")
_WITH_GAPS = {frozenset([int, type(None)]): "Int64", frozenset([bool, type(None)]): "boolean"}


def attributes(rows: Sequence[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the attributes of these names of all rows, as columns."""
    return {name: [getattr(row, name) for row in rows] for name in names}


def _columns(hits: Sequence[Hit], fixed: dict[str, list[Any]]) -> TableColumns:
    """Add attributes of hits and fields of payloads, with "payload_" before a fixed name."""
    fixed |= attributes(hits, ("id", "question", "distance", "score"))
    fields = _fields(hits)
    columns: dict[str, list[Any]] = {}
    taken = {*fixed, *fields}
    for field in fields:
        name = field
        while field in fixed and name in taken:
            name = f"payload_{name}"
        taken.add(name)
        columns[name] = [(hit.payload or {}).get(field) for hit in hits]
    return TableColumns(fixed | columns, fixed)


def _fields(hits: Iterable[Hit]) -> list[str]:
    return list(dict.fromkeys(field for hit in hits for field in hit.payload or ()))


def _as_text(value: object) -> str:
    return _unicode(value if isinstance(value, str) else json.dumps(value))


def _unicode(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)


def _lines(hits: Hits) -> list[str]:
    """Return the query and a table of its hits in printable characters, a line each."""
    lines, shown = [f'"{shortened(hits.query)}":'], hits[:_SHOWN_HITS]
    if not shown:
        return [*lines, "  (no hits)"]
    fields = _fields(shown)[:_SHOWN_FIELDS]
    texts = {"id": [f"{hit.id}" for hit in shown], "question": [hit.question for hit in shown]}
    for field in fields:
        values = [(hit.payload or {}).get(field) for hit in shown]
        texts[field] = ["" if value is None else _as_text(value) for value in values]
    numbers = {"": [f"{rank}" for rank, _ in enumerate(shown, start=1)]}
    numbers["distance"] = [f"{hit.distance:.3f}" for hit in shown]
    if any(hit.score is not None for hit in shown):
        numbers["score"] = ["" if hit.score is None else f"{hit.score:.3f}" for hit in shown]
    columns = []
    for name, cells in [*numbers.items(), *texts.items()]:
        column = [shortened(cell) for cell in (name, *cells)]
        width = max(map(len, column))
        right = name in numbers or name == "id"
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    lines += ["  ".join(["", *cells]).rstrip() for cells in zip(*columns, strict=True)]
    return lines + _more(len(hits) - _SHOWN_HITS, "hit", "hits")


def _more(count: int, one: str, many: str) -> list[str]:
    return [f"... and {_count(count, f'more {one}', f'more {many}')}"] if count > 0 else []


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
