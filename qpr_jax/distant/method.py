"""Distant supervision: clusters of questions with the same answer (the paper's section 4.1.1).

The functions take sorted rows and yield rows. They depend only on the content of the rows and on
the seed, so the engine in memory (`local_engine`) and the one on Spark (`spark_engine`) share them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.data.splits import SPLITS, TEST, TRAIN, VALIDATION
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import canonical, normalized_text

# The default least coherence of a cluster, by measure.
LEAST = {"pairwise": 0.3, "paper": 0.1}
WEIGHTED_WORDS = 100_000  # words with their own weight; all others get that of the rarest
SHOWN = 10  # questions of a cluster in a report
UNDECIDED = ""  # the answer of a question without a most frequent answer


@dataclass(frozen=True)
class Method:
    """The settings of distant supervision.

    Attributes:
      coherence: "pairwise" or "paper", see `pairwise_coherence` and `paper_coherence`.
      least: clusters with less coherence are removed.
      pairs: the largest number of pairs of a cluster.
      seed: of the split and of the sampled pairs.
    """

    coherence: str = "pairwise"
    least: float = LEAST["pairwise"]
    pairs: int = 100
    seed: int = 0


class LogRow(NamedTuple):
    """A row of a log: question and answer in `canonical` form, and the text of the question."""

    key: str
    answer: str
    text: str


class Question(NamedTuple):
    """A distinct question: one of its spellings, its answer, its numbers of rows and of answers."""

    text: str
    answer: str
    rows: int
    answers: int


class Cluster(NamedTuple):
    """The questions with the same answer, at least two.

    Attributes:
      split_draw, sample_draw: numbers from 0 to 2^63 - 1 that decide the split of the cluster and
        whether it is in the sample for verdicts.
      shown: some of its questions, for reports.
      questions: all of its questions; empty if the cluster is removed.
    """

    answer: str
    size: int
    coherence: float
    kept: bool
    split_draw: int
    sample_draw: int
    shown: list[str]
    questions: list[str]


class FinishedCluster(NamedTuple):
    """A cluster as it is written: its split, its JSON without its number, its lines of pairs."""

    answer: str
    split: str
    line: str
    questions: int
    pairs: list[str]


def log_row(question: str, answer: str) -> LogRow:
    """Return the row of a question and its answer; ValueError if one of them is blank."""
    for name, text in (("question", question), ("answer", answer)):
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"expected Unicode text in the {name} ({error.reason})") from None
        if not text.strip():
            raise ValueError(f"expected {'a' if name == 'question' else 'an'} {name}, got a blank")
    text, answer = (" ".join(text.split()) for text in (question, answer))
    return LogRow(canonical(text), canonical(answer), text)


def distinct_questions(rows: Iterable[LogRow]) -> Iterator[Question]:
    """Yield each question once, with its most frequent answer, from rows sorted by `key`.

    The text is the first spelling in the order of code points. If two answers are equally frequent
    and the most frequent, the answer is UNDECIDED.
    """
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        answers: Counter[str] = Counter()
        spelling = None
        for _, answer, text in group:
            answers[answer] += 1
            spelling = text if spelling is None else min(spelling, text)
        (first, most), *others = answers.most_common(2)
        answer = UNDECIDED if others and others[0][1] == most else first
        yield Question(spelling or "", answer, answers.total(), len(answers))


def words_of(text: str) -> list[str]:
    """Return the distinct words of a question, at least one."""
    return list(dict.fromkeys(normalized_text(text).split()))


def word_weights(uses: Iterable[tuple[str, int]], questions: int) -> dict[str, float]:
    """Return the weight log(1 + Q / u) of words that are in u of Q questions, most used first."""
    return {word: math.log1p(questions / used) for word, used in uses}


def most_used(uses: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the WEIGHTED_WORDS most used words with their uses, most used first, then sorted."""
    return sorted(uses.items(), key=lambda item: (-item[1], item[0]))[:WEIGHTED_WORDS]


def paper_coherence(words: Iterable[Sequence[str]]) -> float:
    """Equations (5) and (6) of the paper: the mean share of the cluster's words in a question.

    `words` are the distinct ones of each question. The coherence is at least 1 / n for n questions,
    even if they are unrelated, and small for many questions, even if they are alike.
    """
    uses, questions = _count_uses(words)
    return uses.total() / (questions * len(uses))


