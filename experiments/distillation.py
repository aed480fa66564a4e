"""What makes a student of a transformer better.

    python -m experiments.distillation                       all rows, then the page
    python -m experiments.distillation --rows=base,minilm    some rows

Needs the extra `transformer`. `python -m benchmarks.encode` measures how fast encoders are.
"""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.pages import Column, difference, score_table, section, split_columns, with_interval
from experiments.scores import Scores
from experiments.study import Study, Trial, titles
from experiments.systems import BASELINES, baseline_trial
from qpr_jax.training.presets import FACTS, flat_settings

STUDENT = "quora_distilled"
FLAT: dict[str, Any] = {"index.factory": "Flat"}
NO_PAIRS: dict[str, Any] = {"max_epochs": 0, "batch.token_dropout": 0.0}


def change(name: str, title: str, changes: dict[str, Any]) -> Trial:
    """Return the student with a change."""
    return Trial(name, STUDENT, FLAT | changes, title, minus=("base",))


STUDENTS = [
    change("base", "`quora_distilled`, the student", {}),
    change("distillation", "no pairs, distillation alone", NO_PAIRS),
    change(
        "distillation_recombined",
        "no pairs, and 150,000 recombined questions",
        NO_PAIRS | {"data.recombined": 150_000},
    ),
    change("unlabelled", "the questions of the logs", {"data.unlabeled": "$QPR_DATA_DIR/qa_logs"}),
    change("epochs_6", "6 epochs of distillation", {"teacher.epochs": 6}),
    change(
        "sums", "`quora_distilled_sums`", flat_settings(FACTS["quora_distilled_sums"]["settings"])
    ),
    change("filters_600", "600 filters for each window", {"encoder.filters": 600}),
    change(
        "windows_3_5",
        "windows of 3 and 5 words, 450 filters",
        {"encoder.kernel_sizes": (3, 5), "encoder.filters": 450},
    ),
    change("no_decay", "a constant learning rate", {"optimizer.learning_rate_decay": "none"}),
    change("output_128", "vectors of 128 numbers", {"encoder.output_dim": 128}),
]
OTHERS = [
    *(baseline_trial(name, STUDENT, FLAT) for name in BASELINES),
    Trial(
        "minilm_triplet",
        "quora_minilm_triplet",
        FLAT | {"max_steps": 500, "optimizer.warmup_steps": 50},
        "`quora_minilm_triplet`, at most 8,000 triplets",
    ),
    Trial(
        "minilm_sdml",
        "quora_minilm_sdml",
        FLAT | {"max_steps": 40, "optimizer.warmup_steps": 4},
        "`quora_minilm_sdml`, 10,240 pairs",
    ),
]


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format the student beside other encoders, and its changes."""
    columns = split_columns("exact", with_interval)
    gain = Column("test MRR, difference", "test MRR per query, exact", difference)
    first = score_table(scores, titles([*OTHERS, STUDENTS[0]]), columns)
    changes = score_table(scores, titles(STUDENTS), [*columns, gain])
    return [
        *section("The student beside other encoders", first),
        *section("One change at a time", changes),
    ]


STUDY = Study(
    name="distillation",
    trials=[*OTHERS, *STUDENTS],
    page=page,
    smoke=("tfidf", "base", "distillation"),
)

if __name__ == "__main__":
    STUDY.main()
