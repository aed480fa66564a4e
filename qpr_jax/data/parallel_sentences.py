"""Sentences with their translations, and dictionaries: read, and split for a training."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import statistics
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from qpr_jax.data.columns import BadRows, read_rows, require
from qpr_jax.data.decoding import format_of, open_input, read_lines
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.errors import UserError, short
from qpr_jax.text.tokenizer import normalized_text, replace_surrogates

Pair = tuple[str, str]
PairRows = Iterator[tuple[int, Pair | str]]  # the line of a row; its texts, or what is wrong

_PREFIX = re.compile(r"([A-Za-z]{2,3})-([A-Za-z]{2,3}):(.*)", re.DOTALL)
_NAMED = ("source", "target")  # usual names of the two columns
_EQUAL_SHARE, _EQUAL_LEAST = 0.5, 20  # sentences that equal their translation
_ONE_FILE = "name a file, or two as PATH+PATH"
_HELD_OUT = 1000  # sentences of each language in each held-out split
_LARGEST_SHARE = 10  # at most a tenth of the sentences is scored in each of them
_MIN_QUESTIONS = 4  # questions alone are held out if there are so many times as many
# A common text ("Yes.") is not held out: all rows that have it would be lost to training.
_MOST_ROWS = 100
_QUESTION_MARKS = ("?", "\uff1f", "\u061f", "\u037e")  # also full-width, Arabic, Greek


class Translations(NamedTuple):
    """Texts and their translations: entry i of `targets` translates entry i of `sources`.

    Attributes:
      name: the specification that was read.
      source_language, language: codes of the two languages; a teacher knows the first: "en", "de".
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
    """Read pairs of a text and its translation; UserError for a bad row, unless they are skipped.

    spec: `en-de:PATH`, a table in any format of `data.decoding`, or `en-de:PATH1+PATH2`, two files
      whose lines translate each other. A table has columns named by the two codes, or by `source`
      and `target`, or two columns in the order of the codes (a text file needs no header then).
      `$VARIABLE` and `~` in paths are expanded.
    """
    languages, paths = find_files(spec)
    source = "+".join(paths)
    bad = BadRows(source, skip=skip_bad_rows)
    rows = _aligned_rows(*paths) if len(paths) == 2 else _table_rows(paths[0], languages)
    pairs = [*bad.good(rows, lambda _, pair: pair)]
    if not pairs:
        got = f"no good row and {bad.count} bad ones"
        raise UserError(f"{source}: expected translations, got {got}", remedy="name another file")
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    # Most texts of a dictionary are single words.
    lengths = ([len(text.split()) for text in texts] for texts in (sources, targets))
    is_dictionary = all(statistics.median(counts) <= 1 for counts in lengths)
    equal = sum(first == second for first, second in pairs)
    if not is_dictionary and equal >= max(_EQUAL_LEAST, _EQUAL_SHARE * len(pairs)):
        what = f"{source}: rows with the same text on both sides: {equal} of {len(pairs)}"
        raise UserError(what, remedy="give the translations")
    return Translations(spec, *languages, sources, targets, is_dictionary, bad.count)


def file_names(spec: str) -> str:
    """Names of the files of a specification without folders, which may be published."""
    return "+".join(os.path.basename(path) for path in find_files(spec)[1])


def find_files(spec: str) -> tuple[Pair, list[str]]:
    """Return the languages of a specification and its one or two files; UserError without them."""
    match = _PREFIX.fullmatch(spec)
    if match is None:
        what = f"{spec}: expected the two languages before the path"
        raise UserError(what, remedy="write them as in en-de:PATH")
    languages = match[1].lower(), match[2].lower()
    path = os.path.expanduser(os.path.expandvars(match[3]))
    paths = [path] if os.path.exists(path) else [part.strip() for part in path.split("+")]
    one_path = len({*map(os.path.abspath, paths)}) < len(paths)
    if languages[0] == languages[1] or one_path or len(paths) > 2:
        what = f"{spec}: expected two languages, and a file or two"
        raise UserError(what, remedy=_ONE_FILE)
    for path in paths:
        if not os.path.exists(path):
            what = f"expected a file of translations, found none at {path}"
            raise UserError(what, remedy=_ONE_FILE)
    return languages, paths


