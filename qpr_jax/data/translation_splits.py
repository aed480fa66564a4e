"""Which translations train a student, and which are held out or stand in a test set."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect
from qpr_jax.data.translations import Translations
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

SPLITS = ("validation", "test")
HELD_OUT = 1000  # sentences of each language in each of SPLITS
_LARGEST_SHARE = 10  # at most a tenth of the sentences is scored in each of SPLITS
_MIN_QUESTIONS = 4  # questions alone are held out if there are so many times as many
# Common texts ("Yes.") link many others; such a group would take too much from training.
_LARGEST_GROUP = 100  # pairs
_QUESTION_MARKS = ("?", "\uff1f", "\u061f", "\u037e")  # also full-width, Arabic, Greek


class TranslationSplits(NamedTuple):
    """Translations to train with, to select and score a student, and tests of their own.

    Attributes:
      train: the files without what is held out, stands in a test, or repeats a row.
      held_out: "validation" and "test", each with one entry for each language with sentences.
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
      language: int64 [R], a position in `languages`.
      is_sentence: bool [R].
      is_question: bool [R]: a sentence with a question mark at the end of both sides.
      is_new: bool [R]: no row before has the same texts and language.
    """

    texts: np.ndarray
    language: np.ndarray
    is_sentence: np.ndarray
    is_question: np.ndarray
    is_new: np.ndarray


def split_translations(
    files: Sequence[Translations], tests: Sequence[Translations], *, held_out: int = HELD_OUT
) -> TranslationSplits:
    """Hold out sentences of each language, and leave out of training what stands in a test.

    Rows that share a normalized text on either side, in any file and language, directly or through
    others, are one group. A group is held out whole, for the same split in all languages, and one
    row of it is scored; groups of more than 100 rows are not held out. If at least four times as
    many questions exist, questions are held out. Dictionaries are never held out. Rows with a
    normalized text of a test or of a held-out row, on either side, are left out of training. Equal
    arguments give equal splits.

    Args:
      files: to train with.
      tests: translations that nothing is trained with.
      held_out: rows to score in each of validation and test, for each language; at most a tenth of
        its sentences.

    Raises:
      UserError: nothing is left to train with.
    """
    if not files:
        return TranslationSplits([], {name: [] for name in SPLITS}, list(tests), {})
    languages = sorted({file.language for file in files})
    number_of: dict[str, int] = {}
    rows = _number_rows(files, languages, number_of)
    known = (number_of.get(normalized_text(text), -1) for text in {*_texts(tests)})
    in_test = _contains(rows, np.fromiter((i for i in known if i >= 0), np.int64), number_of)
    is_new, usable = rows.is_new, rows.is_new & ~in_test
    split_of, scored = _hold_out(rows, usable, len(languages), len(number_of), held_out)
    in_held_out = _contains(rows, rows.texts[split_of >= 0].ravel(), number_of)
    kept = usable & ~in_held_out
    if not kept.any():
        names = ", ".join(dict.fromkeys(file.name for file in files))
        what = f"{names}: all {len(kept)} rows are held out or in `data.parallel_tests`"
        raise UserError(what, remedy="give other files in `data.parallel`")
    held = {name: _gather(files, languages, scored == i) for i, name in enumerate(SPLITS)}
    report = {}
    for i, language in enumerate(languages):
        mine = rows.language == i
        counted = {
            "sentences": rows.is_sentence,
            "dictionary_entries": ~rows.is_sentence,
            "repetitions": ~is_new,
            "in_tests": is_new & in_test,
            "near_held_out": usable & in_held_out & (scored < 0),
            "trained_sentences": kept & rows.is_sentence,
            "trained_dictionary_entries": kept & ~rows.is_sentence,
        }
        counts: dict[str, Any] = {k: int((mine & chosen).sum()) for k, chosen in counted.items()}
        counts["held_out"] = {n: int((mine & (scored == j)).sum()) for j, n in enumerate(SPLITS)}
        counts["skipped_rows"] = sum(file.skipped for file in files if file.language == language)
        report[language] = counts
    train = [file for file in _filter(files, kept) if file.sources]
    return TranslationSplits(train, held, list(tests), report)


def _texts(files: Iterable[Translations]) -> Iterable[str]:
    """All texts of both sides."""
    return itertools.chain.from_iterable((*file.sources, *file.targets) for file in files)


def _number_rows(
    files: Sequence[Translations], languages: Sequence[str], number_of: dict[str, int]
) -> _Rows:
    """Number the texts of all rows; `number_of` gets the normalized texts."""
    known: dict[str, int] = {}
    sources = itertools.chain.from_iterable(file.sources for file in files)
    targets = itertools.chain.from_iterable(file.targets for file in files)
    for text in itertools.chain(sources, targets):
        if text not in known:
            known[text] = number_of.setdefault(normalized_text(text), len(number_of))
    seen: set[tuple[int, str, str]] = set()
    rows: list[tuple[int, int, int, bool, bool, bool]] = []
    for file in files:
        language = languages.index(file.language)
        for source, target in zip(file.sources, file.targets, strict=True):
            marked = source.endswith(_QUESTION_MARKS) and target.endswith(_QUESTION_MARKS)
            row = (language, source, target)
            flags = (not file.dictionary, marked and not file.dictionary, row not in seen)
            rows.append((known[source], known[target], language, *flags))
            seen.add(row)
    table = np.array(rows, np.int64).reshape(-1, 6)
    return _Rows(table[:, :2], table[:, 2], *table[:, 3:].T.astype(bool))


def _contains(rows: _Rows, numbers: np.ndarray, number_of: dict[str, int]) -> np.ndarray:
    """Whether a row has one of these texts on either side: bool [R]."""
    listed = np.zeros(len(number_of), bool)
    listed[numbers] = True
    return listed[rows.texts].any(1)


def _hold_out(
    rows: _Rows, usable: np.ndarray, languages: int, texts: int, held_out: int
) -> tuple[np.ndarray, np.ndarray]:
    """The split, a position in SPLITS or -1, that each row is held out for, and is scored in.

    Groups that one language holds out are the first choice of the next one.
    """
    at = np.flatnonzero(usable & rows.is_sentence)
    components = connect(texts, rows.texts[at])
    _, group = np.unique(components[rows.texts[at, 0]], return_inverse=True)
    sizes = np.bincount(group)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(sizes))  # the place of each group
    row_order = rng.permutation(len(at))
    split_of_group = np.full(len(sizes), -1)
    scored = np.full(len(rows.language), -1)
    for language in range(languages):
        mine = rows.language[at] == language
        count = min(held_out, int(mine.sum()) // _LARGEST_SHARE)
        eligible = mine & (sizes[group] <= _LARGEST_GROUP)
        questions = eligible & rows.is_question[at]
        if questions.sum() >= _MIN_QUESTIONS * count:
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
    files: Sequence[Translations], languages: Sequence[str], chosen: np.ndarray
) -> list[Translations]:
    """The chosen rows of each language that has some, as one entry each."""
    found = []
    parts = [part for part in _filter(files, chosen) if part.sources]
    for language in languages:
        mine = [part for part in parts if part.language == language]
        if mine:
            name = "+".join(dict.fromkeys(part.name for part in mine))
            sources = [text for part in mine for text in part.sources]
            targets = [text for part in mine for text in part.targets]
            found.append(Translations(name, mine[0].source_language, language, sources, targets))
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
