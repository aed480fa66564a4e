"""Which column of a table is the question, which the id, and which are kept as payload."""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import UserError

_TEXT_NAMES = (
    "question text query title sentence questions queries prompt utterance subject question_text "
    "query_text question_title"
)
TEXT_NAMES = tuple(_TEXT_NAMES.split())
ID_NAMES = ("id", "qid", "_id", "question_id", "query_id", "uuid")
_NAME_TEXT = "name the question's column (`text_column`, `--text-column`)"
_NAME_ID = "name the id's column (`id_column`, `--id-column`)"


class Chosen(NamedTuple):
    """The columns of a table: of the question, of the id ("" for none), and of the payload."""

    text: str
    id: str
    payload: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """Which columns of a table to read.

    Attributes:
      text: the question's; if empty, that with a usual name (TEXT_NAMES, in any case), or the only
        one.
      id: the id's; if empty, that with a usual name (ID_NAMES), if there is one; None: no ids.
      payload: kept with a question: all others (True), none (False), or these.
    """

    text: str = ""
    id: str | None = ""
    payload: bool | tuple[str, ...] = False

    def choose(
        self, names: Sequence[str], *, in_text: bool = False, optional: bool = False
    ) -> Chosen:
        """The columns among these names; a UserError lists them where it cannot choose.

        in_text: the names are the first line of a text file, or keys. An only column is the
          question's then if a word of its name is usual; else the line may be the first question
          of a file without a header, or have another separator.
        optional: other rows may have other names, so that those of the payload may be missing.
        """
        text = self.text or _usual(names, TEXT_NAMES, remedy=_NAME_TEXT)
        if not text and len(names) == 1 and names[0].lower() not in ID_NAMES:
            text = names[0] if not in_text or _has_usual_word(names[0]) else ""
        if not text and in_text and len(names) == 1:
            raise UserError(
                f"expected a header with a column of questions, got {listed(names)}",
                remedy=f"{_NAME_TEXT}, or, if it is a question, read it as format `lines`",
            )
        if not text:
            raise UserError(
                f"expected a column of questions ({', '.join(TEXT_NAMES[:4])}, ...), got "
                f"{listed(names)}",
                remedy=_NAME_TEXT,
            )
        key = ""
        if self.id is not None:
            others = [name for name in names if name != text]
            key = self.id or _usual(others, ID_NAMES, remedy=_NAME_ID)
        payload: tuple[str, ...] = ()
        if self.payload is True:
            payload = tuple(name for name in names if name and name not in (text, key))
        elif self.payload:
            payload = tuple(dict.fromkeys(self.payload))
        _require(names, [text], remedy=_NAME_TEXT)
        _require(names, [key], remedy=_NAME_ID)
        if not optional:
            _require(names, payload, remedy="name others with `--payload`")
        return Chosen(text, key, payload)

    def choose_late(self, names: Sequence[str], first: Chosen) -> Chosen:
        """The columns of a row with other names than the first, whose columns are `first`."""
        _require(names, [first.text], remedy="leave the row out with `--skip-bad-rows`")
        key = first.id if first.id in names else ""
        if not first.id and self.id == "":
            others = [name for name in names if name != first.text]
            key = _usual(others, ID_NAMES, remedy=_NAME_ID)
        payload = first.payload
        if self.payload is True:
            payload = tuple(name for name in names if name not in (first.text, key))
        return Chosen(first.text, key, payload)


def _require(names: Sequence[str], required: Sequence[str], *, remedy: str) -> None:
    """UserError where a column is not there; "" stands for none."""
    for name in required:
        if name and name not in names:
            what = f"expected a column `{name}`, got {listed(names)}"
            raise UserError(what, remedy=remedy)


def _usual(names: Sequence[str], usual: Sequence[str], *, remedy: str) -> str:
    """The one name that is usual, the first of `usual` before others; "" for none.

    Raises:
      UserError: there are several.
    """
    found = [name for name in names if name.strip().lower() in usual]
    best = [name for name in found if name.strip().lower() == usual[0]]
    if len(best) == 1:
        return best[0]
    if len(found) > 1:
        what = f"expected one column of the {usual[0]}, got {listed(found)}"
        raise UserError(what, remedy=remedy)
    return found[0] if found else ""


def _has_usual_word(header: str) -> bool:
    """Whether a word of the name of a column is usual, as of `Customer question`."""
    words = re.split(r"[\W_]+", header.lower())
    plain = len(words) <= 4 and not {*"?;,|\t"} & {*header}  # else it may be several names
    return plain and not {*words}.isdisjoint(TEXT_NAMES)


def listed(names: Sequence[str]) -> str:
    """The names of columns in a message: 20 at most."""
    more = f" and {len(names) - 20} others" if len(names) > 20 else ""
    return ", ".join(f"`{name[:40]}`" for name in names[:20]) + more if names else "none"


def is_missing(value: object) -> bool:
    """Whether a cell has no value: None, NaN, or a time that is none."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas' NA; an array
        return type(value).__name__ == "NAType"


def to_json(value: object) -> object:
    """Return a value as JSON keeps it: times as ISO 8601, bytes as text or base64.

    UserError for NaN and infinity, which JSON lacks.
    """
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UserError(f"expected finite numbers in the payload, got {float(value)}")
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | np.ndarray):
        return [to_json(item) for item in value]
    return _other_to_json(value)


def _other_to_json(value: Any) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return base64.b64encode(data).decode()
    if is_missing(value):  # also times that are none
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value))
    if isinstance(value, np.timedelta64):
        return float(value / np.timedelta64(1, "s"))
    if isinstance(value, np.generic):
        return to_json(value.item())
    return str(value)
