"""The plots of the paper's tables: ours with intervals, the paper's beside."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.paper_numbers import TABLES
from qpr_jax.evaluation.bootstrap import SCORE_NAMES, Scores
from qpr_jax.training.report import save_figure


def write_plots(
    results: pathlib.Path, rows: dict[str, Any], scores: dict[tuple[str, str], Scores]
) -> None:
    """eps.png, batch_size.png and losses.png: ours with intervals, the paper's beside."""
    from matplotlib.figure import Figure

    for number, name, label in ((1, "eps", "eps"), (2, "batch_size", "N")):
        table = TABLES[number]
        known = [row for row in table.rows if row[1] in rows]
        if not known:
            continue
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        for axis, metric in zip(figure.subplots(1, 3), range(3), strict=True):
            values = [float(labels[0]) for labels, _, _ in known]
            found = scores["validation", "pair"]
            means = np.array([found.mean(row)[metric] for _, row, _ in known])
            ends = np.array([found.interval(row)[:, metric] for _, row, _ in known]).T
            axis.errorbar(values, means, np.abs(ends - means), marker="o", capsize=3, label="ours")
            theirs = [paper[metric] for _, _, paper in known if paper]
            axis.plot(values, theirs, "s:", color="0.5", label="the paper's, on more questions")
            axis.set(xlabel=label, title=SCORE_NAMES[metric])
            if number == 2:
                axis.set_xscale("log", base=2)
        figure.axes[0].legend()
        save_figure(figure, results / "plots" / f"{name}.png")

    known = [row for row in TABLES[3].rows if row[1] in rows]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axis, metric in zip(figure.subplots(1, 2, sharey=True), (0, 2), strict=True):
        for shift, split in ((-0.2, "validation"), (0.2, "test")):
            found = scores[split, "pair"]
            places = np.arange(len(known))[::-1] + shift
            means = np.array([found.mean(row)[metric] for _, row, _ in known])
            ends = np.array([found.interval(row)[:, metric] for _, row, _ in known]).T
            axis.barh(places, means, 0.38, xerr=np.abs(ends - means), capsize=2, label=split)
        axis.set(title=f"{SCORE_NAMES[metric]}, per pair", xlim=(0, 1))
        axis.set_yticks(
            np.arange(len(known))[::-1], [" ".join(labels).strip() for labels, _, _ in known]
        )
    figure.axes[1].legend(loc="lower right")
    save_figure(figure, results / "plots" / "losses.png")
