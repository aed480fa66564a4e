"""Rows of JSON: an object in each line, an array of them, or the shapes that tables have in it."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qpr_jax.errors import UserError, short, shortened

log = logging.getLogger("qpr_jax")

_TEXT_NAMES = (
    "question text query title sentence questions queries prompt utterance subject question_text "
    "query_text question_title"
)
TEXT_NAMES = tuple(_TEXT_NAMES.split())  # usual names of the question's column
ID_NAMES = ("id", "qid", "_id", "question_id", "query_id", "uuid")
NO_JSON = (ValueError, RecursionError, MemoryError)  # what `json.loads` raises

_ROWS = ("data", "rows", "records", "items", "results", "hits", "questions")  # arrays of rows
_DEEPEST = 4  # objects around an array of rows
_ORIENT = 'write the rows as `orient="records"` does'

Row = Mapping[str, object] | str  # or what is wrong with it
Line = tuple[int, str | UserError]


def json_rows(lines: Iterator[Line], source: str) -> Iterator[tuple[int, Row]]:
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


def _row(value: object) -> Row:
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


def _split_rows(columns: list[Any], data: list[Any], index: list[Any]) -> list[Any]:
    rows: list[Any] = []
    for cells in data:
        if not isinstance(cells, list) or len(cells) != len(columns):
            return data
        rows.append(dict(zip(map(str, columns), cells, strict=True)))
    return _with_labels(rows, index)


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


def _nested_rows(document: dict[str, dict[str, Any]], source: str) -> list[Row]:
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


def _with_labels(rows: list[dict[str, Any]], labels: list[Any]) -> list[Row]:
    """Add the labels of rows, unless these are 0, 1, 2, ..., as ids or else as `index`."""
    if [*map(str, labels)] == [*map(str, range(len(rows)))] or len(labels) != len(rows):
        return [*rows]
    names = {name.strip().lower() for row in rows for name in row}
    name = "id" if names.isdisjoint(ID_NAMES) else "index"
    return [{name: label} | row for label, row in zip(labels, rows, strict=True)]
