"""Groups of duplicates: how pairs join them, which row of one stays, and the words that name it.

There are two linkages, the same whatever the order of rows:

closure    joins what any chain of pairs links, but no texts of different numbers
complete   joins two groups where all pairs between them were found

Both take the strongest pairs first. A pair joins the groups of its two entries unless the linkage
refuses; the last pair that joined a group is its weakest link.
"""

from __future__ import annotations

import collections
import datetime
import email.utils
import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.entries import is_missing
from qpr_jax.duplicates.rows import Linkage, Rows, column_of, require_column
from qpr_jax.errors import UserError, short
from qpr_jax.pair_model.guards import SMALL_WORDS
from qpr_jax.text.tokenizer import nfkc, tokenize

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
_MORE = "about after also d he her his into like ll m need re s she some ve want"
_EMPTY = SMALL_WORDS.union(_MORE.split())


class RowGroup(NamedTuple):
    """Rows of one group."""

    members: list[int]  # rows, by id
    last: int  # the place of the pair that joined the group last; -1 for copies of one text
    kept: int  # the row that stands for all


def group_entries(
    numbers: np.ndarray, first: np.ndarray, second: np.ndarray, linkage: Linkage
) -> tuple[np.ndarray, np.ndarray]:
    """Group N entries by pairs of them, int64 [P] each, strongest first.

    Complete linkage takes about 300 bytes a pair.

    Args:
      numbers: int64 [N], equal for entries with the same numbers; 0 for none.
      first, second: the entries of each pair.
      linkage: which pairs join two groups.

    Returns:
      The first entry of the group of each entry, int64 [N], and, at these entries, the place of the
      pair that joined the group last, else -1.
    """
    count = len(numbers)
    parents = [*range(count)]
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    if linkage == "complete":
        joins = np.array(_join_complete(parents, pairs), np.int64)
    else:
        joins = np.array(_join_all(parents, pairs, numbers.tolist()), np.int64)
    roots = np.array([_root(parents, entry) for entry in range(count)], np.int64)
    _, at, inverse = np.unique(roots, return_index=True, return_inverse=True)
    roots = at[inverse]
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, roots[first[joins]], joins)
    return roots, last


def _root(parents: list[int], entry: int) -> int:
    while parents[entry] != entry:
        parents[entry] = parents[parents[entry]]
        entry = parents[entry]
    return entry


def _join_all(
    parents: list[int], pairs: Iterable[tuple[int, int]], numbers: list[int]
) -> list[int]:
    """Change the parents to those of the groups; return the places of the pairs that join two.

    numbers: as of `group_entries`; changed to those of the groups.
    """
    joins = []
    for place, (one, other) in enumerate(pairs):
        a, b = _root(parents, one), _root(parents, other)
        if a != b and (numbers[a] == numbers[b] or not (numbers[a] and numbers[b])):
            joins.append(place)
            parents[max(a, b)] = min(a, b)
            numbers[min(a, b)] = numbers[a] or numbers[b]
    return joins


def _join_complete(parents: list[int], pairs: Iterable[tuple[int, int]]) -> list[int]:
    """As `_join_all`, but a pair joins two groups only if it is the last one between them."""
    sizes, joins = [1] * len(parents), []
    close: dict[int, dict[int, int]] = {}  # root -> other root -> pairs between them so far
    for place, (one, other) in enumerate(pairs):
        a, b = _root(parents, one), _root(parents, other)
        if a == b:
            continue
        of_a, of_b = close.setdefault(a, {}), close.setdefault(b, {})
        of_a[b] = of_b[a] = of_a.get(b, 0) + 1
        if of_a[b] < sizes[a] * sizes[b]:
            continue
        joins.append(place)
        if len(of_a) < len(of_b):
            a, b, of_a, of_b = b, a, of_b, of_a
        parents[b] = a
        sizes[a] += sizes[b]
        del of_a[b], of_b[a], close[b]
        for third, number in of_b.items():
            of_third = close[third]
            del of_third[b]
            of_a[third] = of_third[a] = of_a.get(third, 0) + number
    return joins


