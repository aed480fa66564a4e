"""Distant supervision: clusters of questions with the same answer (the paper's section 4.1.1).

The result depends only on the content of the questions and on the seed, not on their order.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qpr_jax.data.splits import HELD_OUT, SPLITS
from qpr_jax.distant.logs import UNDECIDED, Question
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

# The default least coherence of a cluster, by measure.
LEAST = {"pairwise": 0.3, "paper": 0.1}


@dataclass(frozen=True)
class Method:
    """The settings of distant supervision.

    Attributes:
      coherence: "pairwise" or "paper", see `pairwise_coherence` and `paper_coherence`.
      min_coherence: clusters with less coherence are removed.
      pairs: the largest number of pairs of a cluster.
      seed: of the split and of the sampled pairs.
    """

    coherence: str = "pairwise"
    min_coherence: float = LEAST["pairwise"]
    pairs: int = 100
    seed: int = 0


class Cluster(NamedTuple):
    """The questions with the same answer, at least two, sorted."""

    answer: str
    questions: list[str]
    coherence: float


def words_of(text: str) -> list[str]:
    """Return the distinct words of a question, at least one."""
    return list(dict.fromkeys(normalized_text(text).split()))


def paper_coherence(words: Sequence[Sequence[str]]) -> float:
    """Equations (5) and (6) of the paper: the mean share of the cluster's words in a question.

    `words` are the distinct ones of each question. The coherence is at least 1 / n for n questions,
    even if they are unrelated, and small for many questions, even if they are alike.
    """
    uses = Counter(itertools.chain.from_iterable(words))
    return uses.total() / (len(words) * len(uses))


def pairwise_coherence(words: Sequence[Sequence[str]], weights: dict[str, float]) -> float:
    """Return the weighted share of a question's words that another question of the cluster has.

    For n questions, of which u_w have the word w with its inverse frequency as weight,

        sum_w weight_w u_w (u_w - 1) / ((n - 1) sum_w weight_w u_w).

    This is the probability that a word of a question, sampled by weight, is also in another
    question. It is 1 if all questions have the same words and 0 if no two share one, for every n;
    a random part of a cluster has about the coherence of the whole.
    """
    uses = Counter(itertools.chain.from_iterable(words))
    # `fsum` rounds once, so the order of the words does not matter.
    whole = math.fsum(weights[word] * used for word, used in uses.items())
    shared = math.fsum(weights[word] * used * (used - 1) for word, used in uses.items())
    return shared / ((len(words) - 1) * whole)


def find_clusters(questions: Collection[Question], method: Method) -> list[Cluster]:
    """Return all clusters, whatever their coherence, sorted by answer."""
    uses = Counter(word for question in questions for word in words_of(question.text))
    weights = {word: math.log1p(len(questions) / used) for word, used in uses.items()}
    texts: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        if question.answer != UNDECIDED:
            texts[question.answer].append(question.text)
    clusters = []
    for answer in sorted(texts):
        if len(texts[answer]) > 1:
            words = [words_of(text) for text in texts[answer]]
            paper = method.coherence == "paper"
            coherence = paper_coherence(words) if paper else pairwise_coherence(words, weights)
            clusters.append(Cluster(answer, sorted(texts[answer]), coherence))
    return clusters


def draw(use: str, seed: int, answer: str) -> int:
    """Return a uniform number from 0 to 2^63 - 1 that depends only on the arguments."""
    digest = hashlib.blake2b(f"{use} {seed} {answer}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def split_clusters(clusters: Sequence[Cluster], method: Method) -> dict[str, str]:
    """Return the split of each cluster, by its answer: a tenth each is held out."""
    if len(clusters) < len(SPLITS):
        into = f"{len(SPLITS)} clusters or more, to split into {', '.join(SPLITS)}"
        what = f"expected {into}, got {len(clusters)}"
        raise UserError(what, remedy="lower `min_coherence`, or give more logs")
    answers = sorted((draw("split", method.seed, c.answer), c.answer) for c in clusters)
    tenth = max(1, round(len(clusters) / 10))
    names = itertools.chain.from_iterable([name] * tenth for name in HELD_OUT)
    filled = itertools.chain(names, itertools.repeat(SPLITS[0]))
    return {answer: name for (_, answer), name in zip(answers, filled, strict=False)}


def remove_overlap(clusters: Sequence[Cluster], split_of: dict[str, str]) -> Iterator[Cluster]:
    """Yield clusters without held-out questions that have the words of a training question."""

    def words(text: str) -> tuple[str, ...]:
        return tuple(sorted(words_of(text)))

    train = [cluster for cluster in clusters if split_of[cluster.answer] not in HELD_OUT]
    trained = {words(text) for cluster in train for text in cluster.questions}
    for cluster in clusters:
        if split_of[cluster.answer] in HELD_OUT:
            left = [text for text in cluster.questions if words(text) not in trained]
            cluster = cluster._replace(questions=left)
        yield cluster


def sample_pairs(
    questions: Sequence[str], answer: str, method: Method
) -> Iterator[tuple[str, str]]:
    """Yield all pairs of a cluster's questions, or a random sample, each in random order."""
    rng = random.Random(draw("pairs", method.seed, answer))
    count = len(questions) * (len(questions) - 1) // 2
    some = range(count) if count <= method.pairs else rng.sample(range(count), method.pairs)
    for number in sorted(some):
        # The number of the pair (i, j), i < j, is j (j - 1) / 2 + i.
        j = (1 + math.isqrt(1 + 8 * number)) // 2
        pair = questions[number - j * (j - 1) // 2], questions[j]
        yield pair if rng.random() < 0.5 else pair[::-1]
