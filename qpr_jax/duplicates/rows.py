"""The rows whose duplicates are searched, and the distinct texts among them, the entries.

Entries are in the order of their texts, so that nothing depends on the order of the rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qpr_jax.data.columns import is_missing, listed
from qpr_jax.data.questions import Payload
from qpr_jax.encoders.base import Encoder, encode_in_parts
from qpr_jax.errors import UserError, shortened
from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Question
from qpr_jax.index.close_pairs import Compare
from qpr_jax.text.tokenizer import canonical

log = logging.getLogger("qpr_jax")


@dataclass(frozen=True)
class Rows:
    """R rows, first those of the table, then those that it is compared with; and their E entries.

    Attributes:
      ids, texts, payloads: of the rows.
      table_rows: how many of them are of the table.
      entries: int64 [R], the entry of each row.
      first: int64 [E], the row of an entry with the smallest id, which stands for it.
      copies: int64 [E], how many rows an entry has.
      spellings: int64 [E], the same number for entries that differ in case, blanks and final mark
        only.
      blocks: int64 [E], only entries of one block are compared; None: all.
      is_new: bool [E], whether a row of the table is in it.
      fields: the names in the payloads.
      apart: whether rows of the table are compared with the others only.
    """

    ids: list[Id]
    texts: list[str]
    payloads: list[Payload | None]
    table_rows: int
    entries: np.ndarray
    first: np.ndarray
    copies: np.ndarray
    spellings: np.ndarray
    blocks: np.ndarray | None
    is_new: np.ndarray
    fields: list[str]
    apart: bool

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def compare(self) -> Compare:
        """Which entries are compared, as of `close_pairs`."""
        if self.apart:
            return "across"
        return "new" if len(self) > self.table_rows else "all"

    @property
    def entry_texts(self) -> list[str]:
        """The texts of all entries."""
        return [self.texts[row] for row in self.first.tolist()]


def make_rows(
    table: Sequence[Question],
    others: Sequence[Question] = (),
    *,
    within: str | None = None,
    apart: bool = False,
) -> Rows:
    """Find the distinct texts of a table and of what it is compared with.

    Args:
      table, others: questions; ids are distinct in each.
      within: the name in the payload whose values are the blocks; see `block_of`. A row without a
        value is compared with nothing.
      apart: whether rows of the table are compared with the others only; then a text of both is
        two entries, one of each.
    """
    rows = [*table, *others]
    fields = [*dict.fromkeys(name for row in rows for name in row.payload or ())]
    names = _blocks(rows, len(table), within, apart=apart)
    if within is not None and rows:
        require_column(within, fields, "within")
    is_old = [apart and row >= len(table) for row in range(len(rows))]
    keys = [*zip((row.text for row in rows), names, (not old for old in is_old), strict=True)]
    distinct = sorted({*keys})
    number = {key: i for i, key in enumerate(distinct)}
    entries = np.array([number[key] for key in keys], np.int64)
    is_new = np.zeros(len(distinct), bool)
    is_new[entries[: len(table)]] = True
    return Rows(
        ids=[row.id for row in rows],
        texts=[row.text for row in rows],
        payloads=[row.payload for row in rows],
        table_rows=len(table),
        entries=entries,
        first=_smallest_ids(rows, entries),
        copies=np.bincount(entries, minlength=len(distinct)),
        spellings=_numbered([canonical(text) for text, *_ in distinct]),
        blocks=None if within is None else _numbered([name for _, name, _ in distinct]),
        is_new=is_new,
        fields=fields,
        apart=apart,
    )


def leave_out_known(
    table: Sequence[Question], stored: Sequence[Question], within: str | None, *, by_text: bool
) -> tuple[list[Question], list[Question]]:
    """The rows that an index lacks, and the stored ones that they do not replace.

    A row is known if the index has its text and block; unless `by_text`, under its id. A row whose
    id the index has with another text replaces that.
    """

    def content(row: Question) -> tuple[str, str | None]:
        value = None if within is None else (row.payload or {}).get(within)
        return row.text, block_of(value)

    if by_text:
        known = {content(row) for row in stored}
        return [row for row in table if content(row) not in known], [*stored]
    contents = {id_key(row.id): content(row) for row in stored}
    new = [row for row in table if contents.get(id_key(row.id)) != content(row)]
    replaced = {id_key(row.id) for row in new}
    return new, [row for row in stored if id_key(row.id) not in replaced]


def encode_entries(
    rows: Rows,
    encoder: Encoder,
    stored: Iterable[tuple[Sequence[Question], np.ndarray]] = (),
) -> np.ndarray:
    """The vectors of all entries, float32 [E, d]; equal texts have equal vectors.

    stored: questions, and their vectors, that need not be encoded, in parts.
    """
    vectors = np.zeros((len(rows.first), encoder.dimension), np.float32)
    known = np.zeros(len(vectors), bool)
    places = {id_key(rows.ids[row]): row for row in range(rows.table_rows, len(rows))}
    for questions, values in stored:
        found = [places.get(id_key(question.id), -1) for question in questions]
        there = np.array(found, np.int64)
        entries = rows.entries[there[there >= 0]]
        vectors[entries], known[entries] = values[there >= 0], True
    texts = rows.entry_texts
    distinct = [*dict.fromkeys(texts[i] for i in np.flatnonzero(~known).tolist())]
    encoded = encode_in_parts(encoder, distinct)
    place = {text: i for i, text in enumerate(distinct)}
    own = np.array([place[texts[i]] for i in np.flatnonzero(~known).tolist()], np.int64)
    vectors[~known] = encoded[own]
    return vectors


def order_key(value: Id) -> tuple[bool, Id]:
    """By what ids are ordered: numbers before strings; ids that print alike are one."""
    key = id_key(value)
    return isinstance(key, str), key


def block_of(value: object) -> str | None:
    """The block of rows with this value: its text, that of 1 for 1.0, too; None without a value."""
    if is_missing(value):
        return None
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def require_column(name: str, kept: Collection[str], setting: str) -> None:
    """UserError unless a column is among those that are kept with questions."""
    if name not in kept:
        columns = listed([shortened(column) for column in kept])
        what = f"expected a column `{shortened(name)}` that is kept with the questions, got "
        raise UserError(what + columns, setting=setting, remedy="name another column")


def _blocks(rows: list[Question], table: int, within: str | None, *, apart: bool) -> list[str]:
    """The names of the blocks of rows; one of its own for a row without a value."""
    if within is None:
        return [""] * len(rows)
    values = [block_of((row.payload or {}).get(within)) for row in rows]
    both = {*values[:table]} & {*values[table:]} - {None}
    if apart and len(rows) > table > 0 and not both:
        name = shortened(within)
        log.warning("no value of `%s` is in both tables: nothing is compared", name)
    return [
        f"alone {number >= table} {row.id}" if value is None else f"value {value}"
        for number, (row, value) in enumerate(zip(rows, values, strict=True))
    ]


def _numbered(values: Sequence[str]) -> np.ndarray:
    """The same number for equal values, int64 [n]."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], np.int64)


def _smallest_ids(rows: list[Question], entries: np.ndarray) -> np.ndarray:
    """The row of each entry with the smallest id, int64 [E]."""
    by_id = sorted(range(len(rows)), key=lambda row: order_key(rows[row].id))
    order = np.array(by_id, np.int64)
    _, first = np.unique(entries[order], return_index=True)
    return order[first]
