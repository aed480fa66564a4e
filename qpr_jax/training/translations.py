"""The translations of a training: their texts, and whose vector each learns."""

from __future__ import annotations

import array
import dataclasses
import itertools
import logging
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.log_clusters import content_hash
from qpr_jax.data.parallel_sentences import (
    Translations,
    TranslationSplits,
    file_names,
    find_files,
    read_translations,
    split_translations,
)
from qpr_jax.data.splits import group_questions
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import counted
from qpr_jax.text.tokenizer import normalized_text, tokenize
from qpr_jax.training.config import TrainConfig, flatten, naming, refuse_if

log = logging.getLogger(__name__)

_LEXICON_SENTENCES = 100_000  # of a language; more would take minutes and gigabytes
_SETTINGS = ("data.parallel", "data.parallel_tests")
_ITERATIONS = 5
_MOST_WORDS = 30  # of a sentence: long ones add many pairs of words and little evidence
_LEAST = 0.05  # probability of a translation that is kept


class TranslationData(NamedTuple):
    """Sentences and dictionaries that a student learns a teacher's vectors of."""

    splits: TranslationSplits  # to train with, to score, and tests of their own
    sources: list[str]  # S distinct texts in the teacher's language
    targets: list[str]  # T texts in other languages
    # int32 [T], the position of the text that each target translates: in `sources`, or, of
    # questions, from S in their list.
    source_of: np.ndarray
    is_sentence: np.ndarray  # bool [T]; others: entries of dictionaries and translated questions

    def files(self) -> list[dict[str, Any]]:
        """The `name`, `language` and `rows` of what is trained with, and if it is a dictionary."""
        return [
            {
                "name": file_names(file.name),
                "language": file.language,
                "rows": len(file.sources),
                "dictionary": file.dictionary,
            }
            for file in self.splits.train
        ]

    def with_words_translated(self, questions: Sequence[str]) -> TranslationData:
        """Add a copy of each question in each language, its words replaced by translations."""
        targets, source_of = [], []
        rng = np.random.default_rng(0)
        for sources, translations in self.lexicon_texts():
            lexicon = learn_lexicon(sources, translations)
            for number, question in enumerate(questions, start=len(self.sources)):
                text, replaced = translate_words(question, lexicon, rng)
                if replaced:
                    targets.append(text)
                    source_of.append(number)
        return self._replace(
            targets=self.targets + targets,
            source_of=np.concatenate([self.source_of, np.array(source_of, np.int32)]),
            is_sentence=np.concatenate([self.is_sentence, np.zeros(len(targets), bool)]),
        )

    def corpora(self, questions: list[str], words: list[str]) -> tuple[list[list[str]], list[str]]:
        """The texts of each language, `questions` and sources first, and those of dictionaries.

        `words` stand beside those of dictionaries.
        """
        dictionaries = [file for file in self.splits.train if file.dictionary]
        sentences = [file for file in self.splits.train if not file.dictionary]
        targets: dict[str, list[str]] = {}
        for file in sentences:
            targets.setdefault(file.language, []).extend(file.targets)
        sources = questions + [text for file in sentences for text in file.sources]
        entries = [text for file in dictionaries for text in file.targets + file.sources]
        return [sources, *targets.values()], entries + words

    def word_translations(self) -> dict[str, str]:
        """For words of the other languages alone, their likely translations, joined by spaces."""
        found: dict[str, str] = {}
        for sources, targets in self.lexicon_texts():
            lexicon = learn_lexicon(targets, sources)
            of_sources = {*lexicon.targets}
            found |= {word: lexicon.likely(word) for word in lexicon.of if word not in of_sources}
        return found

    def groups(self) -> np.ndarray:
        """The group of each source, int64 [S]: linked by equal texts of either side's sentences."""
        chosen = np.flatnonzero(self.is_sentence)
        texts = self.sources + [self.targets[i] for i in chosen]
        source_rows = np.concatenate([np.arange(len(self.sources)), self.source_of[chosen]])
        return group_questions(texts, source_rows)[: len(self.sources)]

    def scored_texts(self) -> set[str]:
        """Return the normalized texts of both sides of held-out sentences and tests."""
        files = [*itertools.chain(*self.splits.held_out.values()), *self.splits.tests]
        return {normalized_text(text) for file in files for text in file.sources + file.targets}

    def lexicon_texts(self) -> list[tuple[list[str], list[str]]]:
        """For each language, entries of dictionaries and every n-th sentence, for a lexicon."""
        found = []
        for language in dict.fromkeys(file.language for file in self.splits.train):
            files = [file for file in self.splits.train if file.language == language]
            sentences = sum(len(file.sources) for file in files if not file.dictionary)
            step = max(1, -(-sentences // _LEXICON_SENTENCES))
            sources: list[str] = []
            targets: list[str] = []
            for file in files:
                chosen = slice(None, None, 1 if file.dictionary else step)
                sources += file.sources[chosen]
                targets += file.targets[chosen]
            found.append((sources, targets))
        return found


def load_translations(config: TrainConfig, held_out: Container[str]) -> TranslationData | None:
    """Read and split the files of `data.parallel`, if any, without sources in `held_out`."""
    if not config.data.parallel:
        return None
    files, tests = (
        [_read(config, name, spec) for spec in flatten(config)[name]] for name in _SETTINGS
    )
    for test in tests:
        what = f"{test.name}: expected sentences to score, got a dictionary"
        remedy = "give it in `data.parallel` instead, which trains with it"
        refuse_if(test.dictionary, "data.parallel_tests", what, remedy)
    languages = sorted({file.source_language for file in files + tests})
    what = f"expected one language to translate from, the teacher's, got {', '.join(languages)}"
    refuse_if(len(languages) > 1, "data.parallel", what, "write it first, as in en-de:PATH")
    with naming("data.parallel"):
        splits = split_translations(files, tests, held_out)
    none = config.early_stopping.metric == "translation" and not splits.held_out["validation"]
    what = "expected sentences to hold out and score, got dictionaries alone or too few sentences"
    remedy = "give sentences in `data.parallel`, or set another `early_stopping.metric`"
    refuse_if(none, "early_stopping.metric", what, remedy)
    sources: dict[str, int] = {}
    source_of: list[int] = []
    for file in splits.train:
        source_of += [sources.setdefault(source, len(sources)) for source in file.sources]
    targets = [target for file in splits.train for target in file.targets]
    is_sentence = [not file.dictionary for file in splits.train for _ in file.targets]
    count = counted(len(targets), "translation")
    log.info("data: %s of %s", count, counted(len(sources), "text"))
    for language in sorted({file.language for file in splits.train}):
        log.info("data: %s: %s", language, splits.report[language])
    return TranslationData(
        splits, [*sources], targets, np.array(source_of, np.int32), np.array(is_sentence, bool)
    )


def _read(config: TrainConfig, setting: str, spec: str) -> Translations:
    """Read the files of an entry of a setting, at most `data.max_rows` rows of them."""
    # With a generated log, that is the size of the log.
    most = None if config.data.source == "synthetic" else config.data.max_rows or None
    with naming(setting):
        found = read_translations(spec, skip_bad_rows=config.data.skip_bad_rows)
    return found._replace(sources=found.sources[:most], targets=found.targets[:most])


def translation_digests(config: TrainConfig) -> dict[str, list[str]]:
    """The languages and the hashes of the files of translations, for the fingerprint of a run."""
    found: dict[str, list[str]] = {}
    for name in _SETTINGS if config.data.parallel else ():
        digests = found[f"{name}.sha256"] = []
        for spec in flatten(config)[name]:
            with naming(name):
                languages, paths = find_files(spec)
            digests.append(" ".join(["-".join(languages), *map(content_hash, paths)]))
    return found


def with_languages(
    encoder: Any, start: Encoder | None, translations: TranslationData | None
) -> Encoder:
    """Note in the settings of an encoder the translations that it and its `start` have learned."""
    learned = start.settings.get("translations", {}) if start else {}
    if translations is not None:
        files = [*learned.get("files", []), *translations.files()]
        language = translations.splits.train[0].source_language
        learned = {"source_language": language, "files": files}
    settings = encoder.settings | ({"translations": learned} if learned else {})
    return dataclasses.replace(encoder, settings=settings)


class Lexicon(NamedTuple):
    """The translations of words, with probabilities.

    targets: the words of the other language. of: for each source word, the positions in `targets`
    of its translations and their probabilities, which sum to 1.
    """

    targets: list[str]
    of: dict[str, tuple[np.ndarray, np.ndarray]]

    def likely(self, word: str) -> str:
        """Return the two likeliest translations of a word, at least half as likely as the first."""
        places, probabilities = self.of[word]
        best = np.argsort(-probabilities, kind="stable")[:2]
        kept = best[probabilities[best] >= probabilities[best[0]] / 2]
        return " ".join(self.targets[places[i]] for i in kept)


def learn_lexicon(sources: Iterable[str], targets: Iterable[str]) -> Lexicon:
    """Learn which words translate each other from sentences that do.

    Expectation maximization for the probability of a target word given a source word; any source
    word of a sentence may have caused any target word, or none has. About 50 bytes a pair of words.

    Source: Brown et al. (1993), "The Mathematics of Statistical Machine Translation", Model 1.
    """
    source_words: dict[str, int] = {"": 0}  # the first causes what no word does
    target_words: dict[str, int] = {}
    left, right = array.array("q"), array.array("q")  # each target word with all source words
    place = array.array("q")  # of the target word among those of all sentences
    count = 0
    for source, target in zip(sources, targets, strict=True):
        words = [source_words.setdefault(w, len(source_words)) for w in tokenize(source)]
        others = [target_words.setdefault(w, len(target_words)) for w in tokenize(target)]
        if words and others:
            words, others = [0, *dict.fromkeys(words[:_MOST_WORDS])], others[:_MOST_WORDS]
            left.extend(words * len(others))
            for other in others:
                right.extend([other] * len(words))
                place.extend([count] * len(words))
                count += 1
    if not count:
        return Lexicon([], {})
    keys, entry = np.unique(
        np.array(left) * len(target_words) + np.array(right), return_inverse=True
    )
    of_source, of_target = np.divmod(keys, len(target_words))
    probability = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        weight = probability[entry]
        weight /= np.bincount(place, weight, minlength=count)[place]
        counts = np.bincount(entry, weight, minlength=len(keys))
        probability = counts / np.bincount(of_source, counts)[of_source]
    likely = (probability >= _LEAST) & (of_source > 0)
    of_source, of_target, probability = of_source[likely], of_target[likely], probability[likely]
    words_of = [*source_words]
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    starts = np.flatnonzero(np.diff(of_source, prepend=-1))
    for start, stop in itertools.pairwise([*starts, len(of_source)]):
        share = probability[start:stop]
        found[words_of[of_source[start]]] = of_target[start:stop], share / share.sum()
    return Lexicon([*target_words], found)


def translate_words(text: str, lexicon: Lexicon, rng: np.random.Generator) -> tuple[str, int]:
    """Replace each word by a random translation, if it has one; also how many had one."""
    words, replaced = [], 0
    for word in tokenize(text):
        if found := lexicon.of.get(word):
            replaced += 1
            at = int(np.searchsorted(np.cumsum(found[1]), rng.random()))
            word = lexicon.targets[found[0][min(at, len(found[0]) - 1)]]
        words.append(word)
    return " ".join(words), replaced
