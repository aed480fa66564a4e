"""The translations of a training: their texts, and whose vector each learns."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect
from qpr_jax.data.lexicon import gloss, learn_lexicon
from qpr_jax.data.translation_splits import TranslationSplits, split_translations
from qpr_jax.data.translations import (
    Translations,
    find_files,
    parse_spec,
    read_translations,
)
from qpr_jax.errors import UserError
from qpr_jax.files import sha256_of
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import TrainConfig, read
from qpr_jax.training.model_families import Corpora
from qpr_jax.training.random_streams import GLOSSES, random_of

log = logging.getLogger(__name__)

_LEXICON_SENTENCES = 100_000  # of a language; more would take minutes and gigabytes


class TranslationData(NamedTuple):
    """Sentences and dictionaries that a student learns a teacher's vectors of.

    Attributes:
      splits: to train with, to score, and tests of their own.
      sources: S distinct texts in the teacher's language.
      targets: T texts in other languages.
      source_of: int32 [T], the position of the text that each target translates: in `sources`, or,
        of glossed questions, from S in the list of questions.
      is_sentence: bool [T]; the others are entries of dictionaries and glossed questions.
    """

    splits: TranslationSplits
    sources: list[str]
    targets: list[str]
    source_of: np.ndarray
    is_sentence: np.ndarray

    @property
    def source_language(self) -> str:
        """Code of the language of the sources."""
        return self.splits.train[0].source_language

    def with_glosses(self, questions: Sequence[str], copies: int) -> TranslationData:
        """Add `copies` of each question in each language, its words replaced by translations."""
        targets, source_of = [], []
        rng = random_of(0, GLOSSES, 0)
        for sources, translations in self.lexicon_texts():
            lexicon = learn_lexicon(sources, translations)
            for _ in range(copies):
                for number, question in enumerate(questions, start=len(self.sources)):
                    text, known = gloss(question, lexicon, rng)
                    if known:
                        targets.append(text)
                        source_of.append(number)
        added = np.array(source_of, np.int32)
        return self._replace(
            targets=self.targets + targets,
            source_of=np.concatenate([self.source_of, added]),
            is_sentence=np.concatenate([self.is_sentence, np.zeros(len(added), bool)]),
        )

    def corpora(self, questions: Iterable[str]) -> Corpora:
        """The texts of each language, `questions` and sources first, and those of dictionaries."""
        sources = [*questions]
        targets: dict[str, list[str]] = {}
        entries: list[str] = []
        for file in self.splits.train:
            if file.dictionary:
                entries += file.targets + file.sources
            else:
                sources += file.sources
                targets.setdefault(file.language, []).extend(file.targets)
        foreign = [text for file in self.splits.train if file.dictionary for text in file.targets]
        return Corpora([sources, *targets.values()], entries, foreign)

    def glossary(self) -> dict[str, str]:
        """For words of the other languages alone, their likely translations, joined by spaces."""
        found: dict[str, str] = {}
        for sources, targets in self.lexicon_texts():
            lexicon = learn_lexicon(targets, sources)
            own = {*lexicon.targets}
            found |= {word: lexicon.likely(word) for word in lexicon.of if word not in own}
        return found

    def groups(self) -> np.ndarray:
        """The group of each source, int64 [S], from 0; one for those of one meaning.

        Sentences with equal normalized texts on either side are linked, directly or through others.
        """
        numbers: dict[str, int] = {}

        def number(text: str) -> int:
            return numbers.setdefault(normalized_text(text), len(self.sources) + len(numbers))

        own = np.flatnonzero(self.is_sentence)
        links = [(i, number(self.sources[i])) for i in np.unique(self.source_of[own]).tolist()]
        links += [(int(self.source_of[i]), number(self.targets[i])) for i in own]
        count = len(self.sources) + len(numbers)
        return connect(count, np.array(links, np.int64).reshape(-1, 2))[: len(self.sources)]

    def scored_texts(self) -> set[str]:
        """The normalized texts of both sides of held-out sentences and tests."""
        files = [*itertools.chain(*self.splits.held_out.values()), *self.splits.tests]
        return {normalized_text(text) for file in files for text in file.sources + file.targets}

    def lexicon_texts(self) -> list[tuple[list[str], list[str]]]:
        """Sources and targets to learn a lexicon from, for each language.

        All entries of dictionaries, and every sentence or every n-th.
        """
        sentences: collections.Counter[str] = collections.Counter()
        for file in self.splits.train:
            sentences[file.language] += 0 if file.dictionary else len(file.sources)
        found: dict[str, tuple[list[str], list[str]]] = {}
        for file in self.splits.train:
            sources, targets = found.setdefault(file.language, ([], []))
            many = -(-sentences[file.language] // _LEXICON_SENTENCES)
            step = 1 if file.dictionary else max(1, many)
            sources += file.sources[::step]
            targets += file.targets[::step]
        return [*found.values()]


def load_translations(config: TrainConfig, held_out: Container[str]) -> TranslationData | None:
    """Read and split the files of `data.parallel`; None if there are none.

    Sources with a normalized text in `held_out` are left out.
    """
    if not config.data.parallel:
        return None
    files, tests = (
        [_read(config, setting, spec) for spec in specs]
        for setting, specs in _specs(config).items()
    )
    for test in tests:
        if test.dictionary:
            raise UserError(
                f"{test.name}: expected sentences to score, got a dictionary",
                setting="data.parallel_tests",
                remedy="give it in `data.parallel` instead, which trains with it",
            )
    with _naming("data.parallel"):
        if len({file.source_language for file in files + tests}) > 1:
            known = ", ".join(sorted({file.source_language for file in files + tests}))
            what = f"expected one language to translate from, the teacher's, got {known}"
            raise UserError(what, remedy="write it first, as in en-de:PATH")
        splits = split_translations(files, tests)
    if config.early_stopping.metric == "translation" and not splits.held_out["validation"]:
        raise UserError(
            "expected sentences to hold out and score, got dictionaries alone or too few sentences "
            f"in {', '.join(config.data.parallel)}",
            setting="early_stopping.metric",
            remedy="give sentences in `data.parallel`, or set another `early_stopping.metric`",
        )
    splits, left_out = _without_sources(splits, held_out)
    sources: dict[str, int] = {}
    targets: list[str] = []
    source_of: list[int] = []
    is_sentence: list[bool] = []
    for file in splits.train:
        for source, target in zip(file.sources, file.targets, strict=True):
            source_of.append(sources.setdefault(source, len(sources)))
            targets.append(target)
            is_sentence.append(not file.dictionary)
    splits.report["held_out_questions"] = left_out
    log.info("data: %s translations of %s texts", f"{len(targets):,}", f"{len(sources):,}")
    for language in sorted({file.language for file in files}):
        counts = splits.report[language]
        log.info(
            "data: %s: %s sentences and %s dictionary entries to train with; left out: %s bad "
            "rows, %s repeated, %s in tests, %s of a held-out text",
            language,
            f"{counts['trained_sentences']:,}",
            f"{counts['trained_dictionary_entries']:,}",
            f"{counts['skipped_rows']:,}",
            f"{counts['repetitions']:,}",
            f"{counts['in_tests']:,}",
            f"{counts['near_held_out']:,}",
        )
    return TranslationData(
        splits,
        [*sources],
        targets,
        np.array(source_of, np.int32),
        np.array(is_sentence, bool),
    )


def _without_sources(
    splits: TranslationSplits, known: Container[str]
) -> tuple[TranslationSplits, int]:
    """The splits without sources to train with of these normalized texts, and their number."""
    train, left_out = [], 0
    for file in splits.train:
        kept = [normalized_text(source) not in known for source in file.sources]
        sources, targets = (
            [*itertools.compress(side, kept)] for side in (file.sources, file.targets)
        )
        train.append(file._replace(sources=sources, targets=targets))
        left_out += len(kept) - sum(kept)
    return splits._replace(train=train), left_out


def translation_digests(config: TrainConfig) -> dict[str, list[str]]:
    """What names the files of translations in the identity of a run; empty without any."""
    if not config.data.parallel:
        return {}
    return {
        f"{setting}.sha256": [_digest(setting, spec) for spec in specs]
        for setting, specs in _specs(config).items()
    }


def _digest(setting: str, spec: str) -> str:
    """The languages of an entry and the hashes of its files."""
    paths = _paths(setting, spec)
    return " ".join(["-".join(parse_spec(spec)[0] or ()), *map(sha256_of, paths)])


def _specs(config: TrainConfig) -> dict[str, tuple[str, ...]]:
    return {name: read(config, name) for name in ("data.parallel", "data.parallel_tests")}


def _paths(setting: str, spec: str) -> list[str]:
    """The files of an entry of a setting; UserError where one is not there."""
    with _naming(setting):
        _, paths = find_files(
            spec,
            remedy="name a file, or two as PATH+PATH; several are separated by commas, which no "
            "path may have",
        )
        for path in paths:
            if not os.path.isfile(path):
                what = f"{path}: expected a file, got a pipe or a device, which is read once"
                raise UserError(what, remedy="save it as a file")
        return paths


def _read(config: TrainConfig, setting: str, spec: str) -> Translations:
    """Read the files of an entry of a setting, at most `data.max_rows` rows of them.

    With a generated log, that is the size of the log, and all rows are read.
    """
    most = None if config.data.source == "synthetic" else config.data.max_rows or None
    _paths(setting, spec)
    with _naming(setting):
        found = read_translations(spec, skip_bad_rows=config.data.skip_bad_rows)
    return found._replace(sources=found.sources[:most], targets=found.targets[:most])


@contextlib.contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Name the setting in a UserError that names none."""
    try:
        yield
    except UserError as error:
        if error.setting:
            raise
        raise UserError(error.what, setting=setting, remedy=error.remedy) from error
