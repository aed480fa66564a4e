"""Ids of questions: read from files, checked, given out, and kept distinct.

An id is a whole number from 0 to 2^63 - 1, or a string of 1 to 1,024 bytes of UTF-8. It goes out as
it came. Ids that print alike, such as 7 and "7", are one id: they have the same `id_key`.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from qpr_jax.errors import UserError, short

Id = int | str

LARGEST_ID = 2**63 - 1
LARGEST_BYTES = 1024  # of a string
EXPECTED = f"a whole number from 0 to 2^63 - 1, or a string of 1 to {LARGEST_BYTES:,} bytes"
_DIGITS = len(str(LARGEST_ID))
_EXACT = 2**53  # from here on, a float can be another number than it was written as


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


def pair_codes(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Return a number for each pair of numbers below `count`, in either order: int64 [n]."""
    low, high = np.minimum(first, second).astype(np.int64), np.maximum(first, second)
    return low * count + high
