"""Losses under false negatives: where their share is known, and on Quora's questions.

    python -m experiments.noise             all losses, three seeds
    python -m experiments.noise --seeds=1   one seed

A rate is the share of the rows of a batch that have a paraphrase in the batch that is not known to
be one, and so counts as a negative (`examples/noisy_log.py`). Known paraphrases are masked.
"""

from __future__ import annotations

import pathlib
from typing import Any

import examples.losses  # noqa: F401, registers its losses
from examples.noisy_log import RATES
from experiments.pages import (
    Column,
    difference,
    plot_curves,
    score_table,
    section,
    split_columns,
    table_lines,
    with_spread,
)
from experiments.scores import Scores
from experiments.study import Study, Trial, titles

TEACHER: dict[str, Any] = {"teacher.model": "minilm", "teacher.epochs": 0}
# name -> what the page calls it, its settings
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sdml": ("SDML, eps 0.3", {}),
    "eps_0": ("SDML, eps 0", {"loss.smoothing": 0.0}),
    "multi": ("SDML, all of the cluster positive", {"loss.names": ("multi_positive",)}),
    "infonce": ("InfoNCE", {"loss.names": ("ranking",)}),
    "debiased": ("debiased contrastive", {"loss.names": ("debiased",)}),
    "sigmoid": ("SigLIP", {"loss.names": ("sigmoid",)}),
    "tl_rand": ("TL (Rand)", {"loss.names": ("triplet",)}),
    "tl_hard": ("TL (Hard)", {"loss.names": ("triplet",), "loss.negatives": "hard"}),
}
# Of questions that the teacher knows something about, so not of generated ones.
TAUGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "teacher": ("SDML, prior of a teacher", TEACHER | {"loss.names": ("teacher_prior",)}),
    "guided": ("InfoNCE, filtered by a teacher", TEACHER | {"loss.names": ("guided",)}),
}
CHANGES: dict[str, Any] = {"loss.mask_own_cluster": True, "checkpoint_every": 1000}
GENERATED: dict[str, Any] = {"max_epochs": 15, "early_stopping.patience": 3}
QUORA: dict[str, Any] = {"max_steps": 860, "index.factory": "Flat"}
MRR = "test MRR per query, index"


QUORA_ROWS = [
    Trial(f"{loss}_quora", "quora_sdml", CHANGES | QUORA | changes, title, minus=("sdml_quora",))
    for loss, (title, changes) in (LOSSES | TAUGHT).items()
]
GENERATED_ROWS = [
    Trial(
        f"{loss}_{rate}",
        "synthetic_sdml",
        CHANGES | GENERATED | {"data.source": f"noisy_{rate}"} | changes,
        minus=(f"sdml_{rate}",),
    )
    for rate in RATES
    for loss, (_, changes) in LOSSES.items()
]


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format the scores of each loss on Quora and at each rate, and plot them."""
    columns = [*split_columns("index", with_spread), Column("difference to SDML", MRR, difference)]
    quora = score_table(scores, titles(QUORA_ROWS), columns, "loss")
    curves = {
        title: [(rate, f"{loss}_{rate}") for rate in RATES] for loss, (title, _) in LOSSES.items()
    }
    generated = []
    for title, points in curves.items():
        found = [scores.get(row, MRR) for _, row in points]
        generated.append([title, *(with_spread(record) if record else "" for record in found)])
    xlabel = "share of rows with an unknown paraphrase in their batch"
    plot_curves(folder / "curves.png", scores, curves, {"MRR, test": MRR}, xlabel=xlabel)
    table = table_lines(["MRR at rate", *(f"{rate:g}" for rate in RATES)], generated)
    plot = "![MRR over the rate of false negatives](curves.png)"
    return [*section("Quora", quora), *section("Generated questions", [*table, plot])]


STUDY = Study(
    name="noise",
    trials=[*QUORA_ROWS, *GENERATED_ROWS],
    page=page,
    smoke=("sdml_0.0", "tl_hard_0.5", "sigmoid_0.5"),
    seeds=3,
)

if __name__ == "__main__":
    STUDY.main()
