"""Questions with their ids and payload, made of the rows of a table, and checked.

An id is a whole number from 0 to 2^63 - 1, or a string of 1 to 1,024 bytes of UTF-8. It goes out as
it came. Ids that print alike, such as 7 and "7", are one id: they have the same `id_key`.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import itertools
import json
import logging
import sys
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.columns import (
    NAME_TEXT,
    WATCHED,
    BadRows,
    Columns,
    check_columns,
    listed,
    other_text,
)
from qpr_jax.data.typed_rows import Fields, Rows
from qpr_jax.errors import UserError, counted, short
from qpr_jax.text.cleaning import without_unseen

log = logging.getLogger("qpr_jax")

Payload = Mapping[str, object]  # names to values of JSON: str, int, float, bool, None, list, dict
Note = Callable[[Columns, str], object]  # gets the columns of a table, and its name in messages
Id = int | str

LARGEST_ID = 2**63 - 1
LARGEST_BYTES = 1024  # of a string
EXPECTED = f"a whole number from 0 to 2^63 - 1, or a string of 1 to {LARGEST_BYTES:,} bytes"
_MOST_WATCHED = 1000  # rows without a letter in their texts
_LEAST_ROWS, _MOST_TEXTS, _TEXTS_A_ROW = 40, 100, 0.05  # of a column whose texts repeat
_DIGITS = len(str(LARGEST_ID))
_EXACT = 2**53  # from here on, a float can be another number than it was written as


class Entry(NamedTuple):
    """A question, its id and payload or None, and the line where it begins, or its position."""

    line: int
    id: Id | None
    question: str
    payload: Payload | None = None


def make_entries(
    rows: Rows, columns: Columns, bad: BadRows, kind: str = "", note: Note | None = None
) -> Iterator[Entry]:
    """Make entries of rows of a format. The first row says which column is the question's.

    Where bad rows are skipped, so are rows without an id beside others with one, and rows with the
    id of a row before.
    """
    is_text = kind in ("csv", "tsv")  # ids are numbers where they look like it
    chosen_of: dict[tuple[str, ...], Columns] = {}
    unseen = {*columns.kept, *columns.more}

    def parse(line: int, fields: Fields) -> Entry:
        nonlocal columns
        unseen.difference_update(fields)
        names = tuple(fields)
        if names not in chosen_of:
            chosen = chosen_of[names] = columns.choose(names)
            if len(chosen_of) == 1:
                columns = dataclasses.replace(columns, text=chosen.text)
                if note is not None:
                    note(chosen, bad.source)
        return _entry(line, fields, chosen_of[names], is_text)

    entries = bad.good(rows, parse)
    yield from _with_distinct_ids(entries, bad) if bad.skip and columns.id is not None else entries
    if chosen_of and (missing := unseen.intersection(columns.more)):
        raise UserError(f"{bad.source}: no row has {listed(sorted(missing))}", remedy=NAME_TEXT)
    if unseen:
        log.warning("%s: no row has %s", bad.source, listed(sorted(unseen)))


def watched(entries: Iterator[Entry], chosen: Sequence[Columns], source: str) -> Iterator[Entry]:
    """Yield entries; check the columns by the first three, and on to the first text with a letter.

    chosen: the columns, once the first row is read; empty for texts without columns.
    """
    start = list[Entry]()
    entries = _with_few_texts(entries, chosen, source)
    for entry in itertools.islice(entries, _MOST_WATCHED):
        yield entry
        start.append(entry)
        if len(start) >= WATCHED and any(map(str.isalpha, entry.question or "")):
            break
    if chosen and len(start) >= WATCHED:
        texts, ids = [entry.question for entry in start], [entry.id for entry in start]
        check_columns(texts, ids, chosen[0], source)
    yield from entries


def _with_few_texts(
    entries: Iterator[Entry], chosen: Sequence[Columns], source: str
) -> Iterator[Entry]:
    """Yield entries; warn at the end where their texts repeat as those of a category do."""
    texts, count = set[str](), 0
    for entry in entries:
        yield entry
        count += 1
        texts.add(entry.question)
        if len(texts) > _MOST_TEXTS:
            yield from entries
            return
    if chosen and count >= _LEAST_ROWS and len(texts) < _TEXTS_A_ROW * count:
        what, other = counted(len(texts), "distinct text"), other_text(chosen[0])
        line = f"%s: `%s` has only %s in %s rows; {NAME_TEXT}%s"
        log.warning(line, source, chosen[0].text, what, f"{count:,}", other)


def _with_distinct_ids(entries: Iterator[Entry], bad: BadRows) -> Iterator[Entry]:
    without: list[Entry] = []  # an id
    seen = set()
    for entry in entries:
        if entry.id is None:
            without.append(entry)
        elif (key := id_key(entry.id)) in seen:
            bad.add(entry.line, f"the id {entry.id} occurs twice")
        else:
            seen.add(key)
            yield entry
        if seen:
            for other in without:
                bad.add(other.line, "expected an id, as other rows have")
            without.clear()
    yield from without


def _entry(line: int, fields: Fields, chosen: Columns, is_text: bool) -> Entry:
    """Return the entry of a row; a UserError says what is wrong with it."""
    names = (chosen.text, *chosen.more)
    texts: list[Any] = ["" if is_missing(text) else text for text in map(fields.get, names)]
    for name, text in zip(names, texts, strict=True):
        if not isinstance(text, str):
            kind = "question" if name == chosen.text else "text"
            raise UserError(f"expected a {kind} in `{name}`, got {short(text)}")
    question = next((str(text) for text in texts if text.strip()), "")
    if not question:
        what = f"expected a question in {' or '.join(f'`{name}`' for name in names)}"
        raise UserError(f"{what}, got {short(fields[chosen.text])}")
    value = _as_id(fields[chosen.id], chosen.id, is_text) if chosen.id else None
    payload = {name: fields[name] for name in chosen.kept if name in fields}
    if not is_text:  # whose cells are strings
        payload = to_json({n: None if is_missing(cell) else cell for n, cell in payload.items()})
    return Entry(line, value, question, payload or None)


def _as_id(value: Any, column: str, is_text: bool) -> Id | None:
    """Return the id in a column, None for none; numbers that are no id are strings, as in CSV."""
    if isinstance(value, str):
        value = without_unseen(value).strip()
        key = id_key(value) if is_text else value  # of a file, 7 is a number, and 007 is none
        value = key if value else None
    if is_missing(value):
        return None
    if isinstance(value, decimal.Decimal):
        value = int(value) if value == value.to_integral_value() else str(value)
    if isinstance(value, int | np.integer) and not 0 <= value <= LARGEST_ID:
        value = str(value)
    return check_id(value, f"in `{column}`")


def with_ids(entries: Iterator[Entry], ids: Iterable[Id], skip_bad_rows: bool) -> Iterator[Entry]:
    """Give each entry the id at its position; a UserError where there are more or fewer."""
    checked = check_ids(ids)
    count = 0
    for entry in entries:
        count = entry.line + 1
        if count <= len(checked):
            yield entry._replace(id=checked[entry.line])
    if count > len(checked) or (count < len(checked) and not skip_bad_rows):
        raise UserError(f"`ids`: expected one a question ({count}), got {len(checked)}")


def with_payload(entries: Iterator[Entry], payload: list[Any], count: int) -> Iterator[Entry]:
    """Give each entry the mapping at its position."""
    if len(payload) != count:
        raise UserError(f"`payload`: expected a mapping a question ({count}), got {len(payload)}")
    for entry in entries:
        fields, place = payload[entry.line], f"at position {entry.line}"
        if not isinstance(fields, Mapping | None):
            what = f"`payload`: expected a mapping a question, got {type(fields).__name__} {place}"
            raise UserError(what)
        try:
            yield entry._replace(payload=to_json(fields, strict=True))
        except UserError as error:
            raise UserError(f"`payload`: {error.what} {place}") from None


def id_key(value: Id) -> Id:
    """Return the key that equal ids share: the number that a string spells, else the id."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS:
        number = int(value)
        if number <= LARGEST_ID and str(number) == value:
            return number
    return value


