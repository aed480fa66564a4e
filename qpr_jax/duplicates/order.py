"""The order of the cells of a column: numbers of one unit, instants, or versions."""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from qpr_jax.data.frames import is_missing
from qpr_jax.errors import UserError, short
from qpr_jax.text.tokenizer import nfkc

_NONE = {"", "-", "n/a", "na", "nan", "nat", "none", "null", "<na>"}
_TRUTH = {"false": Decimal(0), "no": Decimal(0), "true": Decimal(1), "yes": Decimal(1)}
# A number with what is written around it, as of -$1,200.50 and 5 kg.
_NUMBER = re.compile(r"([^\d.,+-]*)([-+]?)([^\d.,+-]*)([.,]?\d[\d.,]*)(\D*)")
_EXACT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?inf(inity)?")
_DIVIDED = re.compile(r"(?<=\d)[ '\u2019_](?=\d{3}(?!\d))")  # of thousands
_COMMAS = re.compile(r"\d*(\.\d+)?|[1-9]\d?(,\d\d)*,\d{3}(\.\d+)?|[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_POINTS = re.compile(r"\d*(,\d+)?|[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
_VERSION = re.compile(
    r"(?:v|version)?\s*(\d+(?:\.\d+)*)(?:[-._]?(dev|a|alpha|b|beta|pre|rc)[-._]?(\d*))?(?:\+\S+)?"
)
_BEFORE = ("dev", "a", "alpha", "b", "beta", "pre", "rc")  # the release, earliest first
_OLD_OR_FAR = re.compile(r"([-+]?\d{4,})(-\d\d-\d\d.*)")
_DAY_FIRST = re.compile(r"(\d\d?)\.(\d\d?)\.(\d{4})(?!\d)(.*)")
_SAME_DAYS = 400  # years after which the calendar repeats

Keys = list[Any]


def order_of(cells: Iterable[object], column: str) -> list[tuple[int, Any]]:
    """Return keys that sort the cells of a column; no value comes before all.

    UserError for cells that have no common order, as texts, and amounts of two currencies.
    """
    texts = [None if is_missing(cell) else nfkc(f"{cell}").strip().lower() for cell in cells]
    distinct = [text for text in dict.fromkeys(texts) if text is not None and text not in _NONE]
    keys = _read(distinct)
    if keys is None:
        alone = (text for text in distinct if _read([text]) is None)
        pairs = ([distinct[0], text] for text in distinct if _read([distinct[0], text]) is None)
        first = next(alone, None)
        shown = [first] if first is not None else next(pairs, distinct[:3])
        what = f"expected numbers of one unit, instants or versions in `{column}`, got "
        remedy = "write them alike, as 1200.5 or 2024-05-01T22:00:00Z, or choose another rule"
        raise UserError(what + ", ".join(map(short, shown)), setting="keep", remedy=remedy)
    found = dict(zip(distinct, keys, strict=True))
    return [(1, found[text]) if text in found else (0, 0) for text in texts]


def _read(texts: list[str]) -> Keys | None:
    """Return a key for each text by the first reading that fits all; None for none."""
    if all(map(_EXACT.fullmatch, texts)):
        keys = [Decimal(text) for text in texts]
        return None if _may_be_others(texts, keys) else keys
    readings: tuple[Callable[[list[str]], Keys | None], ...] = (_amounts, _instants, _versions)
    return next((keys for keys in (read(texts) for read in readings) if keys is not None), None)


def _amounts(texts: list[str]) -> Keys | None:
    """Read numbers of one unit that are written in one way; None where that is in doubt."""
    if {*texts} <= {*_TRUTH}:
        return [_TRUTH[text] for text in texts]
    units, signs, numbers = set(), [], []
    for text in texts:
        match = _NUMBER.fullmatch(_DIVIDED.sub("", text.replace("\u2212", "-")))
        if match is None:
            return None
        before, sign, inner, number, after = match.groups()
        unit = f"{before}{inner}{after}".strip()
        is_account = unit.startswith("(") and unit.endswith(")")  # (5) is -5
        units.add(unit[1:-1].strip() if is_account else unit)
        signs.append("-" if is_account or sign == "-" else "")
        numbers.append(number)
    if len(units) > 1 or units <= {"v", "version"}:
        return None
    commas = all(map(_COMMAS.fullmatch, numbers))
    points = all(map(_POINTS.fullmatch, numbers))
    if commas and points and any("." in number for number in numbers):
        return None  # 1.200 and 950
    if not (commas or points):
        return None
    marks = (",", ".") if commas else (".", ",")
    plain_numbers = (number.replace(marks[0], "").replace(marks[1], ".") for number in numbers)
    return [Decimal(sign + number) for sign, number in zip(signs, plain_numbers, strict=True)]


def _may_be_others(texts: list[str], keys: Keys) -> bool:
    """Return whether plain numbers may be versions, as 1.9 and 1.10, or have points at thousands.

    It matters only where the order is another one.
    """
    dotted = [text for text in texts if "." in text]
    lengths = {len(text.partition(".")[2]) for text in dotted}
    readings: list[Keys | None] = []
    if len(lengths) > 1 and any(text.endswith("0") and text[-2] != "." for text in dotted):
        readings.append(_versions(texts))
    if dotted and all(map(_POINTS.fullmatch, texts)):
        readings.append([int(text.replace(".", "")) for text in texts])
    places = range(len(keys))
    order = sorted(places, key=keys.__getitem__)
    return any(other and sorted(places, key=other.__getitem__) != order for other in readings)


def _instants(texts: list[str]) -> Keys | None:
    """Read dates and times, all with a time zone or all without."""
    keys = [_instant(text) for text in texts]
    zoned = {key[1].tzinfo is not None for key in keys if key is not None}
    return keys if None not in keys and len(zoned) < 2 else None


def _instant(text: str) -> tuple[int, datetime.datetime] | None:
    """Return the years before a calendar of years 1 to 9999, and the time in that."""
    text = re.sub(r"\s*(utc|gmt|z)$", "+00:00", text)
    text = re.sub(r"^(\d{4})/(\d\d?)/(\d\d?)", r"\1-\2-\3", text)
    if found := _DAY_FIRST.fullmatch(text):
        day, month, year, rest = found.groups()
        text = f"{year}-{month:0>2}-{day:0>2}{rest}"
    text = re.sub(r"^(\d{4})-(\d)-", r"\1-0\2-", text)
    text = re.sub(r"^(\d{4}-\d\d)-(\d)(?!\d)", r"\1-0\2", text)
    shift = 0
    if (found := _OLD_OR_FAR.fullmatch(text)) and not 0 < int(found[1]) < 10_000:
        year = 2000 + int(found[1]) % _SAME_DAYS
        shift, text = int(found[1]) - year, f"{year}{found[2]}"
    try:
        return shift, datetime.datetime.fromisoformat(text.upper())
    except ValueError:
        pass
    try:
        return shift, email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None


def _versions(texts: list[str]) -> Keys | None:
    """Read versions, of which one has a point at least, and one is no number."""
    found = [_VERSION.fullmatch(text) for text in texts]
    if not any("." in text for text in texts):
        return None
    keys: Keys = []
    for version in found:
        if version is None:
            return None
        parts = [*map(int, version[1].split("."))]
        while parts and parts[-1] == 0:
            parts.pop()
        rank = _BEFORE.index(version[2]) if version[2] else len(_BEFORE)
        keys.append((tuple(parts), rank, int(version[3] or 0)))
    return keys
