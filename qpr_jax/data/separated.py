"""Rows of CSV and TSV files: separators, quotes, lone quotes; and a column of ids by its values."""

from __future__ import annotations

import collections
import contextlib
import csv
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence

from qpr_jax.data.typed_rows import Line, Read
from qpr_jax.errors import UserError
from qpr_jax.kinds import ID_NAMES, TEXT_NAMES, is_id_name
from qpr_jax.running import quiet

log = logging.getLogger("qpr_jax")

Cells = list[str] | str  # of a row, or what is wrong

_LONGEST_ROW = 5000  # lines of a row whose cells hold line ends
_LONGEST_ID = 40  # characters
_SHORT = 100_000  # characters of a row, which the csv of Python reads
_SHOWN_LINES = 20  # that show the separator of a CSV file
_SEPARATORS = ",;\t|\x01\x1f"  # that need no other sign of it
_OPEN = "not CSV (a quote is not closed)"
# Signs that a name of a column lacks, so that they may divide names.
_SIGNS = re.compile(r"[\x00-\x08\x0e-\x1f]+|[^\w\s\"'()\[\]?!.,;|/&#-]+")


def read_cells(
    lines: Iterator[Line], separator: str, kind: str, source: str
) -> Iterator[tuple[int, Cells]]:
    r"""Yield the line where each row that is not blank begins, and its cells or what is wrong.

    Where quotes do not fit, they are characters in a TSV file, and a bad row of one line in CSV. A
    quote within quotes is doubled, or, where that does not fit, has a backslash before it. Blanks
    may be between a separator and a quote.
    """
    ahead: collections.deque[Line] = collections.deque()  # lines read while a quote was open
    blanks = " " if kind == "csv" else ""  # that may stand before and after a quoted cell
    skipped = " *" if blanks else ""
    quote = re.compile(rf'(?:^|{re.escape(separator)}){skipped}"')
    width = 0  # cells of the first row
    swallowed: list[int] = []  # lines in quoted cells that look like rows

    def next_line() -> Line | None:
        return ahead.popleft() if ahead else next(lines, None)

    for number, line in iter(next_line, None):
        if isinstance(line, UserError):
            yield number, line.what
            continue
        line = line.removeprefix("\ufeff")  # of files that were joined
        cells: Cells = line.rstrip("\r").split(separator)
        rest: list[Line] = []
        if (plain := _plain_cells(line, separator)) and width in (0, len(plain)):
            cells = plain
        elif quote.search(line):
            readings = []
            for escape in ("", "\\"):
                found, rest = _quoted_cells(line, next_line, separator, escape, blanks)
                ahead.extendleft(reversed(rest))
                escaped = any('\\"' in f"{text}" for _, text in [(number, line), *rest])
                alike = _like_rows(line, rest, separator, width)
                fits = isinstance(found, list) and width in (0, len(found))
                if not fits and (rest or kind == "tsv"):
                    found, rest = (_OPEN if isinstance(found, list) else found), []
                readings.append((fits and not alike, fits, found, rest, alike))
                if (fits and not alike) or not escaped:
                    break
            _, fits, found, rest, alike = max(readings, key=lambda reading: reading[:2])
            if kind == "csv" or (fits and not (alike and width > 1)):
                cells = found
                rest = [ahead.popleft() for _ in rest] if fits else []
                swallowed += [at for at, _ in rest if alike]
                wrong = [text.what for _, text in rest if isinstance(text, UserError)]
                cells = wrong[0] if wrong else cells
        # A row of several lines is no blank line, even if its cells are blank.
        if isinstance(cells, str) or rest or any(map(str.strip, cells)):
            width = width or len(cells)
            yield number, cells
    if swallowed:
        text = "%s, line %d: quoted cells hold lines that look like rows: %d; check the quotes"
        log.warning(text, source, swallowed[0], len(swallowed))


def _plain_cells(line: str, separator: str) -> list[str]:
    """Read a row of one line as most programs write it, fast; [] for any other."""
    is_plain = len(separator) == 1 and '"' in line and len(line) < _SHORT
    if is_plain and '\\"' not in line and not re.search(rf'(?:^|{re.escape(separator)}) +"', line):
        with contextlib.suppress(csv.Error):
            return next(csv.reader([line], delimiter=separator, strict=True))
    return []


def _like_rows(line: str, rest: list[Line], separator: str, width: int) -> bool:
    """Return whether the lines of a row look like rows: the first, the last, and half of all.

    They have the separators of a row; where one begins with a number, so do the others.
    """
    texts = [text for _, text in rest if isinstance(text, str) and text.strip()]
    counted = line.partition(separator)[0].strip().isdigit()

    def is_row(text: str) -> bool:
        begins = not counted or text.partition(separator)[0].strip().isdigit()
        return text.count(separator) >= width - 1 and begins

    alike = [is_row(text) for text in texts]
    return bool(width and is_row(line) and sum(alike[-1:]) and 2 * sum(alike) > len(texts))


