"""A generated question log, in which paraphrases share their meaning more often than words."""

from __future__ import annotations

import importlib.resources
import random
from collections.abc import Callable

import numpy as np

from qpr_jax.data.clusters import cluster_pairs
from qpr_jax.data.pairs import QuestionPairs, Row, gather_pairs
from qpr_jax.data.splits import HELD_OUT, SPLITS, TRAIN, SplitData, Splits
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

# A paragraph for actions, for objects and for contexts; in each line, the ways to say one concept.
# No two concepts share a way.
_WORDS = importlib.resources.files("qpr_jax.data").joinpath("synthetic_words.txt")
_TEMPLATES = (
    "How do I {action} my {object} {context}?",
    "How can I {action} a {object} {context}?",
    "What is the best way to {action} a {object} {context}?",
    "Is it possible to {action} the {object} {context}?",
    "Where should I start if I want to {action} a {object} {context}?",
    "Can someone tell me how to {action} this {object} {context}?",
    "{context}, how would you {action} a {object}?",
    "{context}, what should I know to {action} my {object}?",
    "My {object}: how could I {action} it {context}?",
    "I have a {object}. What does it take to {action} it {context}?",
    "Should I {action} my {object} {context}, and how?",
    "Any tips to {action} the {object} {context}?",
)
_FILLERS = ("please", "actually", "exactly", "these days", "really", "honestly", "in general")

_REPEATED = 0.6  # chance that a question takes all three ways from an earlier one of its cluster
_SIZES = (2, 3, 4, 5, 6)  # questions of a cluster
_SIZE_SHARES = (0.5, 0.25, 0.12, 0.08, 0.05)
_FALSE_NEGATIVES = 0.03  # share of clusters with the meaning of another, unlinked cluster
_ALONE = 0.4  # questions in no cluster, as a share of the clusters
_NEAR_MISSES = 0.6  # labeled non-duplicates between two clusters, as a share of the clusters
_FILLER, _PLAIN, _TYPO = 0.2, 0.15, 0.02  # shares of questions

_COMPARED = 0.5  # all rates up to this one have the same questions and pairs
_HELD_OUT = 0.05  # meanings of each held-out split, as a share of the training pairs
_GRID = 1.2  # possible meanings for each that is asked

Meaning = tuple[int, int, int]  # an action, an object, a context
Words = tuple[str, ...]  # one way to say each

CONCEPTS = {
    name: [line.split("|") for line in lines.splitlines()]
    for name, lines in zip(
        ("action", "object", "context"), _WORDS.read_text("utf-8").split("\n\n"), strict=True
    )
}


def synthetic_pairs(*, seed: int = 0, clusters: int = 6000) -> QuestionPairs:
    """Generate a question log with about 3.3 questions for each of `clusters`.

    A meaning is an action, an object and a context, each said in one of four ways, in one of
    twelve phrases. About a third of all possible meanings are asked, so that each has neighbors
    that differ in one concept. Some of these are labeled non-duplicates, some questions belong to
    no cluster, and a few meanings belong to two.
    """
    most = int(min(map(len, CONCEPTS.values())) ** 3 / (1 + _ALONE)) - 1
    if not 1 <= clusters <= most:
        raise UserError(f"expected 1 to {most}, got {clusters}", setting="clusters")
    rng = random.Random(seed)
    texts: list[str] = []
    seen: set[str] = set()

    def ask(words: Words) -> int:
        texts.append(_new_text(lambda: _phrase(words, rng), seen))
        return len(texts) - 1

    meanings = _meanings(clusters, rng)
    asked: dict[Meaning, list[int]] = {}
    links: list[tuple[int, int, bool]] = []
    for meaning in meanings[:clusters]:
        members: list[int] = []
        said: list[Words] = []
        for _ in range(rng.choices(_SIZES, _SIZE_SHARES)[0]):
            repeated = said and rng.random() < _REPEATED
            said.append(rng.choice(said) if repeated else _random_words(meaning, rng))
            members.append(ask(said[-1]))
        asked.setdefault(meaning, []).extend(members)
        links += [(rng.choice(members[:i]), members[i], True) for i in range(1, len(members))]
    alone = meanings[clusters:]
    for meaning in alone + rng.sample(meanings[:clusters], int(_NEAR_MISSES * clusters)):
        known = asked.get(meaning)
        question = rng.choice(known) if known else ask(_random_words(meaning, rng))
        links.append((question, rng.choice(asked[_neighbor(meaning, asked, rng)]), False))
    rng.shuffle(links)
    rows: list[Row] = []
    for a, b, label in links:
        first, second = (b, a) if rng.random() < 0.5 else (a, b)
        rows.append((first + 1, second + 1, texts[first], texts[second], label))
    return gather_pairs(rows)


