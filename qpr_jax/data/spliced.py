"""More questions out of those there are: from one into another at words that both have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

CROSSING = 0.3  # chance of going on in another question, at each word that allows it
_ROUND = 50_000
_LONGEST = 32  # words; a walk may come back to where it was


def crossed_questions(
    questions: Sequence[str], count: int, *, accept: Callable[[str], bool], seed: int
) -> list[str]:
    """Questions that nobody asked, for a teacher to answer: `count` of them, or fewer.

    Each begins as a question drawn at random. Where it has two words that stand side by side
    elsewhere too, it goes on, now and then, as the question there does, so that all its runs of
    three words are real ones. Students gain from such data what a teacher says of it (Tang et al.
    2019, "Distilling Task-Specific Knowledge from BERT into Simple Neural Networks", section 3,
    draw runs of words for it).

    Args:
      questions: of any case; words are what spaces separate.
      accept: is asked of each; one that it refuses is left out. None comes twice.
      seed: the same one gives the same questions.
    """
    walk = _Walk(questions)
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        before = len(found)
        new = walk.round(rng)
        found.update((text, None) for text in new if text not in found and accept(text))
        if len(found) - before < _ROUND // 100:  # what these questions give is used up
            break
    return list(itertools.islice(found, count))


class _Walk:
    """The words of all questions in a row, and for each where else it stands after the same one."""

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
        # A question's first word has none before it, and nothing follows its last.
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

    def round(self, rng: np.random.Generator) -> list[str]:
        """Questions of as many walks."""
        if not len(self.places):
            return []
        at = rng.choice(self.starts, _ROUND)
        path = np.full((_LONGEST, _ROUND), -1)
        crossed = np.zeros(_ROUND, bool)
        going = np.ones(_ROUND, bool)
        for step in range(_LONGEST):
            path[step, going] = at[going]
            going &= ~self.is_last[at]
            cross = going & (self.size[at] > 1) & (rng.random(_ROUND) < CROSSING)
            draw = rng.integers(np.maximum(self.size[at], 1))
            other = np.where(cross, self.places[np.where(cross, self.first[at] + draw, 0)], at)
            crossed |= other != at
            at = np.where(going, other + 1, at)
        whole = crossed & ~going
        return [" ".join(self.words[i] for i in walk if i >= 0) for walk in path.T[whole]]