def _quoted_cells(
    line: str, next_line: Callable[[], Line | None], separator: str, escape: str, blanks: str
) -> tuple[Cells, list[Line]]:
    """Read the cells of a row, and the lines after the first that it needs.

    Args:
      line: the first one.
      next_line: returns the next one, None at the end.
      separator: between cells.
      escape: what stands before a quote within quotes; "": another quote.
      blanks: what may stand before and after a quoted cell.
    """

    def is_end(behind: str) -> bool:
        return behind.startswith(separator) or not behind.rstrip("\r")

    cells: list[str] = []
    rest: list[Line] = []
    at = 0
    while True:
        start = len(line) - len(line[at:].lstrip(blanks) if blanks else line[at:])
        is_quoted = line[start : start + 1] == '"'
        if is_quoted and start > at:  # else the blanks and the quote are text
            end = _end_of_quote(line, start + 1, escape)
            is_quoted = end >= 0 and is_end(line[end + 1 :].lstrip(blanks))
        if not is_quoted:
            cell, found, _ = line[at:].partition(separator)
            at += len(cell) + len(separator)
            cells.append(cell if found else cell.rstrip("\r"))
            if not found:
                return cells, rest
            continue
        parts, at = [], start + 1
        while (end := _end_of_quote(line, at, escape)) < 0:
            parts.append(line[at:])
            item = next_line() if len(rest) < _LONGEST_ROW else None
            if item is None:
                return _OPEN, rest
            rest.append(item)
            line, at = item[1] if isinstance(item[1], str) else "\ufffd", 0
        parts.append(line[at:end])
        cell = "\n".join(parts)
        cells.append(re.sub(r'\\(["\\])', r"\1", cell) if escape else cell.replace('""', '"'))
        behind = line[end + 1 :].lstrip(blanks) if blanks else line[end + 1 :]
        if not is_end(behind):
            return f"not CSV ({separator!r} expected after '\"')", rest
        if not behind.rstrip("\r"):
            return cells, rest
        at = len(line) - len(behind) + len(separator)


def _end_of_quote(text: str, at: int, escape: str) -> int:
    """Return the place of the quote that ends a cell, -1 for none."""
    while (end := text.find('"', at)) >= 0:
        slashes = len(text[at:end]) - len(text[at:end].rstrip("\\")) if escape else 0
        if slashes % 2:
            at = end + 1
        elif not escape and text[end + 1 : end + 2] == '"':
            at = end + 2
        else:
            break
    return end


def find_separator(lines: Iterator[Line], source: str) -> tuple[str, Iterator[Line]]:
    """Return the separator by which most first rows fit the header, and the lines below `sep=`.

    If no usual one is in the header, it is what as often divides each of the first rows.
    """
    first = [*itertools.islice(lines, _SHOWN_LINES)]
    whole = itertools.chain(first, lines)
    plain = [
        re.sub(r'"[^"]*"', "_", line).rstrip("\r") for _, line in first if isinstance(line, str)
    ]
    plain = [*filter(str.strip, plain)]
    if not plain:
        return ",", whole
    if named := re.fullmatch(r'sep=([^"\r ]+)', plain[0]):
        return named[1], itertools.islice(whole, 1, None)

    def fit(separator: str) -> tuple[int, int]:
        counts = [line.count(separator) for line in plain]
        return (counts[1:].count(counts[0]) if counts[0] else 0), counts[0]

    best = max(_SEPARATORS, key=fit)
    if (count := plain[0].count(best)) == 0:
        return _odd_separator(plain, source), whole
    double = 2 * best
    is_double = {line.count(double) for line in plain} == {count / 2}
    return double if is_double else best, whole


def _odd_separator(plain: list[str], source: str) -> str:
    """Return what divides a header and all rows alike, else a comma; UserError in doubt."""
    header, *rows = plain
    for signs in dict.fromkeys([*_SIGNS.findall(header), *re.findall(r"[^\w\"]", header)]):
        count, counts = header.count(signs), [row.count(signs) for row in rows]
        names = [name.strip().lower() for name in header.split(signs)]
        usual = not {*names}.isdisjoint(TEXT_NAMES) and not {*names}.isdisjoint(ID_NAMES)
        if not counts or min(counts) < count or not all(names):
            continue
        if not usual and not _SIGNS.fullmatch(signs):  # of a name, too
            continue
        if max(counts) == count:
            log.info("%s: columns are divided by %r", source, signs)
            return signs
        what = f"{source}: expected a comma, a semicolon, a tab or | between columns; {signs!r} may"
        raise UserError(f"{what} be there", remedy=f"begin the file with the line `sep={signs}`")
    return ","


def found_id(read: Read, text: str) -> str:
    """Return the column of ids, if no name is usual, but one of ids of questions; else "".

    It is the only such column with a short value in each row, and none twice. A value of several
    words has a digit.

    Args:
      read: reads the rows of a table, which are read again later.
      text: the column of the question, if it is named.
    """

    def choose(names: Sequence[str]) -> list[str]:
        usual = any(name.strip().lower() in ID_NAMES for name in names)
        return [name for name in names if not usual and name != text and is_id_name(name)]

    seen: dict[str, set[str]] | None = None
    with quiet():
        for _, row in read(choose):
            if isinstance(row, str):  # what is wrong with it
                continue
            seen = {name: set() for name in choose([*row])} if seen is None else seen
            for name in [*seen]:
                value = row.get(name)
                key = f"{value}".strip() if isinstance(value, str | int) else ""
                is_id = " " not in key or any(map(str.isdigit, key))
                if not (is_id and 0 < len(key) <= _LONGEST_ID) or key in seen[name]:
                    del seen[name]
                else:
                    seen[name].add(key)
            if not seen:
                break
    return next(iter(seen)) if seen and len(seen) == 1 else ""
