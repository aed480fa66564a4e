"""The paper's tables (paper_numbers.csv) and claims (paper_claims.csv), and our scores beside."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.pages import difference, table_lines, with_interval
from experiments.scores import Scores
from qpr_jax.evaluation.scores import SCORE_NAMES

_LOGS = "Loss functions, question-answer logs"


class Table(NamedTuple):
    """A table of the paper; its scores are per pair of a split."""

    title: str
    split: str
    columns: tuple[str, ...]  # heads of `label` and `distance`
    rows: list[dict[str, str]]  # also `row`, the name of ours, and the paper's scores or ""


def _read(name: str) -> list[dict[str, str]]:
    with open(pathlib.Path(__file__).with_name(name), encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def _table(number: int, title: str, split: str, *columns: str) -> Table:
    rows = [row for row in _read("paper_numbers.csv") if int(row["table"]) == number]
    return Table(f"{title}, {split} set", split, columns, rows)


TABLES = {
    1: _table(1, "Smoothing factor", "validation", "eps"),
    2: _table(2, "Batch size", "validation", "N"),
    3: _table(3, "Loss functions", "validation", "loss", "distance"),
    4: _table(4, "Loss functions", "test", "loss", "distance"),
}
OPEN_DOMAIN = {
    5: _table(5, _LOGS, "validation", "loss", "distance"),
    6: _table(6, _LOGS, "test", "loss", "distance"),
}


def paper_table(scores: Scores, number: int, table: Table, prefix: str = "") -> list[str]:
    """Return a table of the paper: our scores per pair, through the index, beside the paper's.

    prefix: of the names of our rows.
    """
    rows = []
    for row in table.rows:
        cells = [row["label"], row["distance"]][: len(table.columns)]
        for metric in SCORE_NAMES:
            record = scores.get(prefix + row["row"], f"{table.split} {metric} per pair, index")
            cells.append(with_interval(record) if record else "")
            cells.append(f"{float(row[metric]):.3f}" if row[metric] else "")
        if record:
            rows.append(cells)
    head = [*table.columns]
    for metric in SCORE_NAMES:
        head += [metric, "paper's"]
    return [f"## Table {number}: {table.title}", "", *table_lines(head, rows)] if rows else []


def paper_points(table: Table, metric: str) -> list[tuple[float, float]]:
    """Return the paper's scores against the number in the first column."""
    return [(float(row["label"]), float(row[metric])) for row in table.rows if row[metric]]


class Claim(NamedTuple):
    """An ordering of two rows, by scores of a split per pair."""

    text: str
    better: str
    worse: str
    table: int  # of the paper, which has both rows


ALL_CLAIMS = [
    Claim(row["claim"], row["better"], row["worse"], int(row["table"]))
    for row in _read("paper_claims.csv")
]


def claim_lines(scores: Scores, claims: Sequence[Claim], prefix: str = "") -> list[str]:
    """Return a table of claims: the differences, and whether each holds.

    prefix: of the names of rows.
    """
    rows = []
    for text, better, worse, table in claims:
        split = (TABLES | OPEN_DOMAIN)[table].split
        metrics = [f"{split} {name} per pair, index" for name in ("H@1", "MRR")]
        found = [scores.get(prefix + better, metric, prefix + worse) for metric in metrics]
        records = [record for record in found if record]
        if len(records) == len(metrics):
            rows.append([text, _verdict(records), *map(difference, records), str(table)])
    if not rows:
        return []
    return [
        "A difference is the score of the better row minus that of the worse. A claim holds where",
        "both intervals are above 0, does not hold where one is below, and is undecided otherwise.",
        "",
        *table_lines(("claim", "verdict", "H@1", "MRR", "table"), rows),
    ]


def _verdict(records: Sequence[dict[str, Any]]) -> str:
    if any(record["difference high"] < 0 for record in records):
        return "does not hold"
    return "holds" if all(record["difference low"] > 0 for record in records) else "undecided"
