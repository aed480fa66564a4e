"""Sentences with their translations, and bilingual dictionaries."""

from __future__ import annotations

import itertools
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from qpr_jax.data.columns import is_missing
from qpr_jax.data.decoding import (
    NOT_UTF8,
    STANDARD_INPUT,
    BadRows,
    open_input,
    read_lines,
    short,
)
from qpr_jax.data.tables import format_of, read_cells, read_rows
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import replace_surrogates

Pair = tuple[str, str]
PairRows = Iterator[tuple[int, Pair | str]]  # the line of a row; its texts, or what is wrong

_PREFIX = re.compile(r"([A-Za-z]{2,3})-([A-Za-z]{2,3}):(.*)", re.DOTALL)
_NAMED = ("source", "target")  # usual names of the two columns
_EQUAL_SHARE, _EQUAL_LEAST = 0.5, 20  # sentences that equal their translation
_ONE_FILE = "name a file, or two as PATH+PATH"


class Translations(NamedTuple):
    """Texts and their translations: entry i of `targets` translates entry i of `sources`.

    Attributes:
      name: the specification that was read.
      source_language: code of the language of `sources`, which a teacher knows: "en".
      language: code of the language of `targets`: "de".
      sources: n texts.
      targets: n texts.
      dictionary: whether these are words with their translations, not sentences.
      skipped: number of bad rows left out.
    """

    name: str
    source_language: str
    language: str
    sources: list[str]
    targets: list[str]
    dictionary: bool = False
    skipped: int = 0


def read_translations(spec: str, *, skip_bad_rows: bool = False) -> Translations:
    """Read pairs of a text and its translation.

    Args:
      spec: `en-de:PATH`, a table in any format of `data.tables`, or `en-de:PATH1+PATH2`, two files
        whose lines translate each other. A table has columns named by the two codes, or by `source`
        and `target`, or two columns in the order of the codes (a text file needs no header then).
        `$VARIABLE` and `~` in paths are expanded.
      skip_bad_rows: count bad rows and leave them out.

    Raises:
      UserError: the specification, a file or a row is wrong.
    """
    languages, paths = find_files(spec)
    if languages is None:
        what = f"{spec}: expected the two languages before the path"
        raise UserError(what, remedy=f"write them as in en-de:{spec}")
    source = "+".join(paths)
    bad = BadRows(
        f"{source}, line",
        skip=skip_bad_rows,
        option="train without bad rows: `data.skip_bad_rows=True`",
    )
    pairs = [*bad.good(_rows(paths, languages))]
    bad.warn()
    if not pairs:
        got = f"no good row and {bad.count} bad ones" if bad.count else "no row"
        raise UserError(f"{source}: expected translations, got {got}", remedy="name another file")
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    is_dictionary = all(map(_is_mostly_words, (sources, targets)))
    if not is_dictionary:
        _refuse_copies(sources, targets, source)
    return Translations(spec, *languages, sources, targets, is_dictionary, bad.count)


def file_names(spec: str) -> str:
    """Names of the files of a specification without folders, which may be published."""
    return "+".join(os.path.basename(path) for path in parse_spec(spec)[1])


def find_files(spec: str, *, remedy: str = _ONE_FILE) -> tuple[Pair | None, list[str]]:
    """Return what `parse_spec` returns; UserError with this remedy if a file is missing."""
    languages, paths = parse_spec(spec)
    for path in paths:
        if not os.path.exists(path):
            raise UserError(f"expected a file of translations, found none at {path}", remedy=remedy)
    return languages, paths


def parse_spec(spec: str) -> tuple[Pair | None, list[str]]:
    """Return the two languages of a specification, if it names them, and its one or two paths.

    `~` and variables are expanded. UserError if a path is empty or the two languages are one.
    """
    match = _PREFIX.fullmatch(spec)
    languages = None
    if match and not os.path.exists(spec):
        languages, spec = (match[1].lower(), match[2].lower()), match[3]
        if languages[0] == languages[1]:
            raise UserError(f"{match[0]}: expected two languages, got {languages[0]} twice")
    path = _expand(spec)
    if not path.strip() or path == STANDARD_INPUT:
        got = "standard input" if path.strip() else "an empty path"
        raise UserError(f"expected a file of translations, got {got}", remedy=_ONE_FILE)
    if "+" not in path or os.path.exists(path):
        return languages, [path]
    places = [i for i, character in enumerate(path) if character == "+"]
    splits = [(path[:i].rstrip(), _expand(path[i + 1 :].lstrip())) for i in places]
    existing = [split for split in splits if all(map(os.path.exists, split))]
    first, second = (existing or splits)[0]
    if not first or not second:
        raise UserError(f"{spec}: expected a path on both sides of +", remedy=_ONE_FILE)
    if os.path.abspath(first) == os.path.abspath(second):
        what = f"expected two files, one for each language, got {first} twice"
        raise UserError(what, remedy="name the file of the other language")
    return languages, [first, second]


def _expand(path: str) -> str:
    return path if os.path.exists(path) else os.path.expanduser(os.path.expandvars(path))


