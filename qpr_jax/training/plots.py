"""Plots of a run."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from qpr_jax.data.splits import HELD_OUT
from qpr_jax.files import write_atomically


def plot_training(
    folder: pathlib.Path, metrics: list[dict[str, Any]], evaluations: list[dict[str, Any]]
) -> None:
    """Draw the losses and the scores of evaluations over the steps: plots/training.png."""
    scores = [name for name in evaluations[0] if name != "step"]
    figure, axes = _axes_in_a_row(1 + len(scores))
    names = sorted({name for row in metrics for name in row if name.startswith("loss_")})
    for name in names or ["loss"]:
        rows = [row for row in metrics if name in row]
        steps, loss = (np.array([row[key] for row in rows]) for key in ("step", name))
        axes[0].plot(steps, loss, color="0.8", linewidth=0.8)
        window = min(50, len(loss))
        smooth = np.convolve(loss, np.ones(window) / window, "valid")
        of = f"{name.removeprefix('loss_')}, " if names else ""
        axes[0].plot(steps[window - 1 :], smooth, label=f"{of}mean of {window} steps")
    axes[0].set(xlabel="step", ylabel="loss", title="training")
    axes[0].legend()
    for axis, name in zip(axes[1:], scores, strict=True):
        axis.plot(
            [row["step"] for row in evaluations], [row[name] for row in evaluations], marker="o"
        )
        axis.set(xlabel="step", ylabel=name, title="validation")
    save_figure(figure, folder / "plots" / "training.png")


def plot_recall(folder: pathlib.Path, report: dict[str, Any]) -> None:
    """Draw recall and nDCG of the held-out splits over K: plots/retrieval.png."""
    figure, axes = _axes_in_a_row(2, sharey=True)
    cutoffs = (1, 5, 10, 20)
    for axis, metric in zip(axes, ("recall", "ndcg"), strict=True):
        for split in HELD_OUT:
            for name, scores in (("index", report[split]), ("exact", report[split]["exact"])):
                values = [scores["per_query"][f"{metric}@{k}"] for k in cutoffs]
                style = "-" if name == "index" else ":"
                axis.plot(cutoffs, values, style, marker="o", label=f"{split}, {name}")
        axis.set(xlabel="K", ylabel=f"{metric}@K, per query", xticks=cutoffs)
    axes[0].legend()
    save_figure(figure, folder / "plots" / "retrieval.png")


def _axes_in_a_row(count: int, *, sharey: bool = False) -> tuple[Any, Any]:
    """A matplotlib figure with `count` axes, each of about 4 by 2.8 inches.

    The margins have fixed sizes, since to measure all labels takes as long as to draw them.
    """
    from matplotlib.figure import Figure

    width, between = 5 * count, 0.4 if sharey else 1.0
    figure = Figure(figsize=(width, 3.6))
    axes = figure.subplots(1, count, squeeze=False, sharey=sharey)[0]
    sides = {"left": 0.85 / width, "right": 1 - 0.15 / width}
    figure.subplots_adjust(**sides, bottom=0.5 / 3.6, top=3.3 / 3.6, wspace=between / 4)
    return figure, axes


def save_figure(figure: Any, path: pathlib.Path) -> None:
    """Write a matplotlib figure as PNG, atomically."""
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=120)
