"""Rows of tables: the columns that are read of them, and bad rows."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from qpr_jax import kinds
from qpr_jax.data.decoding import (
    FORMATS,
    decode_rows,
    format_of,
    refuse_code,
    table_files,
    table_format,
)
from qpr_jax.data.separated import found_id
from qpr_jax.data.typed_rows import Choose, Fields, Read, Rows, input_name
from qpr_jax.errors import UserError, counted, did_you_mean, short
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.kinds import ID_NAMES, TEXT_NAMES, is_text_name

log = logging.getLogger("qpr_jax")

NAME_COLUMNS = "name its columns so, or another format with `format`"
SKIP = "skip bad rows (`skip_bad_rows=True`)"

_PANDAS_INDEX = "__index_level_"  # in a Parquet file, an index without a name
NAME_TEXT = "name the question's column (`text_column`)"
_BODIES = ("body", "content")  # names of texts where no other is
_NAME_ID = "name the id's column (`id_column`)"
_NEEDS_QUOTES = re.compile(r'^"|[\t\n\r]')
WATCHED = 3  # rows of which all have an odd text or id
_LEAST_REFUSED = 20  # rows without a letter in their texts
_OF_DATES = re.compile(  # words that dates have
    r"(?<![a-z])(?:(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)"
    r"[a-z]{0,6}|[tz]|am|pm|utc|gmt|st|nd|rd|th)(?![a-z])",
    re.IGNORECASE,
)

R = TypeVar("R")
T = TypeVar("T")


def read_rows(
    path: str, columns: Sequence[str] | Choose, *, format: str = "", remedy: str = NAME_COLUMNS
) -> Rows:
    """Yield the line number and the fields of each row, or the reason why it cannot be read.

    Args:
      path: of a file, or of a folder of Parquet files, or "-" for standard input.
      columns: names that each row must have, or a function that chooses columns to read. A row of
        the format "lines" has one, "question" or the name of it.
      format: one of FORMATS; if empty, the suffix of the file's name decides, else "lines".
      remedy: of the UserError for a missing column.
    """
    kind, source = format or format_of(path) or "lines", input_name(path)
    if kind not in FORMATS:
        raise UserError(f"expected one of {', '.join(FORMATS)}, got {format!r}", setting="format")
    if kind == "lines" and not format:
        refuse_code(path)
    if kind == "parquet" and os.path.isdir(path):
        read = functools.partial(read_rows, columns=columns, format=kind, remedy=remedy)
        rows = itertools.chain.from_iterable(map(read, table_files([path], format=kind)))
        yield from enumerate((row for _, row in rows), start=1)
        return

    def choose(found: Sequence[str]) -> Iterable[str]:
        if callable(columns):
            return columns(found)
        if kind != "lines":
            return require(found, columns, remedy=remedy, source=source)
        if len(columns) > 1:
            what = f"{source}: expected columns {', '.join(columns)}, got lines of text"
            raise UserError(what, remedy="name tsv, csv, jsonl or parquet with `format`")
        return columns

    for line, row in decode_rows(path, kind, choose):
        if kind == "lines" and line == 1 and not format and isinstance(row, dict):
            (text,) = row.values()
            if like := table_format(text):
                what = f"{source}: expected lines of text, got what looks like {like}"
                remedy = "name its format with `format`, lines if it is text"
                raise UserError(what, remedy=remedy)
        names = [] if callable(columns) or isinstance(row, str) else columns
        missing = [name for name in names if name not in row]  # of JSON
        yield line, f"expected the key `{missing[0]}`, got {short(sorted(row))}" if missing else row


def read_again(files: Sequence[str], format: str) -> Read | None:
    """Return what reads the rows of tables; None for lines, and for a pipe, which is read once."""
    if any((format or format_of(f) or "lines") == "lines" for f in files):
        return None
    if not all(os.path.isfile(file) or os.path.isdir(file) for file in files):
        return None
    return lambda choose: itertools.chain.from_iterable(
        read_rows(file, choose, format=format) for file in files
    )


def read_values(
    path: str,
    columns: Sequence[str],
    parse: Callable[..., T | None],
    *,
    expected: str,
    format: str = "",
    remedy: str = NAME_COLUMNS,
) -> Iterator[T]:
    """Return what `parse` makes of the values of `columns` of each row.

    UserError if that is None: the row is not what is `expected`.
    """

    def parse_row(line: int, fields: Fields) -> T:
        values = [fields[name] for name in columns]
        if (result := parse(*values)) is None:
            raise UserError(f"expected {expected}; got {values!r:.80}")
        return result

    rows = read_rows(path, columns, format=format, remedy=remedy)
    return BadRows(input_name(path), skip=False, option="").good(rows, parse_row)


@dataclass
class BadRows:
    """What to do about bad rows of a table: refuse the first one, or skip and `count` them."""

    source: str  # of the rows, in messages
    skip: bool
    option: str = SKIP  # remedy that skips them; "": none
    place: str = "line"  # what numbers the rows
    count: int = 0
    first: str = ""  # the place and the reason of the first

    def add(self, number: int, reason: str, remedy: str = "") -> None:
        """Count a bad row; UserError unless bad rows are skipped."""
        what = f"{self.place} {number}: {reason}"
        if not self.skip:
            remedy = remedy or ("correct it" + f", or {self.option}" * bool(self.option))
            raise UserError(f"{self.source}, {what}", remedy=remedy)
        self.count += 1
        self.first = self.first or what

    def good(
        self, rows: Iterable[tuple[int, R | str]], parse: Callable[[int, R], T]
    ) -> Iterator[T]:
        """Yield what `parse` makes of the line and the fields of each good row; log bad ones.

        A row is bad that has the reason in place of its fields, or where `parse` raises UserError.
        """
        try:
            for line, row in rows:
                try:
                    if isinstance(row, str):
                        raise UserError(row)
                    result = parse(line, row)
                except UserError as error:
                    self.add(line, error.what, error.remedy)
                else:
                    yield result
        finally:
            if self.count:
                count = counted(self.count, "bad row")
                log.warning("%s: %s left out; %s", self.source, count, self.first)


def require(
    names: Sequence[str], required: Sequence[str], *, remedy: str, source: str = ""
) -> Sequence[str]:
    """Return the `required` columns, "" for none; a UserError names one that is not there once."""
    start = f"{source}: " if source else ""
    for name in filter(None, required):
        if name not in names:
            meant = did_you_mean(name, names)
            what = f"{start}expected a column `{name}`{meant}, got {listed(names)}"
            raise UserError(what, remedy=remedy)
        if names.count(name) > 1:
            what = f"{start}expected one column `{name}`, got {names.count(name)}"
            raise UserError(what, remedy="rename some")
    return required


def listed(names: Sequence[str]) -> str:
    """Return the names of columns in a message: 20 at most."""
    more = f" and {len(names) - 20} others" if len(names) > 20 else ""
    return ", ".join(f"`{name[:40]}`" for name in names[:20]) + more if names else "none"


@dataclass(frozen=True)
class Columns:
    """Which columns of a table to read.

    Attributes:
      text: the question's; if empty, that with a usual name (`is_text_name`), or the only one.
      id: the id's; if empty, that with a usual name (ID_NAMES), if there is one; None: no ids.
      payload: kept with a question: all others (True), none (False), or these.
      more: texts of the question, too, which may be missing; always kept.
      like: columns of an index: read where none is named, of those that the table has.
      names: all of these in the order of the table, once they are chosen.
    """

    text: str = ""
    id: str | None = ""
    payload: bool | tuple[str, ...] = False
    more: tuple[str, ...] = ()
    like: Columns | None = None
    names: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns of the payload, once they are chosen."""
        return self.payload if isinstance(self.payload, tuple) else ()

    def choose(self, names: Sequence[str], source: str = "", kind: str = "") -> Columns:
        """Choose the columns among these names; a UserError lists them where it cannot.

        Args:
          names: of all columns.
          source: of the table, in messages; if empty, columns of the payload may be missing.
          kind: the format. The only column of a text file needs such a name: there may be no
            header, or another separator.
        """
        start, in_text = f"{source}: " if source else "", kind in ("csv", "tsv")
        if kind == "lines" and (self.text or self.id or isinstance(self.payload, tuple)):
            what = f"{start}expected a table with these columns, got lines of text"
            raise UserError(what, remedy="name its format with `format`")
        kind_of_rows = kinds.kind_of_columns(names) if names[5:] and not self.text else ""
        if kind_of_rows in (kinds.GROUPS, kinds.PAIRS):
            what = f"{start}expected questions, got {kind_of_rows}"
            raise UserError(what, remedy=f"name the file deduplicated beside it, or {NAME_TEXT}")
        like = self.like or Columns()
        text = self.text or (like.text if like.text in names else "")
        text = text or _usual(names, TEXT_NAMES, start, NAME_TEXT)
        like_text = [name for name in dict.fromkeys(names) if not text and is_text_name(name)]
        like_text = like_text or [name for name in names if name.strip().lower() in _BODIES]
        if in_text and any(name and not re.search(r"[^\W\d_]|^#$", name) for name in names):
            like_text = []  # a name without a letter is a cell: there is no header
        if len(names) == 1 and not in_text and names[0].lower() not in ID_NAMES:
            like_text = [*names]
        text = text or (like_text[0] if len(like_text) == 1 else "")
        if not text:
            what = f"{start}expected a column of questions ({', '.join(TEXT_NAMES[:4])}, ...)"
            names = sorted(names, key=lambda name: name not in like_text)
            other = ", or another format, such as `lines`" if in_text and len(names) == 1 else ""
            if {"question1", "question2"} <= {*names}:
                other = "; pairs are for `qpr train` and `qpr evaluate --task mining`"
            raise UserError(f"{what}, got {listed(names)}", remedy=NAME_TEXT + other)
        others = [name for name in names if name and name != text]
        key = like.id if like.id in others else _usual(others, ID_NAMES, start, _NAME_ID)
        key = "" if self.id is None else self.id or key
        more = self.more or tuple(name for name in like.more if name in others)
        others = [name for name in others if name != key and not name.startswith(_PANDAS_INDEX)]
        payload = others if self.payload is True else self.payload or ()
        payload = tuple(dict.fromkeys((*payload, *more)))
        require(names, [text, *self.more * bool(source)], remedy=NAME_TEXT, source=source)
        require(names, [key], remedy=_NAME_ID, source=source)
        if source:
            require(names, payload, remedy="name others with `payload`", source=source)
        chosen = {text, key, *payload} - {""}
        return Columns(text, key, payload, more, None, tuple(n for n in names if n in chosen))


