"""A generated log with a given rate of false negatives, an example of a source of data.

    import examples.noisy_log  # "noisy_0.1", "noisy_0.25" and others, for `data.source`

`python -m experiments.noise` compares losses on these logs. The rate is the share of the rows of a
batch whose meaning another row of the batch has, in another known cluster.
"""

from __future__ import annotations

import functools
import pathlib
import random

import numpy as np

from qpr_jax import TrainConfig
from qpr_jax.data.generated_questions import (
    ALONE,
    SIZES,
    Meaning,
    new_text,
    phrase,
    random_words,
    sample_meanings,
)
from qpr_jax.data.question_pairs import QuestionPairs, cluster_pairs
from qpr_jax.data.splits import HELD_OUT, SPLITS, TRAIN, SplitData, Splits
from qpr_jax.errors import UserError
from qpr_jax.training.sources import SOURCES, SYNTHETIC_CLUSTERS, Source

RATES = (0.0, 0.1, 0.25, 0.5)

_COMPARED = 0.5  # all rates up to this one have the same questions and pairs
_HELD_OUT = 0.05  # meanings of each held-out split, as a share of the training pairs
_GRID = 1.2  # possible meanings for each that is asked


def generate_noisy_log(
    rate: float, *, pairs: int, batch_size: int, seed: int = 0
) -> tuple[SplitData, np.ndarray]:
    """Generate a log for training with a given rate of false negatives, 0 to 0.9.

    Each held-out meaning is one known cluster; the training pairs of a meaning are divided into one
    or more. The rate is the chance that the batch of a pair has another pair of its meaning that is
    in another known cluster. A meaning has as many pairs as a rate of 0.5, or a higher `rate`,
    needs. So the questions and the pairs are the same at all rates up to 0.5.

    Returns:
      The questions with their known pairs and clusters, and their true clusters, int32 [Q].
      UserError where the rate needs more pairs of a meaning than there are.
    """
    each = _pairs_of_a_meaning(max(rate, _COMPARED), pairs, batch_size)
    count, held_out, alone = -(-pairs // each), round(_HELD_OUT * pairs), round(ALONE * pairs)
    rng = random.Random(seed)
    meanings = _dense_meanings(count + 2 * held_out + alone, rng)
    sizes = [2 * min(each, pairs - i * each) for i in range(count)]
    sizes += [rng.choice(SIZES) for _ in range(2 * held_out)] + [1] * alone
    seen: set[str] = set()

    def ask(meaning: Meaning) -> str:
        return new_text(lambda: phrase(random_words(meaning, rng), rng), seen)

    asked = zip(meanings, sizes, strict=True)
    questions = [ask(meaning) for meaning, size in asked for _ in range(size)]
    of = np.repeat(np.arange(len(meanings), dtype=np.int32), sizes)

    split_of = np.full(len(questions), TRAIN, np.int8)
    for i, name in enumerate(HELD_OUT):
        inside = (of >= count + i * held_out) & (of < count + (i + 1) * held_out)
        split_of[inside] = SPLITS.index(name)
    clusters = _blocks(rate, each, pairs, batch_size)[np.arange(2 * pairs) // 2]
    whole = of[2 * pairs :] - count + clusters.max() + 1
    whole = np.where(of[2 * pairs :] < len(meanings) - alone, whole, -1)
    clusters = np.concatenate([clusters, whole]).astype(np.int32)
    true_pairs = cluster_pairs(np.where(split_of == TRAIN, -1, clusters))
    of_split = {"train": np.arange(2 * pairs, dtype=np.int32).reshape(-1, 2)}
    of_split |= {
        name: true_pairs[split_of[true_pairs[:, 0]] == SPLITS.index(name)] for name in HELD_OUT
    }
    data = QuestionPairs.of_duplicates(questions, np.concatenate([*of_split.values()]))
    return SplitData(data, clusters, Splits(split_of, of_split)), of


def meeting_chance(others: int, pairs: int, batch_size: int) -> float:
    """The chance that the batch of a pair has at least one of `others` further pairs."""
    missed = 1.0
    for i in range(others):
        missed *= max(0.0, 1 - (batch_size - 1) / (pairs - 1 - i))
    return 1 - missed


def _pairs_of_a_meaning(rate: float, pairs: int, batch_size: int) -> int:
    for each in range(1, pairs // 2 + 1):
        if meeting_chance(each - 1, pairs, batch_size) >= rate:
            return each
    what = f"expected a rate that {pairs} pairs allow with batches of {batch_size}, got {rate:g}"
    remedy = "raise `data.max_rows`, or lower the rate"
    raise UserError(what, setting="data.source", remedy=remedy)


def _blocks(rate: float, each: int, pairs: int, batch_size: int) -> np.ndarray:
    """The known cluster of each training pair, int64 [pairs], which gives the rate.

    A meaning is divided into known clusters of `size` pairs, and some meanings of `size` + 1.
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
    """The mean rate over the pairs of a meaning, in clusters of `size` and a smaller last one."""
    left = each % size
    whole = (each - left) * meeting_chance(each - size, pairs, batch_size)
    return (whole + left * meeting_chance(each - left, pairs, batch_size)) / each


def _dense_meanings(count: int, rng: random.Random) -> list[Meaning]:
    """Distinct meanings, of so few concepts that most of their neighbors are asked as well."""
    each = next(n for n in range(2, 33) if n**3 >= _GRID * count or n == 32)
    if each**3 < count:
        got = f"one that needs {count:,}"
        what = f"expected a number that needs at most {each**3:,} meanings, got {got}"
        raise UserError(what, setting="data.max_rows")
    return sample_meanings(each, count, rng)


def _read(config: TrainConfig, _: pathlib.Path, *, rate: float) -> SplitData:
    pairs = config.data.max_rows or SYNTHETIC_CLUSTERS
    return generate_noisy_log(rate, pairs=pairs, batch_size=config.batch_size)[0]


for _rate in RATES:
    SOURCES[f"noisy_{_rate}"] = Source(functools.partial(_read, rate=_rate))
