"""What the rows say of losses and tasks: a table, a plot, and whether the claims hold."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

from experiments.losses_by_task_rows import ROWS
from qpr_jax.errors import UserError
from qpr_jax.files import read_json, write_atomically
from qpr_jax.training.report import save_figure

# Task -> (where its score stands, what it is called); the first of a task is what claims are of.
SCORE_NAMES: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "classification": (
        (("classification", "test", "average_precision"), "average precision"),
        (("classification", "test", "f1"), "F1"),
        (("classification", "test", "accuracy"), "accuracy"),
    ),
    "mining": (
        (("mining", "test", "average_precision"), "average precision"),
        (("mining", "test", "f1"), "best F1"),
    ),
    "retrieval": (
        (("retrieval", "test", "ndcg@10"), "nDCG@10"),
        (("retrieval", "test", "mrr@10"), "MRR@10"),
        (("retrieval", "test", "precision@1"), "Hits@1"),
    ),
}
CONTRASTIVE = ("contrastive", "online_contrastive")
MULTITASK = ("multitask_turns", "multitask_sum", "multitask_twice")
BATCHES = ("ranking_64", "ranking_256", "ranking", "ranking_4096")
Scores = dict[str, dict[str, float]]  # row -> task -> the first of its metrics


def write_results(results: pathlib.Path) -> None:
    """Make the page and the plot of `results` from its folder rows/ alone."""
    found = {
        name: read_json(path)
        for name in ROWS
        if (path := results / "rows" / name / "tasks.json").exists()
    }
    if not found:
        raise UserError(f"{results / 'rows'}: expected rows, found none; make some first")
    scores = {
        name: {task: value_at(tasks, metrics[0][0]) for task, metrics in SCORE_NAMES.items()}
        for name, tasks in found.items()
    }
    plot(results / "losses_by_task.png", scores)
    discussion = results / "discussion.md"
    lines = [
        "# Which loss for which task",
        "",
        "Made by `python -m experiments.losses_by_task`; `--rebuild` makes this page and the plot",
        "from the rows (and `discussion.md`) alone. One encoder (windows of 1, 3 and 5 words, 100",
        "filters each), 614,400 training pairs a row and batches of 1,024 but where said; the",
        "parts are those of `qpr splits` on the Quora pairs, the scores of test as `qpr evaluate`",
        "gives them; thresholds of classification are chosen on dev, that of mining is the best.",
        "Losses of pairs draw each cluster as often, contrastive ones the labelled pairs.",
        "",
        *([discussion.read_text(encoding="utf-8")] if discussion.exists() else []),
        "![scores by task](losses_by_task.png)",
        "",
        *_table(found),
        "## Whether the claims hold",
        "",
        "Those of sentence-transformers' page on Quora duplicates, of the first score of each",
        "task. What is less than the difference of two seeds, of ranking or of contrastive, is not",
        "told apart from their noise.",
        "",
        *claims(scores),
    ]
    with write_atomically(results / "README.md", "w") as file:
        file.write("\n".join(lines).rstrip() + "\n")


def value_at(tasks: dict[str, Any], place: tuple[str, ...]) -> float:
    """The number at a place of nested dictionaries."""
    value: Any = tasks
    for name in place:
        value = value[name]
    return float(value)


def _table(found: dict[str, Any]) -> list[str]:
    flat = [(task, place, title) for task, all_of in SCORE_NAMES.items() for place, title in all_of]
    lines = [
        "| | " + " | ".join(f"{task}, {title}" for task, _, title in flat) + " |",
        "|---" * (1 + len(flat)) + "|",
    ]
    for name, tasks in found.items():
        cells = " | ".join(f"{value_at(tasks, place):.3f}" for _, place, _ in flat)
        lines.append(f"| {ROWS[name][0]} | {cells} |")
    return [*lines, ""]


def claims(scores: Scores) -> list[str]:
    """Each claim, whether it holds, and the numbers; of those whose rows are there."""
    again = [name for name in ("ranking", "contrastive") if f"{name}_seed1" in scores]
    noise = {
        task: max((abs(scores[n][task] - scores[f"{n}_seed1"][task]) for n in again), default=0.0)
        for task in SCORE_NAMES
    }

    def verdict(task: str, gain: float) -> str:
        if abs(gain) <= noise[task]:
            return f"not told apart from the noise of seeds ({gain:+.3f})"
        return f"{'holds' if gain > 0 else 'does not hold'} ({gain:+.3f})"

    def of(task: str, names: tuple[str, ...]) -> float:
        return max(scores[name][task] for name in names)

    lines = []
    if {*CONTRASTIVE, "ranking"} <= scores.keys():
        gain = of("classification", CONTRASTIVE) - scores["ranking"]["classification"]
        lines.append(
            f"- Contrastive losses are better for classification: {verdict('classification', gain)}"
            ", the better of the two against ranking."
        )
        for task in ("retrieval", "mining"):
            gain = scores["ranking"][task] - of(task, CONTRASTIVE)
            lines.append(f"- Ranking is better for {task}: {verdict(task, gain)}.")
    for name in MULTITASK:
        if {*CONTRASTIVE, name, "ranking"} <= scores.keys():
            for task in SCORE_NAMES:
                gain = scores[name][task] - of(task, (*CONTRASTIVE, "ranking"))
                lines.append(
                    f"- Both at once ({ROWS[name][0]}) are at least as good as the best of them "
                    f"alone for {task}: {verdict(task, gain)}."
                )
    if {*BATCHES} <= scores.keys():
        values = [scores[name]["retrieval"] for name in BATCHES]
        gains = [b - a for a, b in itertools.pairwise(values)]
        lines.append(
            "- Larger batches are better for ranking (retrieval, batches of 64, 256, 1,024 and "
            f"4,096: {', '.join(f'{value:.3f}' for value in values)}): from each to the next, "
            f"{'; '.join(verdict('retrieval', gain) for gain in gains)}."
        )
    return [*lines, ""]


def plot(path: pathlib.Path, scores: Scores) -> None:
    """The first score of each task, a bar each row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.35 * len(scores) + 1.2), layout="constrained")
    axes = figure.subplots(1, len(SCORE_NAMES), sharey=True)
    names = [*scores][::-1]
    for axis, (task, metrics) in zip(axes, SCORE_NAMES.items(), strict=True):
        values = [scores[name][task] for name in names]
        bars = axis.barh([ROWS[name][0] for name in names], values, color="C0")
        axis.bar_label(bars, fmt="%.3f", padding=2, fontsize=8)
        axis.set(title=f"{task},\n{metrics[0][1]}")
        low, high = min(values), max(values)
        room = max(0.05, (high - low) / 2)
        axis.set_xlim(max(0, low - room), high + room)
        axis.grid(axis="x", alpha=0.3)
    save_figure(figure, path)