def _meanings(clusters: int, rng: random.Random) -> list[Meaning]:
    """The meaning of each cluster, then those of the questions in no cluster."""
    # A number of concepts that keeps the density of neighbors, and so the difficulty, at any size.
    each = min(*map(len, CONCEPTS.values()), max(4, round((4 * clusters) ** (1 / 3))))
    meanings = _sample_meanings(each, clusters + int(_ALONE * clusters), rng)
    twins = int(_FALSE_NEGATIVES * clusters)
    meanings[clusters - twins : clusters] = meanings[:twins]
    return meanings


def _sample_meanings(each: int, count: int, rng: random.Random) -> list[Meaning]:
    """Distinct meanings of the first `each` actions, objects and contexts."""
    codes = rng.sample(range(each**3), count)
    return [(code // each**2, code // each % each, code % each) for code in codes]


def _neighbor(meaning: Meaning, asked: dict[Meaning, list[int]], rng: random.Random) -> Meaning:
    """A meaning that is asked and shares two concepts with `meaning`; if none does, any other."""
    others = [
        (*meaning[:slot], concept, *meaning[slot + 1 :])
        for slot, concepts in enumerate(CONCEPTS.values())
        for concept in range(len(concepts))
    ]
    near = [other for other in others if other != meaning and other in asked]
    return rng.choice(near or [other for other in asked if other != meaning])


def _random_words(meaning: Meaning, rng: random.Random) -> Words:
    ways = zip(CONCEPTS.values(), meaning, strict=True)
    return tuple(rng.choice(concepts[concept]) for concepts, concept in ways)


def _phrase(words: Words, rng: random.Random) -> str:
    text = rng.choice(_TEMPLATES).format(**dict(zip(CONCEPTS, words, strict=True)))
    if rng.random() < _FILLER:
        text = f"{text[:-1]} {rng.choice(_FILLERS)}?"
    if rng.random() < _TYPO:
        at = rng.randrange(1, len(text) - 2)
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if rng.random() < _PLAIN:
        return text[:-1].lower()
    return text[0].upper() + text[1:]


def _new_text(make: Callable[[], str], seen: set[str]) -> str:
    """Make texts until one has a normalized text that is not `seen`, which then has it."""
    while (key := normalized_text(text := make())) in seen:
        pass
    seen.add(key)
    return text


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
    count, held_out, alone = -(-pairs // each), round(_HELD_OUT * pairs), round(_ALONE * pairs)
    rng = random.Random(seed)
    meanings = _dense_meanings(count + 2 * held_out + alone, rng)
    sizes = [2 * min(each, pairs - i * each) for i in range(count)]
    sizes += [rng.choice(_SIZES) for _ in range(2 * held_out)] + [1] * alone
    seen: set[str] = set()

    def ask(meaning: Meaning) -> str:
        return _new_text(lambda: _phrase(_random_words(meaning, rng), rng), seen)

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
    every = cluster_pairs(np.where(split_of == TRAIN, -1, clusters))
    of_split = {"train": np.arange(2 * pairs, dtype=np.int32).reshape(-1, 2)}
    of_split |= {name: every[split_of[every[:, 0]] == SPLITS.index(name)] for name in HELD_OUT}
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
    raise UserError(what, setting="data.false_negatives", remedy=remedy)


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
    return _sample_meanings(each, count, rng)