def _rows(paths: Sequence[str], languages: Pair) -> PairRows:
    if len(paths) == 2:
        return _aligned_rows(*paths)
    kind = format_of(paths[0])
    read = _cell_rows if kind in ("", "csv", "tsv") else _record_rows
    return read(paths[0], languages)


def _aligned_rows(first: str, second: str) -> PairRows:
    """Yield the pairs of two files with a text in each line; lines blank in both are skipped.

    Raises:
      UserError: after all rows, if one file has more lines.
    """
    names = (os.path.basename(first), os.path.basename(second))
    counts = [0, 0]
    with open_input(first) as left, open_input(second) as right:
        lines = read_lines(left, first), read_lines(right, second)
        for a, b in itertools.zip_longest(*lines):
            counts[0] += a is not None
            counts[1] += b is not None
            if a is None or b is None:
                continue  # count the lines of the longer file
            if isinstance(a[1], bytes):
                yield a[0], f"{names[0]}: {NOT_UTF8}"
            elif isinstance(b[1], bytes):
                yield a[0], f"{names[1]}: {NOT_UTF8}"
            elif a[1].strip() or b[1].strip():
                yield a[0], _pair(a[1], b[1], names)
    if counts[0] != counts[1]:
        what = f"expected as many lines in {first} as in {second}, got {counts[0]} and {counts[1]}"
        raise UserError(what, remedy="give files whose lines translate each other")


def _cell_rows(path: str, languages: Pair) -> PairRows:
    """Yield the pairs of a CSV or TSV file, with a header or, of two columns, without one."""
    rows = read_cells(path, format_of(path) or "tsv")
    for start, row in rows:
        if not isinstance(row, str):
            header = row
            break
        yield start, row
    else:
        return
    found = _find_columns(header, languages)
    if not found and len(header) != 2:
        what = f"{path}, line {start}: expected two columns, or a header with the columns "
        what += f"{' and '.join(languages)}, got {len(header)}: {short(header)}"
        raise UserError(what, remedy="add such a header")
    places = (header.index(found[0]), header.index(found[1])) if found else (0, 1)
    names = [f"`{name}`" for name in found] if found else ["column 1", "column 2"]
    for line, row in rows if found else itertools.chain([(start, header)], rows):
        if isinstance(row, str):
            yield line, row
        elif len(row) != len(header):
            yield line, f"expected {len(header)} columns, as in the first row, got {short(row)}"
        else:
            yield line, _pair(row[places[0]], row[places[1]], names)


def _record_rows(path: str, languages: Pair) -> PairRows:
    """Yield the pairs of a file of JSON, Parquet or Arrow, whose columns or keys have names.

    Rows may be nested as {"translation": {"en": ..., "de": ...}}.
    """

    def find(names: Sequence[str]) -> Pair:
        if (found := _find_columns(names, languages)) is None:
            what = f"{path}: expected columns {' and '.join(languages)}, got {short([*names])}"
            raise UserError(what, remedy="name the two columns so, or `source` and `target`")
        return found

    def choose(names: Sequence[str]) -> Sequence[str]:
        return ["translation"] if "translation" in names else find(names)

    columns: Pair | None = None
    for line, fields in read_rows(path, choose):
        if isinstance(fields, str):
            yield line, fields
            continue
        inner = fields.get("translation")
        row = inner if isinstance(inner, Mapping) else fields
        columns = columns or find([*row])
        names = [f"`{name}`" for name in columns]
        yield line, _pair(row.get(columns[0]), row.get(columns[1]), names)


def _find_columns(names: Sequence[str], languages: Pair) -> Pair | None:
    """Names of the columns of the two languages, in any case; None if there are none."""
    known = {name.strip().lower(): name for name in names}
    for first, second in (languages, _NAMED):
        if first in known and second in known:
            return known[first], known[second]
    return None


def _pair(first: object, second: object, names: Sequence[str]) -> Pair | str:
    """Two texts, stripped, or what is wrong with them; names: of their columns or files."""
    texts = []
    for value, name in zip((first, second), names, strict=True):
        text = "" if is_missing(value) else value
        if not isinstance(text, str):
            return f"expected a text in {name}, got {short(text)}"
        if not text.strip():
            return f"expected a text in {name}, got an empty one"
        texts.append(replace_surrogates(text.strip()))  # JSON can hold what UTF-8 cannot
    return texts[0], texts[1]


def _is_mostly_words(texts: Sequence[str]) -> bool:
    """Whether the median text is a single word."""
    return statistics.median(len(text.split()) for text in texts) <= 1


def _refuse_copies(sources: Sequence[str], targets: Sequence[str], source: str) -> None:
    """UserError if most sentences equal their translation: the two sides are one language."""
    equal = sum(a == b for a, b in zip(sources, targets, strict=True))
    if equal >= max(_EQUAL_LEAST, _EQUAL_SHARE * len(sources)):
        what = f"{source}: {equal} of {len(sources)} rows have the same text on both sides"
        raise UserError(what, remedy="give the translations")
