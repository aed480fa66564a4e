"""The plot of a training."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from qpr_jax.files import write_atomically

_WINDOW = 50  # steps of a running mean


def plot_training(
    folder: pathlib.Path, metrics: list[dict[str, Any]], evaluations: list[dict[str, Any]]
) -> None:
    """Draw the losses and the scores of evaluations over the steps: plots/training.png."""
    from matplotlib.figure import Figure

    scores = [name for name in evaluations[0] if name != "step"]
    figure = Figure(figsize=(4.5 * (1 + len(scores)), 3.6), layout="constrained")
    axes = figure.subplots(1, 1 + len(scores), squeeze=False)[0]
    names = sorted({name for row in metrics for name in row if name.startswith("loss_")})
    for name in names or ["loss"]:
        rows = [row for row in metrics if name in row]
        steps, loss = (np.array([row[key] for row in rows]) for key in ("step", name))
        window = min(_WINDOW, len(loss))
        smooth = np.convolve(loss, np.full(window, 1 / window), "valid")
        axes[0].plot(steps, loss, color="0.8", linewidth=0.8)
        axes[0].plot(steps[window - 1 :], smooth, label=f"{name}, mean of {window} steps")
    axes[0].set(xlabel="step", title="training")
    axes[0].legend()
    for axis, name in zip(axes[1:], scores, strict=True):
        at, values = ([row[key] for row in evaluations] for key in ("step", name))
        axis.plot(at, values, marker="o")
        axis.set(xlabel="step", title=f"validation {name}")
    with write_atomically(folder / "plots" / "training.png") as file:
        figure.savefig(file, format="png", dpi=120)
