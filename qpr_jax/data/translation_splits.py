"""Which translations train a student, and which are held out or stand in a test set."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect
from qpr_jax.data.parallel import Translations
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

VALIDATION, TEST = SPLITS = ("validation", "test")
_LARGEST_SHARE = 10  # at most a tenth of the sentences is scored in each of SPLITS
_MIN_QUESTIONS = 4  # times `held_out`: fewer questions are not held out in preference
# Common texts ("Yes.") link many others; such a group would take too much from training.
_LARGEST_GROUP = 100  # pairs
_QUESTION_MARKS = ("?", "\uff1f", "\u061f", "\u037e")  # also full-width, Arabic, Greek


class TranslationSplits(NamedTuple):
    """Translations to train with, to select and score a student, and of tests of their own.

    Attributes:
      train: the files without what is held out, stands in a test, or repeats a row.
      held_out: "validation" and "test", each with one entry a language that has sentences.
      tests: the given ones, as they are.
      report: counts by language.
    """

    train: list[Translations]
    held_out: dict[str, list[Translations]]
    tests: list[Translations]
    report: dict[str, Any]


class _Rows(NamedTuple):
    """All rows of all files, one after the other.

    Attributes:
      texts: int64 [R, 2], numbers of the normalized source and target.
      raw: int64 [R, 2], numbers of these texts as they are.
      language: int64 [R], a position in `languages`.
      is_sentence: bool [R].
      is_question: bool [R]: a sentence whose both sides end with a question mark.
    """

    texts: np.ndarray
    raw: np.ndarray
    language: np.ndarray
    is_sentence: np.ndarray
    is_question: np.ndarray


def split_translations(
    files: Sequence[Translations],
    tests: Sequence[Translations],
    *,
    held_out: int = 1000,
    seed: int = 0,
) -> TranslationSplits:
    """Hold out sentences by language, and leave out of training what stands in a test.

    Rows that share a normalized text on either side, in any file and language, directly or through
    others, are one group. A group is held out whole, for the same split in all languages, and one
    row of it is scored; groups of more than 100 rows are not held out. Questions are held out where
    a language has 4 * `held_out` of them. Dictionaries are never held out. Equal arguments give
    equal splits.

    Args:
      files: to train with; rows with a normalized text of a test or of a held-out row, on either
        side, are left out.
      tests: that nothing is trained with.
      held_out: rows to score in each of validation and test, for each language; at most a tenth of
        its sentences.
      seed: of the choice.

    Raises:
      UserError: nothing is left to train with.
    """
    if not files:
        return TranslationSplits([], {name: [] for name in SPLITS}, list(tests), {})
    languages = sorted({file.language for file in files})
    number_of: dict[str, int] = {}
    rows = _number_rows(files, languages, number_of)
    in_test = _contains(rows, _known_texts(tests, number_of), len(number_of))
    is_new = _first_of_equals(rows)
    usable = is_new & ~in_test
    split_of, scored = _hold_out(rows, usable, len(languages), len(number_of), held_out, seed)
    held_texts = np.unique(rows.texts[split_of >= 0])
    in_held_out = _contains(rows, held_texts, len(number_of))
    kept = usable & ~in_held_out
    if not kept.any():
        names = ", ".join(dict.fromkeys(file.name for file in files))
        in_tests = [f"in {', '.join(dict.fromkeys(test.name for test in tests))}"] if tests else []
        what = f"expected translations to train with in {names}, got {len(kept)} rows, all of them "
        what += " or ".join([*in_tests, "held out"])
        raise UserError(what, remedy="give other files in `data.parallel`")
    held = {name: _gather(files, languages, rows, scored == i) for i, name in enumerate(SPLITS)}
    counts = {
        language: _count(rows, rows.language == i, is_new, in_test, in_held_out, scored, kept)
        for i, language in enumerate(languages)
    }
    for file in files:
        counts[file.language]["skipped_rows"] += file.skipped
    train = [file for file in _filter(files, kept) if file.sources]
    return TranslationSplits(train, held, list(tests), counts)


def _number_rows(
    files: Sequence[Translations], languages: Sequence[str], number_of: dict[str, int]
) -> _Rows:
    """All rows; `number_of` gets the normalized texts."""
    raw_numbers: dict[str, int] = {}
    size = sum(len(file.sources) for file in files)
    raw = np.empty((size, 2), np.int64)
    for side, texts in enumerate((_chain(files, 2), _chain(files, 3))):
        numbers = (raw_numbers.setdefault(text, len(raw_numbers)) for text in texts)
        raw[:, side] = np.fromiter(numbers, np.int64, size)
    normalized = np.fromiter(
        (number_of.setdefault(normalized_text(text), len(number_of)) for text in raw_numbers),
        np.int64,
        len(raw_numbers),
    )
    ends = np.fromiter((text.endswith(_QUESTION_MARKS) for text in raw_numbers), bool)
    sizes = [len(file.sources) for file in files]
    language = np.repeat([languages.index(file.language) for file in files], sizes)
    is_sentence = ~np.repeat(np.array([file.dictionary for file in files], bool), sizes)
    is_question = ends[raw].all(1) & is_sentence
    return _Rows(normalized[raw], raw, language.astype(np.int64), is_sentence, is_question)


def _chain(files: Sequence[Translations], field: int) -> Iterator[str]:
    return itertools.chain.from_iterable(file[field] for file in files)  # type: ignore[misc]


def _known_texts(tests: Sequence[Translations], number_of: dict[str, int]) -> np.ndarray:
    """The numbers of the normalized texts of tests that files have: int64 [T]."""
    texts = {*_chain(tests, 2), *_chain(tests, 3)}
    found = (number_of.get(normalized_text(text), -1) for text in texts)
    return np.fromiter((number for number in found if number >= 0), np.int64)


def _contains(rows: _Rows, numbers: np.ndarray, count: int) -> np.ndarray:
    """Whether a row has one of these texts on either side: bool [R]."""
    listed = np.zeros(count, bool)
    listed[numbers] = True
    return listed[rows.texts].any(1)


def _first_of_equals(rows: _Rows) -> np.ndarray:
    """Whether no row before has the same texts and language: bool [R]."""
    count = int(rows.raw.max(initial=0)) + 1  # a key below 2^63 for 10^8 texts in 900 languages
    keys = (rows.language * count + rows.raw[:, 0]) * count + rows.raw[:, 1]
    is_first = np.zeros(len(keys), bool)
    is_first[np.unique(keys, return_index=True)[1]] = True
    return is_first


def _hold_out(
    rows: _Rows, usable: np.ndarray, languages: int, texts: int, held_out: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The split, a position in SPLITS or -1, that each row is held out for, and is scored in.

    Languages that share sentences share the groups: those that one holds out, the next takes first.
    """
    at = np.flatnonzero(usable & rows.is_sentence)
    components = connect(texts, rows.texts[at])
    _, group = np.unique(components[rows.texts[at, 0]], return_inverse=True)
    sizes = np.bincount(group)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(sizes))  # the place of each group
    row_order = rng.permutation(len(at))
    split_of_group = np.full(len(sizes), -1)
    scored = np.full(len(rows.language), -1)
    for language in range(languages):
        mine = rows.language[at] == language
        count = min(held_out, int(mine.sum()) // _LARGEST_SHARE)
        eligible = mine & (sizes[group] <= _LARGEST_GROUP)
        questions = eligible & rows.is_question[at]
        if questions.sum() >= _MIN_QUESTIONS * held_out:
            eligible = questions
        # Of each group its first eligible row in a random order.
        choice = row_order[eligible[row_order]]
        groups, first = np.unique(group[choice], return_index=True)
        row_of = dict(zip(groups.tolist(), choice[first].tolist(), strict=True))
        by_place = groups[np.argsort(order[groups])]
        for split in range(len(SPLITS)):
            known = by_place[split_of_group[by_place] == split]
            chosen = [*known, *by_place[split_of_group[by_place] == -1]][:count]
            split_of_group[chosen] = split
            scored[at[[row_of[int(g)] for g in chosen]]] = split
    split_of = np.full(len(rows.language), -1)
    split_of[at] = split_of_group[group]
    return split_of, scored


def _gather(
    files: Sequence[Translations], languages: Sequence[str], rows: _Rows, chosen: np.ndarray
) -> list[Translations]:
    """The chosen rows of each language that has some, as one entry each."""
    found = []
    parts = _filter(files, chosen)
    for language in languages:
        mine = [part for part in parts if part.language == language and part.sources]
        if mine:
            name = "+".join(dict.fromkeys(part.name for part in mine))
            sources, targets = [*_chain(mine, 2)], [*_chain(mine, 3)]
            found.append(Translations(name, language, sources, targets))
    return found


def _filter(files: Sequence[Translations], kept: np.ndarray) -> list[Translations]:
    """The files with those of their rows that are kept, bool [R]."""
    ends = np.cumsum([len(file.sources) for file in files])[:-1]
    return [
        file._replace(
            sources=[*itertools.compress(file.sources, mask)],
            targets=[*itertools.compress(file.targets, mask)],
        )
        for file, mask in zip(files, np.split(kept, ends), strict=True)
    ]


def _count(
    rows: _Rows,
    mine: np.ndarray,
    is_new: np.ndarray,
    in_test: np.ndarray,
    in_held_out: np.ndarray,
    scored: np.ndarray,
    kept: np.ndarray,
) -> dict[str, Any]:
    """Counts of the rows of one language."""
    sentence = rows.is_sentence

    def count(chosen: np.ndarray) -> int:
        return int((mine & chosen).sum())

    usable = is_new & ~in_test
    return {
        "sentences": count(sentence),
        "dictionary_entries": count(~sentence),
        "skipped_rows": 0,
        "repetitions": count(~is_new),
        "in_tests": count(is_new & in_test),
        "held_out": {name: count(scored == i) for i, name in enumerate(SPLITS)},
        "near_held_out": count(usable & in_held_out & (scored < 0)),
        "trained_sentences": count(kept & sentence),
        "trained_dictionary_entries": count(kept & ~sentence),
    }
