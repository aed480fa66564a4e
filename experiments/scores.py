"""Scores of a study: a pandas table with one record for each row, metric and comparison.

A trial measures a value for each query, or one number. From the values come the mean over seeds,
its 95 % interval by a bootstrap over clusters, and paired differences to other rows.
"""

from __future__ import annotations

import functools
import pathlib
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.splits import HELD_OUT
from qpr_jax.errors import UserError, needs
from qpr_jax.evaluation.metrics import SCORE_NAMES, mean_interval, read_ranks
from qpr_jax.files import write_atomically

with needs("Studies", ".[train]"):
    import pandas as pd

FILE = "scores.csv"
ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = [
    *("row", "metric", "minus", "mean", "low", "high", "spread"),
    *("difference", "difference low", "difference high", "seeds", "command", "commit"),
]


class PerQuery(NamedTuple):
    """The values of a metric: one for each query.

    Attributes:
      values: float [n].
      clusters: int [n], equal where queries depend on each other.
      repeats: int [n], how often each query counts; None: once.
    """

    values: np.ndarray
    clusters: np.ndarray
    repeats: np.ndarray | None = None


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
            rank = ranks.get(f"{split}_{search}", ranks[f"{split}_exact"]).astype(float)
            hit = rank > 0
            reciprocal = np.where(hit, 1 / np.maximum(rank, 1), 0)
            values = {"H@1": rank == 1, "H@10": hit & (rank <= 10), "MRR": reciprocal}
            for one in over:
                repeats = ranks[f"{split}_pairs"] if one == "pair" else None
                for name in names:
                    found[f"{split} {name} per {one}, {title}"] = PerQuery(
                        values[name], ranks[f"{split}_clusters"], repeats
                    )
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
            own = [one[metric] for one in seeds if metric in one]
            record = {"row": row, "metric": metric, "minus": "", "seeds": len(own)} | _score(own)
            others = [other for other in compare(row) if metric in rows.get(other, [{}])[0]]
            for other in others:
                theirs = [one[metric] for one in rows[other]]
                records.append(record | {"minus": other} | _difference(row, own, theirs))
            if not others:
                records.append(record)
    return records


def _score(seeds: Sequence[PerQuery | float]) -> dict[str, float]:
    means = [_mean(one) for one in seeds]
    found = {"mean": float(np.mean(means))}
    if len(means) > 1:
        found["spread"] = float(np.std(means, ddof=1))
    if isinstance(seeds[0], PerQuery):
        found["low"], found["high"] = _interval(_averaged(seeds), seeds[0])
    return found


def _difference(
    row: str, own: Sequence[PerQuery | float], theirs: Sequence[PerQuery | float]
) -> dict[str, float]:
    found = {"difference": float(np.mean([*map(_mean, own)]) - np.mean([*map(_mean, theirs)]))}
    first, other = own[0], theirs[0]
    if isinstance(first, PerQuery) and isinstance(other, PerQuery):
        if not np.array_equal(first.clusters, other.clusters):
            raise UserError(
                f"`{row}` was scored on other queries than the row it is compared with",
                remedy="remove the folders of both trials and run the study again",
            )
        low, high = _interval(_averaged(own) - _averaged(theirs), first)
        found |= {"difference low": low, "difference high": high}
    return found


def _mean(measured: PerQuery | float) -> float:
    if isinstance(measured, PerQuery):
        return float(np.average(measured.values, weights=measured.repeats))
    return measured


def _averaged(seeds: Sequence[PerQuery | float]) -> np.ndarray:
    """The values of each query, averaged over seeds."""
    values = [one.values for one in seeds if isinstance(one, PerQuery)]
    if len({len(one) for one in values}) > 1:
        raise UserError(
            "the seeds of a row were scored on different queries",
            remedy="remove the folders of the row and run the study again",
        )
    return np.mean(values, axis=0)


def _interval(values: np.ndarray, like: PerQuery) -> tuple[float, float]:
    low, high = mean_interval(values, like.clusters, like.repeats).tolist()
    return low, high


def commit() -> str:
    """The commit of this checkout, with "-dirty" if code has changed since; else ""."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        return "" if done.returncode else done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", ":!results", ":!*.md")
    return git("rev-parse", "--short=10", "HEAD") + ("-dirty" if changed else "")


class Scores:
    """The table of a study, looked up by row and metric.

    Attributes:
      table: a record for each row, metric and comparison; its columns are `COLUMNS`.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table.reindex(columns=COLUMNS)
        self.table["minus"] = self.table["minus"].fillna("")

    @classmethod
    def read(cls, folder: pathlib.Path) -> Scores:
        """Read scores.csv of a folder; an empty table if there is none."""
        path = folder / FILE
        if not path.exists():
            return cls(pd.DataFrame(columns=COLUMNS))
        return cls(pd.read_csv(path, dtype={"row": str, "commit": str}))

    def updated(self, records: Iterable[Mapping[str, Any]]) -> Scores:
        """Return a table in which these records replace all earlier ones of their rows."""
        new = [dict(record) for record in records]
        rows = {record["row"] for record in new}
        old = self.table[~self.table["row"].isin(rows)].to_dict("records")
        return Scores(pd.DataFrame([*old, *new], columns=COLUMNS))

    def write(self, folder: pathlib.Path) -> None:
        """Write scores.csv, atomically."""
        with write_atomically(folder / FILE, "w") as file:
            self.table.round(4).to_csv(file, index=False, lineterminator="\n")

    @functools.cached_property
    def _records(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for record in self.table.to_dict("records"):
            found.setdefault((record["row"], record["metric"]), []).append(record)
        return found

    def __contains__(self, row: str) -> bool:
        return row in set(self.table["row"])

    def get(self, row: str, metric: str, minus: str = "") -> dict[str, Any] | None:
        """The record of a row and metric; with `minus`, the one that compares it with that row."""
        records = self._records.get((row, metric), [])
        if minus:
            records = [record for record in records if record["minus"] == minus]
        return records[0] if records else None

    def mean(self, row: str, metric: str) -> float:
        """The mean of a metric; nan if it was not measured."""
        record = self.get(row, metric)
        return float(record["mean"]) if record else float("nan")
