"""Logs of questions and answers in any format, read by this process or by Apache Spark."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from qpr_jax.data.columns import SKIP, BadRows, read_rows
from qpr_jax.data.spark import map_numbers, map_rows, raise_error
from qpr_jax.data.typed_rows import Fields
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import canonical

NAME_COLUMNS = "name the columns with `question` and `answer`"
_SKIP = f"{NAME_COLUMNS}, or {SKIP}"
_PARTITION = 100_000  # rows of a partition of Spark, about
UNDECIDED = ""  # the answer of a question without a most frequent answer


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
    rows = map_numbers(session, len(files), read, columns).persist(StorageLevel.DISK_ONLY)
    for error in rows.where("what is not null").select("what", "remedy").take(1):
        raise_error(*error)
    count, bad = rows.selectExpr("count(key)", "count_if(key is null)").first()
    # Starting a task costs as much as thousands of rows, so few rows get few partitions.
    partitions = max(session.sparkContext.defaultParallelism, count // _PARTITION)
    good = rows.where("key is not null").select("key", "answer", "text")
    questions = map_rows(
        good.repartition(partitions, "key"),
        lambda rows: distinct_questions(itertools.starmap(LogRow, rows)),
        "text string, answer string, answers bigint",
    )
    return LogQuestions([Question(*row) for row in questions.toLocalIterator()], count, bad)
