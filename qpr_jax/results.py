"""What a search returns: lists of hits that print as tables and convert to pandas and Arrow."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, overload

from qpr_jax.extras import needs
from qpr_jax.index.base import Hit

if TYPE_CHECKING:
    import pandas
    import pyarrow

_SURROGATES = re.compile("[\ud800-\udfff]")
# What is printed at most; everything else is counted.
_SHOWN_QUERIES, _SHOWN_HITS, _SHOWN_PAYLOAD, _SHOWN_CHARACTERS = 10, 20, 8, 100


class Hits(list[Hit]):
    """The hits of one query, best first: a list of `Hit`.

    A slice of it is `Hits` again. In a notebook it is displayed as a table.

    Attributes:
      query: the text that was searched for.
    """

    def __init__(self, query: str, hits: Iterable[Hit] = ()) -> None:
        super().__init__(hits)
        self.query = query

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Hit: ...
    @overload
    def __getitem__(self, index: slice, /) -> Self: ...
    def __getitem__(self, index: Any, /) -> Any:
        found = super().__getitem__(index)
        return type(self)(self.query, found) if isinstance(index, slice) else found

    def to_pandas(self) -> pandas.DataFrame:
        """A row a hit: rank (1 is best), id, question, distance, score, and each payload field.

        See `Results.to_pandas`.
        """
        return to_pandas_frame(_columns([self], of_queries=False))

    def to_arrow(self) -> pyarrow.Table:
        """The columns of `to_pandas` as a table of PyArrow; see `Results.to_arrow`."""
        return to_arrow_table(_columns([self], of_queries=False))

    def __repr__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        return _to_html([self])


class Results(list[Hits]):
    """What `Retriever.search` found: a list with the `Hits` of each query, in the queries' order.

    A slice of it is `Results` again. In a notebook it is displayed as tables.

        results = retriever.search(["how can i learn python", "how to cook rice"], k=3)
        results[0][0].question
        results.to_pandas().to_csv("hits.csv")
    """

    @classmethod
    def of(cls, queries: Sequence[str], hits: Iterable[Iterable[Hit]]) -> Self:
        """Join queries to their hits, as many lists as there are queries."""
        return cls(map(Hits, queries, hits))

    @property
    def queries(self) -> list[str]:
        """The texts that were searched for."""
        return [hits.query for hits in self]

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Hits: ...
    @overload
    def __getitem__(self, index: slice, /) -> Self: ...
    def __getitem__(self, index: Any, /) -> Any:
        found = super().__getitem__(index)
        return type(self)(found) if isinstance(index, slice) else found

    def to_pandas(self) -> pandas.DataFrame:
        """A row a hit: query_number (from 0), query, then rank (1 is best), id, question, ...

        Then follow distance, score (NaN for none), and a column for each field of the payloads,
        with its name, or with "payload_" before it where another column has that name. Whole
        numbers with gaps are of type Int64. UserError where pandas is not installed.
        """
        return to_pandas_frame(_columns(self, of_queries=True))

    def to_arrow(self) -> pyarrow.Table:
        """The columns of `to_pandas` as a table of PyArrow, which Polars and DuckDB read, too.

        Ids are int64 where all are whole numbers, strings otherwise. A field of the payloads whose
        values have no common type is a column of text: strings as they are, all else as JSON. Text
        that is no Unicode (a lone surrogate) has U+FFFD there. UserError where PyArrow is not
        installed.
        """
        return to_arrow_table(_columns(self, of_queries=True))

    def __repr__(self) -> str:
        found = sum(map(len, self))
        shown = itertools.chain.from_iterable(map(_lines, self[:_SHOWN_QUERIES]))
        more = _more(len(self) - _SHOWN_QUERIES, "query", "queries")
        head = f"{_count(len(self), 'query', 'queries')}, {_count(found, 'hit', 'hits')}"
        return "\n".join([head, *shown, *more])

    def _repr_html_(self) -> str:
        return _to_html(self)


class TableColumns(NamedTuple):
    """The columns of a table by name: those of every table, and those of the payloads."""

    fixed: dict[str, list[Any]]
    payload: dict[str, list[Any]]


# The columns of all tables that are not texts, and not ids.
_WHOLE = ("query_number", "rank", "group", "rows")
_FLOATS = ("distance", "score", "weakest")
_BOOLS = ("kept", "of_table")
_IDS = ("id", "id1", "id2", "link1", "link2")


def _columns(results: Sequence[Hits], *, of_queries: bool) -> TableColumns:
    """A row a hit; of_queries: with the number and the text of the query."""
    fixed: dict[str, list[Any]] = {}
    if of_queries:
        fixed["query_number"] = [i for i, hits in enumerate(results) for _ in hits]
        fixed["query"] = [hits.query for hits in results for _ in hits]
    fixed["rank"] = [rank for hits in results for rank in range(1, 1 + len(hits))]
    all_hits = [hit for hits in results for hit in hits]
    for name in ("id", "question", "distance", "score"):
        fixed[name] = [getattr(hit, name) for hit in all_hits]
    return with_payload(fixed, [hit.payload for hit in all_hits])


def with_payload(
    fixed: dict[str, list[Any]], payloads: Sequence[Mapping[str, Any] | None]
) -> TableColumns:
    """The columns of a table with a column for each field of the payloads of its rows."""
    fields = _payload_fields(payloads)
    names = payload_names(fields, fixed)
    payload = {
        name: [(given or {}).get(field) for given in payloads]
        for field, name in zip(fields, names, strict=True)
    }
    return TableColumns(fixed, payload)


def _payload_fields(payloads: Iterable[Mapping[str, Any] | None]) -> list[str]:
    """The fields of the payloads, in the order in which they come."""
    return list(dict.fromkeys(field for payload in payloads for field in payload or ()))


def payload_names(fields: Sequence[str], fixed: Iterable[str]) -> list[str]:
    """Distinct names of the columns: "payload_" goes before a field that another column is."""
    taken, names = {*fixed, *fields}, []
    for field in fields:
        name = field
        if field in fixed:
            while name in taken:
                name = f"payload_{name}"
            taken.add(name)
        names.append(name)
    return names


def to_pandas_frame(columns: TableColumns) -> pandas.DataFrame:
    """The table of pandas; see `Results.to_pandas`."""
    with needs("to_pandas()", "pandas"):
        import pandas
    types = dict.fromkeys(_WHOLE, "int64") | dict.fromkeys(_FLOATS, "float64")
    types |= dict.fromkeys(_BOOLS, "bool")

    def series(name: str, values: list[Any]) -> Any:
        if name in columns.fixed and (name in types or not values):
            return pandas.Series(values, dtype=types.get(name, "object"))
        given = {*map(type, values)}
        if given in ({int, type(None)}, {bool, type(None)}):
            kind = "Int64" if int in given else "boolean"
            try:
                return pandas.Series(values, dtype=kind)
            except (OverflowError, TypeError):  # a number that no type of pandas holds
                return pandas.Series(values, dtype="object")
        return pandas.Series(values)

    named = {**columns.fixed, **columns.payload}
    return pandas.DataFrame({name: series(name, values) for name, values in named.items()})


def to_arrow_table(columns: TableColumns) -> pyarrow.Table:
    """The table of PyArrow; see `Results.to_arrow`."""
    with needs("to_arrow()", "qpr_jax[parquet]"):
        import pyarrow as arrow

    def array(values: list[Any], kind: Any = None) -> Any:
        try:
            return arrow.array(values, kind)
        except (arrow.ArrowException, OverflowError, UnicodeError):
            return arrow.array([*map(_as_text, values)], arrow.string())

    types = {
        **dict.fromkeys(_WHOLE, arrow.int64()),
        **dict.fromkeys(_FLOATS, arrow.float64()),
        **dict.fromkeys(_BOOLS, arrow.bool_()),
    }
    ids = [columns.fixed[name] for name in _IDS if name in columns.fixed]
    numbers = all(type(value) is int for values in ids for value in values)
    types |= dict.fromkeys(_IDS, arrow.int64() if numbers else None)
    named = {
        name: array(values, types.get(name, arrow.string()))
        for name, values in columns.fixed.items()
    }
    return arrow.table(named | {_unicode(k): array(v) for k, v in columns.payload.items()})


def _as_text(value: object) -> str | None:
    """A value of any type as the text of a cell."""
    if value is None:
        return None
    return _unicode(value if isinstance(value, str) else json.dumps(value))


def _unicode(text: str) -> str:
    """Replace what UTF-8 cannot encode."""
    return _SURROGATES.sub("\ufffd", text)


def _lines(hits: Hits) -> Iterator[str]:
    """The lines of a query and its hits, in characters that any terminal prints."""
    yield f"{printable(json.dumps(hits.query, ensure_ascii=False))}:"
    shown = hits[:_SHOWN_HITS]
    if not shown:
        yield "  (no hits)"
    scored = any(hit.score is not None for hit in shown)
    rows = [["", "distance", *(["score"] if scored else []), "id", "question"]]
    for rank, hit in enumerate(shown, start=1):
        score = [] if not scored else ["" if hit.score is None else f"{hit.score:.3f}"]
        question = printable(hit.question)
        if hit.payload:
            question += f"  {printable(json.dumps(dict(hit.payload), ensure_ascii=False))}"
        rows.append([f"{rank}", f"{hit.distance:.3f}", *score, printable(str(hit.id)), question])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if shown else ():
        *cells, question = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(["", *cells, question.strip()])
    yield from _more(len(hits) - _SHOWN_HITS, "hit", "hits")


def printable(text: str) -> str:
    """One short line of `text`, without control characters."""
    text = " ".join(text[: 10 * _SHOWN_CHARACTERS].split())
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _more(count: int, one: str, many: str) -> list[str]:
    return [f"... and {count:,} more {one if count == 1 else many}"] if count > 0 else []


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _to_html(results: Sequence[Hits]) -> str:
    """A table a query."""
    from qpr_jax.rendering import render

    def cell(value: object) -> str:
        return "" if value is None else printable(_as_text(value) or "")

    tables = []
    for hits in results[:_SHOWN_QUERIES]:
        shown = hits[:_SHOWN_HITS]
        fields = _payload_fields(hit.payload for hit in shown)[:_SHOWN_PAYLOAD]
        tables.append(
            {
                "query": printable(hits.query),
                "scored": any(hit.score is not None for hit in shown),
                "fields": [*map(printable, fields)],
                "rows": [
                    {
                        "id": printable(str(hit.id)),
                        "question": printable(hit.question),
                        "distance": f"{hit.distance:.3f}",
                        "score": "" if hit.score is None else f"{hit.score:.3f}",
                        "payload": [cell((hit.payload or {}).get(field)) for field in fields],
                    }
                    for hit in shown
                ],
                "more": _more(len(hits) - _SHOWN_HITS, "hit", "hits"),
            }
        )
    more = _more(len(results) - _SHOWN_QUERIES, "query", "queries")
    return render("results.html", tables=tables, more=more)