def pairwise_coherence(words: Iterable[Sequence[str]], weights: dict[str, float]) -> float:
    """Return the weighted share of a question's words that another question of the cluster has.

    For n questions, of which u_w have the word w with its inverse frequency as weight,

        sum_w weight_w u_w (u_w - 1) / ((n - 1) sum_w weight_w u_w).

    This is the probability that a word of a question, sampled by weight, is also in another
    question. It is 1 if all questions have the same words and 0 if no two share one, for every n;
    a random part of a cluster has about the coherence of the whole.
    """
    rarest = next(reversed(weights.values()), 1.0)
    uses, questions = _count_uses(words)
    # `fsum` rounds once, so the order of the words does not matter.
    whole = math.fsum(weights.get(word, rarest) * used for word, used in uses.items())
    shared = math.fsum(
        weights.get(word, rarest) * used * (used - 1) for word, used in uses.items() if used > 1
    )
    return shared / ((questions - 1) * whole)


def _count_uses(words: Iterable[Sequence[str]]) -> tuple[Counter[str], int]:
    """Count the questions that have each word, and all questions."""
    uses: Counter[str] = Counter()
    count = 0
    for count, of_one in enumerate(words, start=1):  # noqa: B007
        uses.update(of_one)
    return uses, count


def group_clusters(
    questions: Iterable[tuple[str, str]], method: Method, weights: dict[str, float]
) -> Iterator[Cluster]:
    """Yield the clusters of at least two questions from sorted (answer, text)."""
    for answer, group in itertools.groupby(questions, key=lambda question: question[0]):
        texts = [text for _, text in group]
        if len(texts) < 2:
            continue
        words = map(words_of, texts)
        paper = method.coherence == "paper"
        coherence = paper_coherence(words) if paper else pairwise_coherence(words, weights)
        kept = coherence >= method.least
        yield Cluster(
            answer,
            len(texts),
            coherence,
            kept,
            draw("split", method.seed, answer),
            draw("sample", method.seed, answer),
            texts[:: -(-len(texts) // SHOWN)],
            texts if kept else [],
        )


def draw(use: str, seed: int, answer: str) -> int:
    """Return a uniform number from 0 to 2^63 - 1 that depends only on the arguments."""
    digest = hashlib.blake2b(f"{use} {seed} {answer}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class Bounds(NamedTuple):
    """Least `split_draw`s beyond validation and beyond test; all others are train."""

    validation: int
    test: int

    def split_of(self, split_draw: int) -> int:
        """Return the position in SPLITS of a cluster."""
        if split_draw < self.validation:
            return VALIDATION
        return TEST if split_draw < self.test else TRAIN


def split_bounds(draws: np.ndarray) -> Bounds:
    """Return the bounds that put a tenth of the kept clusters in validation and a tenth in test."""
    if len(draws) < len(SPLITS):
        raise UserError(
            f"expected {len(SPLITS)} clusters or more, to split into {', '.join(SPLITS)}, got "
            f"{len(draws)}",
            remedy="lower `min_coherence`, or give more logs",
        )
    tenth = max(1, round(len(draws) / 10))
    ordered = np.sort(draws)
    return Bounds(int(ordered[tenth]), int(ordered[2 * tenth]))


def find_overlap(keys: Iterable[tuple[str, int, str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (answer, text) of the held-out questions with the same words as a training question.

    `keys` are (words, split, answer, text), sorted by the first two; TRAIN is the smallest split.
    """
    for _, group in itertools.groupby(keys, key=lambda row: row[0]):
        first = next(group)
        if first[1] == TRAIN:
            yield from ((answer, text) for _, split, answer, text in group if split != TRAIN)


def overlap_keys(cluster: Cluster, bounds: Bounds) -> Iterator[tuple[str, int, str, str]]:
    """Yield the rows of a cluster for `find_overlap`; the words are sorted."""
    split = bounds.split_of(cluster.split_draw)
    for text in cluster.questions:
        yield " ".join(sorted(words_of(text))), split, cluster.answer, text


def finish_clusters(
    clusters: Iterable[tuple[Cluster, Collection[str]]], bounds: Bounds, method: Method
) -> Iterator[FinishedCluster]:
    """Yield kept clusters without the texts that `find_overlap` gave, if at least two are left."""
    for cluster, overlapping in clusters:
        dropped = set(overlapping)
        questions = [text for text in cluster.questions if text not in dropped]
        if len(questions) < 2:
            continue
        answer, split = cluster.answer, SPLITS[bounds.split_of(cluster.split_draw)]
        fields = {"answer": answer, "coherence": cluster.coherence, "split": split}
        line = json.dumps(fields | {"questions": questions}, ensure_ascii=False)
        pairs = [f"{a}\t{b}" for a, b in sample_pairs(questions, answer, method)]
        yield FinishedCluster(answer, split, line, len(questions), pairs)


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