def group_rows(
    rows: Rows, entry_roots: np.ndarray, last: np.ndarray, vectors: np.ndarray, keep: str
) -> list[RowGroup]:
    """Make the groups of rows from those of their entries, the largest first.

    Rows of one text are a group, too, unless two tables are compared.

    Args:
      rows: the rows; one that the table is compared with comes before its own.
      entry_roots, last: of `group_entries`.
      vectors, keep: as of `choose_kept`.
    """
    roots = entry_roots[rows.entries]
    sizes = np.bincount(roots, minlength=len(last))
    copies = np.bincount(rows.entries, minlength=len(rows.first))
    copied = (copies > 1) & rows.is_new & (not rows.apart)
    order = row_order(keep, rows)
    grouped = np.flatnonzero((last >= 0) | (copied & (entry_roots == np.arange(len(copied)))))
    by_root = rows.by_id[np.argsort(roots[rows.by_id], kind="stable")]
    starts = np.cumsum(np.append(0, sizes))
    groups = []
    for root in grouped[np.argsort(-sizes[grouped], kind="stable")].tolist():
        members = by_root[starts[root] : starts[root + 1]].tolist()
        allowed = [row for row in members if row >= rows.table_rows] or members
        kept = choose_kept(keep, rows, allowed, vectors, order)
        groups.append(RowGroup(members, int(last[root]), kept))
    return groups


def choose_kept(
    keep: str, rows: Rows, members: Sequence[int], vectors: np.ndarray, order: Sequence[Any]
) -> int:
    """Return the row of a group that is kept, of equal ones the first of `members`.

    Args:
      keep: as of `find_duplicates`.
      rows, members: all rows, and those of the group.
      vectors: float32 [E, d], of the entries.
      order: of `row_order`.
    """
    if keep == "first":
        return min(members)
    if keep == "longest":
        return max(members, key=lambda row: len(rows.questions[row].text))
    if keep == "central":
        return central_row(rows, members, vectors)
    return max(members, key=order.__getitem__)


def central_row(rows: Rows, members: Sequence[int], vectors: np.ndarray) -> int:
    """Return the row of a group that is nearest to the mean of its vectors; see `choose_kept`."""
    exact = vectors[rows.entries[[*members]]].astype(np.float64)
    return members[int(((exact - exact.mean(axis=0)) ** 2).sum(axis=1).argmin())]


def row_order(keep: str, rows: Rows) -> Sequence[Any]:
    """Return what rows are compared by with "max:COLUMN", a key a row; UserError where it fails."""
    if (column := column_of(keep)) is None:
        return []
    if rows.table_rows:
        require_column(column, rows.fields, "keep")
    return order_of([(row.payload or {}).get(column) for row in rows.questions], column)


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
    """Return whether other readings, versions or points at thousands, give another order."""
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


def group_words(groups: Sequence[Sequence[str]], texts: Iterable[str]) -> list[list[str]]:
    """Return the words of each group that say most about it, best first.

    Three at most, that say what a text is about, and are in half of the texts or more. It counts
    by this share, times the logarithm of how rare it is in all texts; half of the best is least.

    Args:
      groups: the texts of each group.
      texts: all texts, those of the groups included.
    """
    counts: collections.Counter[str] = collections.Counter()
    total = 0
    for text in texts:
        counts.update({*tokenize(text)})
        total += 1
    names = []
    for group in groups:
        inside = collections.Counter(word for text in group for word in {*tokenize(text)})
        weights = {
            word: -number / len(group) * math.log(total / counts[word])
            for word, number in inside.items()
            if 2 * number >= len(group) and counts[word] < total and word not in _EMPTY
        }
        best = sorted(weights, key=lambda word: (weights[word], word))[:3]
        names.append([word for word in best if 2 * weights[word] <= weights[best[0]]])
    return names
