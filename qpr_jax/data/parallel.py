"""Sentences with their translations, and dictionaries, of files in many formats."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from qpr_jax.data.inputs import NOT_UTF8, STANDARD_INPUT, folder_error, short
from qpr_jax.data.languages import language_code, unknown_code, unknown_code_of_file
from qpr_jax.data.translation_files import Pair, PairRows, PairTable, open_pairs
from qpr_jax.errors import UserError

_PREFIX = re.compile(r"([A-Za-z]{2,3})-([A-Za-z]{2,3}):(.*)", re.DOTALL)
_LIKE_PREFIX = re.compile(r"([A-Za-z]{2,}(?:[-_][A-Za-z]+)*):.")  # no drive of Windows
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_EQUAL_SHARE, _EQUAL_LEAST = 0.5, 20  # of sentences that are their own translation: refused
_BAD_ROW_REMEDY = "correct it, or train without bad rows: `data.skip_bad_rows=True`"
_NOT_UTF8_REMEDY = "save the file as UTF-8, or train without bad rows: `data.skip_bad_rows=True`"


class Translations(NamedTuple):
    """Texts and their translations: entry i of `targets` translates entry i of `sources`.

    Attributes:
      name: the specification that was given.
      language: of `targets`: "de".
      sources: in the source language, the teacher's.
      targets: as many.
      dictionary: words with their translations, not sentences.
      skipped: rows left out: bad ones, and of a dictionary entries that cannot be used.
    """

    name: str
    language: str
    sources: list[str]
    targets: list[str]
    dictionary: bool = False
    skipped: int = 0


def read_translations(
    spec: str, *, source_language: str = "en", skip_bad_rows: bool = False
) -> Translations:
    """Read pairs of a text and its translation.

    Args:
      spec: `PATH`, a table of two columns in a format of `data.tables` or a dictionary, or
        `PATH+PATH`, two files whose lines translate each other. `xx-yy:` in front of it names the
        languages in this order; else a header of the columns or the names of the files must.
        `$VARIABLE` and `~` in paths are expanded.
      source_language: of one side; the other side is the translation.
      skip_bad_rows: count rows that cannot be read or have an empty side, and leave them out.

    Raises:
      UserError: a file is not there; the languages are unknown, one of them comes twice, or none is
        the source language; two files differ in their numbers of lines; a row is bad; there is no
        good one.
    """
    source_language = language_code(source_language) or source_language
    given, paths = find_files(spec)
    table = open_pairs(paths, given, source_language)
    source = "+".join(paths)
    language, swap = _target_language(table, source_language, spec, paths)
    first, second, skipped = _collect(table.rows, source, skip_bad_rows=skip_bad_rows)
    sources, targets = (second, first) if swap else (first, second)
    is_dictionary = table.is_dictionary or all(map(_is_mostly_words, (sources, targets)))
    if not is_dictionary:
        _refuse_copies(sources, targets, source)
    return Translations(spec, language, sources, targets, is_dictionary, skipped)


def file_names(spec: str) -> str:
    """The names of the files of a specification, without folders: what may be published."""
    return "+".join(os.path.basename(path) for path in parse_spec(spec)[1])


def find_files(
    spec: str, *, remedy: str = "name a file, or two as PATH+PATH"
) -> tuple[Pair | None, list[str]]:
    """What `parse_spec` returns; UserError with this remedy where a file is not there."""
    given, paths = parse_spec(spec)
    for path in paths:
        if os.path.isdir(path):
            raise folder_error(path)
        if os.path.exists(path):
            continue
        if path == paths[0] and not given and (match := _LIKE_PREFIX.match(path)):
            what = f"{spec}: expected two codes of languages before the colon, got {match[1]!r}"
            raise UserError(what, remedy="write them as in en-de:PATH")
        raise UserError(f"expected a file of translations, found none at {path}", remedy=remedy)
    return given, paths


def parse_spec(spec: str) -> tuple[Pair | None, list[str]]:
    """The languages that a specification names, if it does, and its one or two paths.

    UserError where a path is empty or a variable in it is not set.
    """
    match = _PREFIX.fullmatch(spec)
    given = None
    if match and not os.path.exists(spec):
        first, second = (language_code(name) or name.lower() for name in match.group(1, 2))
        given, spec = (first, second), match[3]
    path = _expand(spec)
    if not path.strip():
        raise UserError("expected a file of translations, got an empty path", remedy="name a file")
    if path == STANDARD_INPUT:
        raise UserError("expected a file of translations, got standard input", remedy="name a file")
    if "+" not in path or os.path.exists(path):
        return given, [path]
    places = [i for i, character in enumerate(path) if character == "+"]
    splits = [(path[:i].rstrip(), _expand(path[i + 1 :].lstrip())) for i in places]
    whole = [split for split in splits if all(map(os.path.exists, split))]
    first, second = (whole or splits)[0]
    if not first or not second:
        what = f"{spec}: expected a path before and after +, got an empty one"
        raise UserError(what, remedy="name two files whose lines translate each other, or one")
    if os.path.abspath(first) == os.path.abspath(second):
        what = f"expected two files, one a language, got {first} twice"
        raise UserError(what, remedy="name the file of the other language")
    return given, [first, second]


def _expand(path: str) -> str:
    """Expand `~` and variables; UserError for a variable that is not set."""
    if os.path.exists(path):
        return path
    for match in _VARIABLE.finditer(path):
        name = match[1] or match[2]
        if name not in os.environ:
            what = f"{path}: expected ${name} to be set in the environment, got no value"
            raise UserError(what, remedy="set the variable, or give the whole path")
    return os.path.expanduser(os.path.expandvars(path))


def _target_language(
    table: PairTable, source_language: str, spec: str, paths: Sequence[str]
) -> tuple[str, bool]:
    """The language that is not the source language, and whether it comes first."""
    first, second = languages = table.languages
    remedy = "name the languages in front of the path, as in en-de:PATH"
    if not first or not second:
        what = f"{spec}: {_unknown_languages(table, source_language, paths)}"
    elif first == second:
        what = f"{spec}: expected two languages, got {first} twice"
    elif source_language not in languages:
        what = f"{spec}: expected {source_language} and another language, got {first} and {second}"
    else:
        return (first, True) if second == source_language else (second, False)
    raise UserError(what, remedy=remedy)


def _unknown_languages(table: PairTable, source_language: str, paths: Sequence[str]) -> str:
    """What is wrong where nothing says the language of a side."""
    if len(paths) == 2:
        first, second = (language or "none" for language in table.languages)
        return f"expected the names of the files to say the two languages, got {first} and {second}"
    code = unknown_code(table.first, source_language)
    code = code or unknown_code_of_file(paths[0], source_language)
    if code:
        return f"expected codes of two languages, got {source_language} and {code!r}, not known"
    expected = "expected the name of the file to say the two languages"
    if not table.first:
        return f"{expected}, got none"
    codes = [language_code(cell) for cell in table.first]
    if all(codes):
        return f"expected {source_language} and another language, got {' and '.join(codes)}"
    row = short([*table.first])
    return f"{expected}, or a header of their codes, got neither: the first row is {row}"


def _collect(
    rows: PairRows, source: str, *, skip_bad_rows: bool
) -> tuple[list[str], list[str], int]:
    """The first and the second texts of the good rows, and the number of the others."""
    first, second, skipped = [], [], 0
    for line, row in rows:
        if not isinstance(row, str):
            first.append(row[0])
            second.append(row[1])
        elif skip_bad_rows or not row:
            skipped += 1
        else:
            what = f"{source}, line {line}: {row}"
            if row.endswith(NOT_UTF8):
                raise UserError(what, remedy=_NOT_UTF8_REMEDY)
            raise UserError(what, remedy=_BAD_ROW_REMEDY)
    if not first:
        got = f"no good row and {skipped} bad ones" if skipped else "no row"
        what = f"{source}: expected translations, got {got}"
        raise UserError(what, remedy="give a file with translations")
    return first, second, skipped


def _is_mostly_words(texts: Sequence[str]) -> bool:
    """Whether the median text is a single word."""
    return statistics.median(len(text.split()) for text in texts) <= 1


def _refuse_copies(sources: Sequence[str], targets: Sequence[str], source: str) -> None:
    """UserError where most sentences are their own translation: one language twice."""
    equal = sum(a == b for a, b in zip(sources, targets, strict=True))
    if equal >= max(_EQUAL_LEAST, _EQUAL_SHARE * len(sources)):
        what = f"{source}: expected two languages, got the same text on both sides in {equal} "
        what += f"of {len(sources)} rows"
        raise UserError(what, remedy="give the translations")
