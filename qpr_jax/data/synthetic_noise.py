"""A generated log of which all paraphrases are known, and so many of them unlabelled as wanted.

The paper's claim is that its loss tolerates false negatives. Here the same questions and training
pairs can be given with more or fewer of them, by cutting links that make paraphrases known.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from qpr_jax.data.clusters import cluster_pairs
from qpr_jax.data.quora import QuestionPairs
from qpr_jax.data.splits import HELD_OUT, SPLITS, TRAIN, Splits
from qpr_jax.data.synthetic import Meaning, phrase, random_words
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

LARGEST_RATE = 0.9
_COMPARED = 0.5  # rates up to this one have the same questions and pairs
_HELD_OUT = 0.05  # meanings of each held-out split, as a share of the training pairs
_HELD_OUT_SIZES = (2, 3, 4, 5, 6)  # questions of one
_ALONE = 0.4  # questions of a meaning that is asked once, as a share of the training pairs
_GRID = 1.2  # meanings that the concepts allow, for each that is asked


class NoisyLog(NamedTuple):
    """Questions with their meaning, int32 [Q], and the cluster that is known of it, int32 [Q].

    Held-out meanings are known whole. Of those that train, each pair is known, and some pairs of
    one meaning to belong together.
    """

    data: QuestionPairs
    clusters: np.ndarray
    splits: Splits
    meanings: np.ndarray


def noisy_log(rate: float, *, pairs: int, batch_size: int, seed: int = 0) -> NoisyLog:
    """A log for training with false negatives at a rate.

    The rate is the chance that a batch holds, beside a pair, another of the same meaning that is
    not known to be. It follows from the number of pairs of a meaning, which is as large as 0.5 (or
    the rate itself) asks for, and of those among them that are known to belong together. So the
    questions and the pairs are the same at all rates up to 0.5.

    Args:
      rate: from 0 to 0.9.
      pairs: for training. batch_size: pairs of a batch. UserError where the rate asks for more
        pairs of a meaning than there are.
      seed: of all draws.
    """
    if not 0 <= rate <= LARGEST_RATE:
        raise UserError(f"`rate`: expected 0 to {LARGEST_RATE}, got {rate}")
    each = _pairs_of_a_meaning(max(rate, _COMPARED), pairs, batch_size)
    count, held_out, alone = -(-pairs // each), round(_HELD_OUT * pairs), round(_ALONE * pairs)
    rng = random.Random(seed)
    meanings = _meanings(count + 2 * held_out + alone, rng)
    sizes = [2 * min(each, pairs - i * each) for i in range(count)]
    sizes += [rng.choice(_HELD_OUT_SIZES) for _ in range(2 * held_out)] + [1] * alone
    questions: list[str] = []
    seen: set[str] = set()
    for meaning, size in zip(meanings, sizes, strict=True):
        for _ in range(size):
            questions.append(_ask(meaning, seen, rng))
    of = np.repeat(np.arange(len(meanings), dtype=np.int32), sizes)

    split_of = np.full(len(questions), TRAIN, np.int8)
    for i, name in enumerate(HELD_OUT):
        inside = (of >= count + i * held_out) & (of < count + (i + 1) * held_out)
        split_of[inside] = SPLITS.index(name)
    clusters = _blocks(rate, each, pairs, batch_size)[np.arange(2 * pairs) // 2]
    whole = of[2 * pairs :] - count + clusters.max() + 1
    clusters = np.concatenate(
        [clusters, np.where(of[2 * pairs :] < len(meanings) - alone, whole, -1)]
    )
    clusters = clusters.astype(np.int32)
    every = cluster_pairs(np.where(split_of == TRAIN, -1, clusters))
    of_split = {"train": np.arange(2 * pairs, dtype=np.int32).reshape(-1, 2)}
    of_split |= {name: every[split_of[every[:, 0]] == SPLITS.index(name)] for name in HELD_OUT}
    labeled = np.concatenate([of_split[name] for name in SPLITS])
    data = QuestionPairs(
        questions,
        np.arange(len(questions)),
        labeled,
        np.ones(len(labeled), np.bool_),
        {"skipped_rows": 0},
    )
    nothing = np.zeros((0, 2), np.int32)
    return NoisyLog(data, clusters, Splits(split_of, of_split, dict.fromkeys(SPLITS, nothing)), of)


def chance(others: int, pairs: int, batch_size: int) -> float:
    """That a batch holds, beside one of the pairs, some of `others` of the rest."""
    missed = 1.0
    for i in range(others):
        missed *= max(0.0, 1 - (batch_size - 1) / (pairs - 1 - i))
    return 1 - missed


def _pairs_of_a_meaning(rate: float, pairs: int, batch_size: int) -> int:
    for each in range(1, pairs // 2 + 1):
        if chance(each - 1, pairs, batch_size) >= rate:
            return each
    raise UserError(
        f"`data.false_negatives`: expected {pairs} pairs to allow a rate of {rate:g} with batches "
        f"of {batch_size}, which they do not; raise `data.synthetic_clusters`, or lower the rate"
    )


def _blocks(rate: float, each: int, pairs: int, batch_size: int) -> np.ndarray:
    """The known cluster of each training pair, so that the rate is met: int64 [pairs].

    Of a meaning of `each` pairs, blocks of `size` pairs are known to belong together; of some
    meanings one more.
    """
    rates = {size: _rate_of(size, each, pairs, batch_size) for size in range(1, each + 1)}
    size = max(size for size in rates if rates[size] >= rate)
    below = rates.get(size + 1, 0.0)
    share = (rate - below) / (rates[size] - below) if rates[size] > rate else 1.0
    count = -(-pairs // each)
    smaller = np.arange(count) < round(share * count)
    meaning, place = np.divmod(np.arange(pairs), each)
    block = place // np.where(smaller, size, size + 1)[meaning]
    return np.unique(meaning * each + block, return_inverse=True)[1]


def _rate_of(size: int, each: int, pairs: int, batch_size: int) -> float:
    """The mean rate over the pairs of a meaning, in blocks of `size` and what is left."""
    left = each % size
    whole = (each - left) * chance(each - size, pairs, batch_size)
    return (whole + left * chance(each - left, pairs, batch_size)) / each


def _meanings(count: int, rng: random.Random) -> list[Meaning]:
    """Distinct meanings of so few concepts that most of their neighbours are asked too."""
    each = next(n for n in range(2, 33) if n**3 >= _GRID * count or n == 32)
    if each**3 < count:
        raise UserError(
            f"`data.synthetic_clusters`: expected fewer, got more than the words allow ({count:,} "
            f"meanings where there are {each**3:,})"
        )
    codes = rng.sample(range(each**3), count)
    return [(code // each**2, code // each % each, code % each) for code in codes]


def _ask(meaning: Meaning, seen: set[str], rng: random.Random) -> str:
    while True:
        text = phrase(random_words(meaning, rng), rng)
        if (key := normalized_text(text)) not in seen:
            seen.add(key)
            return text
