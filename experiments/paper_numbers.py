"""The paper's tables (paper_numbers.csv), and our scores beside them."""

from __future__ import annotations

import csv
import pathlib
from typing import NamedTuple

from experiments.pages import table_lines, with_interval
from experiments.scores import Scores
from qpr_jax.evaluation.metrics import SCORE_NAMES


class Row(NamedTuple):
    """A row of a table: its labels, the name of our row, and the paper's scores if it has any."""

    labels: tuple[str, ...]
    name: str
    paper: dict[str, float]


class Table(NamedTuple):
    """A table of the paper; its scores are per pair of a split."""

    title: str
    split: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def _read() -> dict[int, list[Row]]:
    rows: dict[int, list[Row]] = {}
    with open(pathlib.Path(__file__).with_suffix(".csv"), encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            labels = (line["label"], line["distance"])
            scores = {name: float(line[name]) for name in SCORE_NAMES if line[name]}
            rows.setdefault(int(line["table"]), []).append(Row(labels, line["row"], scores))
    return rows


_ROWS = _read()
_LOGS = "Loss functions, question-answer logs"


def _table(number: int, title: str, split: str, *columns: str) -> Table:
    rows = (row._replace(labels=row.labels[: len(columns)]) for row in _ROWS[number])
    return Table(f"{title}, {split} set", split, columns, tuple(rows))


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
    """A table of the paper: our scores per pair, through the index, and the paper's beside them.

    prefix: of the names of our rows.
    """
    rows = []
    for labels, name, paper in table.rows:
        if prefix + name not in scores:
            continue
        cells = [*labels]
        for metric in SCORE_NAMES:
            record = scores.get(prefix + name, f"{table.split} {metric} per pair, index")
            cells.append(with_interval(record) if record else "")
            cells.append(f"{paper[metric]:.3f}" if paper else "")
        rows.append(cells)
    head = [*table.columns]
    for metric in SCORE_NAMES:
        head += [metric, "paper's"]
    return [f"## Table {number}: {table.title}", "", *table_lines(head, rows)] if rows else []


def paper_points(table: Table, metric: str) -> list[tuple[float, float]]:
    """The paper's scores against the number in the first column."""
    return [(float(row.labels[0]), row.paper[metric]) for row in table.rows if row.paper]
