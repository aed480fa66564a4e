"""Names of groups: the words that set the texts of a group apart from all others."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence

from qpr_jax.text.tokenizer import tokenize

WORDS = 3  # of a group, at most


def group_words(groups: Sequence[Sequence[str]], texts: Iterable[str]) -> list[list[str]]:
    """Return the words of each group that say most about it, best first.

    A word is in half of the texts of the group or more. It counts by this share, times the
    logarithm of how rare it is in all texts (TF-IDF of a group); half of the best counts least.

    Args:
      groups: the texts of each group.
      texts: all texts, those of the groups included.
    """
    counts: collections.Counter[str] = collections.Counter()
    total = 0
    for text in texts:
        counts.update({*tokenize(text)})
        total += 1
    names = []
    for group in groups:
        inside = collections.Counter(word for text in group for word in {*tokenize(text)})
        weights = {
            word: -number / len(group) * math.log(total / counts[word])
            for word, number in inside.items()
            if 2 * number >= len(group) and counts[word] < total
        }
        best = sorted(weights, key=lambda word: (weights[word], word))[:WORDS]
        names.append([word for word in best if 2 * weights[word] <= weights[best[0]]])
    return names
