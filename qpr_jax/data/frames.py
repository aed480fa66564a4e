"""Tables in memory, which narwhals reads, and their cells as JSON."""

from __future__ import annotations

import datetime
import itertools
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qpr_jax.data.decoding import ARROW, Choose, Fields, Rows, batch_rows, import_pyarrow
from qpr_jax.errors import UserError, short
from qpr_jax.ids import Id


def is_table(value: object) -> bool:
    """Return whether narwhals reads this as a table, or it has an Arrow C stream."""
    if isinstance(value, str | bytes | list | tuple | Mapping):
        return False
    from narwhals.stable.v2 import dependencies

    if dependencies.is_into_series(value):
        return False
    frame = dependencies.is_into_dataframe(value) or dependencies.is_polars_lazyframe(value)
    return frame or hasattr(value, "__arrow_c_stream__")


def frame_rows(table: Any, choose: Choose, source: str) -> Iterator[tuple[int, Fields]]:
    """Yield the position and the fields of each row; see `data.columns.read_rows`."""
    import narwhals.stable.v2 as nw
    from narwhals.exceptions import DuplicateError

    pandas = sys.modules.get("pandas")
    try:
        if pandas is not None and isinstance(table, pandas.DataFrame):
            levels = [name for name in table.index.names if name not in (None, *table.columns)]
            table = table.reset_index(levels) if levels else table
            table = table.set_axis([*map(str, table.columns)], axis="columns")
        frame = nw.from_native(table, pass_through=True)
        if frame is table:  # anything that has an Arrow C stream
            frame = nw.from_native(import_pyarrow(source).table(table))
        names = [*choose(frame.collect_schema().names())]
    except DuplicateError:
        what = f"{source}: expected columns with distinct names"
        raise UserError(what, remedy="rename some") from None
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    yield from enumerate(_rows_of(frame.select(names)))


def _rows_of(frame: Any) -> Iterator[Any]:
    """Yield the rows of a table of narwhals; times that Python lacks are text."""
    count = 0
    try:
        for row in frame.iter_rows(named=True, buffer_size=4096):
            yield row
            count += 1
    except (OverflowError, ValueError):
        rest = frame[count:].to_arrow()
    else:
        return
    yield from batch_rows(rest.to_batches())


def select_rows(
    source: Any, places: Sequence[int], rows: Iterable[int], names: Collection[str]
) -> Any:
    """Return rows and columns of a table with their own types, as a table of narwhals.

    None where types are not known: of other formats, and of files of which rows were skipped.
    source: a table in memory, or the format and the names of files. places: the positions of the
    rows that were read; `rows` are some of these.
    """
    import narwhals.stable.v2 as nw

    if isinstance(source, tuple):
        kind, files = source
        if kind not in ARROW:
            return None
        arrow = import_pyarrow(files[0])
        import pyarrow.dataset

        try:
            data = pyarrow.dataset.dataset(files, format="ipc" if kind == "arrow" else kind)
            source = data.to_table(columns=[name for name in data.schema.names if name in names])
        except (arrow.ArrowException, OSError):  # compressed, a stream, or of several schemas
            return None
        places = range(len(source)) if len(source) == len(places) else []
    frame = nw.from_native(source, pass_through=True)
    if not isinstance(frame, nw.DataFrame) or not places:
        return None
    if frame.implementation.is_pyarrow():
        frame = nw.from_native(_without_views(frame.to_native()))
    columns = [number for number, name in enumerate(frame.columns) if f"{name}" in names]
    return frame[[places[row] for row in rows], columns]


def _without_views(table: Any) -> Any:
    """Return a table of Arrow whose texts are no views, of which no rows can be taken."""
    for at, column in enumerate(table.columns):
        if plain := {"string_view": "string", "binary_view": "binary"}.get(f"{column.type}"):
            table = table.set_column(at, table.column_names[at], column.cast(plain))
    return table


def row_labels(table: Any) -> list[Id] | None:
    """Return the index of a pandas table as ids; None if it is 0, 1, 2, ... or cannot be ids."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(table, pandas.DataFrame | pandas.Series):
        return None
    index, kind = table.index, table.index.inferred_type
    if not index.is_unique or kind not in ("integer", "string"):
        return None
    if kind == "integer" and (index.min() < 0 or index.equals(pandas.RangeIndex(len(index)))):
        return None
    return list(index.tolist())


def is_missing(value: object) -> bool:
    """Return whether a cell has no value: None, NaN, or a time that is none."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas' NA; an array
        return type(value).__name__ == "NAType"


def to_json(value: object, *, strict: bool = False) -> Any:
    """Return a value as JSON keeps it: times as ISO 8601, other kinds of objects as text.

    NaN and infinity, which JSON lacks, are text, or a UserError if `strict`. A nesting that is too
    deep is one, too.
    """
    try:
        text = json.dumps(value, default=_plain, allow_nan=not strict)
        return json.loads(text, parse_constant=str)
    except (TypeError, ValueError) as error:
        raise UserError(f"expected payload that JSON can hold ({error})") from None
    except RecursionError:
        raise UserError("expected payload that is nested less deeply") from None


def _plain(value: Any) -> object:
    """Return an object that JSON lacks as one that it has."""
    if is_missing(value):  # also times that are none
        return None
    match value:
        case Mapping():
            return dict(value)
        case set() | np.ndarray():
            return list(value)
        case bytes():
            return value.decode(errors="backslashreplace")
        case datetime.timedelta():
            return value.total_seconds()
        case np.timedelta64():
            return float(value / np.timedelta64(1, "s"))
        case np.generic() if not isinstance(value, np.datetime64):
            return value.item()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def peek(questions: Any, source: str) -> tuple[Any, Any]:
    """Return the first of some questions, None if there is none, and all of them."""
    if isinstance(questions, Mapping):
        what = f"{source}: expected a table or a list of strings, got a dict"
        raise UserError(what, remedy="give pandas.DataFrame(...) of columns, or a list of rows")
    if isinstance(questions, str | bytes) or not isinstance(questions, Iterable):
        return None, questions  # which `as_texts` refuses
    if hasattr(questions, "to_pylist"):  # an Arrow array
        questions = questions.to_pylist()
    iterator = iter(questions)
    start = [*itertools.islice(iterator, 1)]
    return (*start, None)[0], itertools.chain(start, iterator)


def mapping_rows(questions: Iterable[object]) -> Rows:
    """Yield mappings as rows, or what is wrong with them."""
    for i, row in enumerate(questions):
        if not isinstance(row, Mapping):
            yield i, f"expected a mapping, got {type(row).__name__}"
        elif None in row:  # csv.DictReader puts cells there that no column has
            yield i, f"expected {len(row) - 1} cells, as the header, got more: {short(row[None])}"
        else:
            yield i, {str(key): value for key, value in row.items()}
