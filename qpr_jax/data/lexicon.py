"""Word translations learned from parallel sentences, and texts glossed with them word by word."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
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
    word of a sentence may have caused any target word, or none has. It takes about 50 bytes for
    each pair of a source word and a target word of a sentence.

    Source: Brown, Della Pietra, Della Pietra and Mercer (1993), "The Mathematics of Statistical
    Machine Translation", Model 1.
    """
    source_words: dict[str, int] = {"": 0}  # the first causes what no word does
    target_words: dict[str, int] = {}
    left: list[int] = []  # the source words of all sentences, without repetitions
    right: list[int] = []
    sizes: list[tuple[int, int]] = []
    for source, target in zip(sources, targets, strict=True):
        words = [source_words.setdefault(w, len(source_words)) for w in tokenize(source)]
        others = [target_words.setdefault(w, len(target_words)) for w in tokenize(target)]
        if words and others:
            words, others = [0, *dict.fromkeys(words[:_MOST_WORDS])], others[:_MOST_WORDS]
            left += words
            right += others
            sizes.append((len(words), len(others)))
    if not sizes:
        return Lexicon([], {})
    pairs, places = _word_pairs(np.array(left), np.array(right), np.array(sizes))
    keys, entry = np.unique(pairs[:, 0] * len(target_words) + pairs[:, 1], return_inverse=True)
    of_source, of_target = np.divmod(keys, len(target_words))
    probability = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        weight = probability[entry]
        weight /= np.bincount(places, weight, minlength=len(right))[places]
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


def _word_pairs(
    left: np.ndarray, right: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Each target word of a sentence with all source words of it.

    Args:
      left: int [L], the source words of all sentences, one after the other.
      right: int [R], the target words.
      sizes: int [n, 2], how many of both each sentence has.

    Returns:
      int64 [P, 2], a source and a target word; int64 [P], the position of the latter in `right`.
    """
    lengths = np.repeat(sizes[:, 0], sizes[:, 1])  # of each target word
    starts = np.repeat(np.cumsum(sizes[:, 0]) - sizes[:, 0], sizes[:, 1])
    places = np.repeat(np.arange(len(right)), lengths)
    at = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(len(places))
    return np.stack([left[at], right[places]], axis=1), places


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
