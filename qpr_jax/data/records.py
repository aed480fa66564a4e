"""Records: of JSON, Parquet and Arrow files, and of tables in memory that narwhals reads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from qpr_jax.data.columns import Choose, Fields, Rows
from qpr_jax.data.decoding import NOT_UTF8, import_pyarrow, input_name, not_utf8, read_lines
from qpr_jax.errors import UserError, short, shortened
from qpr_jax.ids import Id

ARROW = ("parquet", "arrow")  # formats whose columns have types
_BEFORE_JSON = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"  # byte order marks and blanks
NO_JSON = (ValueError, RecursionError, MemoryError)  # what `parse_json` raises


def is_table(value: object) -> bool:
    """Whether narwhals reads this as a table, or it has an Arrow C stream."""
    if isinstance(value, str | bytes | list | tuple | Mapping):
        return False
    from narwhals.stable.v2 import dependencies

    if dependencies.is_into_series(value):
        return False
    frame = dependencies.is_into_dataframe(value) or dependencies.is_polars_lazyframe(value)
    return frame or hasattr(value, "__arrow_c_stream__")


def frame_rows(table: Any, choose: Choose, source: str) -> Iterator[tuple[int, Fields]]:
    """Yield the position and the fields of each row; see `data.tables.read_rows`."""
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
    yield from enumerate(frame.select(names).iter_rows(named=True, buffer_size=4096))


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
    columns = [number for number, name in enumerate(frame.columns) if f"{name}" in names]
    return frame[[places[row] for row in rows], columns]


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


def arrow_rows(file: BinaryIO, path: str, kind: str, choose: Choose) -> Rows:
    """Yield the rows of a Parquet file, or of an Arrow IPC file or stream."""
    arrow, source = import_pyarrow(path), input_name(path)
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
        yield from enumerate(_batch_rows(batch.select(names) for batch in batches), start=1)
    except arrow.ArrowException as error:
        what = f"{source}: expected {kind.capitalize()} ({shortened(str(error))})"
        remedy = "fetch it again, or name another format with `--format`"
        raise UserError(what, remedy=remedy) from None


def _batch_rows(batches: Iterable[Any]) -> Iterator[Fields | str]:
    """Yield the rows of Arrow batches, or NOT_UTF8 for a row with such text."""
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            if len(batch) == 1:
                yield NOT_UTF8
            else:
                yield from _batch_rows(batch.slice(i, 1) for i in range(len(batch)))


def parse_json(data: bytes | str) -> Any:
    """Parse JSON; ValueError for NaN and infinity, which Python's parser accepts."""

    def refuse(name: str) -> object:
        raise ValueError(f"got {name}, which JSON lacks")

    return json.loads(data, parse_constant=refuse)


def json_rows(file: Any, source: str, columns: Sequence[str]) -> Rows:
    """Yield the objects of an array, or of lines; each must have the columns."""

    def check(value: Any) -> Fields | str:
        if not isinstance(value, dict):
            return f"expected a JSON object, got {short(value)}"
        if missing := [name for name in columns if name not in value]:
            return f"expected the key `{missing[0]}`, got {short(sorted(value))}"
        return value

    if file.peek(1).lstrip(_BEFORE_JSON).startswith(b"["):
        try:
            values = parse_json(file.read())
        except NO_JSON as error:
            what = f"{source}: expected an array of JSON objects ({shortened(str(error))})"
            remedy = "correct it, or name another format with `--format`"
            raise UserError(what, remedy=remedy) from None
        yield from enumerate(map(check, values), start=1)
        return
    for number, line in read_lines(file, source):
        if isinstance(line, bytes):
            yield number, not_utf8(line)
        elif line.strip():
            try:
                yield number, check(parse_json(line))
            except NO_JSON as error:
                yield number, f"expected a JSON object ({error})"