def order_key(value: Id) -> tuple[bool, Id]:
    """Return a key that sorts ids, numbers before strings. Ids that print alike have one key."""
    key = id_key(value)
    return isinstance(key, str), key


def parse_key(value: object) -> Id | None:
    """Return the `id_key` of a cell or a JSON value; None if it is not an id."""
    value = value.strip() if isinstance(value, str) else value
    try:
        return id_key(check_id(value, ""))
    except UserError:
        return None


def check_id(value: object, where: str) -> Id:
    """Return an id as a Python int or str; a UserError, which says `where`, refuses anything else.

    A whole float, as columns of numbers with missing values have them, is the number.
    """
    text = str(value) if isinstance(value, str | uuid.UUID) else ""
    if 0 < len(text.encode("utf-8", "surrogatepass")) <= LARGEST_BYTES:
        return text
    number: Any = None if isinstance(value, bool) else value
    if isinstance(value, float | np.floating):
        real = float(value)
        number = int(real) if abs(real) < _EXACT and real.is_integer() else None
    if isinstance(number, int | np.integer) and 0 <= number <= LARGEST_ID:
        return int(number)
    raise UserError(f"`ids`: expected {EXPECTED}, got {short(value)} {where}".rstrip())


def check_ids(ids: Iterable[object]) -> list[Id]:
    """Return distinct ids as of `check_id`; a UserError names the position of anything else."""
    if isinstance(ids, str | bytes):
        kind = type(ids).__name__
        raise UserError(f"`ids`: expected a list of ids, got a {kind}", remedy="pass [ids]")
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    checked = [check_id(value, f"at position {i}") for i, value in enumerate(ids)]
    if (repeated := first_repeated(checked)) is not None:
        raise UserError(f"`ids`: expected distinct ids, got {checked[repeated]} twice")
    return checked


def first_repeated(ids: Iterable[Id]) -> int | None:
    """Return the first position whose id occurs before it; None if all differ."""
    seen: set[Id] = set()
    for position, key in enumerate(map(id_key, ids)):
        if key in seen:
            return position
        seen.add(key)
    return None


def numbered(values: Iterable[Hashable]) -> np.ndarray:
    """Number values in order of first appearance, equal ones alike: int64 [n]."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


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


def row_labels(table: Any) -> list[int | str] | None:
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
