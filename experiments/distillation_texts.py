"""What more text gives a student: a section of the page on students, with its table and plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.study import Trials
from experiments.tables import difference_cell, table_lines
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.training.report import save_figure

_PLOT = "quality_against_texts.png"


def texts_section(titles: Mapping[str, str], done: Trials, reports: Mapping[str, Any]) -> list[str]:
    """The lines of the section, about the rows of `titles`; writes the plot."""
    texts = {name: _texts_learned(reports[name]) for name in titles}
    _plot(texts, done)
    first, scores = next(iter(titles)), {s: done.scores(s, "query", "exact") for s in HELD_OUT}
    rows: list[list[str]] = []
    for name, title in titles.items():
        cells = [title, f"{texts[name]:,}", f"{reports[name]['timing']['steps']:,}"]
        for found in scores.values():
            hits, _, mrr = found.mean(name)
            cells.append(f"{hits:.3f} / {mrr:.3f}")
        gain = scores["test"].mean(name)[2] - scores["test"].mean(first)[2]
        interval = scores["test"].interval(name, minus=first)[:, 2]
        rows.append([*cells, "" if name == first else difference_cell(gain, *interval)])
    return [
        "## More text, without a pair",
        "",
        "`quora_distilled_sums` by imitation alone, on ever more texts, in about as many steps.",
        "",
        *table_lines(["", "texts", "steps", *HELD_OUT, "against the first"], rows),
        f"![quality against the number of texts]({_PLOT})",
        "",
    ]


def _texts_learned(report: Mapping[str, Any]) -> int:
    """How many texts a student learned the teacher's vectors of."""
    data = report["data"]
    return int(data["splits"]["train"]["questions"] + data["unlabelled"])


def _plot(texts: Mapping[str, int], done: Trials) -> None:
    """Plot MRR per query on both held-out splits, with its interval, against the texts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    for split, marker in zip(HELD_OUT, "so", strict=True):
        scores = done.scores(split, "query", "exact")
        low, high = zip(*(scores.interval(name)[:, 2] for name in texts), strict=True)
        means = [scores.mean(name)[2] for name in texts]
        axis.plot(list(texts.values()), means, marker=marker, label=split)
        axis.fill_between(list(texts.values()), low, high, alpha=0.15)
    axis.set(xscale="log", xlabel="texts with the teacher's vectors", ylabel="MRR, per query")
    axis.grid(alpha=0.3)
    axis.legend()
    save_figure(figure, done.results / _PLOT)
