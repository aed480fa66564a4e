"""The rows whose duplicates are searched, and the distinct texts among them, the entries.

An entry has all rows of one `folded` text, so copies are compared once.

Entries are in the order of their texts, so that nothing depends on the order of the rows.
"""

from __future__ import annotations

import collections
import json
import logging
import operator
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qpr_jax.data.columns import listed
from qpr_jax.data.entries import id_key, is_missing, numbered, order_key
from qpr_jax.encoders.encoder import Encoder, encode_in_parts
from qpr_jax.errors import UserError, check_number, counted, did_you_mean, shortened
from qpr_jax.index.close_pairs import Compare
from qpr_jax.index.protocol import Question
from qpr_jax.text.cleaning import (
    Cleaner,
    folded,
    has_word,
    number_key,
    without_numbers,
    without_unseen,
)

log = logging.getLogger("qpr_jax")

Linkage = Literal["complete", "closure"]
LINKAGES: tuple[Linkage, ...] = ("complete", "closure")
RULES = ("first", "longest", "central")  # of the row that stays
_COLUMN = "max:"
_WHOLE = re.compile(r"(-?\d+)\.0+")  # a whole number that a table of floats has


@dataclass(frozen=True)
class Rows:
    """The R rows of a search and their E entries. Rows of the table come first."""

    questions: list[Question]
    table_rows: int  # how many of them are of the table
    by_id: np.ndarray  # int64 [R], the rows in the order of their ids
    entries: np.ndarray  # int64 [R], the entry of each row
    entry_texts: list[str]  # what is encoded
    first: np.ndarray  # int64 [E], the row of an entry with the smallest id, which stands for it
    folded: np.ndarray  # int64 [E], equal for entries of both tables with one folded text
    names: np.ndarray  # int64 [E], equal for entries with one value of `block_on`
    numbers: np.ndarray  # int64 [E], equal for entries with the same numbers; 0 for none
    blocks: np.ndarray  # int64 [E], equal for entries equal in both
    is_new: np.ndarray  # bool [E], whether a row of the table is in it
    fields: list[str]  # the names in the payloads
    apart: bool  # whether rows of the table are compared with the others only

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def compare(self) -> Compare:
        """Which entries are compared, as of `close_pairs`."""
        if self.apart:
            return "across"
        return "new" if len(self) > self.table_rows else "all"


def make_rows(
    table: Sequence[Question],
    others: Sequence[Question] = (),
    *,
    block_on: str | None = None,
    apart: bool = False,
    ignore_numbers: bool = False,
    cleaner: Cleaner | None = None,
) -> Rows:
    """Find the distinct texts of a table and of what it is compared with.

    Other arguments are those of `find_duplicates`.

    Args:
      table, others: ids are distinct in each.
      apart: whether rows of the table are compared with the others only; then a text of both is
        two entries, one of each.
      cleaner: of what is compared; None: that of the texts.
    """
    rows = [*table, *others]
    fields = [*dict.fromkeys(name for row in rows for name in row.payload or ())]
    names = _blocks(rows, len(table), block_on, apart=apart)
    if block_on is not None and rows:
        require_column(block_on, fields, "block_on")
    texts = [row.text for row in rows]
    compared = _cleaned(texts, cleaner)
    spelled = _spelled(texts, ignore_numbers=ignore_numbers)
    least: dict[str, str] = {}  # what is encoded
    for near, text in zip(compared, texts, strict=True):
        value = spelled[text]
        least[value] = min(near, least.get(value, near))
    numbers = {
        value: "" if ignore_numbers else number_key(folded(near)) for value, near in least.items()
    }
    keys = []
    for place, (text, name) in enumerate(zip(texts, names, strict=True)):
        value = spelled[text]
        name = name if has_word(value) else f"{name} signs {value}"
        keys.append((value, name, numbers[value], apart and place >= len(table)))
    distinct = sorted({*keys})
    number = {key: i for i, key in enumerate(distinct)}
    entries = np.array([number[key] for key in keys], np.int64)
    by_id = np.array(sorted(range(len(rows)), key=lambda i: order_key(rows[i].id)), np.int64)
    _, first = np.unique(entries[by_id], return_index=True)
    is_new = np.zeros(len(distinct), bool)
    is_new[entries[: len(table)]] = True
    return Rows(
        questions=rows,
        table_rows=len(table),
        by_id=by_id,
        entries=entries,
        entry_texts=[least[key[0]] for key in distinct],
        first=by_id[first],
        folded=numbered([key[:2] for key in distinct]),
        names=numbered([key[1] for key in distinct]),
        numbers=numbered(["", *(key[2] for key in distinct)])[1:],
        blocks=numbered([key[1:3] for key in distinct]),
        is_new=is_new,
        fields=fields,
        apart=apart,
    )


