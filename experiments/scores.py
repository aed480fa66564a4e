"""Scores of a study: a pandas table with one record for each row, metric and comparison.

A trial measures a value for each query, or one number. From the values come the mean over seeds,
its 95 % interval by a bootstrap over clusters, and paired differences to other rows.
"""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from qpr_jax.data.splits import HELD_OUT
from qpr_jax.evaluation.rankings import SCORE_NAMES, mean_interval, query_scores, read_ranks
from qpr_jax.files import write_atomically

FILE = "scores.csv"
ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = [
    *("row", "metric", "minus", "mean", "low", "high", "spread"),
    *("difference", "difference low", "difference high", "seeds", "command", "commit"),
]


class PerQuery(NamedTuple):
    """The values of a metric: one for each query, or a single one that has no interval."""

    values: np.ndarray  # float [n]
    clusters: np.ndarray  # int [n], equal where queries depend on each other
    repeats: np.ndarray | None = None  # int [n], how often each query counts; None: once

    @property
    def mean(self) -> float:
        """The mean over queries."""
        return float(np.average(self.values, weights=self.repeats))

    def interval(self, *names: str) -> dict[str, float]:
        """The two ends of the interval of the mean, by these names."""
        if len(self.values) == 1:
            return {}
        ends = mean_interval(self.values, self.clusters, self.repeats)
        return dict(zip(names, ends.tolist(), strict=True))


Measured = Mapping[str, PerQuery | float]  # by metric


def retrieval(
    run: pathlib.Path,
    *,
    over: Sequence[str] = ("query",),
    searches: Mapping[str, str] | None = None,
    splits: Sequence[str] = HELD_OUT,
    names: Sequence[str] = SCORE_NAMES,
) -> dict[str, PerQuery]:
    """Read retrieval scores from the `ranks.npz` of a run.

    Args:
      over: "query", or "pair" as in the paper: a query counts once for each of its pairs.
      searches: title -> name in `ranks.npz`; a search that is missing there is read as "exact".
    """
    ranks = read_ranks(run / "ranks.npz")
    found = {}
    for split in splits:
        for title, search in (searches or {"index": "index"}).items():
            scores = query_scores(ranks.get(f"{split}_{search}", ranks[f"{split}_exact"]))
            values, clusters = dict(zip(SCORE_NAMES, scores.T, strict=True)), f"{split}_clusters"
            for one in over:
                repeats = ranks[f"{split}_pairs"] if one == "pair" else None
                for name in names:
                    measured = PerQuery(values[name], ranks[clusters], repeats)
                    found[f"{split} {name} per {one}, {title}"] = measured
    return found


def score_rows(
    rows: Mapping[str, Sequence[Measured]], compare: Callable[[str], Sequence[str]]
) -> list[dict[str, Any]]:
    """Score the rows, each measured once per seed.

    compare: row -> the rows that are subtracted from it.
    """
    records = []
    for row, seeds in rows.items():
        for metric in seeds[0]:
            own = _values(metric, seeds)
            means, averaged = [one.mean for one in own], _averaged(own)
            record = {"row": row, "metric": metric, "minus": "", "seeds": len(own)}
            record |= {"mean": averaged.mean} | averaged.interval("low", "high")
            if len(means) > 1:
                record["spread"] = float(np.std(means, ddof=1))
            others = [other for other in compare(row) if metric in rows.get(other, [{}])[0]]
            for other in others:
                difference = _difference(averaged, _averaged(_values(metric, rows[other])))
                records.append(record | {"minus": other} | difference)
            if not others:
                records.append(record)
    return records


def _values(metric: str, seeds: Sequence[Measured]) -> list[PerQuery]:
    """What each seed measured."""
    found = [one[metric] for one in seeds if metric in one]
    return [
        one if isinstance(one, PerQuery) else PerQuery(np.array([one]), np.zeros(1))
        for one in found
    ]


def _averaged(seeds: Sequence[PerQuery]) -> PerQuery:
    """The value of each query, averaged over seeds."""
    return seeds[0]._replace(values=np.mean([one.values for one in seeds], axis=0))


def _difference(own: PerQuery, theirs: PerQuery) -> dict[str, float]:
    """The difference and its interval; nothing where the scores are of other queries."""
    if not np.array_equal(own.clusters, theirs.clusters):
        return {}
    apart = own._replace(values=own.values - theirs.values)
    return {"difference": apart.mean} | apart.interval("difference low", "difference high")


def commit() -> str:
    """The commit of this checkout, with "-dirty" if code has changed since; "" without git."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", ":!results", ":!*.md")
        return git("rev-parse", "--short=10", "HEAD") + ("-dirty" if changed else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


class Scores:
    """The table of a study, looked up by row and metric; its columns are `COLUMNS`."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table.reindex(columns=COLUMNS)
        self.table["minus"] = self.table["minus"].fillna("")
        self._records: list[dict[str, Any]] = self.table.to_dict("records")

    @classmethod
    def read(cls, folder: pathlib.Path) -> Scores:
        """Read scores.csv of a folder; an empty table if there is none."""
        path = folder / FILE
        if not path.exists():
            return cls(pd.DataFrame(columns=COLUMNS))
        return cls(pd.read_csv(path, dtype={"row": str, "commit": str}))

    def updated(self, records: Sequence[dict[str, Any]]) -> Scores:
        """Return a table in which these records replace all earlier ones of their rows."""
        rows = {record["row"] for record in records}
        old = [record for record in self._records if record["row"] not in rows]
        return Scores(pd.DataFrame([*old, *records]))

    def write(self, folder: pathlib.Path) -> None:
        """Write scores.csv, atomically."""
        with write_atomically(folder / FILE, "w") as file:
            self.table.round(4).to_csv(file, index=False, lineterminator="\n")

    def __contains__(self, row: str) -> bool:
        return row in set(self.table["row"])

    def get(self, row: str, metric: str, minus: str = "") -> dict[str, Any] | None:
        """The record of a row and metric; with `minus`, the one that compares it with that row."""
        for record in self._records:
            same = (record["row"], record["metric"]) == (row, metric)
            if same and minus in ("", record["minus"]):
                return record
        return None
