"""Word translations learned from parallel sentences, and texts glossed with them word by word."""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.text.tokenizer import tokenize

_ITERATIONS = 5
_MOST_WORDS = 30  # of a sentence: long ones add many pairs of words and little evidence
# Pairs of words that are read, at about 50 bytes each: 75,000 sentences of 16 words.
_MOST_WORD_PAIRS = 20_000_000
_SHORT = 24  # word pairs of an entry that is always read, as those of dictionaries
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
    word of a sentence may have caused any target word, or none has. Of very many sentences, some
    are left out evenly, so that the pairs of their words fit in memory.

    Source: Brown, Della Pietra, Della Pietra and Mercer (1993), "The Mathematics of Statistical
    Machine Translation", Model 1.
    """
    source_words: dict[str, int] = {"": 0}  # the first causes what no word does
    target_words: dict[str, int] = {}
    left_words, right_words = _WordLists.empty(), _WordLists.empty()
    for source, target in zip(sources, targets, strict=True):
        left = [source_words.setdefault(w, len(source_words)) for w in tokenize(source)]
        right = [target_words.setdefault(w, len(target_words)) for w in tokenize(target)]
        if left and right:
            left_words.add([0, *dict.fromkeys(left[:_MOST_WORDS])])
            right_words.add(right[:_MOST_WORDS])
    if not len(right_words.words):
        return Lexicon([], {})
    kept = _evenly(left_words.sizes() * right_words.sizes(), _MOST_WORD_PAIRS)
    right_words = right_words.take(kept)
    occurrences = len(right_words.words)
    pair_keys, places = _word_pairs(left_words.take(kept), right_words, len(target_words))
    keys, inverse = np.unique(pair_keys, return_inverse=True)
    entry = inverse.astype(np.int32)  # half the memory
    del pair_keys, inverse
    of_source, of_target = keys // len(target_words), keys % len(target_words)
    probability = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        weight = probability[entry]
        weight /= np.bincount(places, weight, minlength=occurrences)[places]
        counts = np.bincount(entry, weight, minlength=len(keys))
        probability = counts / np.bincount(of_source, counts)[of_source]
    likely = (probability >= _LEAST) & (of_source > 0)
    return Lexicon(
        [*target_words],
        _by_source([*source_words], of_source[likely], of_target[likely], probability[likely]),
    )


class _WordLists(NamedTuple):
    """Lists of words, one after the other, and their lengths."""

    words: array.array[int]
    lengths: array.array[int]

    @classmethod
    def empty(cls) -> _WordLists:
        return cls(array.array("i"), array.array("i"))

    def add(self, words: list[int]) -> None:
        self.words.extend(words)
        self.lengths.append(len(words))

    def sizes(self) -> np.ndarray:
        """The lengths, int64."""
        return np.array(self.lengths, np.int64)

    def take(self, kept: np.ndarray) -> _WordLists:
        """Those of the lists that `kept`, bool, says."""
        if kept.all():
            return self
        words = np.array(self.words, np.int32)[np.repeat(kept, self.sizes())]
        lengths = np.array(self.lengths, np.int32)[kept]
        return _WordLists(array.array("i", words.tobytes()), array.array("i", lengths.tobytes()))


def _evenly(sizes: np.ndarray, most: int) -> np.ndarray:
    """Which sentences are read, given the word pairs of each, so that there are about `most`.

    Short entries are all read, unless they alone are half of that.
    """
    always = sizes <= _SHORT
    if sizes[always].sum() > most // 2:
        always = np.zeros(len(sizes), bool)
    share = min(1.0, (most - sizes[always].sum()) / max(1, sizes[~always].sum()))
    kept = np.ones(len(sizes), bool)
    if share < 1:  # those where the running count of the share passes a whole number
        passed = np.floor(np.arange(1, (~always).sum() + 1) * share)
        kept[~always] = np.diff(passed, prepend=0) > 0
    return kept


def _word_pairs(left: _WordLists, right: _WordLists, base: int) -> tuple[np.ndarray, np.ndarray]:
    """Each word of a list on the right with all words of that on the left.

    Returns:
      int64 [P], the word on the left times `base` plus that on the right; int32 [P], the position
      of the latter in `right.words`.
    """
    lengths = np.repeat(left.sizes(), right.sizes())
    starts = np.repeat(np.cumsum(left.sizes()) - left.sizes(), right.sizes())
    places = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    at = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    at += np.arange(len(places))
    keys = np.array(left.words, np.int64)[at]
    keys *= base
    keys += np.array(right.words, np.int64)[places]
    return keys, places


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
