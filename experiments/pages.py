"""Pages of studies: Markdown tables from a table of scores, and plots."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.scores import Scores
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically

BEGIN, END = "<!-- results -->", "<!-- end -->"
Show = Callable[[dict[str, Any]], str]


def write_page(folder: pathlib.Path, title: str, lines: Iterable[str]) -> None:
    """Put the lines between the two markers of README.md; create the page if it is missing."""
    path = folder / "README.md"
    new = f"# {title}\n\n{BEGIN}\n{END}\n"
    text = path.read_text(encoding="utf-8") if path.exists() else new
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        what = f"{path}: the lines {BEGIN} and {END} are missing"
        raise UserError(what, remedy="add them to the page")
    body = "\n".join(lines).strip()
    with write_atomically(path, "w") as file:
        file.write(f"{before}{begin}\n\n{body}\n\n{end}{after}")


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table in Markdown, with an empty line after it."""
    return [
        "|" + "|".join(f" {title} " if title else " " for title in head) + "|",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
    ]


def number(record: dict[str, Any]) -> str:
    """Show the mean alone."""
    return f"{record['mean']:.3f}"


def with_spread(record: dict[str, Any]) -> str:
    """Show the mean and, of several seeds, their standard deviation."""
    spread = record["spread"]
    return number(record) + ("" if math.isnan(spread) else f" ± {spread:.3f}")


def with_interval(record: dict[str, Any]) -> str:
    """Show the mean, its interval and, of several seeds, their standard deviation."""
    if math.isnan(record["low"]):
        return with_spread(record)
    interval = f" [{record['low']:.3f}, {record['high']:.3f}]"
    return with_spread(record).replace(number(record), number(record) + interval, 1)


def difference(record: dict[str, Any]) -> str:
    """Show the difference to another row, with its interval."""
    if math.isnan(record["difference"]):
        return ""
    text = f"{record['difference']:+.3f}"
    if math.isnan(record["difference low"]):
        return text
    return f"{text} [{record['difference low']:+.3f}, {record['difference high']:+.3f}]"


def section(title: str, lines: Sequence[str], *about: str) -> list[str]:
    """Return a heading, a paragraph about the lines, and the lines; nothing without lines."""
    paragraph = [*about, ""] if about else []
    return [f"## {title}", "", *paragraph, *lines] if lines else []


class Column(NamedTuple):
    """A column: its head, the metric, and what a cell shows of a record."""

    head: str
    metric: str
    show: Show = number


def split_columns(search: str, show: Show) -> list[Column]:
    """Return columns of H@1 and MRR per query by a search, of each held-out split."""
    metrics = [f"{split} {name}" for split in HELD_OUT for name in ("H@1", "MRR")]
    return [Column(metric, f"{metric} per query, {search}", show) for metric in metrics]


def score_table(
    scores: Scores, rows: Mapping[str, str], columns: Sequence[Column], head: str = ""
) -> list[str]:
    """Return a table of the rows that have scores; nothing if none has.

    Args:
      scores: the scores.
      rows: row -> what the page calls it.
      columns: the columns.
      head: of the column of rows.
    """
    lines = []
    for row, title in rows.items():
        records = [(column, scores.get(row, column.metric)) for column in columns]
        if any(record for _, record in records):
            lines.append([title, *(c.show(record) if record else "" for c, record in records)])
    return table_lines([head, *(column.head for column in columns)], lines) if lines else []


def plot_curves(
    path: pathlib.Path,
    scores: Scores,
    curves: Mapping[str, Sequence[tuple[float, str]]],
    metrics: Mapping[str, str],
    *,
    xlabel: str,
    log_scale: bool = False,
    paper: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> None:
    """Plot a chart for each metric; intervals, or spreads of seeds, are bars.

    Args:
      path: of the plot.
      scores: the scores.
      curves: label -> points: x, and the row whose score is y.
      metrics: title of a chart -> metric.
      xlabel: what x is.
      log_scale: whether x is logarithmic.
      paper: title -> the paper's points.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(metrics) + 0.6, 3.6), layout="constrained")
    charts = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axis, (title, metric) in zip(charts, metrics.items(), strict=True):
        for label, points in curves.items():
            found = [(x, record) for x, row in points if (record := scores.get(row, metric))]
            if found:
                means = [record["mean"] for _, record in found]
                bars = list(zip(*(_bar(record) for _, record in found), strict=True))
                places = [x for x, _ in found]
                axis.errorbar(places, means, bars, marker="o", capsize=3, label=label)
        if paper:
            label = "the paper's, on more questions"
            axis.plot(*zip(*paper[title], strict=True), "s:", color="0.5", label=label)
        if log_scale:
            axis.set_xscale("log", base=2)
        axis.set(xlabel=xlabel, title=title)
        axis.grid(alpha=0.3)
    charts[0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=120)


def _bar(record: dict[str, Any]) -> tuple[float, float]:
    """Return how far the bar reaches below and above the mean."""
    if not math.isnan(record["low"]):
        return record["mean"] - record["low"], record["high"] - record["mean"]
    spread = 0.0 if math.isnan(record["spread"]) else record["spread"]
    return spread, spread
