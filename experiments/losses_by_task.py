"""Which loss for which task: classification, mining and retrieval, one encoder and one budget.

    python -m experiments.losses_by_task                        all rows, then the page
    python -m experiments.losses_by_task --rows=sdml,ranking    some rows

The tasks and their splits are those of `qpr splits` on the Quora pairs, made first, in `--workdir`.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
from typing import Any

from experiments.study import Flag, Flags, Study, Trials
from experiments.tables import score_record, table_lines, write_scores
from experiments.trials import Data, Trial, load
from qpr_jax.data.pairs import read_question_pairs
from qpr_jax.data.sources import find_quora
from qpr_jax.data.task_splits import Sizes, make_tasks, write_tasks
from qpr_jax.files import locked, sha256_of
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.report import save_figure

PAIRS = 600 * 1024  # that a row trains on, labeled or not
# A third of the filters of `quora_best`, so that all rows fit into an hour of 2 cores. Validation
# during training is of retrieval, so it must not choose anything: there is none.
CHANGES: dict[str, Any] = {
    "encoder.filters": 100,
    "encoder.normalize": True,
    "loss.smoothing": 0.0,
    # Adam's steps for the batch size, since fewer larger batches fit into the budget.
    "optimizer.learning_rate_scaling": "sqrt",
    "optimizer.learning_rate": 1e-3 / 2**0.5,  # 1e-3 for 1,024 pairs
    "optimizer.learning_rate_decay": "linear",
    "max_epochs": 100,  # `max_steps` ends it
    "early_stopping.every_steps": 1_000_000,
    "checkpoint_every": 1000,
    "index.factory": "Flat",
}
RANKING: dict[str, Any] = {"loss.names": ("ranking",)}
BOTH: dict[str, Any] = {"loss.names": ("ranking", "online_contrastive")}
IN_TURNS: dict[str, Any] = BOTH | {"loss.alternate": True}
# name -> what the page calls it, its settings
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    # The paper's; on unit vectors it would be the ranking loss.
    "sdml": ("SDML, eps 0.3", {"encoder.normalize": False, "loss.smoothing": 0.3}),
    "ranking": ("multiple negatives ranking", RANKING),
    "contrastive": ("contrastive", {"loss.names": ("contrastive",)}),
    "online_contrastive": ("online contrastive", {"loss.names": ("online_contrastive",)}),
    "multitask_turns": ("ranking and online contrastive, in turns", IN_TURNS),
    # As many pairs for ranking as `ranking` has, and as many again for the other.
    "multitask_twice": (
        "ranking and online contrastive, in turns, of twice the pairs",
        IN_TURNS | {"max_steps": 2 * PAIRS // 1024},
    ),
    # A step reads a batch of each kind.
    "multitask_sum": (
        "ranking and online contrastive, summed",
        BOTH | {"max_steps": PAIRS // 1024 // 2},
    ),
    "ranking_64": ("ranking, batches of 64", RANKING | {"batch_size": 64}),
    "ranking_256": ("ranking, batches of 256", RANKING | {"batch_size": 256}),
    "ranking_4096": ("ranking, batches of 4,096", RANKING | {"batch_size": 4096}),
    "ranking_seed1": ("ranking, another seed", RANKING | {"seed": 1}),
    "contrastive_seed1": ("contrastive, another seed", {"loss.names": ("contrastive",), "seed": 1}),
}
TASK_SPLITS = ("dev", "test")

# Task -> its metrics on test: (key, what the page calls it); claims are of the first.
METRICS: dict[str, tuple[tuple[str, str], ...]] = {
    "classification": (
        ("average_precision", "average precision"),
        ("f1", "F1"),
        ("accuracy", "accuracy"),
    ),
    "mining": (("average_precision", "average precision"), ("f1", "best F1")),
    "retrieval": (("ndcg@10", "nDCG@10"), ("mrr@10", "MRR@10"), ("precision@1", "Hits@1")),
}
CONTRASTIVE = ("contrastive", "online_contrastive")
MULTITASK = ("multitask_turns", "multitask_sum", "multitask_twice")
BATCHES = ("ranking_64", "ranking_256", "ranking", "ranking_4096")
Scores = dict[str, dict[str, float]]  # row -> task -> the first of its metrics


def row_config(name: str, parts: pathlib.Path) -> TrainConfig:
    """The settings of a row on the training pairs of `parts`, a folder of `qpr splits`."""
    changes = CHANGES | ROWS[name][1] | {"data.path": str(training_pairs(parts))}
    changes.setdefault("max_steps", PAIRS // changes.get("batch_size", 1024))
    return load("quora_multitask" if "multitask" in name else "quora_best", changes)


def trials(flags: Flags) -> list[Trial]:
    """The rows that the flags ask for, each scored on all tasks."""
    parts = flags.workdir / "parts"
    return [
        Trial(
            name,
            row_config(name, parts),
            files={"tasks.json": lambda run: task_scores(run, parts)},
        )
        for name in flags.rows or ROWS
    ]


def make_parts(flags: Flags) -> Data:
    """Make the splits of the tasks once; the training pairs and their SHA-256."""
    parts = flags.workdir / "parts"
    with locked(flags.workdir / ".parts.lock", wait=True):
        if not parts.exists():
            write_tasks(parts, make_tasks(read_question_pairs(find_quora()), Sizes()))
    path = training_pairs(parts)
    return path, sha256_of(path)


def training_pairs(parts: pathlib.Path) -> pathlib.Path:
    """The pairs to train on, in a folder of `qpr splits`."""
    return parts / "classification" / "train_pairs.tsv"


def task_scores(run: pathlib.Path, parts: pathlib.Path) -> dict[str, Any]:
    """Scores of a run on the three tasks of a folder of `qpr splits`, as `qpr evaluate` gives them.

    classification: thresholds chosen on dev; mining and retrieval: of dev and of test.
    """

    from qpr_jax.data.labels import read_duplicates, read_labeled
    from qpr_jax.evaluation.beir import beir_scores
    from qpr_jax.evaluation.pairs import score_classification, score_mining
    from qpr_jax.retriever import run_encoder

    encode = run_encoder(run).encode
    pairs = [
        read_labeled(str(parts / "classification" / f"{name}_pairs.tsv")) for name in TASK_SPLITS
    ]
    corpora = {
        name: [str(parts / "mining" / f"{name}_{what}.tsv") for what in ("corpus", "duplicates")]
        for name in TASK_SPLITS
    }
    return {
        "classification": score_classification(encode, *pairs),
        "mining": {
            name: score_mining(encode, read_duplicates(*files)) for name, files in corpora.items()
        },
        "retrieval": {name: beir_scores(encode, parts / "beir", name) for name in TASK_SPLITS},
    }


def page(done: Trials) -> list[str]:
    """The scores of each row on all tasks, their plot, and whether the claims hold."""
    found = done.read("tasks.json")
    columns = [(task, key, title) for task, metrics in METRICS.items() for key, title in metrics]
    table = [
        [ROWS[name][0], *(f"{found[name][task]['test'][key]:.3f}" for task, key, _ in columns)]
        for name in ROWS
        if name in found
    ]
    scores = {
        name: {task: found[name][task]["test"][keys[0][0]] for task, keys in METRICS.items()}
        for name in ROWS
        if name in found
    }
    plot(done.results / "losses_by_task.png", scores)
    records = [
        score_record(name, f"test {task}, {title}", found[name][task]["test"][key])
        for name in ROWS
        if name in found
        for task, key, title in columns
    ]
    write_scores(done, "python -m experiments.losses_by_task", records)
    return [
        "![scores by task](losses_by_task.png)",
        "",
        *table_lines(["", *(f"{task}, {title}" for task, _, title in columns)], table),
        "## Whether the claims hold",
        "",
        "Those of sentence-transformers' page on Quora duplicates, of the first score of each",
        "task. What is less than the difference of two seeds, of ranking or of contrastive, is not",
        "told apart from their noise.",
        "",
        *claims(scores),
    ]


def claims(scores: Scores) -> list[str]:
    """Each claim, whether it holds, and the numbers; of those whose rows are there."""
    again = [name for name in ("ranking", "contrastive") if f"{name}_seed1" in scores]
    noise = {
        task: max((abs(scores[n][task] - scores[f"{n}_seed1"][task]) for n in again), default=0.0)
        for task in METRICS
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
            for task in METRICS:
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
    axes = figure.subplots(1, len(METRICS), sharey=True)
    names = [*scores][::-1]
    for axis, (task, metrics) in zip(axes, METRICS.items(), strict=True):
        values = [scores[name][task] for name in names]
        bars = axis.barh([ROWS[name][0] for name in names], values, color="C0")
        axis.bar_label(bars, fmt="%.3f", padding=2, fontsize=8)
        axis.set(title=f"{task},\n{metrics[0][1]}")
        low, high = min(values), max(values)
        room = max(0.05, (high - low) / 2)
        axis.set_xlim(max(0, low - room), high + room)
        axis.grid(axis="x", alpha=0.3)
    save_figure(figure, path)


STUDY = Study(
    name="losses_by_task",
    results="losses_by_task",
    trials=trials,
    page=page,
    data=make_parts,
    flags={"rows": Flag((), "Only these rows.", list(ROWS))},
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
