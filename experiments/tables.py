"""What several studies write: tables beside the paper's, claims with intervals, scores.csv."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import commit
from experiments.paper_numbers import Table
from experiments.study import Trials
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.evaluation.bootstrap import SCORE_NAMES, Scores
from qpr_jax.files import write_atomically


class Claim(NamedTuple):
    """An ordering of two rows.

    text: as the page says it. table: of the paper, which makes the claim, or 0.
    """

    text: str
    better: str
    worse: str
    table: int = 0


def verdict_of(low: float, high: float) -> str:
    """Whether an ordering holds, by the interval of the difference."""
    return "holds" if low > 0 else "does not hold" if high < 0 else "not decided"


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown, with an empty line after it."""
    return [
        "|" + "|".join(f" {title} " if title else " " for title in head) + "|",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
    ]


def difference_cell(difference: float, low: float, high: float) -> str:
    """A difference with its interval."""
    return f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def claim_lines(
    claims: Sequence[Claim], tables: Mapping[int, Table], trials: Trials, *, seeds_planned: int
) -> list[str]:
    """A line for each claim whose rows are kept: differences, intervals, the paper's, a verdict.

    seeds_planned: of the rows of an ordering that is not decided; the last line names those that
    have fewer.
    """
    rows, pending = [], []
    for text, better, worse, number in claims:
        if better not in trials or worse not in trials:
            continue
        scores = trials.scores(tables[number].split, "pair")
        paper = {name: triple for _, name, triple in tables[number].rows}
        low, high = scores.interval(better, worse)
        difference = scores.mean(better) - scores.mean(worse)
        cells = []
        for metric in (0, 2):
            cells.append(difference_cell(difference[metric], low[metric], high[metric]))
            theirs, others = paper[better], paper[worse]
            cells.append(f"{theirs[metric] - others[metric]:+.3f}" if theirs and others else "")
        verdicts = {verdict_of(low[metric], high[metric]) for metric in (0, 2)}
        verdict: str = next(v for v in ("does not hold", "not decided", "holds") if v in verdicts)
        seeds = {name: len(scores.by_seed[name]) for name in (better, worse)}
        if verdict == "not decided":
            seen = (high - low) / 2
            verdict += f", {seen[0]:.3f} / {seen[2]:.3f}"
            pending += [name for name, count in seeds.items() if count < seeds_planned]
        rows.append([text, str(number), *cells, ", ".join(map(str, seeds.values())), verdict])
    head = "the paper", "table", "H@1, ours", "paper's", "MRR, ours", "paper's", "seeds", ""
    return [
        "A difference is of the better row minus the worse. An ordering holds where its interval",
        "is above 0 in H@1 and in MRR, does not where one is below, and is not decided otherwise.",
        "The interval is that of the questions asked, not that of another training: for that, see",
        "the spread of the seeds. Where it is not decided, the last column has the differences of",
        "H@1 / MRR that would have been seen: half the widths of the intervals.",
        "",
        *table_lines(head, rows),
        *_pending_lines(pending, seeds_planned),
    ]


def _pending_lines(rows: Iterable[str], seeds: int) -> list[str]:
    """A sentence on the rows that have fewer seeds than planned, if any."""
    names = [f"`{name}`" for name in dict.fromkeys(rows)]
    return [f"Pending: {seeds} seeds of {', '.join(names)}.", ""] if names else []


def score_cell(scores: Scores, name: str, metric: int) -> str:
    """The mean with its interval, and the standard deviation over seeds if there are several."""
    low, high = scores.interval(name)[:, metric]
    seeds = scores.by_seed[name][:, metric]
    spread = f" ± {seeds.std(ddof=1):.3f} ({len(seeds)} seeds)" if len(seeds) > 1 else ""
    return f"{seeds.mean():.3f} [{low:.3f}, {high:.3f}]{spread}"


def paper_table(trials: Trials, number: int, table: Table, *, plot: str | None = None) -> list[str]:
    """A table beside the paper's, with the plot if it is named."""
    scores = trials.scores(table.split, "pair")
    evaluations = trials.read("evaluations.jsonl")
    rows = []
    for labels, name, paper in table.rows:
        if name not in trials:
            continue
        cells = [*labels, _epochs(evaluations.get(name, []))]
        for metric in range(len(SCORE_NAMES)):
            cells.append(score_cell(scores, name, metric))
            theirs = paper[metric] if paper else None
            ours = scores.mean(name)[metric]
            cells.append("" if theirs is None else f"{theirs:.3f}, {ours - theirs:+.3f}")
        rows.append(cells)
    head = [*table.columns, "epochs"]
    for metric_name in SCORE_NAMES:
        head += [metric_name, "paper's, difference"]
    lines = [f"## Table {number}: {table.title}", "", *table_lines(head, rows)]
    return [*lines, *([f"![{plot}](plots/{plot}.png)", ""] if plot else [])]


def _epochs(evaluations: list[dict[str, Any]]) -> str:
    """The epoch whose weights were kept, and how many were trained; empty for a search."""
    if not evaluations:
        return ""
    best = int(np.argmax([evaluation["mrr"] for evaluation in evaluations]))
    return f"{1 + best} of {len(evaluations)}"


def score_records(
    trials: Trials,
    over: str,
    search: str,
    *,
    splits: Sequence[str] = HELD_OUT,
    metrics: Sequence[str] = ("H@1", "MRR"),
    minus: Callable[[str], str | None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Records of scores.csv: the scores of all rows, with intervals.

    Args:
      over: "pair" or "query", what a mean is taken over.
      search: "exact", "index" or another search in the ranks of the trials.
      minus: row -> the row to subtract for a paired difference, or None.
    """
    records = []
    for split in splits:
        scores = trials.scores(split, over, search)
        for row, seeds in scores.by_seed.items():
            other = minus(row)
            other = other if other in scores.by_seed and other != row else None
            for metric in metrics:
                at = SCORE_NAMES.index(metric)
                name = f"{split} {metric} per {over}, {search}"
                difference: tuple[float, ...] = ()
                if other:
                    gain = scores.mean(row)[at] - scores.mean(other)[at]
                    difference = gain, *scores.interval(row, other)[:, at]
                mean, interval = scores.mean(row)[at], tuple(scores.interval(row)[:, at])
                records.append(
                    score_record(row, name, mean, interval, other or "", difference, len(seeds))
                )
    return records


def score_record(
    row: str,
    metric: str,
    mean: float,
    interval: Sequence[float] = (),
    minus: str = "",
    difference: Sequence[float] = (),
    seeds: int = 1,
) -> dict[str, Any]:
    """A record of scores.csv.

    Args:
      interval: low and high ends, 95 %; empty if not measured.
      minus: the row that was subtracted.
      difference: the paired difference to `minus`, and the ends of its interval.
    """
    numbers = [mean, *(interval or ("", "")), *(difference or ("", "", ""))]
    names = ("mean", "low", "high", "difference", "difference low", "difference high")
    cells = {
        name: number if isinstance(number, str) else round(float(number), 4)
        for name, number in zip(names, numbers, strict=True)
    }
    return {"row": row, "metric": metric, "minus": minus, **cells, "seeds": seeds}


def write_scores(trials: Trials, command: str, records: list[dict[str, Any]]) -> None:
    """Write scores.csv beside the page, atomically: the records, the command and the commit."""
    facts = {"command": command, "commit": commit()}
    with write_atomically(trials.results / "scores.csv", "w") as file:
        writer = csv.DictWriter(file, [*score_record("", "", 0), *facts], lineterminator="\n")
        writer.writeheader()
        writer.writerows(record | facts for record in records)
