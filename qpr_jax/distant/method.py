"""Questions that got the same answer, cleaned without labels (the paper's section 4.1.1).

Each function takes rows in order and yields rows, and each is a function of their content and of
the seed alone: in memory (`distant.memory`) and on a cluster (`distant.spark`) the same ones run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.data.splits import SPLITS, TEST, TRAIN, VALIDATION
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import nfkc_lower, normalized_text

# What each measure of coherence removes clusters below.
LEAST = {"pairwise": 0.3, "paper": 0.1}
WEIGHTED_WORDS = 100_000  # words with a weight of their own; all others weigh as much as the rarest
SHOWN = 10  # questions of a cluster in a report
UNDECIDED = ""  # the answer of a question that got no answer more often than any other


@dataclass(frozen=True)
class Method:
    """How clusters are made.

    coherence: "pairwise" or "paper", see `pairwise_coherence` and `paper_coherence`. least: a
    cluster of less is removed. pairs: of a cluster, at most. seed: of the split and of the draw of
    pairs.
    """

    coherence: str = "pairwise"
    least: float = LEAST["pairwise"]
    pairs: int = 100
    seed: int = 0


class LogRow(NamedTuple):
    """A question of a log and its answer, each as `canonical`, and the question as it was asked."""

    key: str
    answer: str
    text: str


class Question(NamedTuple):
    """A distinct question: one of its spellings, its answer, how many rows and answers it had."""

    text: str
    answer: str
    rows: int
    answers: int


class Cluster(NamedTuple):
    """The questions of an answer, two or more; none are listed where the cluster is removed.

    shown: some of them. split_draw, sample_draw: numbers from 0 to 2^63 - 1 that decide on its
    split, and on whether it stands in the sample.
    """

    answer: str
    size: int
    coherence: float
    kept: bool
    split_draw: int
    sample_draw: int
    shown: list[str]
    questions: list[str]


class Finished(NamedTuple):
    """A cluster as it is written: its split, its JSON (without a number), its lines of pairs."""

    answer: str
    split: str
    line: str
    questions: int
    pairs: list[str]


def canonical(text: str) -> str:
    """What makes two questions, or two answers, the same: NFKC, lower case, blanks, no end mark."""
    words = " ".join(nfkc_lower(text).split())
    return words.rstrip(" .?!") or words


def log_row(question: str, answer: str) -> LogRow:
    """The row of a question and its answer; ValueError where one of the two is none."""
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
    """Each question once, with the answer that it got most often, from rows in the order of `key`.

    Of its spellings the first in order of code points stands for all. Where two answers were given
    equally often, and most often, it gets none of them.
    """
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        answers: Counter[str] = Counter()
        spelling = None
        for _, answer, text in group:
            answers[answer] += 1
            spelling = text if spelling is None else min(spelling, text)
        (first, most), *others = answers.most_common(2)
        decided = not others or others[0][1] < most
        yield Question(
            spelling or "", first if decided else UNDECIDED, answers.total(), len(answers)
        )


def words_of(text: str) -> list[str]:
    """The distinct words of a question, one at least."""
    return list(dict.fromkeys(normalized_text(text).split()))


def word_weights(uses: Iterable[tuple[str, int]], questions: int) -> dict[str, float]:
    """The weight log(1 + Q / u) of words that stand in u of Q questions, most used first."""
    return {word: math.log1p(questions / used) for word, used in uses}


def most_used(uses: Mapping[str, int]) -> list[tuple[str, int]]:
    """The WEIGHTED_WORDS most used words and their uses, in an order that is theirs alone."""
    return sorted(uses.items(), key=lambda item: (-item[1], item[0]))[:WEIGHTED_WORDS]


def paper_coherence(words: Iterable[Sequence[str]]) -> float:
    """Equations (5) and (6): the mean share of the cluster's words that a question has.

    words: of each question, distinct. At least 1 / n for n questions, however unrelated, and small
    for many questions, however alike.
    """
    uses, questions = _uses(words)
    return uses.total() / (questions * len(uses))


def pairwise_coherence(words: Iterable[Sequence[str]], weights: dict[str, float]) -> float:
    """The weighted share of a question's words that another question of the cluster has.

    Of n questions of which u_w have the word w, whose weight is its inverse frequency,

        sum_w weight_w u_w (u_w - 1) / ((n - 1) sum_w weight_w u_w):

    take a word of a question, each with its weight, and another question; it is the chance that it
    has the word too. 1 where all have the same words, 0 where no two share one, at every n; a
    random part of a cluster has about the coherence of the whole.
    """
    rarest = next(reversed(weights.values()), 1.0)
    uses, questions = _uses(words)
    # `fsum` rounds once, whatever the order.
    whole = math.fsum(weights.get(word, rarest) * used for word, used in uses.items())
    shared = math.fsum(
        weights.get(word, rarest) * used * (used - 1) for word, used in uses.items() if used > 1
    )
    return shared / ((questions - 1) * whole)


def _uses(words: Iterable[Sequence[str]]) -> tuple[Counter[str], int]:
    """How many of the questions have each word, and how many there are."""
    uses: Counter[str] = Counter()
    count = 0
    for count, of_one in enumerate(words, start=1):  # noqa: B007
        uses.update(of_one)
    return uses, count


def clusters(
    questions: Iterable[tuple[str, str]], method: Method, weights: dict[str, float]
) -> Iterator[Cluster]:
    """The clusters of two or more of (answer, text), in the order of both."""
    for answer, group in itertools.groupby(questions, key=lambda question: question[0]):
        texts = [text for _, text in group]
        if len(texts) < 2:
            continue
        words = map(words_of, texts)
        if method.coherence == "paper":
            coherence = paper_coherence(words)
        else:
            coherence = pairwise_coherence(words, weights)
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
    """A number from 0 to 2^63 - 1 for a cluster: a use's own, even, and the same everywhere."""
    digest = hashlib.blake2b(f"{use} {seed} {answer}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class Bounds(NamedTuple):
    """Clusters whose `split_draw` is below `validation` are for validation, below `test` for test.

    The others train.
    """

    validation: int
    test: int

    def split_of(self, split_draw: int) -> int:
        """The position in SPLITS of a cluster."""
        return (
            VALIDATION
            if split_draw < self.validation
            else TEST
            if split_draw < self.test
            else TRAIN
        )


def split_bounds(draws: np.ndarray) -> Bounds:
    """Of the clusters kept with these draws a tenth for validation and a tenth for test."""
    if len(draws) < len(SPLITS):
        raise UserError(
            f"expected {len(SPLITS)} clusters or more, to split into {', '.join(SPLITS)}, got "
            f"{len(draws)}; lower `--min-coherence`, or give more logs"
        )
    tenth = max(1, round(len(draws) / 10))
    ordered = np.sort(draws)
    return Bounds(int(ordered[tenth]), int(ordered[2 * tenth]))


def overlapping(keyed: Iterable[tuple[str, int, str, str]]) -> Iterator[tuple[str, str]]:
    """(answer, text) of the held-out questions with the words of a question that trains.

    keyed: (words, split, answer, text) in the order of the first two, TRAIN first.
    """
    for _, group in itertools.groupby(keyed, key=lambda row: row[0]):
        first = next(group)
        if first[1] == TRAIN:
            yield from ((answer, text) for _, split, answer, text in group if split != TRAIN)


def keyed(cluster: Cluster, bounds: Bounds) -> Iterator[tuple[str, int, str, str]]:
    """The rows of a cluster for `overlapping`: words are the same in any order."""
    split = bounds.split_of(cluster.split_draw)
    return (
        (" ".join(sorted(words_of(text))), split, cluster.answer, text)
        for text in cluster.questions
    )


def finished(
    cluster: Cluster, bounds: Bounds, dropped: Iterable[str], method: Method
) -> Finished | None:
    """A kept cluster as it is written, without the questions dropped; None where one is left."""
    gone = set(dropped)
    questions = [text for text in cluster.questions if text not in gone]
    if len(questions) < 2:
        return None
    split = SPLITS[bounds.split_of(cluster.split_draw)]
    fields = {
        "answer": cluster.answer,
        "coherence": cluster.coherence,
        "split": split,
        "questions": questions,
    }
    pairs = [f"{a}\t{b}" for a, b in sample_pairs(questions, cluster.answer, method)]
    return Finished(
        cluster.answer, split, json.dumps(fields, ensure_ascii=False), len(questions), pairs
    )


def sample_pairs(
    questions: Sequence[str], answer: str, method: Method
) -> Iterator[tuple[str, str]]:
    """All pairs of a cluster's questions, or so many of them at random; each either way round."""
    drawn = random.Random(draw("pairs", method.seed, answer))
    count = len(questions) * (len(questions) - 1) // 2
    some = range(count) if count <= method.pairs else drawn.sample(range(count), method.pairs)
    for number in sorted(some):
        # The number of the pair (i, j), i < j, is j (j - 1) / 2 + i.
        j = (1 + math.isqrt(1 + 8 * number)) // 2
        pair = questions[number - j * (j - 1) // 2], questions[j]
        yield pair if drawn.random() < 0.5 else pair[::-1]
