"""Questions, with their ids and payload, from a file, a table or any iterable."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from qpr_jax.data.columns import Chosen, Columns, is_missing, to_json
from qpr_jax.data.frames import frame_rows, is_table
from qpr_jax.data.inputs import NOT_UTF8, input_name, short
from qpr_jax.data.tables import Choose, Rows, format_of, read_rows
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, cell_id, check_id, check_ids
from qpr_jax.text.base import as_texts

log = logging.getLogger("qpr_jax")

Payload = Mapping[str, object]  # names to values of JSON: str, int, float, bool, None, list, dict
DEFAULT = Columns()
_CELLS = ("csv", "tsv")  # formats whose ids are text
_BAD_ROW_REMEDY = "correct it, or skip bad rows with `--skip-bad-rows`"
_NOT_UTF8_REMEDY = "save the file as UTF-8, or skip bad rows with `--skip-bad-rows`"
_TOO_DEEP = "expected payload that is nested less deeply"


class Entry(NamedTuple):
    """A question, its id and payload (None where it has none), and the line where it begins.

    In a table in memory, `line` is the position of the row, from 0.
    """

    line: int
    id: Id | None
    question: str
    payload: Payload | None = None


def read_questions(
    path: StrPath,
    *,
    format: str = "",
    columns: Columns = DEFAULT,
    skip_bad_rows: bool = False,
    say: Callable[[str], object] | None = None,
) -> Iterator[Entry]:
    """Yield the questions of a file, or of standard input where `path` is "-", in their order.

    Args:
      path: gzip and zstd are recognized by their first bytes.
      format: "lines" (a question in each; blank lines are skipped), "tsv", "csv" (both with a
        header), "jsonl" (an object in each line), "json" (an array of objects), "parquet" or
        "arrow". If empty, the suffix of the file's name decides, and "lines" is the default.
      columns: of the question, the id and the payload.
      skip_bad_rows: skip rows that cannot be read and log their number. Otherwise the first one is
        a UserError with its line.
      say: gets a line that names the columns of a table.
    """
    path = os.fspath(path)
    source, kind = input_name(path), format or format_of(path) or "lines"
    in_text = kind in _CELLS
    selected: Sequence[str] | Choose = _choice(columns, source, in_text=in_text)
    if kind == "lines":  # which has no columns
        if columns.text or columns.id or isinstance(columns.payload, tuple):
            what = f"{source}: expected a table with these columns, got lines of text"
            raise UserError(what, remedy="name its format with `--format`")
        selected, columns, say = ["question"], Columns("question", None), None
    yield from _entries(
        read_rows(path, selected, format=format),
        columns,
        f"{source}, line",
        in_text=in_text,
        cells=in_text,
        skip_bad_rows=skip_bad_rows,
        say=say,
    )


def as_entries(
    questions: Any,
    ids: Iterable[Id] | None = None,
    payload: Any = True,
    text_column: str | None = None,
    id_column: str | None = None,
    skip_bad_rows: bool = False,
    *,
    name: str = "questions",
) -> Iterator[Entry]:
    """Yield the questions of a table, or of an iterable of strings or of mappings.

    Args:
      questions: a table of pandas, Polars, PyArrow or any with an Arrow C stream; or strings; or
        mappings from names of columns to values; or what `read_questions` yields.
      ids: one a question, in place of those of the table.
      payload: of a table, the columns to keep: True (all others), False (none) or their names. Of
        strings, a mapping for each.
      text_column: of the questions; None: one with a usual name.
      id_column: of the ids; None: one with a usual name, if there is one; "": none.
      skip_bad_rows: as of `read_questions`.
      name: of the argument, which a UserError names.
    """
    key = None if ids is not None or id_column == "" else _text(id_column)
    source, where = f"`{name}`", f"`{name}`, position"
    if is_table(questions):
        columns = Columns(_text(text_column), key, _kept(payload))
        rows: Rows = frame_rows(questions, _choice(columns, source), source)
        entries = _entries(rows, columns, where, skip_bad_rows=skip_bad_rows)
    else:
        first, questions = _peek(questions, source)
        if isinstance(first, Mapping):
            columns = Columns(_text(text_column), key, _kept(payload))
            rows = _mapping_rows(questions)
            entries = _entries(rows, columns, where, in_text=True, skip_bad_rows=skip_bad_rows)
        elif isinstance(first, Entry):
            entries = iter(questions)
        else:
            entries = _plain_entries(as_texts(questions, name), payload)
    return entries if ids is None else _with_ids(entries, ids, skip_bad_rows)


def _kept(payload: Any) -> bool | tuple[str, ...]:
    """The argument `payload` as `Columns` takes it; names of columns may be numbers in pandas."""
    if isinstance(payload, bool | None):
        return bool(payload)
    return (payload,) if isinstance(payload, str) else tuple(map(str, payload))


def _text(name: object) -> str:
    return "" if name is None else str(name)


def as_queries(queries: Any, text_column: str | None = None) -> list[str]:
    """The texts of a table, or of an iterable of strings or mappings; see `as_entries`."""
    if isinstance(queries, list | tuple) and not (queries and isinstance(queries[0], Mapping)):
        return as_texts(queries, "queries")  # the usual call, 4 microseconds faster
    entries = as_entries(
        queries, payload=False, text_column=text_column, id_column="", name="queries"
    )
    return [entry.question for entry in entries]


def _choice(columns: Columns, source: str, *, in_text: bool = False) -> Choose:
    """From all names of a table to those that are read; a UserError names the source."""

    def choose(names: Sequence[str]) -> list[str]:
        try:
            chosen = columns.choose(names, in_text=in_text)
        except UserError as error:
            raise UserError(f"{source}: {error.what}", remedy=error.remedy) from None
        return [*dict.fromkeys(name for name in (*chosen[:2], *chosen.payload) if name)]

    return choose


def _peek(questions: Any, source: str) -> tuple[Any, Any]:
    """The first of some questions, None if there is none, and all of them; errors by `source`."""
    if isinstance(questions, str) and os.path.isfile(questions):
        what = f"{source}: expected questions, got {short(questions)}, the path of a file"
        raise UserError(what, remedy="give qpr_jax.read_questions(path)")
    if isinstance(questions, str | bytes | Mapping) or not isinstance(questions, Iterable):
        return None, questions  # which `as_texts` refuses
    if hasattr(questions, "to_pylist"):  # an Arrow array
        questions = questions.to_pylist()
    iterator = iter(questions)
    start = [*itertools.islice(iterator, 1)]
    first = start[0] if start else None
    if isinstance(first, list | tuple) and not isinstance(first, Entry):
        what = f"{source}: expected strings, mappings or a table, got {short(first)}"
        raise UserError(what, remedy="give csv.DictReader, or qpr_jax.read_questions(path)")
    return first, itertools.chain(start, iterator)


def _mapping_rows(questions: Iterable[object]) -> Rows:
    for i, row in enumerate(questions):
        if not isinstance(row, Mapping):
            yield i, f"expected a mapping, got {type(row).__name__}"
        elif None in row:  # csv.DictReader puts cells there that no column has
            yield i, f"expected {len(row) - 1} cells, as the header, got more: {short(row[None])}"
        else:
            yield i, {str(key).removeprefix("\ufeff"): value for key, value in row.items()}


def _plain_entries(texts: list[str], payload: Any) -> Iterator[Entry]:
    """Entries of texts; payload: a mapping for each, or a bool, which says nothing of texts."""
    given = [None] * len(texts) if isinstance(payload, bool | None) else list(payload)
    if len(given) != len(texts):
        raise UserError(
            f"`payload`: expected a mapping a question ({len(texts)}), got {len(given)}"
        )
    for i, (text, fields) in enumerate(zip(texts, given, strict=True)):
        if fields is not None and not isinstance(fields, Mapping):
            got = f"{type(fields).__name__} at position {i}"
            raise UserError(f"`payload`: expected a mapping a question, got {got}")
        try:
            kept: Any = to_json(fields)
        except RecursionError:
            raise UserError(f"`payload`: {_TOO_DEEP} at position {i}") from None
        except UserError as error:
            raise UserError(f"`payload`: {error.what} at position {i}") from None
        yield Entry(i, None, str(text), kept)


def _entries(
    rows: Rows,
    columns: Columns,
    where: str,
    *,
    in_text: bool = False,
    cells: bool = False,
    skip_bad_rows: bool,
    say: Callable[[str], object] | None = None,
) -> Iterator[Entry]:
    """Make entries of rows; a UserError says `where`, with the number of the row.

    The first row says which column is the question's; mappings after it may have other names.

    in_text: as of `Columns.choose`.
    cells: whether all values are text, so that ids are numbers where they look like it.
    """
    first: Chosen | None = None
    names: Set[str] = frozenset()
    unseen = {*columns.payload} if isinstance(columns.payload, tuple) else set()
    skipped = 0
    for line, fields in rows:
        result: Entry | str
        if isinstance(fields, str):
            result = fields
        else:
            unseen -= fields.keys()
            try:
                if first is None:
                    chosen = columns.choose([*fields], in_text=in_text, optional=True)
                    first, names = chosen, fields.keys()
                    if say is not None:
                        say(_describe(chosen, where))
                elif fields.keys() == names:
                    chosen = first
                else:
                    chosen = columns.choose_late([*fields], first)
                result = _entry(line, fields, chosen, cells)
            except UserError as error:
                result = error.what
                if error.remedy and not skip_bad_rows:
                    raise UserError(f"{where} {line}: {result}", remedy=error.remedy) from None
        if isinstance(result, Entry):
            yield result
        elif skip_bad_rows:
            skipped += 1
        else:
            what = f"{where} {line}: {result}"
            if result == NOT_UTF8:
                raise UserError(what, remedy=_NOT_UTF8_REMEDY)
            raise UserError(what, remedy=_BAD_ROW_REMEDY)
    source = where.rpartition(",")[0]
    if unseen:
        log.warning("%s: no row has %s", source, ", ".join(f"`{name}`" for name in sorted(unseen)))
    if skipped:
        log.warning("%s: %s bad rows left out", source, f"{skipped:,}")


def _describe(chosen: Chosen, where: str) -> str:
    """A line that says which columns were chosen."""
    ids = f"ids from `{chosen.id}`" if chosen.id else "no ids"
    kept = ", ".join(f"`{name}`" for name in chosen.payload[:8]) or "none"
    more = f" and {len(chosen.payload) - 8} others" if len(chosen.payload) > 8 else ""
    return (
        f"{where.rpartition(',')[0]}: questions from `{chosen.text}`, {ids}, payload {kept}{more}"
    )


def _entry(line: int, fields: Mapping[str, object], chosen: Chosen, cells: bool) -> Entry | str:
    """The entry of a row, or what is wrong with it; `cells` as of `_entries`."""
    question = fields[chosen.text]
    if not isinstance(question, str) or not question.strip():
        return f"expected a question in `{chosen.text}`, got {short(question)}"
    value: Any = fields[chosen.id] if chosen.id else None
    if isinstance(value, str):
        value = cell_id(value) if cells else value if value.strip() else None
    value = None if is_missing(value) else check_id(value, f"in `{chosen.id}`")
    try:
        cells_of = {name: fields[name] for name in chosen.payload if name in fields}
        # A cell of NaN is a missing one, as in pandas.
        payload = {n: None if is_missing(v) else to_json(v) for n, v in cells_of.items()}
    except RecursionError:
        return _TOO_DEEP
    return Entry(line, value, str(question), payload or None)


def given_ids(entries: Sequence[Entry]) -> list[Id] | None:
    """The ids of entries that all have one, None where none has; else a UserError."""
    ids = [entry.id for entry in entries if entry.id is not None]
    if 0 < len(ids) < len(entries):
        first = next(entry.line for entry in entries if entry.id is None)
        what = f"`ids`: expected one a question or none at all, got none at position {first}"
        raise UserError(what, remedy="give all an id, or read none with `--no-ids`")
    return ids or None


def _with_ids(entries: Iterator[Entry], ids: Iterable[Id], skip_bad_rows: bool) -> Iterator[Entry]:
    """Give each entry the id at its position; a UserError where there are more or fewer."""
    checked = check_ids(ids)
    count = 0
    for entry in entries:
        count = entry.line + 1
        if count <= len(checked):
            yield entry._replace(id=checked[entry.line])
    if count > len(checked) or (count < len(checked) and not skip_bad_rows):
        raise UserError(f"`ids`: expected one a question ({count}), got {len(checked)}")
