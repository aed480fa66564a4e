"""New texts from given ones: glossed by a learned lexicon, spliced, or with words replaced."""

from __future__ import annotations

import array
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.text.tokenizer import tokenize

_ITERATIONS = 5
_MOST_WORDS = 30  # of a sentence: long ones add many pairs of words and little evidence
_LEAST = 0.05  # probability of a translation that is kept
SPLICE = 0.3  # chance of continuing in another question, at each word that allows it
_ROUND = 50_000
_LONGEST = 32  # words; a walk may revisit a word
_MARKS = ".,;:!?'\"()"
REPLACED = 0.3  # chance that a word of _LETTERS and more gives way to another
_LETTERS = 4  # shorter ones make the question


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


def splice_questions(
    questions: Sequence[str], count: int, *, accept: Callable[[str], bool]
) -> list[str]:
    """Make at most `count` distinct new questions, whose vectors a student learns from a teacher.

    Each begins as a random question. After two adjacent words that another question has too, it
    continues with a chance of SPLICE as that question does. So all its runs of three words occur in
    the questions. Tang et al. (2019), "Distilling Task-Specific Knowledge from BERT into Simple
    Neural Networks", section 3, augment such data by sampling n-grams.

    Fewer than `count` are returned where `questions`, in any case, with spaces between words, allow
    no more. `accept` returns False for a question to leave out.
    """
    walk = _Walk(questions)
    rng = np.random.default_rng(0)
    found: dict[str, None] = {}
    while len(found) < count:
        before = len(found)
        new = walk.sample(rng)
        found.update((text, None) for text in new if text not in found and accept(text))
        if len(found) - before < _ROUND // 100:  # hardly any new ones are left
            break
    return list(itertools.islice(found, count))


def replace_words(questions: Sequence[str], words: Sequence[str]) -> list[str]:
    """Replace longer words of questions by random ones of `words`, each equally often.

    So a student meets words that its questions lack, or have seldom, among others. Wei and Zou
    (2019), "EDA: Easy Data Augmentation", replace by synonyms; a teacher needs none.
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


class _Walk:
    """The words of all questions in a row, and the other places of each pair of adjacent words."""

    def __init__(self, questions: Sequence[str]) -> None:
        split = [question.split() for question in questions]
        lengths = np.array([len(words) for words in split], np.int64)
        self.words = list(itertools.chain.from_iterable(split))
        self.ends = np.cumsum(lengths)
        self.starts = (self.ends - lengths)[lengths > 0]
        known: dict[str, int] = {}
        ids = np.array([known.setdefault(w.lower(), len(known)) for w in self.words], np.int64)
        before = np.concatenate([ids[:1], ids[:-1]])
        self.is_last = np.zeros(len(ids), bool)
        self.is_last[self.ends[lengths > 0] - 1] = True
        # A question's first word has no word before it, and its last none after it.
        inside = ~self.is_last
        inside[self.starts] = False
        at = np.flatnonzero(inside)
        _, group, sizes = np.unique(
            before[at] * len(known) + ids[at], return_inverse=True, return_counts=True
        )
        self.places = at[np.argsort(group, kind="stable")]
        firsts = np.cumsum(sizes) - sizes
        self.first, self.size = np.zeros((2, len(ids)), np.int64)
        self.first[at], self.size[at] = firsts[group], sizes[group]

    def sample(self, rng: np.random.Generator) -> list[str]:
        """Take _ROUND walks at once; return those that end as a question and are spliced."""
        if not len(self.places):
            return []
        at = rng.choice(self.starts, _ROUND)
        path = np.full((_LONGEST, _ROUND), -1)
        spliced = np.zeros(_ROUND, bool)
        active = np.ones(_ROUND, bool)
        for step in range(_LONGEST):
            path[step, active] = at[active]
            active &= ~self.is_last[at]
            jump = active & (self.size[at] > 1) & (rng.random(_ROUND) < SPLICE)
            choice = rng.integers(np.maximum(self.size[at], 1))
            other = np.where(jump, self.places[np.where(jump, self.first[at] + choice, 0)], at)
            spliced |= other != at
            at = np.where(active, other + 1, at)
        whole = spliced & ~active
        return [" ".join(self.words[i] for i in walk if i >= 0) for walk in path.T[whole]]
