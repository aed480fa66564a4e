"""Questions, with their ids and payload, from a file, a table or any iterable."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qpr_jax import kinds
from qpr_jax.data.columns import (
    BadRows,
    Columns,
    listed,
    one_column,
    read_again,
    read_rows,
    text_and_more,
    with_found_id,
)
from qpr_jax.data.decoding import format_of, format_of_name
from qpr_jax.data.entries import (
    Entry,
    Id,
    Note,
    id_key,
    make_entries,
    peek,
    row_labels,
    watched,
    with_ids,
    with_payload,
)
from qpr_jax.data.typed_rows import frame_rows, input_name, mapping_rows, rows_again, select_rows
from qpr_jax.errors import UserError, needs, short
from qpr_jax.files import StrPath
from qpr_jax.running import with_progress
from qpr_jax.text.cleaning import as_texts

if TYPE_CHECKING:
    import pandas

log = logging.getLogger("qpr_jax")

DEFAULT = Columns()
_SHOWN_FILES = 5  # names of a table in a message


class Table:
    """The questions of files. A loop reads the files, so they may be larger than memory.

        table = read_table("tickets.csv.gz", id="ticket", payload=["solved"])
        retriever = Retriever.build(table, location="large")
        table.texts, table.ids, table.columns["solved"]

    A loop gives an `Entry` for each question. The lists are read once, when they are asked for.

    Attributes:
      where: what a UserError says before the line of a row, as `tickets.csv, line`.
      typed: whether `select` may give columns their own types.
      label: of the progress of a loop; "": none is shown.
    """

    def __init__(
        self,
        read: Callable[[Note], Iterator[Entry]],
        where: str,
        files: tuple[str, Any] = ("", []),
        named: Callable[[], Columns] = lambda: DEFAULT,
    ) -> None:
        self._read, self.where, self._files, self._named = read, where, files, named
        self._noted: list[Columns] = []
        self.typed, self.label = True, ""

    def __iter__(self) -> Iterator[Entry]:
        self._noted.clear()
        source = self.where.rpartition(",")[0]
        entries = self._read(self._note)
        if self._files[0] != "lines":
            entries = watched(entries, self._noted, source)
        return with_progress(entries, self.label) if self.label else entries

    def _note(self, chosen: Columns, name: str) -> None:
        self._noted.append(chosen)
        if self._files[0] not in ("", "lines"):
            ids = f"ids from `{chosen.id}`" if chosen.id else "no ids"
            text, texts = "%s: questions from %s, %s, payload %s", (chosen.text, *chosen.more)
            log.info(text, name, listed(texts), ids, listed(chosen.kept))

    @property
    def named(self) -> Columns:
        """The columns that are asked for by name, and that of the ids, if its values show it."""
        return self._named()

    @property
    def chosen(self) -> Columns:
        """The columns, once they are read; of several files the first one's."""
        return (*self._noted, DEFAULT.choose(["question"]))[0]

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """All questions."""
        return [*self]

    @property
    def texts(self) -> list[str]:
        """The text of each question."""
        return [entry.question for entry in self.entries]

    @property
    def ids(self) -> list[Id | None]:
        """The id of each question, None for none."""
        return [entry.id for entry in self.entries]

    @property
    def columns(self) -> dict[str, list[object]]:
        """The columns of the payload, by name; None where a row lacks one."""
        names = dict.fromkeys(name for entry in self.entries for name in entry.payload or ())
        return {name: [(e.payload or {}).get(name) for e in self.entries] for name in names}

    def place(self, row: int, line: int) -> str:
        """Return the file and the line of a row. Of several files, they are read again."""
        found = self._places(lambda number, _: number == row) if self._several else iter(())
        return next(found, f"{self.where} {line}")

    def repeated(self, value: Id, row: int, line: int) -> UserError:
        """Return the error of an id that a row before has, too."""
        key, first = id_key(value), ""
        if self._several:
            is_same = self._places(lambda _, e: e.id is not None and id_key(e.id) == key)
            first = f", first in {next(is_same)}"
        what = f"{self.place(row, line)}: the id {value} occurs twice{first}"
        remedy = "give each its own, name another column with `id_column`, or read none with "
        return UserError(what, remedy=remedy + '`id_column=""`')

    @property
    def _several(self) -> bool:
        return bool(self._files[0]) and len(self._files[1]) > 1

    def _places(self, is_wanted: Callable[[int, Entry], bool]) -> Iterator[str]:
        names: list[str] = []
        for number, entry in enumerate(self._read(lambda _, name: names.append(name))):
            if is_wanted(number, entry):
                yield f"{names[-1]}, line {entry.line}"

    def select(self, rows: Sequence[int], names: Collection[str]) -> Any:
        """Return rows and columns with their own types, as `select_rows`; None: unknown."""
        kind, files = self._files
        alike = len({(noted.text, noted.id) for noted in self._noted}) == 1
        if not self.typed or (kind and not (alike and len(self._noted) == len(files))):
            return None
        source = self._files if kind else files
        return select_rows(source, [entry.line for entry in self.entries], rows, names)

    def to_dicts(self) -> list[dict[str, object]]:
        """Return a mapping for each question: `id`, `question` and the payload."""
        rows = self.entries
        return [{"id": row.id, "question": row.question, **(row.payload or {})} for row in rows]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table of pandas with the columns of `to_dicts`."""
        with needs("to_pandas()", "pandas"):
            import pandas
        return pandas.DataFrame(self.to_dicts())


def read_table(
    path: StrPath | Sequence[StrPath],
    *,
    text: str | Sequence[str] = "",
    id: str | None = "",
    payload: bool | Iterable[str] = True,
    format: str = "",
    skip_bad_rows: bool = False,
    like: Columns | None = None,
) -> Table:
    """Return the questions of a file, or of several.

    Args:
      path: of a file, of a folder of Parquet files, or "-" for standard input, which is read once.
        gzip and zstd are recognized by their first bytes.
      text: column of the question; if empty, that with a usual name, or the only one.
        Several: columns of its texts, for an index.
      id: column of the id; if empty, that with a usual name, else as of `found_id`; None: no ids.
      payload: the columns that are kept: all others (True), none (False), or these.
      format: "lines" (a question in each; blank lines are skipped), "tsv", "csv" (both with a
        header), "jsonl" or "json" (an object in each line, or an array of them), "parquet" or
        "arrow". If empty, the suffix of the file's name decides, and "lines" is the default.
      skip_bad_rows: leave out and count rows that cannot be read. Otherwise the first one is a
        UserError with its line.
      like: columns that are read if none is named and the file has them, as those of an index.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    files, (first, more) = [os.fspath(file) for file in paths], text_and_more(text)
    columns = _keep(Columns(first, id, more=more, like=like), payload)
    named = functools.cache(lambda: with_found_id(columns, read_again(files, format)))

    def read(note: Note) -> Iterator[Entry]:
        for file in files:
            yield from _file_entries(file, named(), format, skip_bad_rows, note)

    kind = format or format_of(files[0]) or "lines"
    names = [*map(input_name, files)]
    names[_SHOWN_FILES:] = [f"{len(names) - _SHOWN_FILES} others"] * (len(names) > _SHOWN_FILES)
    return Table(read, f"{', '.join(names)}, line", (kind, files), named)


