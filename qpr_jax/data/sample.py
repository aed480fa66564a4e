"""Files to try every command with: a generated log, its labeled pairs, and queries for it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qpr_jax.data.cells import write_tsv
from qpr_jax.data.clusters import connect
from qpr_jax.data.pairs import HEADER
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.files import StrPath, refuse_existing, replace_folder

_QUERY_SHARE = 0.1  # of the clusters


def write_sample(folder: StrPath, *, clusters: int = 600, seed: int = 0) -> dict[str, int]:
    """Write a generated question log to a new folder, whole or not at all; how many rows of each.

    questions.csv: `id,question,article`; the article answers the question, so questions with the
    same one mean the same. queries.csv: `question,id`: questions that questions.csv lacks, each
    with the id of one there that means the same. pairs.tsv: labeled pairs of all questions, in the
    format of Quora's file. logs.jsonl: the questions with their answers.
    """
    refuse_existing(folder)
    data = synthetic_pairs(seed=seed, clusters=clusters)
    count = len(data.questions)
    articles = connect(count, data.pairs[data.is_duplicate])
    first = {int(article): row for row, article in reversed([*enumerate(articles)])}
    last = {int(article): row for row, article in enumerate(articles)}
    paired = [article for article in first if first[article] != last[article]]
    some = np.random.default_rng(seed).permutation(len(paired))[: int(_QUERY_SHARE * len(paired))]
    queries = {last[paired[i]]: first[paired[i]] for i in sorted(some)}
    questions = [
        (data.ids[row], data.questions[row], article)
        for row, article in enumerate(articles)
        if row not in queries
    ]
    pairs = [
        (i, data.ids[a], data.ids[b], data.questions[a], data.questions[b], int(label))
        for i, ((a, b), label) in enumerate(zip(data.pairs, data.is_duplicate, strict=True))
    ]
    log = [
        {"question": question, "answer": f"See article {article}."}
        for question, article in zip(data.questions, articles, strict=True)
    ]
    with replace_folder(folder) as part:
        _write_csv(part / "questions.csv", ("id", "question", "article"), questions)
        found = [(data.questions[query], data.ids[row]) for query, row in queries.items()]
        _write_csv(part / "queries.csv", ("question", "id"), found)
        with (part / "pairs.tsv").open("w", encoding="utf-8", newline="") as file:
            write_tsv(file, HEADER, pairs)
        with (part / "logs.jsonl").open("w", encoding="utf-8", newline="") as file:
            file.writelines(json.dumps(row) + "\n" for row in log)
    return {
        "questions": len(questions),
        "queries": len(queries),
        "pairs": len(pairs),
        "logs": len(log),
    }


def _write_csv(path: StrPath, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
