"""Word translations learned from parallel sentences, and texts glossed with them word by word."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.text.tokenizer import tokenize

_ITERATIONS = 5
_MOST_WORDS = 30  # of a sentence: long ones add many pairs of words and little evidence
_LEAST = 0.05  # probability of a translation that is kept


class Lexicon(NamedTuple):
    """The translations of words, with probabilities.

    Attributes:
      targets: the words of the other language.
      of: for each source word, the positions in `targets` of its translations and their
        probabilities, which sum to 1.
    """

    targets: list[str]
    of: dict[str, tuple[np.ndarray, np.ndarray]]

    def likely(self, word: str, *, most: int = 2) -> str:
        """The likeliest translations of a word, at least half as likely as the first."""
        places, probabilities = self.of[word]
        best = np.argsort(-probabilities, kind="stable")[:most]
        kept = best[probabilities[best] >= probabilities[best[0]] / 2]
        return " ".join(self.targets[places[i]] for i in kept)


def learn_lexicon(sources: Iterable[str], targets: Iterable[str]) -> Lexicon:
    """Learn which words translate each other from sentences that do.

    Expectation maximization for the probability of a target word given a source word; any source
    word of a sentence may have caused any target word, or none has.

    Source: Brown, Della Pietra, Della Pietra and Mercer (1993), "The Mathematics of Statistical
    Machine Translation", Model 1.
    """
    source_words: dict[str, int] = {"": 0}  # the first causes what no word does
    target_words: dict[str, int] = {}
    left_words, right_words = _WordLists([], []), _WordLists([], [])
    for source, target in zip(sources, targets, strict=True):
        left = [source_words.setdefault(w, len(source_words)) for w in tokenize(source)]
        right = [target_words.setdefault(w, len(target_words)) for w in tokenize(target)]
        if left and right:
            left_words.add([0, *dict.fromkeys(left[:_MOST_WORDS])])
            right_words.add(right[:_MOST_WORDS])
    occurrences = len(right_words.words)
    if not occurrences:
        return Lexicon([], {})
    source_ids, target_ids, places = _word_pairs(left_words, right_words)
    keys, entry = np.unique(source_ids * len(target_words) + target_ids, return_inverse=True)
    of_source, of_target = keys // len(target_words), keys % len(target_words)
    probability = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        weight = probability[entry]
        weight /= np.bincount(places, weight, minlength=occurrences)[places]
        counts = np.bincount(entry, weight, minlength=len(keys))
        probability = counts / np.bincount(of_source, counts)[of_source]
    kept = (probability >= _LEAST) & (of_source > 0)
    return Lexicon(
        [*target_words],
        _by_source([*source_words], of_source[kept], of_target[kept], probability[kept]),
    )


class _WordLists(NamedTuple):
    """Lists of words, one after the other, and their lengths."""

    words: list[int]
    lengths: list[int]

    def add(self, words: list[int]) -> None:
        self.words.extend(words)
        self.lengths.append(len(words))


def _word_pairs(left: _WordLists, right: _WordLists) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each word of a list on the right with all words of that on the left, int64 [P] each.

    Returns:
      the words on the left, those on the right, and the positions of the latter in `right.words`.
    """
    left_lengths, right_lengths = np.array(left.lengths), np.array(right.lengths)
    lengths = np.repeat(left_lengths, right_lengths)
    starts = np.repeat(np.cumsum(left_lengths) - left_lengths, right_lengths)
    places = np.repeat(np.arange(len(lengths)), lengths)
    at = np.arange(len(places)) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return np.array(left.words)[at], np.array(right.words)[places], places


def _by_source(
    words: Sequence[str], of_source: np.ndarray, of_target: np.ndarray, probability: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    starts = np.flatnonzero(np.diff(of_source, prepend=-1))
    for start, stop in itertools.pairwise([*starts, len(of_source)]):
        share = probability[start:stop]
        found[words[of_source[start]]] = of_target[start:stop], share / share.sum()
    return found


def gloss(text: str, lexicon: Lexicon, rng: np.random.Generator) -> tuple[str, int]:
    """Replace each word by a random translation of it; also how many words had one.

    Words without a translation, such as names, stay.
    """
    words, known = [], 0
    for word in tokenize(text):
        if found := lexicon.of.get(word):
            known += 1
            at = int(np.searchsorted(np.cumsum(found[1]), rng.random()))
            word = lexicon.targets[found[0][min(at, len(found[0]) - 1)]]
        words.append(word)
    return " ".join(words), known