def with_found_id(columns: Columns, again: Read | None) -> Columns:
    """Name the column of ids where none is asked for; again: reads the rows, which are read again.

    Not of a table for an index, in which other numbers may be the ids.
    """
    if again is None or columns.id != "" or columns.like is not None:
        return columns
    return replace(columns, id=found_id(again, columns.text))


def _usual(names: Sequence[str], usual: Sequence[str], start: str, remedy: str) -> str:
    """Return the usual name, the first of `usual` first; "" for none, UserError for several."""
    found = [name for name in dict.fromkeys(names) if name.strip().lower() in usual]
    best = [name for name in found if name.strip().lower() == usual[0]]
    if len(best) != 1 and len(found) > 1:
        what = f"{start}expected one column of the {usual[0]}, got {listed(found)}"
        raise UserError(what, remedy=remedy)
    return (*best, *found, "")[0]


def text_and_more(columns: str | Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
    """Return the column of the question, "" for that of a usual name, and those of other texts."""
    names = columns if isinstance(columns, list | tuple) else [columns]
    first, *more = ("" if name is None else str(name) for name in names or [None])
    if len({first, *more}) <= len(more) or "" in more:
        what = f"expected distinct columns, got {short([*names])}"
        raise UserError(what, setting="text_column")
    return first, tuple(more)


def one_column(columns: str | Sequence[str] | None) -> str:
    """Return the column of the question, as `text_and_more`; UserError for several."""
    first, more = text_and_more(columns)
    if more:
        what = "expected one column, got several, which only an index compares"
        remedy = "name the one that says most, or join them in one column of the table"
        raise UserError(what, setting="text_column", remedy=remedy)
    return first


def check_columns(
    texts: Sequence[str], ids: Sequence[object], chosen: Columns, source: str
) -> None:
    """Warn where the first texts are numbers or dates, or the first ids are sentences.

    UserError where no text of many has a letter.
    """
    other = other_text(chosen)
    if len(texts) >= _LEAST_REFUSED and not any(map(str.isalpha, "".join(texts))):
        what = f"{source}: expected questions in `{chosen.text}`, got no letter in {len(texts):,}"
        raise UserError(f"{what} rows, such as {short(texts[0])}", remedy=NAME_TEXT + other)
    digits = all(any(map(str.isdigit, text)) for text in texts[:WATCHED])
    if digits and not any(map(str.isalpha, _OF_DATES.sub("", " ".join(texts[:WATCHED])))):
        line = f"%s: `%s` has numbers or dates; {NAME_TEXT}%s"
        log.warning(line, source, chosen.text, other)
    other = _like(chosen, ID_NAMES.__contains__)
    if other and all(len(f"{value}".split()) > WATCHED for value in ids[:WATCHED]):
        line = "%s: `%s` has sentences; name the column of ids with `id_column`%s"
        log.warning(line, source, chosen.id, other)


def other_text(chosen: Columns) -> str:
    """Name another column that is like one of questions, for the end of a message."""
    return _like(chosen, is_text_name)


def _like(chosen: Columns, is_like: Callable[[str], bool]) -> str:
    others = [name for name in chosen.names if name not in (chosen.text, chosen.id)]
    return next((f", as `{name}`" for name in others if is_like(name.strip().lower())), "")


def write_tsv(path: StrPath, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a file of a header and rows of numbers and texts; `read_rows` reads back the same."""
    with write_atomically(path, "w") as file:
        for row in itertools.chain([header], rows):
            file.write("\t".join(tsv_cell(f"{value}") for value in row) + "\n")


def tsv_cell(text: str) -> str:
    """Quote a text that is not read back as it is."""
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text