def _aligned_rows(first: str, second: str) -> PairRows:
    """Yield the pairs of two files, line by line; UserError at the end if one is longer."""
    with open_input(first) as left, open_input(second) as right:
        lines = read_lines(left, first), read_lines(right, second)
        for a, b in itertools.zip_longest(*lines):
            if a is None or b is None:
                what = f"expected as many lines in {first} as in {second}, got more in one of them"
                raise UserError(what, remedy="give files whose lines translate each other")
            wrong = [
                f"{path}: {text.what}"
                for path, (_, text) in ((first, a), (second, b))
                if isinstance(text, UserError)
            ]
            if wrong:
                yield a[0], wrong[0]
            elif f"{a[1]}{b[1]}".strip():
                yield a[0], _pair((f"{a[1]}", f"{b[1]}"))


def _table_rows(path: str, languages: Pair) -> PairRows:
    """Yield the pairs of a table: the columns of the languages, or the only two of a text.

    JSON may be nested as {"translation": {"en": ..., "de": ...}}.
    """
    kind = format_of(path) or "tsv"

    def find(names: Sequence[str]) -> Sequence[str]:
        by_name = {name.strip().lower(): name for name in names}
        for pair in (languages, _NAMED):
            if by_name.keys() >= {*pair}:
                return [by_name[name] for name in pair]
        if kind in ("csv", "tsv") and len(names) == 2 and by_name.keys().isdisjoint(languages):
            return ()  # the first row is no header
        what = f"{path}: expected columns {' and '.join(languages)}, got {short([*names])}"
        raise UserError(what, remedy="name the two columns so, or `source` and `target`")

    def choose(names: Sequence[str]) -> Sequence[str]:
        found = ["translation"] if "translation" in names else find(names)
        return require(names, found, remedy=_ONE_FILE, source=path)

    columns: Sequence[str] = ()
    for line, fields in read_rows(path, choose, format=kind):
        if isinstance(fields, str):
            yield line, fields
            continue
        inner = fields.get("translation")
        row = inner if isinstance(inner, Mapping) else fields
        columns = columns or find([*row]) or [*row]
        yield line, _pair([row.get(name) for name in columns])


def _pair(values: Sequence[object]) -> Pair | str:
    """Return two texts, stripped, or what is wrong with them."""
    for value in values:
        if not isinstance(value, str) or not value.strip():
            return f"expected a text and its translation, got {short([*values])}"
    first, second = (replace_surrogates(str(value).strip()) for value in values)
    return first, second


class TranslationSplits(NamedTuple):
    """Translations to train with, to select and score a student, the given tests, and counts.

    train: the files without what is held out, stands in a test, or repeats a row.
    held_out: "validation" and "test", each with one entry for each language with sentences.
    """

    train: list[Translations]
    held_out: dict[str, list[Translations]]
    tests: list[Translations]
    report: dict[str, Any]


class _Row(NamedTuple):
    """A row of a file, by its position: both texts, and the normalized texts."""

    file: int
    pair: Pair
    keys: Pair


