"""Which column of a table is the question, which the id, and which are kept as payload."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import UserError

Fields = Mapping[str, object]
Rows = Iterator[tuple[int, Fields | str]]  # the line of a row; its fields, or what is wrong
# From the names of all columns to those that are read, none where they are a row of a text file
# without a header; of JSON all keys are read.
Choose = Callable[[Sequence[str]], Iterable[str]]

_TEXT_NAMES = (
    "question text query title sentence questions queries prompt utterance subject question_text "
    "query_text question_title"
)
TEXT_NAMES = tuple(_TEXT_NAMES.split())
ID_NAMES = ("id", "qid", "_id", "question_id", "query_id", "uuid")
_PANDAS_INDEX = "__index_level_"  # in a Parquet file, an index without a name
_NAME_TEXT = "name the question's column (`text_column`, `--text-column`, `data.question_column`)"
_NAME_ID = "name the id's column (`id_column`, `--id-column`)"


class Chosen(NamedTuple):
    """The columns of the question, of the id ("" for none), of the payload, and all in order."""

    text: str
    id: str
    payload: tuple[str, ...]
    names: tuple[str, ...]


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

    def choose(self, names: Sequence[str], *, in_text: bool = False) -> Chosen:
        """The columns among these names; a UserError lists them where it cannot choose.

        in_text: the names are the first line of a text file. An only column is the question's then
          if a word of its name is usual; else there may be no header, or another separator.
        """
        text = self.text or _usual(names, TEXT_NAMES, remedy=_NAME_TEXT)
        if not text and len(names) == 1 and names[0].lower() not in ID_NAMES:
            text = names[0] if not in_text or _has_usual_word(names[0]) else ""
        if not text:
            what = f"expected a column of questions ({', '.join(TEXT_NAMES[:4])}, ...)"
            other = ", or another format, such as `lines`" if in_text and len(names) == 1 else ""
            if {"question1", "question2"} <= {*names}:
                other = "; pairs are for `qpr train`, `qpr evaluate`, `qpr rerank`"
            raise UserError(f"{what}, got {listed(names)}", remedy=_NAME_TEXT + other)
        others = [name for name in names if name and name != text]
        key = "" if self.id is None else self.id or _usual(others, ID_NAMES, remedy=_NAME_ID)
        others = [name for name in others if name != key and not name.startswith(_PANDAS_INDEX)]
        payload = tuple(dict.fromkeys(others if self.payload is True else self.payload or ()))
        require(names, [text], remedy=_NAME_TEXT)
        require(names, [key], remedy=_NAME_ID)
        chosen = {text, key, *payload} - {""}
        return Chosen(text, key, payload, tuple(name for name in names if name in chosen))

    def choose_of(self, source: str, names: Sequence[str], *, in_text: bool = False) -> Chosen:
        """As `choose`, with all columns of the payload; a UserError names the source."""
        try:
            chosen = self.choose(names, in_text=in_text)
            require(names, chosen.payload, remedy="name others with `--payload`")
        except UserError as error:
            raise UserError(f"{source}: {error.what}", remedy=error.remedy) from None
        return chosen


def require(
    names: Sequence[str], required: Sequence[str], *, remedy: str, source: str = ""
) -> Sequence[str]:
    """Return the `required` columns, "" for none; a UserError names one that is not there once."""
    start = f"{source}: " if source else ""
    for name in filter(None, required):
        if name not in names:
            what = f"{start}expected a column `{name}`, got {listed(names)}"
            raise UserError(what, remedy=remedy)
        if names.count(name) > 1:
            what = f"{start}expected one column `{name}`, got {names.count(name)}"
            raise UserError(what, remedy="rename some")
    return required


def _usual(names: Sequence[str], usual: Sequence[str], *, remedy: str) -> str:
    """The usual name, the first of `usual` before others; "" for none, UserError for several."""
    found = [name for name in dict.fromkeys(names) if name.strip().lower() in usual]
    best = [name for name in found if name.strip().lower() == usual[0]]
    if len(best) == 1:
        return best[0]
    if len(found) > 1:
        what = f"expected one column of the {usual[0]}, got {listed(found)}"
        raise UserError(what, remedy=remedy)
    return found[0] if found else ""


def _has_usual_word(header: str) -> bool:
    """Whether a word of a column's name is usual, as of `Customer question`."""
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


def to_json(value: object) -> Any:
    """Return a value as JSON keeps it: times as ISO 8601, other kinds of objects as text.

    UserError for NaN and infinity, which JSON lacks, and for a nesting that is too deep.
    """
    try:
        return json.loads(json.dumps(value, default=_plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserError(f"expected payload that JSON can hold ({error})") from None
    except RecursionError:
        raise UserError("expected payload that is nested less deeply") from None


def _plain(value: Any) -> object:
    """Return an object that JSON lacks as one that it has."""
    match value:
        case _ if is_missing(value):  # also times that are none
            return None
        case Mapping():
            return dict(value)
        case set() | np.ndarray():
            return list(value)
        case bytes():
            return value.decode(errors="backslashreplace")
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case np.timedelta64():
            return float(value / np.timedelta64(1, "s"))
        case np.generic() if not isinstance(value, np.datetime64):
            return value.item()
    return str(value)
