"""The paper's tables on the Quora pairs, and ideas beyond the paper.

python -m experiments.paper_tables                     all rows, then tables and plots
python -m experiments.paper_tables --rows=mask,even    some rows

The paper's numbers are in paper_numbers.csv, and its claims in paper_claims.csv.
"""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.pages import (
    difference,
    plot_curves,
    score_table,
    section,
    split_columns,
    table_lines,
    with_interval,
)
from experiments.scores import Scores
from experiments.study import Study, Trial, titles
from experiments.systems import baseline_trial
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


# What all rows change of `quora_sdml`: a quarter of its filters and less patience, so that thirty
# trainings to their early stop take a few hours of 2 cores. Fewer checkpoints change no result.
CHANGES: dict[str, Any] = {
    "encoder.filters": 150,
    "early_stopping.patience": 2,
    "checkpoint_every": 1000,
}
# Random triplets learn slowly: some trainings still gain after ten epochs.
TRIPLET: dict[str, Any] = {"loss.names": ("triplet",), "max_epochs": 20}
MASK: dict[str, Any] = {"loss.mask_own_cluster": True}
SYMMETRIC: dict[str, Any] = {"loss.symmetric": True}
EVEN: dict[str, Any] = {"batch.sampling": "clusters"}

ROWS: dict[str, dict[str, Any]] = {
    "sdml": {},
    **{f"eps_{eps}": {"loss.smoothing": eps} for eps in (0.0, 0.1, 0.2, 0.4)},
    **{f"n_{size}": {"batch_size": size} for size in (32, 64, 128, 256, 1024)},
    "sdml_euc": {"loss.distance": "euc"},
    "tl_euc": TRIPLET | {"loss.distance": "euc"},
    "tl_ssd": TRIPLET,
    "tl_hard_ssd": TRIPLET | {"loss.negatives": "hard"},
    "tl_hard_euc": TRIPLET | {"loss.distance": "euc", "loss.negatives": "hard"},
    "tl_hard_anchor_ssd": TRIPLET | {"loss.negatives": "hard_anchor"},
    "tl_ssd_margin_5": TRIPLET | {"loss.margin": 5.0},
    "tl_ssd_margin_50": TRIPLET | {"loss.margin": 50.0},
    "mask": MASK,
    "symmetric": SYMMETRIC,
    "even": EVEN,
    "even_mask_symmetric": EVEN | MASK | SYMMETRIC,
    "windows_1_3_5": {"encoder.kernel_sizes": (1, 3, 5), "encoder.filters": 100},
    "word_dropout": {"batch.token_dropout": 0.2},
    "decay": {"optimizer.learning_rate_decay": "linear"},
    "bag_of_words": {"encoder.bag_of_words": True},
}
CLAIMS = [claim for claim in ALL_CLAIMS if claim.table in TABLES]
PLOTS = {1: ("eps", "eps"), 2: ("batch_size", "N")}  # table -> name of its plot, label
IDEAS = {
    "mask": "mask the candidates of the query's own cluster",
    "symmetric": "both directions",
    "even": "draw clusters evenly",
    "even_mask_symmetric": "the three together",
    "n_1024": "N = 1,024",
    "windows_1_3_5": "windows of 1, 3 and 5 words, 100 filters each",
    "bag_of_words": "the sum of the word embeddings beside the maxima",
    "word_dropout": "drop a fifth of the words",
    "decay": "decay the learning rate to 0 in ten epochs",
}


# Presets that are trained as they are.
FULL = [
    Trial("quora_sdml", "quora_sdml", title="`quora_sdml`"),
    Trial("quora_best", "quora_best", title="`quora_best`", minus=("quora_sdml",)),
]


def worse_rows(claims: Sequence[Claim], row: str, prefix: str = "") -> list[str]:
    """Return the rows that are worse than a row by the paper's claims. prefix: of their names."""
    worse = [prefix + claim.worse for claim in claims if prefix + claim.better == row]
    return [*dict.fromkeys(worse)]


# The better row of a claim is compared with the worse ones, that of an idea with the plain row.
TRIALS = [
    *(baseline_trial(name, "quora_sdml", CHANGES) for name in ("bm25", "tfidf")),
    *(
        Trial(
            name,
            "quora_sdml",
            CHANGES | changes,
            minus=[*worse_rows(CLAIMS, name), *["sdml"] * (name in IDEAS)],
        )
        for name, changes in ROWS.items()
    ),
    *FULL,
]


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format the claims, the ideas, and the paper's tables with their plots."""
    columns = split_columns("index", difference)
    ideas = score_table(scores, IDEAS | titles(FULL[1:]), columns, "idea")
    lines = [
        *section("The paper's claims", claim_lines(scores, CLAIMS)),
        *section(
            "Ideas beyond the paper",
            ideas,
            "Differences to the plain row of the same size, per query; `quora_best` is compared",
            "with `quora_sdml`, both at full size.",
        ),
        *section("The presets", preset_table(scores, FULL)),
    ]
    for number, table in TABLES.items():
        lines += (found := paper_table(scores, number, table))
        if not found or number not in PLOTS:
            continue
        name, label = PLOTS[number]
        lines += [f"![{name}](plots/{name}.png)", ""]
        plot_curves(
            folder / "plots" / f"{name}.png",
            scores,
            {"ours": [(float(row["label"]), row["row"]) for row in table.rows]},
            {metric: f"validation {metric} per pair, index" for metric in SCORE_NAMES},
            xlabel=label,
            log_scale=label == "N",
            paper={metric: paper_points(table, metric) for metric in SCORE_NAMES},
        )
    return lines


def preset_table(scores: Scores, trials: Sequence[Trial]) -> list[str]:
    """Return the scores per query of presets that are trained as they are."""
    columns = split_columns("index", with_interval)
    return score_table(scores, titles(trials), columns, "per query")


STUDY = Study(name="paper_tables", trials=TRIALS, page=page, smoke=("tfidf", "sdml", "tl_ssd"))

if __name__ == "__main__":
    STUDY.main()