def _file_entries(
    path: str, columns: Columns, format: str, skip_bad_rows: bool, note: Note
) -> Iterator[Entry]:
    source, kind = input_name(path), format or format_of(path) or "lines"
    rows = read_rows(path, lambda names: columns.choose(names, source, kind).names, format=format)
    bad = BadRows(source, skip=skip_bad_rows)
    return make_entries(rows, columns, bad, kind, note)


def as_table(
    questions: Any, *options: Any, name: str = "questions", like: Columns | None = None
) -> Table:
    """Return questions as a table; arguments as of `as_entries`."""
    if isinstance(questions, Table) and options[:1] in ((), (None,)):
        return questions
    files: tuple[str, Any] = ("", questions if is_table(questions) else None)
    if is_path(questions):
        files = format_of(questions) or "lines", [os.fspath(questions)]
    given: list[Any] = [*options, *(None, True, None, None, False)[len(options) :]]
    ids, payload, text, key, skip = given
    first, more = text_and_more(text)

    @functools.cache
    def named() -> Columns:
        is_open = ids is None and key is None and row_labels(questions) is None
        columns = Columns(first, "" if is_open else key, more=more, like=like)
        if is_path(questions):
            return with_found_id(columns, read_again(files[1], ""))
        are_texts = isinstance(questions, list) and not isinstance((*questions[:1], "")[0], Mapping)
        return columns if are_texts else with_found_id(columns, rows_again(questions, name))

    def read(note: Note) -> Iterator[Entry]:
        of = (named().id or None) if key is None else key
        return as_entries(questions, ids, payload, text, of, skip, name=name, like=like, note=note)

    return Table(read, f"`{name}`, position", files, named)


