"""New texts from others: with words translated or replaced, or recombined."""

from __future__ import annotations

import array
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.text.tokenizer import tokenize

_ITERATIONS = 5
_MOST_WORDS = 30  # of a sentence: long ones add many pairs of words and little evidence
_LEAST = 0.05  # probability of a translation that is kept
RECOMBINE = 0.3  # chance of continuing in another question, at each word that allows it
_MISSES = 2000  # walks in a row without a new question show that hardly any is left
_LONGEST = 32  # words; a walk may revisit a word
_MARKS = ".,;:!?'\"()"
REPLACED = 0.3  # chance that a word of _LETTERS and more gives way to another
_LETTERS = 4  # shorter ones make the question


class Lexicon(NamedTuple):
    """The translations of words, with probabilities.

    targets: the words of the other language. of: for each source word, the positions in `targets`
    of its translations and their probabilities, which sum to 1.
    """

    targets: list[str]
    of: dict[str, tuple[np.ndarray, np.ndarray]]

    def likely(self, word: str, *, most: int = 2) -> str:
        """Return the likeliest translations of a word, at least half as likely as the first."""
        places, probabilities = self.of[word]
        best = np.argsort(-probabilities, kind="stable")[:most]
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
    words, known = [], 0
    for word in tokenize(text):
        if found := lexicon.of.get(word):
            known += 1
            at = int(np.searchsorted(np.cumsum(found[1]), rng.random()))
            word = lexicon.targets[found[0][min(at, len(found[0]) - 1)]]
        words.append(word)
    return " ".join(words), known


def recombine_questions(
    questions: Sequence[str], count: int, *, accept: Callable[[str], bool]
) -> list[str]:
    """Make at most `count` distinct new questions, whose vectors a student learns from a teacher.

    Each begins as a random question. After two adjacent words that another question has too, in any
    case, it continues with a chance of RECOMBINE as that question does. Tang et al. (2019),
    "Distilling Task-Specific Knowledge from BERT into Simple Neural Networks", section 3, augment
    such data by sampling n-grams. `accept` returns False for a question to leave out.
    """
    split = [words for words in map(str.split, questions) if words]
    places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)  # of adjacent words
    for number, words in enumerate(split):
        for i in range(1, len(words) - 1):
            places[words[i - 1].lower(), words[i].lower()].append((number, i))
    rng = random.Random(0)
    found: dict[str, None] = {}
    missed = 0
    while split and len(found) < count and missed < _MISSES:
        words, i, joined = rng.choice(split), 0, False
        walked: list[str] = []
        while i < len(words) and len(walked) < _LONGEST:
            walked.append(words[i])
            if 0 < i < len(words) - 1 and rng.random() < RECOMBINE:
                number, i = rng.choice(places[words[i - 1].lower(), words[i].lower()])
                joined = joined or split[number] is not words
                words = split[number]
            i += 1
        text = " ".join(walked)
        missed += 1
        if i == len(words) and joined and text not in found and accept(text):
            found[text] = None
            missed = 0
    return list(found)


def replace_words(questions: Sequence[str], words: Sequence[str]) -> list[str]:
    """Replace longer words of questions by random ones of `words`, so that a student meets these.

    Wei and Zou (2019), "EDA: Easy Data Augmentation", replace by synonyms; a teacher needs none.
    """
    rng = np.random.default_rng([0, 1])

    def replaced(question: str) -> str:
        parts = question.split()
        chosen = rng.random(len(parts)) < REPLACED
        others = rng.integers(len(words), size=len(parts))
        for i in np.flatnonzero(chosen):
            if len(core := parts[i].strip(_MARKS)) >= _LETTERS:
                parts[i] = parts[i].replace(core, words[others[i]])
        return " ".join(parts)

    return [replaced(question) for question in questions]
