"""Rows whose values have types: of JSON, of Parquet and Arrow, and of tables in memory.

JSON is an object in each line, an array of them, or one of the shapes that tables have in it.
Tables in memory are those that narwhals reads.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from qpr_jax.errors import UserError, needs, short, shortened
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.kinds import ID_NAMES, TEXT_NAMES
from qpr_jax.text.tokenizer import replace_surrogates

log = logging.getLogger("qpr_jax")

NO_JSON = (ValueError, RecursionError, MemoryError)  # what `json.loads` raises

_ROWS = ("data", "rows", "records", "items", "results", "hits", "questions")  # arrays of rows
_DEEPEST = 4  # objects around an array of rows
_ORIENT = 'write the rows as `orient="records"` does'

Line = tuple[int, str | UserError]  # its number from 1, and its text or why it cannot be read
STANDARD_INPUT = "-"
ARROW = ("parquet", "arrow")  # formats whose columns have types
NOT_UTF8 = "expected UTF-8"
Fields = Mapping[str, object]
# From the names of all columns to those that are read, none where they are a row of a text file
# without a header; of JSON all keys are read.
Choose = Callable[[Sequence[str]], Iterable[str]]
Rows = Iterator[tuple[int, Fields | str]]  # the line of a row; its fields, or what is wrong
Read = Callable[[Choose], Rows]


def json_rows(lines: Iterator[Line], source: str) -> Rows:
    """Yield the objects of lines, or the rows of one document by their number.

    A document is an array of rows, which may be below keys of objects, or it is an object of
    columns or of rows by their ids, as pandas writes them.
    """
    filled = (line for line in lines if isinstance(line[1], UserError) or line[1].strip())
    start = [*itertools.islice(filled, 2)]
    first = str(start[0][1]).strip() if start else ""
    document = None
    if len(start) == 1 or first.startswith("[") or first.endswith(("{", "[", ":")):
        start += filled
        text = "\n".join(line for _, line in start if isinstance(line, str))
        try:
            document = json.loads(text)
        except NO_JSON as error:
            with contextlib.suppress(*NO_JSON):
                first = json.loads(first) and ""
            if first.startswith("["):  # not even a line of JSON
                what = f"{source}: expected an array of JSON objects ({shortened(str(error))})"
                remedy = "correct it, or name another format with `format`"
                raise UserError(what, remedy=remedy) from None
    if isinstance(document, dict | list) and document:
        rows = _rows_of(document, source)
        number = start[0][0] if rows == [document] else 1
        yield from enumerate(map(_row, rows), start=number)
        return
    for number, line in itertools.chain(start, filled):
        if isinstance(line, UserError):
            yield number, line.what
            continue
        try:
            value = json.loads(line)
        except NO_JSON as error:
            yield number, f"expected a JSON object ({shortened(str(error))})"
            continue
        are_rows = isinstance(value, list) and all(isinstance(row, dict) for row in value)
        for row in value if are_rows else [value]:
            yield number, _row(row)


def _row(value: object) -> Fields | str:
    return value if isinstance(value, dict) else f"expected a JSON object, got {short(value)}"


def _rows_of(document: Any, source: str) -> Iterable[object]:
    """Return the rows of a document; UserError if it may have several tables."""
    if isinstance(document, list):
        return map(_of_text, document)
    if isinstance(document.get("columns"), list) and isinstance(document.get("data"), list):
        rows = [
            dict(zip(map(str, document["columns"]), row, strict=False)) for row in document["data"]
        ]
        return _with_labels(rows, document.get("index") or [])
    is_row = any(isinstance(document[name], str) for name in _usual(document))
    arrays = [*_arrays(document)]
    if is_row:
        arrays = [(path, rows) for path, rows in arrays if path in _ROWS]
    if len(arrays) > 1:
        names = ", ".join(f"`{path}`" for path, _ in arrays)
        what = f"{source}: expected one array of rows, got {names}"
        raise UserError(what, remedy="write one of them to a file of its own")
    if arrays:
        path, rows = arrays[0]
        log.info("%s: the rows are below `%s`", source, path)
        return rows
    values = [*document.values()]
    if not is_row and all(isinstance(value, list) for value in values):
        if len({len(value) for value in values}) == 1:
            return [dict(zip(document, row, strict=True)) for row in zip(*values, strict=True)]
    elif not is_row and all(isinstance(value, dict) for value in values):
        return _nested_rows(document, source)
    return [document]


def _usual(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.strip().lower() in TEXT_NAMES]


def _of_text(value: object) -> object:
    """Return a row of an array: a string is JSON of an object, or else a question."""
    if not isinstance(value, str):
        return value
    with contextlib.suppress(*NO_JSON):
        if isinstance(row := json.loads(value), dict):
            return row
    return {"question": value}


def _arrays(value: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, list[Any]]]:
    """Yield the arrays of objects below an object, and the keys that lead there."""
    for name, inner in value.items():
        if isinstance(inner, list) and inner and all(isinstance(row, dict) for row in inner):
            if name != "fields":  # of a schema of pandas
                yield ".".join((*path, name)), inner
        elif isinstance(inner, dict) and len(path) < _DEEPEST:
            yield from _arrays(inner, (*path, name))


def _nested_rows(document: dict[str, dict[str, Any]], source: str) -> list[Fields | str]:
    """Return the rows of an object of columns, or of an object of rows by their ids."""
    inner = dict.fromkeys(name for value in document.values() for name in value)
    by_column, by_row = bool(_usual(document)), bool(_usual(inner))
    if by_column == by_row:
        by_column, by_row = (all(map(str.isdigit, names)) for names in (inner, document))
    if by_column == by_row:
        what = f"{source}: expected rows, got objects in an object, of columns or of rows"
        raise UserError(what, remedy=_ORIENT)
    if by_row:
        return _with_labels([*document.values()], [*document])
    rows = [{name: column.get(key) for name, column in document.items()} for key in inner]
    return _with_labels(rows, [*inner])


def _with_labels(rows: list[dict[str, Any]], labels: list[Any]) -> list[Fields | str]:
    """Add the labels of rows, unless these are 0, 1, 2, ..., as ids or else as `index`."""
    if [*map(str, labels)] == [*map(str, range(len(rows)))] or len(labels) != len(rows):
        return [*rows]
    names = {name.strip().lower() for row in rows for name in row}
    name = "id" if names.isdisjoint(ID_NAMES) else "index"
    return [{name: label} | row for label, row in zip(labels, rows, strict=True)]


def input_name(path: str) -> str:
    """Name of an input in messages."""
    return "standard input" if path == STANDARD_INPUT else path


def write_json_lines(path: StrPath, rows: Iterable[Mapping[str, object]]) -> None:
    """Write a line of JSON for each row; lone surrogates become U+FFFD."""
    with write_atomically(path, "w") as file:
        for row in rows:
            file.write(replace_surrogates(json.dumps(row, ensure_ascii=False)) + "\n")


def import_pyarrow(path: str) -> Any:
    """Import the package that reads Parquet, Arrow and zstd; UserError if it is missing."""
    with needs(f"{input_name(path)}: Parquet, Arrow and zstd", ".[parquet]"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def arrow_rows(file: Any, path: str, kind: str, choose: Choose) -> Rows:
    """Yield the rows of a Parquet file, or of an Arrow IPC file or stream."""
    arrow = import_pyarrow(path)
    try:
        # Of a pipe, gzip says that it is seekable.
        seekable = os.path.isfile(path) and file.seekable()
        data = arrow.PythonFile(file, "r") if seekable else arrow.BufferReader(file.read())
        if kind == "parquet":
            table = arrow.parquet.ParquetFile(data)
            names = [*choose(table.schema_arrow.names)]
            # `columns` takes a name with a dot as the field of a struct.
            dotted = any("." in name for name in names)
            batches = table.iter_batches(columns=None if dotted else names)
        else:
            is_file = data.read(6) == b"ARROW1"
            data.seek(0)
            reader = arrow.ipc.open_file(data) if is_file else arrow.ipc.open_stream(data)
            names = [*choose(reader.schema.names)]
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        yield from enumerate(batch_rows(batch.select(names) for batch in batches), start=1)
    except arrow.ArrowException as error:
        what = f"{input_name(path)}: expected {kind.capitalize()} ({shortened(str(error))})"
        remedy = "fetch it again, or name another format with `format`"
        raise UserError(what, remedy=remedy) from None


def batch_rows(batches: Iterable[Any]) -> Iterator[Fields | str]:
    """Yield rows of Arrow batches, or what is wrong; times that Python lacks are text."""
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except (UnicodeDecodeError, OverflowError, ValueError):
            if len(batch) > 1:
                half = len(batch) // 2
                yield from batch_rows([batch.slice(0, half), batch.slice(half)])
                continue
            try:
                names = batch.schema.names
                yield {name: _cell(column) for name, column in zip(names, batch, strict=True)}
            except UnicodeDecodeError:
                yield NOT_UTF8


def _cell(column: Any) -> object:
    """Return the only value of an Arrow array; a time that Python lacks as text."""
    try:
        return column.to_pylist()[0]
    except UnicodeDecodeError:
        raise
    except (OverflowError, ValueError):
        arrow = import_pyarrow("")
        with contextlib.suppress(arrow.ArrowException):
            return str(column.cast("string").to_pylist()[0]).replace(" ", "T", 1)
        return f"{column}"


def mapping_rows(questions: Iterable[object]) -> Rows:
    """Yield mappings as rows, or what is wrong with them."""
    for i, row in enumerate(questions):
        if not isinstance(row, Mapping):
            yield i, f"expected a mapping, got {type(row).__name__}"
        elif None in row:  # csv.DictReader puts cells there that no column has
            yield i, f"expected {len(row) - 1} cells, as the header, got more: {short(row[None])}"
        else:
            yield i, {str(key): value for key, value in row.items()}


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
    yield from enumerate(_rows_in_memory(frame.select(names)))


def _rows_in_memory(frame: Any) -> Iterator[Any]:
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


def rows_again(questions: Any, name: str) -> Read | None:
    """Return what reads mappings or a table in memory; None for one that is read once."""
    if isinstance(questions, list):
        return lambda _: mapping_rows(questions)
    from narwhals.stable.v2 import dependencies

    is_frame = dependencies.is_into_dataframe(questions)  # no lazy one, and no stream
    return (lambda choose: frame_rows(questions, choose, name)) if is_frame else None


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
