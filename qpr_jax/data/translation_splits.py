"""Which translations train a student, and which are held out or stand in a test set."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from qpr_jax.data.translations import Pair, Translations
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

SPLITS = ("validation", "test")
HELD_OUT = 1000  # sentences of each language in each of SPLITS
_LARGEST_SHARE = 10  # at most a tenth of the sentences is scored in each of SPLITS
_MIN_QUESTIONS = 4  # questions alone are held out if there are so many times as many
# A common text ("Yes.") is not held out: all rows that have it would be lost to training.
_MOST_ROWS = 100
_QUESTION_MARKS = ("?", "\uff1f", "\u061f", "\u037e")  # also full-width, Arabic, Greek


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
    files: Sequence[Translations], tests: Sequence[Translations], *, held_out: int = HELD_OUT
) -> TranslationSplits:
    """Hold out sentences of each language, and leave out of training what stands in a test.

    `held_out` rows of each language, at most a tenth of its sentences, go to each of validation and
    test. These, the given tests and training share no normalized text, on either side and in any
    language. Within a held-out set of a language, each text occurs once. Sentences are chosen by a
    hash of the source, so that languages with the same sources hold out the same ones. If at least
    four times as many questions exist, questions are held out. Dictionaries are never held out.
    UserError if nothing is left to train with.
    """
    if not files:
        return TranslationSplits([], {name: [] for name in SPLITS}, list(tests), {})
    counts: dict[str, Counter[str]] = {}
    in_tests = {normalized_text(text) for file in tests for text in (*file.sources, *file.targets)}
    rows = _usable_rows(files, in_tests, counts)
    scored = _hold_out(files, rows, held_out)
    held = {row for rows_of in scored.values() for row in itertools.chain(*rows_of.values())}
    banned = {key for row in held for key in row.keys}
    trained: list[list[Pair]] = [[] for _ in files]
    for row in rows:
        file = files[row.file]
        if banned.isdisjoint(row.keys):
            trained[row.file].append(row.pair)
            kind = "dictionary_entries" if file.dictionary else "sentences"
            counts[file.language][f"trained_{kind}"] += 1
        elif row not in held:
            counts[file.language]["near_held_out"] += 1
    train = [_with_pairs(file, pairs) for file, pairs in zip(files, trained, strict=True) if pairs]
    if not train:
        names = ", ".join(dict.fromkeys(file.name for file in files))
        what = f"{names}: all rows are held out or in `data.parallel_tests`"
        raise UserError(what, remedy="give other files in `data.parallel`")
    entries = {
        split: [_gather(files, chosen) for chosen in rows_of.values() if chosen]
        for split, rows_of in scored.items()
    }
    report: dict[str, Any] = {
        language: {**counts[language]}
        | {"held_out": {split: len(scored[split][language]) for split in SPLITS}}
        for language in sorted(counts)
    }
    return TranslationSplits(train, entries, list(tests), report)


def _usable_rows(
    files: Sequence[Translations], in_tests: Set[str], counts: dict[str, Counter[str]]
) -> list[_Row]:
    """The rows that repeat no other of their language and have no text of a test; count all."""
    normalized = functools.cache(normalized_text)
    seen: set[tuple[str, Pair]] = set()
    rows = []
    for i, file in enumerate(files):
        count = counts.setdefault(file.language, Counter())
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
    """The rows to score, by split and language."""
    uses = Counter(key for row in rows for key in row.keys)
    split_of: dict[str, str] = {}  # of each text that is scored
    scored: dict[str, dict[str, list[_Row]]] = {split: {} for split in SPLITS}
    for language in sorted({file.language for file in files}):
        own = [file.language == language and not file.dictionary for file in files]
        mine = [row for row in rows if own[row.file]]
        count = min(held_out, len(mine) // _LARGEST_SHARE)
        asked = [row for row in mine if all(text.endswith(_QUESTION_MARKS) for text in row.pair)]
        mine = asked if len(asked) >= _MIN_QUESTIONS * count else mine
        mine.sort(key=lambda row: [hashlib.sha256(key.encode()).digest() for key in row.keys])
        for split in SPLITS:
            chosen = scored[split][language] = []
            used: set[str] = set()
            for row in mine:
                here = all(split_of.get(key, split) == split for key in row.keys)
                common = any(uses[key] > _MOST_ROWS for key in row.keys)
                if here and not common and used.isdisjoint(row.keys) and len(chosen) < count:
                    chosen.append(row)
                    used.update(row.keys)
            split_of |= dict.fromkeys(used, split)
    return scored


def _gather(files: Sequence[Translations], rows: Sequence[_Row]) -> Translations:
    """Rows of one language as one entry."""
    names = dict.fromkeys(files[number].name for number in sorted({row.file for row in rows}))
    file = files[rows[0].file]._replace(name="+".join(names), dictionary=False, skipped=0)
    return _with_pairs(file, [row.pair for row in rows])


def _with_pairs(file: Translations, pairs: Sequence[Pair]) -> Translations:
    sources, targets = map(list, zip(*pairs, strict=True))
    return file._replace(sources=sources, targets=targets)
