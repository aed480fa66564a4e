"""The two columns, or the two files, of translations: their languages and their rows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from qpr_jax.data.cells import Cells, csv_cells, tsv_cells
from qpr_jax.data.columns import is_missing
from qpr_jax.data.inputs import NOT_UTF8, Line, open_input, read_lines, short
from qpr_jax.data.languages import (
    language_code,
    language_of_file,
    language_with_region,
    languages_of_file,
)
from qpr_jax.data.tables import Fields, format_of, read_rows
from qpr_jax.data.wiktionary import is_entry, parse_entry
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import replace_surrogates

Pair = tuple[str, str]
# The line where a row begins; its two texts, or what is wrong with it, "" for an entry of a
# dictionary that cannot be used.
PairRows = Iterator[tuple[int, Pair | str]]

NOT_SAID = ("", "")
_NAMED = ("source", "target")
_NO_LANGUAGES = ("id", "no")  # codes that are usual names of columns that hold no text
_SNIFFED = 1000  # lines, in which a dictionary begins or a tab comes


class PairTable(NamedTuple):
    """Rows of two texts, and the languages of the two, "" where nothing says one.

    Attributes:
      first: the cells of the first row, where it is no header.
    """

    languages: Pair
    rows: PairRows
    is_dictionary: bool = False
    first: Sequence[str] = ()


def open_pairs(paths: Sequence[str], given: Pair | None, source_language: str) -> PairTable:
    """Read one table or dictionary, or two files whose lines translate each other.

    Args:
      paths: one or two.
      given: the languages of the first and the second column or file; None: their header or the
        names of the files say them.
      source_language: one of them.

    Raises:
      UserError: the file has not two columns of these languages; while rows are read, two files
        differ in their numbers of lines.
    """
    if len(paths) == 2:
        languages = given or (language_of_file(paths[0]), language_of_file(paths[1]))
        return PairTable(languages, _aligned_rows(*paths))
    kind = format_of(paths[0])
    if kind in ("csv", "tsv"):
        return _cell_table(paths[0], given, source_language)
    read = _record_table if kind else _text_table
    return read(paths[0], given, source_language)


def _empty(path: str) -> UserError:
    what = f"{path}: expected translations, got an empty file"
    return UserError(what, remedy="give a file with translations")


def _pair(first: object, second: object, names: Sequence[str]) -> Pair | str:
    """Two texts, stripped, or what is wrong with them; names: of their columns or files."""
    texts = []
    for value, name in zip((first, second), names, strict=True):
        if is_missing(value):
            value = ""
        if not isinstance(value, str):
            return f"expected a text in {name}, got {short(value)}"
        if not (text := value.strip()):
            return f"expected a text in {name}, got an empty one"
        if "\0" in text:
            return f"expected a text in {name}, got a NUL character, as of UTF-16; {NOT_UTF8}"
        texts.append(text)
    return texts[0], texts[1]


def _lines(path: str) -> Iterator[Line]:
    with open_input(path) as file:
        yield from read_lines(file)


def _aligned_rows(first: str, second: str) -> PairRows:
    """The pairs of two files with a text a line, without lines that are blank in both.

    Raises:
      UserError: one file has more lines; after all rows.
    """
    names = [os.path.basename(path) for path in (first, second)]
    count = [0, 0]
    for left, right in itertools.zip_longest(_lines(first), _lines(second)):
        count[0] += left is not None
        count[1] += right is not None
        if left is None or right is None:
            continue  # to the end, for its number
        (number, text), (_, other) = left, right
        if text is None or other is None:
            yield number, f"{names[0] if text is None else names[1]}: {NOT_UTF8}"
        elif text.strip() or other.strip():
            yield number, _pair(text, other, names)
    if count[0] != count[1]:
        what = f"expected as many lines in {first} as in {second}, got {count[0]} and {count[1]}"
        raise UserError(what, remedy="give files whose lines translate each other")


def _text_table(path: str, given: Pair | None, source_language: str) -> PairTable:
    """A file whose name says no format: a dictionary of Wiktionary, or columns with tabs between.

    The first lines that have the form of either decide.
    """
    broken = 0  # the first line that is not UTF-8, or is UTF-16
    is_empty = True
    for number, line in itertools.islice(_lines(path), _SNIFFED):
        is_empty = is_empty and line is not None and not line.strip()
        if line is None or "\0" in line:
            broken = broken or number
        elif "\t" in line:
            return _cell_table(path, given, source_language)
        elif is_entry(line):
            languages = given or languages_of_file(path, source_language) or NOT_SAID
            return PairTable(languages, _entry_rows(path, languages[0]), is_dictionary=True)
    if broken:
        raise UserError(f"{path}, line {broken}: {NOT_UTF8}", remedy="save the file as UTF-8")
    if is_empty:
        raise _empty(path)
    what = (
        f"{path}: expected two columns with a tab between, or lines :word:translation, got neither"
    )
    remedy = "name two files with + between them, or a table by its ending (.csv, .jsonl, .parquet)"
    raise UserError(what, remedy=remedy)


def _entry_rows(path: str, language: str) -> PairRows:
    """The words of a dictionary with each of their translations; "" for an unusable entry."""
    begun = False
    for number, line in _lines(path):
        if line is None or "\0" in line:
            yield number, NOT_UTF8
        elif is_entry(line):
            begun = True
            word, translations = parse_entry(line, language)
            for translation in translations:
                yield number, (word, translation)
            if not translations:
                yield number, ""
        elif begun and line.strip():
            yield number, f"expected :word:translation, got {short(line)}"


def _cells(path: str, kind: str) -> Iterator[Cells]:
    with open_input(path) as file:
        yield from csv_cells(file, path) if kind == "csv" else tsv_cells(file)


def _cell_table(path: str, given: Pair | None, source_language: str) -> PairTable:
    """A CSV or TSV file, with a header or, of two columns, without."""
    rows = _cells(path, format_of(path))
    languages = given or languages_of_file(path, source_language) or NOT_SAID
    early: list[Cells] = []  # bad rows, and the first good one
    head: list[str] | None = None
    for line, row in rows:
        early.append((line, row))
        if not isinstance(row, str) and "\0" not in "".join(row):
            head = row
            break
    every = itertools.chain(early, rows)
    if not early:
        raise _empty(path)
    columns = ("column 1", "column 2")
    if head is None:
        return PairTable(languages, _cell_rows(every, (0, 1), columns, 2))
    found = _find_columns(head, path, given, source_language)
    if found is not None:
        every = itertools.chain(early[:-1], rows)
        places = (head.index(found[0]), head.index(found[1]))
        columns = (f"`{found[0]}`", f"`{found[1]}`")
        return PairTable(found[2], _cell_rows(every, places, columns, len(head)))
    if len(head) != 2:
        where = f"{path}, line {early[-1][0]}"
        if any("\r" in cell for cell in head):
            what = f"{where}: expected a line feed at the end of a line, got carriage returns alone"
            raise UserError(what, remedy="save the file with the line ends of Unix or Windows")
        what = f"{where}: expected two columns, or a header that names those of two languages, got "
        what += f"{len(head)}: {short(head)}"
        raise UserError(
            what,
            remedy="add a header line that names the columns by codes of languages (en, de), or "
            "source and target",
        )
    return PairTable(languages, _cell_rows(every, (0, 1), columns, 2), first=head)


def _cell_rows(rows: Iterable[Cells], places: tuple[int, int], names: Pair, width: int) -> PairRows:
    for line, row in rows:
        if isinstance(row, str):
            yield line, row
        elif len(row) != width:
            got = f"got {len(row)} in {short(row)}"
            yield line, f"expected {width} columns, as in the first row, {got}"
        else:
            yield line, _pair(row[places[0]], row[places[1]], names)


def _find_columns(
    names: Sequence[str], path: str, given: Pair | None, source_language: str
) -> tuple[str, str, Pair] | None:
    """The names of the two columns and their languages; None if the names say none."""
    every = [language_code(name) or language_with_region(name) for name in names]
    if every == [source_language] * 2:
        what = f"{path}: expected columns of two languages, got {source_language} twice"
        raise UserError(what, remedy="name the column of the other language by its code")
    codes = _columns_of_languages(names, path, {*(given or ())}, source_language)
    others = [code for code in codes if code != source_language]
    if given and {*given} <= {*codes}:
        return codes[given[0]], codes[given[1]], given
    if source_language in codes and others:
        if len(others) > 1:
            others = [code for code in others if code not in _NO_LANGUAGES]
        if given or len(others) != 1:
            expected = " and ".join(given) if given else f"{source_language} and one other language"
            what = f"{path}: expected columns of {expected}, got {short([*names])}"
            raise UserError(
                what, remedy="name the languages in front of the path, as in en-de:PATH"
            )
        return codes[source_language], codes[others[0]], (source_language, others[0])
    named = {name.strip().lower(): name for name in names}
    if {*_NAMED} <= {*named}:
        languages = given or languages_of_file(path, source_language) or NOT_SAID
        return named["source"], named["target"], languages
    return None


def _columns_of_languages(
    names: Sequence[str], path: str, given: set[str], source_language: str
) -> dict[str, str]:
    """The column of each language; one with a region (`en-US`) only where a language lacks another.

    UserError where two columns are the same language of other regions.
    """
    codes: dict[str, str] = {}
    for name in names:
        plain = name.strip().lower()
        if code := language_code(name) or (plain if plain in given else ""):
            codes.setdefault(code, name)
    others = {*codes} - {source_language, *_NO_LANGUAGES}
    if given <= {*codes} if given else source_language in codes and others:
        return codes
    regions: dict[str, str] = {}
    for name in names:
        code = language_with_region(name)
        if code in regions and (not given or code in given):
            what = f"{path}: expected one column of {code}, got `{regions[code]}` and `{name}`"
            raise UserError(what, remedy="rename the one to leave out")
        if code and code not in codes:
            regions.setdefault(code, name)
    return codes | regions


def _record_table(path: str, given: Pair | None, source_language: str) -> PairTable:
    """A file of JSON, Parquet or Arrow; the names of its columns or keys say which to read."""

    def find(names: Sequence[str]) -> tuple[str, str, Pair]:
        if (found := _find_columns(names, path, given, source_language)) is None:
            what = f"{path}: expected columns of {source_language} and another language, or source "
            what += f"and target, got {short([*names])}"
            raise UserError(what, remedy="name the columns by codes of languages: en, de")
        return found

    def choose(names: Sequence[str]) -> Sequence[str]:
        return ["translation"] if "translation" in names else find(names)[:2]

    rows = ((line, _flat(row)) for line, row in read_rows(path, choose))
    early: list[tuple[int, Fields | str]] = []
    for line, row in rows:
        early.append((line, row))
        if not isinstance(row, str):
            first, second, languages = find([*row])
            every = itertools.chain(early, rows)
            return PairTable(languages, _record_rows(every, (first, second)))
    if not early:
        raise _empty(path)
    languages = given or languages_of_file(path, source_language) or NOT_SAID
    return PairTable(languages, ((line, str(row)) for line, row in early))  # no good row


def _flat(row: Fields | str) -> Fields | str:
    """A row whose texts are in one field, {"translation": {"en": ..., "de": ...}}, without it."""
    inner = None if isinstance(row, str) else row.get("translation")
    return inner if isinstance(inner, Mapping) else row


def _record_rows(rows: Iterable[tuple[int, Fields | str]], names: Pair) -> PairRows:
    for line, row in rows:
        if isinstance(row, str):
            yield line, row
        elif missing := [name for name in names if name not in row]:
            yield line, f"expected the key `{missing[0]}`, got {short(sorted(row))}"
        else:
            pair = _pair(row[names[0]], row[names[1]], [f"`{name}`" for name in names])
            if not isinstance(pair, str):  # JSON can hold what UTF-8 cannot
                pair = replace_surrogates(pair[0]), replace_surrogates(pair[1])
            yield line, pair
