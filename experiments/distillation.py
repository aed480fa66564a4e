"""What makes a student of a transformer better.

    python -m experiments.distillation                       all rows, then the page
    python -m experiments.distillation --rows=base,minilm    some rows

Needs the extra `transformer`. `python -m benchmarks.encode` measures how fast encoders are.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.pages import Column, difference, score_table, section, split_columns, with_interval
from experiments.scores import Measured, Scores, retrieval
from experiments.study import Options, Study, Trial
from experiments.systems import BASELINES, baseline_trial
from qpr_jax.training.presets import FACTS, flat_settings

STUDENT = "quora_distilled"
NO_PAIRS: dict[str, Any] = {"max_epochs": 0, "batch.token_dropout": 0.0}
# The student with one change each: name -> what the page calls it, its settings.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("`quora_distilled`, the student", {}),
    "distillation": ("no pairs, distillation alone", NO_PAIRS),
    "distillation_recombined": (
        "no pairs, and 150,000 recombined questions",
        NO_PAIRS | {"data.recombined": 150_000},
    ),
    "unlabelled": ("the questions of the logs", {"data.unlabeled": "$QPR_DATA_DIR/qa_logs"}),
    "epochs_6": ("6 epochs of distillation", {"teacher.epochs": 6}),
    "sums": ("`quora_distilled_sums`", flat_settings(FACTS["quora_distilled_sums"]["settings"])),
    "filters_600": ("600 filters for each window", {"encoder.filters": 600}),
    "windows_3_5": (
        "windows of 3 and 5 words, 450 filters",
        {"encoder.kernel_sizes": (3, 5), "encoder.filters": 450},
    ),
    "no_decay": ("a constant learning rate", {"optimizer.learning_rate_decay": "none"}),
    "output_128": ("vectors of 128 numbers", {"encoder.output_dim": 128}),
}
# The transformer trained further, likewise, with the preset.
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "minilm_triplet": (
        "`quora_minilm_triplet`, at most 8,000 triplets",
        "quora_minilm_triplet",
        {"max_steps": 500, "optimizer.warmup_steps": 50},
    ),
    "minilm_sdml": (
        "`quora_minilm_sdml`, 10,240 pairs",
        "quora_minilm_sdml",
        {"max_steps": 40, "optimizer.warmup_steps": 4},
    ),
}


def trials(options: Options) -> list[Trial]:
    """All rows; the encoders stay in the work directory."""
    flat = {"index.factory": "Flat"}
    data = Trial("data", STUDENT, flat).config(smoke=options.smoke)
    baselines = [baseline_trial(name, data) for name in BASELINES]
    presets = [(name, preset, changes) for name, (_, preset, changes) in OTHERS.items()]
    presets += [(name, STUDENT, changes) for name, (_, changes) in ROWS.items()]
    trained = [Trial(name, preset, flat | changes, keep=True) for name, preset, changes in presets]
    return [*baselines, *trained]


def measure(run: pathlib.Path) -> dict[str, Measured]:
    """Scores per query by exact search."""
    return {"": retrieval(run, searches={"exact": "exact"}, names=("H@1", "MRR"))}


def compare(row: str) -> Sequence[str]:
    """The student, for its changes."""
    return ["base"] if row in ROWS and row != "base" else []


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """The student beside other encoders, and its changes."""
    columns = split_columns("exact", with_interval)
    gain = Column("test MRR, difference", "test MRR per query, exact", difference)
    others = {name: title for name, (title, *_) in OTHERS.items()}
    first = BASELINES | others | {"base": ROWS["base"][0]}
    lines = section("The student beside other encoders", score_table(scores, first, columns))
    titles = {name: text for name, (text, _) in ROWS.items()}
    table = score_table(scores, titles, [*columns, gain])
    return [*lines, *section("One change at a time", table)]


STUDY = Study(
    name="distillation",
    results="distillation",
    trials=trials,
    measure=measure,
    compare=compare,
    page=page,
    smoke=("tfidf", "base", "distillation"),
)

if __name__ == "__main__":
    STUDY.main()