def _cleaned(texts: list[str], cleaner: Cleaner | None) -> list[str]:
    """Leave HTML and shared sentences out, and say how many rows have some.

    Texts that would be equal without them stay as they are, if each lacks some of the other.
    """
    cleaner = Cleaner.of(texts) if cleaner is None else cleaner
    if cleaner.shared is None:
        return texts
    texts = [*map(without_unseen, texts)]
    plain, near_texts = Cleaner({}).clean_all(texts), cleaner.clean_all(texts)
    if tagged := sum(map(operator.ne, plain, texts)):
        log.info("rows that are compared without their HTML (see `clean=False`): %s", f"{tagged:,}")
    if cleaner.shared:
        log.info(
            "%s that many rows share, such as %r, are left out (see `clean=False`), in rows: %s",
            counted(len(cleaner.shared), "sentence"),
            shortened(next(iter(cleaner.shared)), 60),
            f"{sum(map(operator.ne, near_texts, plain)):,}",
        )
    groups: dict[str, set[str]] = collections.defaultdict(set)
    for text, near in zip(texts, near_texts, strict=True):
        if near != text:
            groups[folded(near)].add(text)
    apart = {text for group in groups.values() for text in cleaner.told_apart(group)}
    return [text if text in apart else near for text, near in zip(texts, near_texts, strict=True)]


def _spelled(texts: Iterable[str], *, ignore_numbers: bool) -> dict[str, str]:
    """Return the folded form of each text; say how many differ from others in numbers only."""
    spelled = {text: folded(text) for text in {*texts}}
    masked = {value: without_numbers(value) for value in spelled.values()}
    uses = collections.Counter(masked.values())
    count = sum(number for number in uses.values() if number > 1)
    if count:
        text = "%s texts differ from others in numbers only"
        text += "" if ignore_numbers else ", so all are kept; `ignore_numbers=True` joins them"
        log.info(text, f"{count:,}")
    if ignore_numbers:
        return {text: masked[value] for text, value in spelled.items()}
    return spelled


def leave_out_indexed(
    table: Sequence[Question],
    stored: Sequence[Question],
    block_on: str | None,
    *,
    by_text: bool,
    replace: bool,
) -> tuple[list[Question], list[Question]]:
    """Return the rows that an index lacks, and the stored ones that they do not replace.

    The index has a row if it has its text and block; unless `by_text`, under its id. A row whose id
    the index has with another text replaces that if `replace`, and otherwise is a UserError.
    """

    def content(row: Question) -> tuple[str, str | None]:
        value = None if block_on is None else (row.payload or {}).get(block_on)
        return row.text, block_of(value)

    if by_text:
        contents = {content(row) for row in stored}
        return [row for row in table if content(row) not in contents], [*stored]
    old = {id_key(row.id): row for row in stored}
    new, replaced, lost = [], set(), []
    for row in table:
        key = id_key(row.id)
        if key in old and content(old[key]) == content(row):
            continue
        new.append(row)
        if key in old:
            replaced.add(key)
            if folded(old[key].text) != folded(row.text):
                lost.append(row.id)
    if lost and not replace:
        what = f"ids that other questions have in the index: {len(lost):,}, such as "
        remedy = "give other ids or none, or replace these questions with `replace=True`"
        raise UserError(f"{what}{lost[0]!r}", remedy=remedy)
    return new, [row for row in stored if id_key(row.id) not in replaced]


