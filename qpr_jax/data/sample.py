"""Files to try every command with: questions to the help desk of a shop, in several wordings."""

from __future__ import annotations

import csv
import datetime
import importlib.resources
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.files import StrPath, refuse_existing, replace_folder

_FIRST_DAY = datetime.date(2026, 1, 5)
_TYPED_AGAIN = 10  # one question of so many occurs twice, typed without care
_NEGATIVES = 2  # labeled non-duplicates for each question


class Meaning(NamedTuple):
    """Wordings of one question. `topic`: meanings that differ in one name have the same."""

    topic: int
    product: str
    wordings: list[str]


def write_sample(folder: StrPath) -> dict[str, int]:
    """Write the sample to a new folder, whole or not at all; return how many rows of each file.

    questions.csv: `id,question,product,date`. queries.csv: `question,id`, wordings that
    questions.csv lacks, a row for each question there that means the same. pairs.csv: labeled
    pairs, `question1,question2,is_duplicate`. logs.jsonl: questions with their answers.
    """
    refuse_existing(folder)
    meanings = [*_read()]
    questions, queries = _table(meanings)
    pairs = [*_pairs(meanings)]
    log = [
        {"question": wording, "answer": f"Help article {number}: {meaning.wordings[0]}"}
        for number, meaning in enumerate(meanings, 1)
        for wording in meaning.wordings
    ]
    with replace_folder(folder) as part:
        _write_csv(part / "questions.csv", ("id", "question", "product", "date"), questions)
        _write_csv(part / "queries.csv", ("question", "id"), queries)
        _write_csv(part / "pairs.csv", ("question1", "question2", "is_duplicate"), pairs)
        with (part / "logs.jsonl").open("w", encoding="utf-8", newline="") as file:
            file.writelines(json.dumps(row) + "\n" for row in log)
    counts = {"questions": len(questions), "queries": len(queries)}
    return counts | {"pairs": len(pairs), "logs": len(log)}


def _read() -> Iterator[Meaning]:
    """Yield the meanings of help_desk.txt.

    A block of lines is a product, and its wordings; or `product | name, name, ...`, and wordings
    with `{}` in place of the name.
    """
    text = importlib.resources.files("qpr_jax.data").joinpath("help_desk.txt").read_text("utf-8")
    for topic, block in enumerate(text.strip().split("\n\n")):
        head, *wordings = block.splitlines()
        product, _, names = head.partition(" | ")
        for name in names.split(", "):
            yield Meaning(topic, product, [wording.replace("{}", name) for wording in wordings])


def _table(meanings: Sequence[Meaning]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of questions.csv, as they came in over a year, and those of queries.csv.

    One wording of each meaning is a query. Of meanings that differ in a name two are asked, of
    others all that are left.
    """
    topics = [meaning.topic for meaning in meanings]
    asked, queries = [], []
    for number, (topic, _, wordings) in enumerate(meanings):
        shift = number % len(wordings)
        query, *others = wordings[shift:] + wordings[:shift]
        queries.append(query)
        asked += [(number, wording) for wording in others[: 2 if topics.count(topic) > 1 else None]]
    asked += [(number, wording.lower().rstrip("?.")) for number, wording in asked[::_TYPED_AGAIN]]
    rng = np.random.default_rng(0)
    rows, found = [], []
    days = np.sort(rng.integers(0, 320, len(asked))).tolist()
    for row, (place, day) in enumerate(zip(rng.permutation(len(asked)), days, strict=True)):
        number, question = asked[place]
        id, date = f"T-{1001 + row}", _FIRST_DAY + datetime.timedelta(day)
        rows.append([id, question, meanings[number].product, str(date)])
        found.append([queries[number], id])
    return rows, sorted(found, key=lambda row: queries.index(row[0]))


def _pairs(meanings: Sequence[Meaning]) -> Iterator[tuple[str, str, int]]:
    """Yield the pairs of each meaning as duplicates, and pairs of two meanings as none."""
    rng = np.random.default_rng(0)
    for number, meaning in enumerate(meanings):
        for first, second in itertools.combinations(meaning.wordings, 2):
            yield first, second, 1
        near = (number + 1) % len(meanings)  # often it differs in a name only
        others = [near, *rng.choice(len(meanings), _NEGATIVES - 1)]
        for wording, other in itertools.product(meaning.wordings, others):
            if other != number:
                yield wording, rng.choice(meanings[other].wordings), 0


def _write_csv(path: StrPath, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
