"""What several studies write: tables beside the paper's, claims with intervals, CSV files."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.paper_numbers import Table
from experiments.study import KeptRows
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
    claims: Sequence[Claim], tables: Mapping[int, Table], kept: KeptRows, *, seeds_planned: int
) -> list[str]:
    """A line for each claim whose rows are kept: differences, intervals, the paper's, a verdict.

    seeds_planned: of the rows of an ordering that is not decided; the last line names those that
    have fewer.
    """
    rows, pending = [], []
    for text, better, worse, number in claims:
        if better not in kept or worse not in kept:
            continue
        scores = kept.scores(tables[number].split, "pair")
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


def write_table(kept: KeptRows, number: int, table: Table, *, plot: str | None = None) -> list[str]:
    """Write table_N.csv and table_N.md; the lines of the latter, with the plot if it is named."""
    scores = kept.scores(table.split, "pair")
    evaluations = kept.read("evaluations.jsonl")
    rows, records = [], []
    for labels, name, paper in table.rows:
        if name not in kept:
            continue
        epochs = _epochs(evaluations.get(name, []))
        row = dict(zip(table.columns, labels, strict=True)) | {"row": name, "epochs": epochs}
        cells = [*labels, epochs]
        for metric in range(len(SCORE_NAMES)):
            theirs = paper[metric] if paper else None
            records.append(row | _record(kept, table.split, name, metric, theirs))
            cells.append(score_cell(scores, name, metric))
            ours = scores.mean(name)[metric]
            cells.append("" if theirs is None else f"{theirs:.3f}, {ours - theirs:+.3f}")
        rows.append(cells)
    head = [*table.columns, "epochs"]
    for metric_name in SCORE_NAMES:
        head += [metric_name, "paper's, difference"]
    lines = [f"## Table {number}: {table.title}", "", *table_lines(head, rows)]
    lines += [f"![{plot}](plots/{plot}.png)", ""] if plot else []
    write_csv(kept.results / f"table_{number}.csv", records)
    with write_atomically(kept.results / f"table_{number}.md", "w") as file:
        file.write("\n".join(lines))
    return lines


def _record(
    kept: KeptRows, split: str, name: str, metric: int, theirs: float | None
) -> dict[str, Any]:
    """A score as a record of a table's CSV, beside the paper's if there is one."""
    scores, queries = kept.scores(split, "pair"), kept.scores(split, "query")
    mean, seeds = scores.mean(name)[metric], scores.by_seed[name][:, metric]
    low, high = scores.interval(name)[:, metric]
    return {
        "metric": SCORE_NAMES[metric],
        "ours": round(mean, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "seeds": len(seeds),
        "deviation": round(seeds.std(ddof=1), 4) if len(seeds) > 1 else "",
        "paper": "" if theirs is None else theirs,
        "difference": "" if theirs is None else round(mean - theirs, 4),
        "ours_per_query": round(queries.mean(name)[metric], 4),
    }


def _epochs(evaluations: list[dict[str, Any]]) -> str:
    """The epoch whose weights were kept, and how many were trained; empty for a search."""
    if not evaluations:
        return ""
    best = int(np.argmax([evaluation["mrr"] for evaluation in evaluations]))
    return f"{1 + best} of {len(evaluations)}"


def write_csv(path: pathlib.Path, records: list[dict[str, Any]]) -> None:
    """Write records of the same keys, atomically."""
    with write_atomically(path, "w") as file:
        writer = csv.DictWriter(file, records[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