def as_entries(
    questions: Any,
    ids: Iterable[Id] | None = None,
    payload: Any = True,
    text_column: str | Sequence[str] | None = None,
    id_column: str | None = None,
    skip_bad_rows: bool = False,
    *,
    name: str = "questions",
    like: Columns | None = None,
    note: Note | None = None,
) -> Iterator[Entry]:
    """Yield the questions of a table, of a file, or of an iterable of strings, mappings or entries.

    `is_path` says which strings are files. Arguments are those of `Retriever.build`. Without
    `id_column` the index of pandas has the ids, unless it is 0, 1, 2, ... or a column is named so.

    name: of the argument, which a UserError names.
    like: as of `read_table`.
    note: gets the columns of a table, and its name in messages.
    """
    source = f"`{name}`"
    bad = BadRows(source, skip=skip_bad_rows, place="position")
    labels = row_labels(questions) if ids is None and id_column is None else None
    key = None if ids is not None or id_column == "" else str(id_column or "")
    text, more = text_and_more(text_column)
    columns = Columns(text, key, more=more, like=like)
    if is_table(questions):
        columns = _keep(columns, payload)
        rows = frame_rows(questions, lambda names: columns.choose(names, source).names, source)
        entries = make_entries(rows, columns, bad, note=note)
    elif is_path(questions):
        if isinstance(questions, str) and not os.path.exists(questions):
            what = f"{source}: found no file {short(questions)}"
            what += kinds.similar_path(questions, kinds.TABLE)
            raise UserError(what, remedy=f"correct its name; pass [{name}] if it is a question")
        path, ignore = os.fspath(questions), lambda *_: None
        columns = _keep(columns, payload)
        entries = _file_entries(path, columns, "", skip_bad_rows, note or ignore)
    else:
        if isinstance(questions, str):
            what = f"{source}: expected a list of strings, got str"
            if re.search(r"^[^\s?]*(\.[a-z]\w{1,6}|/[^\s?]*)$", questions, re.IGNORECASE):
                raise UserError(what, remedy=f"pass pathlib.Path({name}) for a file")
            raise UserError(what, remedy=f"pass [{name}], or pathlib.Path({name}) for a file")
        first, questions = peek(questions, source)
        if isinstance(first, Entry):
            entries = iter(questions)
        elif isinstance(first, Mapping):
            entries = make_entries(mapping_rows(questions), _keep(columns, payload), bad, note=note)
        else:
            texts = as_texts(questions, name)
            entries = make_entries(enumerate({"question": text} for text in texts), DEFAULT, bad)
            if not isinstance(payload, bool | None):
                entries = with_payload(entries, list(payload), len(texts))
    if labels is not None:
        return (e if e.id is not None else e._replace(id=labels[e.line]) for e in entries)
    return entries if ids is None else with_ids(entries, ids, skip_bad_rows)


def is_path(questions: Any) -> bool:
    """Return whether questions are given as a file: a Path, or a string with the suffix of a table.

    Any other string is a text, whatever files there are.
    """
    return isinstance(questions, os.PathLike) or (
        isinstance(questions, str) and format_of_name(questions) != ""
    )


def as_queries(queries: Any, text_column: str | None = None) -> list[str]:
    """Return the texts of a table, a Path, an iterable of strings or mappings, or one string."""
    if isinstance(queries, str):
        return [queries]
    if not is_table(queries) and not is_path(queries):
        first, queries = peek(queries, "`queries`")
        if not isinstance(first, Mapping | Entry):
            return as_texts(queries, "queries")
    entries = as_entries(queries, None, False, one_column(text_column), "", name="queries")
    return [entry.question for entry in entries]


def _keep(columns: Columns, payload: Any) -> Columns:
    """Add the argument `payload`; names of columns may be numbers in pandas."""
    if isinstance(payload, bool | None):
        return dataclasses.replace(columns, payload=bool(payload))
    names = (payload,) if isinstance(payload, str) else tuple(map(str, payload))
    return dataclasses.replace(columns, payload=names)


def is_table(value: object) -> bool:
    """Return whether narwhals reads this as a table, or it has an Arrow C stream."""
    if isinstance(value, str | bytes | list | tuple | Mapping):
        return False
    from narwhals.stable.v2 import dependencies

    if dependencies.is_into_series(value):
        return False
    frame = dependencies.is_into_dataframe(value) or dependencies.is_polars_lazyframe(value)
    return frame or hasattr(value, "__arrow_c_stream__")
