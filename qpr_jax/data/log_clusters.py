"""Clusters of questions with the same answer in logs (the paper's section 4.1.1).

Logs are files or folders, in any format of `data.decoding`. The result depends only on the content
of the questions and on the seed, not on their order.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qpr_jax.data import spark
from qpr_jax.data.columns import SKIP, BadRows, read_rows
from qpr_jax.data.splits import HELD_OUT, SPLITS
from qpr_jax.data.typed_rows import Fields
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import canonical, normalized_text

NAME_COLUMNS = "name the columns with `question` and `answer`"
_SKIP = f"{NAME_COLUMNS}, or {SKIP}"
_PARTITION = 100_000  # rows of a partition of Spark, about
UNDECIDED = ""  # the answer of a question without a most frequent answer
# The default least coherence of a cluster, by measure.
LEAST = {"pairwise": 0.3, "paper": 0.1}


@dataclass(frozen=True)
class Logs:
    """Files, the names of their two columns, their format ("": by their names), and a limit."""

    files: tuple[str, ...]
    question_column: str = "question"
    answer_column: str = "answer"
    format: str = ""
    max_rows: int = 0  # of each file; 0: all


class LogRow(NamedTuple):
    """A row of a log: question and answer in `canonical` form, and the text of the question."""

    key: str
    answer: str
    text: str


class Question(NamedTuple):
    """A distinct question: its first spelling, and its answer out of a number of answers."""

    text: str
    answer: str
    answers: int


class LogQuestions(NamedTuple):
    """The distinct questions of logs, and the numbers of good rows and of bad ones."""

    questions: list[Question]
    rows: int
    bad_rows: int


def read_log(logs: Logs, bad: BadRows) -> Iterator[LogRow]:
    """Yield the good rows of the file `bad.source`."""
    columns = (logs.question_column, logs.answer_column)

    def parse(line: int, fields: Fields) -> LogRow:
        question, answer = (fields[name] for name in columns)
        texts = []
        label = f"{answer}" if isinstance(answer, int) else answer
        for name, value in (("a question", question), ("an answer", label)):
            if not isinstance(value, str) or not value.strip():
                raise UserError(f"expected {name}, got {value!r:.60}")
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise UserError(f"expected Unicode text in {name} ({error.reason})") from None
            texts.append(" ".join(value.split()))
        return LogRow(canonical(texts[0]), canonical(texts[1]), texts[0])

    rows = read_rows(bad.source, columns, format=logs.format, remedy=NAME_COLUMNS)
    return bad.good(itertools.islice(rows, logs.max_rows or None), parse)


def distinct_questions(rows: Iterable[LogRow]) -> Iterator[Question]:
    """Yield each question once: its first spelling by code points, its most frequent answer."""
    texts: dict[str, str] = {}
    answers: dict[str, Counter[str]] = {}
    for key, answer, text in rows:
        texts[key] = min(texts.get(key, text), text)
        answers.setdefault(key, Counter())[answer] += 1
    for key, text in texts.items():
        (first, most), *others = answers[key].most_common(2)
        tied = bool(others) and others[0][1] == most
        yield Question(text, UNDECIDED if tied else first, len(answers[key]))


def read_questions(logs: Logs, *, skip_bad_rows: bool = False) -> LogQuestions:
    """Read the distinct questions of logs; UserError for a bad row unless `skip_bad_rows`."""
    bad = [BadRows(file, skip_bad_rows, _SKIP) for file in logs.files]
    count = 0

    def rows() -> Iterator[LogRow]:
        nonlocal count
        for row in itertools.chain.from_iterable(read_log(logs, each) for each in bad):
            count += 1
            yield row

    questions = [*distinct_questions(rows())]
    return LogQuestions(questions, count, sum(each.count for each in bad))


def read_questions_on_spark(
    session: Any, logs: Logs, *, skip_bad_rows: bool = False
) -> LogQuestions:
    """Read what `read_questions` reads; all machines must be able to read the files."""
    from pyspark import StorageLevel

    files = [*map(os.path.abspath, logs.files)]  # Spark may have another working directory

    def read(number: int) -> Iterator[tuple[str | None, ...]]:
        bad = BadRows(files[number], skip_bad_rows, _SKIP)
        yield from read_log(logs, bad)
        yield from [(None, None, None)] * bad.count

    columns = "key string, answer string, text string"
    rows = spark.map_numbers(session, len(files), read, columns).persist(StorageLevel.DISK_ONLY)
    for error in rows.where("what is not null").select("what", "remedy").take(1):
        spark.raise_error(*error)
    count, bad = rows.selectExpr("count(key)", "count_if(key is null)").first()
    # Starting a task costs as much as thousands of rows, so few rows get few partitions.
    partitions = max(session.sparkContext.defaultParallelism, count // _PARTITION)
    good = rows.where("key is not null").select("key", "answer", "text")
    questions = spark.map_rows(
        good.repartition(partitions, "key"),
        lambda rows: distinct_questions(itertools.starmap(LogRow, rows)),
        "text string, answer string, answers bigint",
    )
    return LogQuestions([Question(*row) for row in questions.toLocalIterator()], count, bad)


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