def encode_entries(
    rows: Rows,
    encoder: Encoder,
    stored: Iterable[tuple[Sequence[Question], np.ndarray]] = (),
    *,
    cleaner: Cleaner,
) -> np.ndarray:
    """Return the vectors of entries, float32 [E, d]; equal texts have equal vectors.

    stored: questions, and their vectors, that need not be encoded, in parts; these are of what the
    `cleaner` leaves.
    """
    vectors = np.zeros((len(rows.first), encoder.dimension), np.float32)
    done = np.zeros(len(vectors), bool)
    others = enumerate(rows.questions[rows.table_rows :], rows.table_rows)
    places = {id_key(question.id): row for row, question in others}
    for questions, values in stored:
        for question, vector in zip(questions, values, strict=True):
            row = places.get(id_key(question.id))
            if row is not None:
                entry = rows.entries[row]
                if rows.entry_texts[entry] == cleaner.clean(question.text):
                    vectors[entry], done[entry] = vector, True
    left = np.flatnonzero(~done)
    texts = [rows.entry_texts[entry] for entry in left.tolist()]
    distinct = [*dict.fromkeys(texts)]
    place = {text: i for i, text in enumerate(distinct)}
    encoded = encode_in_parts(encoder, distinct)
    vectors[left] = encoded[np.array([place[text] for text in texts], np.int64)]
    return vectors


def block_of(value: object) -> str | None:
    """Return the block of rows with this value: its text, "1" for 1.0; None without one."""
    if is_missing(value):
        return None
    if isinstance(value, str):
        value = without_unseen(value).strip()
        whole = _WHOLE.fullmatch(value)
        return whole[1] if whole else (value or None)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def require_column(name: str, kept: Collection[str], setting: str) -> None:
    """UserError unless a column is among those that are kept with questions."""
    if name not in kept:
        columns = listed([shortened(column) for column in kept])
        what = f"expected a column `{shortened(name)}`{did_you_mean(name, kept)} that is kept with "
        what += "the questions, got "
        remedy = 'name another column; that of the ids is kept with `id_column=""`'
        raise UserError(what + columns, setting=setting, remedy=remedy)


def _blocks(rows: list[Question], table: int, block_on: str | None, *, apart: bool) -> list[str]:
    """Return the names of the blocks of rows; one of its own for a row without a value."""
    if block_on is None:
        return [""] * len(rows)
    values = [block_of((row.payload or {}).get(block_on)) for row in rows]
    both = {*values[:table]} & {*values[table:]} - {None}
    if apart and len(rows) > table > 0 and not both:
        name = shortened(block_on)
        log.warning("no value of `%s` is in both tables: nothing is compared", name)
    return [
        f"alone {number >= table} {row.id}" if value is None else f"value {value}"
        for number, (row, value) in enumerate(zip(rows, values, strict=True))
    ]


def check_bound(name: str, value: object) -> float | None:
    """Return a `threshold` or `max_distance` as a number, None for none; UserError for others."""
    if value is None:
        return None
    if name == "threshold":
        return check_number(name, value, "a score, 0 to 1", 0, 1)
    # A larger distance is a mistake.
    return check_number(name, value, "a squared distance of 0 or more", 0, 1e300)


def check_linkage(linkage: Linkage) -> Linkage:
    """Return a linkage; UserError for what is none."""
    if linkage not in LINKAGES:
        what = f"expected one of {', '.join(LINKAGES)}, got {linkage!r}"
        raise UserError(what, setting="groups")
    return linkage


def column_of(keep: str) -> str | None:
    """Return the column of a rule `max:COLUMN`; None for one of RULES; UserError for any other."""
    if keep in RULES:
        return None
    column = keep.removeprefix(_COLUMN) if isinstance(keep, str) else ""
    if not column or column == keep:
        rules = f"{', '.join(RULES)} or {_COLUMN}COLUMN"
        raise UserError(f"expected {rules}, got {keep!r}", setting="keep")
    return column
