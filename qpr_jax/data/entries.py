"""Questions with their ids and payload, made of the rows of a table, and checked."""

from __future__ import annotations

import dataclasses
import decimal
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.columns import NAME_TEXT, BadRows, Columns, listed
from qpr_jax.data.decoding import Fields, Rows
from qpr_jax.data.frames import is_missing, to_json
from qpr_jax.errors import UserError, short
from qpr_jax.ids import LARGEST_ID, Id, check_id, check_ids, id_key
from qpr_jax.text.cleaning import without_unseen

log = logging.getLogger("qpr_jax")

Payload = Mapping[str, object]  # names to values of JSON: str, int, float, bool, None, list, dict
Note = Callable[[Columns, str], object]  # gets the columns of a table, and its name in messages


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