def split_translations(
    files: Sequence[Translations],
    tests: Sequence[Translations],
    excluded: Container[str] = (),
    *,
    held_out: int = _HELD_OUT,
) -> TranslationSplits:
    """Hold out sentences of each language, and leave out of training what stands in a test.

    `held_out` rows of each language, at most a tenth of its sentences, go to each of validation and
    test. These, the given tests and training share no normalized text, on either side and in any
    language. Within a held-out set of a language, each text occurs once. Sentences are chosen by a
    hash of the source, so that languages with the same sources hold out the same ones. If at least
    four times as many questions exist, questions are held out. Dictionaries are never held out.
    Sources whose normalized text is `excluded` are not trained with, either. UserError if
    nothing is left to train with.
    """
    counts = {file.language: Counter[str]() for file in files}
    in_tests = {normalized_text(text) for file in tests for text in (*file.sources, *file.targets)}
    rows = _usable_rows(files, in_tests, counts)
    scored = _hold_out(files, rows, held_out)
    held = {row for chosen in scored.values() for row in itertools.chain(*chosen.values())}
    banned = {key for row in held for key in row.keys}
    trained: list[list[_Row]] = [[] for _ in files]
    for row in rows:
        file = files[row.file]
        if row in held:
            continue
        if not banned.isdisjoint(row.keys):
            kind = "near_held_out"
        elif row.keys[0] in excluded:
            kind = "held_out_questions"
        else:
            trained[row.file].append(row)
            kind = "trained_dictionary_entries" if file.dictionary else "trained_sentences"
        counts[file.language][kind] += 1
    if not any(trained):
        names = ", ".join(dict.fromkeys(file.name for file in files))
        what = f"{names}: all rows are held out or in `data.parallel_tests`"
        raise UserError(what, remedy="give other files in `data.parallel`")
    entries = {}
    for split, of_language in scored.items():
        chosen = [_gather(files, rows) for rows in of_language.values() if rows]
        entries[split] = [file._replace(dictionary=False, skipped=0) for file in chosen]
    report = {
        language: {**counts[language], "held_out": {s: len(scored[s][language]) for s in HELD_OUT}}
        for language in sorted(counts)
    }
    train = [_gather(files, rows) for rows in trained if rows]
    return TranslationSplits(train, entries, list(tests), report)


def _usable_rows(
    files: Sequence[Translations], in_tests: Set[str], counts: Mapping[str, Counter[str]]
) -> list[_Row]:
    """Return rows that repeat none of their language and no test; count the others in `counts`."""
    normalized = functools.cache(normalized_text)
    seen: set[tuple[str, Pair]] = set()
    rows = []
    for i, file in enumerate(files):
        count = counts[file.language]
        count["skipped_rows"] += file.skipped
        count["dictionary_entries" if file.dictionary else "sentences"] += len(file.sources)
        for pair in zip(file.sources, file.targets, strict=True):
            row = _Row(i, pair, (normalized(pair[0]), normalized(pair[1])))
            if (file.language, pair) in seen:
                count["repetitions"] += 1
            elif not in_tests.isdisjoint(row.keys):
                count["in_tests"] += 1
            else:
                rows.append(row)
            seen.add((file.language, pair))
    return rows


def _hold_out(
    files: Sequence[Translations], rows: Sequence[_Row], held_out: int
) -> dict[str, dict[str, list[_Row]]]:
    """Return the rows to score, by split and language."""
    uses = Counter(key for row in rows for key in row.keys)
    split_of: dict[str, str] = {}  # of each text that is scored
    scored: dict[str, dict[str, list[_Row]]] = {split: {} for split in HELD_OUT}
    for language in sorted({file.language for file in files}):
        of_language = [file.language == language and not file.dictionary for file in files]
        mine = [row for row in rows if of_language[row.file]]
        count = min(held_out, len(mine) // _LARGEST_SHARE)
        asked = [row for row in mine if all(text.endswith(_QUESTION_MARKS) for text in row.pair)]
        mine = asked if len(asked) >= _MIN_QUESTIONS * count else mine
        mine = [row for row in mine if all(uses[key] <= _MOST_ROWS for key in row.keys)]
        mine.sort(key=lambda row: [hashlib.sha256(key.encode()).digest() for key in row.keys])
        for split in HELD_OUT:
            chosen = scored[split][language] = []
            used: set[str] = set()
            for row in mine:
                here = all(split_of.get(key, split) == split for key in row.keys)
                if here and used.isdisjoint(row.keys) and len(chosen) < count:
                    chosen.append(row)
                    used.update(row.keys)
            split_of |= dict.fromkeys(used, split)
    return scored


def _gather(files: Sequence[Translations], rows: Sequence[_Row]) -> Translations:
    """Return rows of one language as one entry."""
    names = dict.fromkeys(files[number].name for number in sorted({row.file for row in rows}))
    sources, targets = map(list, zip(*(row.pair for row in rows), strict=True))
    return files[rows[0].file]._replace(name="+".join(names), sources=sources, targets=targets)
