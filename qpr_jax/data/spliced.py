"""Augmentation: new questions, each spliced from existing ones at words that they share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

SPLICE = 0.3  # chance of continuing in another question, at each word that allows it
_ROUND = 50_000
_LONGEST = 32  # words; a walk may revisit a word
_MARKS = ".,;:!?'\"()"
REPLACED = 0.3  # chance that a word of _LETTERS and more gives way to another
_LETTERS = 4  # shorter ones make the question


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
