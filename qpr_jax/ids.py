"""Ids of questions: read from files, checked, given out, and kept distinct.

An id is a whole number from 0 to 2^63 - 1. Files of an index can hold strings as well, which the
commands and the functions of `Retriever` do not take yet.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from qpr_jax.errors import UserError

Id = int | str

LARGEST_ID = 2**63 - 1
_DIGITS = len(str(LARGEST_ID))


def parse_id(value: object) -> int | None:
    """The id that a cell or a JSON value of a file holds, None where it is none."""
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_ID:
        return None
    return value


def check_id(value: object, where: str) -> int:
    """Return an id as a Python int; a UserError, which says `where`, refuses anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UserError(f"`ids`: expected whole numbers, got {value!r} {where}")
    if not 0 <= value <= LARGEST_ID:
        raise UserError(f"`ids`: expected 0 to {LARGEST_ID}, got {value} {where}")
    return int(value)


def check_ids(ids: Sequence[int] | None, count: int, next_id: int) -> np.ndarray:
    """Return `count` distinct ids as int64 [count]; the next free ones where `ids` is None.

    Every id that a question has had is below `next_id`. UserError for anything but distinct ids.
    """
    if ids is None:
        if next_id + count > LARGEST_ID + 1:
            got = f"got none, and fewer than {count} are left above the greatest"
            raise UserError(f"`ids`: expected ids, {got}")
        return np.arange(count) + next_id if count else np.zeros(0, np.int64)
    checked = [check_id(value, f"at position {i}") for i, value in enumerate(ids)]
    if len(checked) != count:
        raise UserError(f"`ids`: expected one a question ({count}), got {len(checked)}")
    result = np.array(checked, np.int64)
    if (repeated := first_repeated(result)) is not None:
        raise UserError(f"`ids`: expected distinct ids, got {result[repeated]} twice")
    return result


def first_repeated(ids: np.ndarray) -> int | None:
    """The first position of int64 [n] whose id stands at an earlier one; None where all differ."""
    order = np.argsort(ids, kind="stable")
    repeated = order[1:][np.diff(ids[order]) == 0]
    return int(repeated.min()) if len(repeated) else None


def refuse_repeated(ids: np.ndarray, lines: Sequence[int], source: str) -> None:
    """Raise a UserError, which names the line, where an id of int64 [n] stands twice."""
    if (repeated := first_repeated(ids)) is not None:
        what = f"{source}, line {lines[repeated]}: the id {ids[repeated]} stands twice"
        raise UserError(what, remedy="give each question its own")


def number_entries(
    entries: Iterable[tuple[int, int | None, str]], lines: array.array[int], source: str
) -> Iterator[tuple[int, str]]:
    """Yield (id, question) of entries that all have an id, or all have none: then 0, 1, 2, ...

    Takes (line, id, question) and appends each line to `lines`; messages name `source` as the file.
    """
    with_ids = False
    for number, (line, value, question) in enumerate(entries):
        with_ids = with_ids if number else value is not None
        if with_ids != (value is not None):
            kind = "an" if with_ids else "no"
            what = f"{source}, line {line}: expected {kind} id, as in the rows before"
            raise UserError(what, remedy="give one to every question, or to none")
        lines.append(line)
        yield number if value is None else check_id(value, f"in {source}, line {line}"), question
