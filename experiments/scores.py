"""Scores of a study: a pandas table with one record for each row, metric and comparison.

A trial measures a value for each query, or one number. From the values come the mean over seeds,
its 95 % interval by a bootstrap over clusters, and paired differences to other rows.
"""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from qpr_jax.data.splits import HELD_OUT
from qpr_jax.evaluation.scores import SCORE_NAMES, mean_interval, query_scores, read_ranks
from qpr_jax.files import write_atomically

FILE = "scores.csv"
ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = [
    *("row", "metric", "minus", "mean", "low", "high", "spread"),
    *("difference", "difference low", "difference high", "seeds", "command", "commit"),
]
STAGES = {"": "", "words": "reranked_"}  # -> the prefix of the searches in ranks.npz


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
        """Return the two ends of the interval of the mean, by these names."""
        if len(self.values) == 1:
            return {}
        ends = mean_interval(self.values, self.clusters, self.repeats)
        return dict(zip(names, ends.tolist(), strict=True))


Measured = Mapping[str, PerQuery | float]  # by metric


def retrieval(run: pathlib.Path) -> dict[str, dict[str, PerQuery]]:
    """Read the retrieval scores of each stage from the `ranks.npz` of a run.

    A mean is over queries, or over pairs as in the paper: a query counts once for each of its
    pairs. Without an index its scores are those of the exact search.
    """
    ranks = read_ranks(run / "ranks.npz")
    stages: dict[str, dict[str, PerQuery]] = {}
    for split in HELD_OUT:
        weights = {"query": None, "pair": ranks[f"{split}_pairs"]}
        for stage, prefix in STAGES.items():
            exact = f"{split}_{prefix}exact"
            for search in ("exact", "index") if exact in ranks else ():
                scores = query_scores(ranks.get(f"{split}_{prefix}{search}", ranks[exact]))
                for name, values in zip(SCORE_NAMES, scores.T, strict=True):
                    for over, repeats in weights.items():
                        found = PerQuery(values, ranks[f"{split}_clusters"], repeats)
                        metric = f"{split} {name} per {over}, {search}"
                        stages.setdefault(stage, {})[metric] = found
    return stages


def score_rows(
    rows: Mapping[str, Sequence[Measured]], minus: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Score the rows, each measured once per seed.

    minus: row -> the rows that are subtracted from it.
    """
    records = []
    for row, seeds in rows.items():
        for metric in seeds[0]:
            means, averaged = _averaged(metric, seeds)
            record = {"row": row, "metric": metric, "minus": "", "seeds": len(means)}
            record |= {"mean": averaged.mean} | averaged.interval("low", "high")
            if len(means) > 1:
                record["spread"] = float(np.std(means, ddof=1))
            others = [name for name in minus.get(row, ()) if metric in rows.get(name, [{}])[0]]
            for other in others:
                gain = _difference(averaged, _averaged(metric, rows[other])[1])
                records.append(record | {"minus": other} | gain)
            if not others:
                records.append(record)
    return records


def _averaged(metric: str, seeds: Sequence[Measured]) -> tuple[list[float], PerQuery]:
    """Return the mean of each seed, and the value of each query, averaged over seeds."""
    found = [
        one if isinstance(one, PerQuery) else PerQuery(np.array([one]), np.zeros(1))
        for one in (seed[metric] for seed in seeds if metric in seed)
    ]
    values = np.mean([one.values for one in found], axis=0)
    return [one.mean for one in found], found[0]._replace(values=values)


def _difference(ours: PerQuery, theirs: PerQuery) -> dict[str, float]:
    """Return the difference and its interval; nothing where the scores are of other queries."""
    if not np.array_equal(ours.clusters, theirs.clusters):
        return {}
    apart = ours._replace(values=ours.values - theirs.values)
    return {"difference": apart.mean} | apart.interval("difference low", "difference high")


def commit() -> str:
    """Return the commit of this checkout, with "-dirty" if code has changed; "" without git."""

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

    def get(self, row: str, metric: str, minus: str = "") -> dict[str, Any] | None:
        """Return a record; with `minus`, the one that compares the row with that row."""
        for record in self._records:
            same = (record["row"], record["metric"]) == (row, metric)
            if same and minus in ("", record["minus"]):
                return record
        return None
