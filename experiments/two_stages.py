"""What the words model of pairs adds to four encoders, three seeds.

python -m experiments.two_stages
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.pages import Column, difference, score_table, section, split_columns, with_spread
from experiments.scores import Measured, Scores, retrieval
from experiments.study import Options, Study, Trial
from qpr_jax.evaluation.rankings import read_ranks
from qpr_jax.training.presets import PRESETS

ROWS = ("quora_sdml", "quora_distilled", "quora_distilled_lists", "quora_minilm")
# Stage -> the prefix of its searches in ranks.npz.
STAGES = {"": "", "words": "reranked_"}
SEARCHES = {"exact": "exact search", "index": "the index"}


def trials(options: Options) -> list[Trial]:
    """Every preset with its words model; `quora_minilm`, which is not trained, once."""
    found = []
    for name in ROWS:
        changes: dict[str, Any] = {"rerank.candidates": PRESETS[name]["rerank.candidates"]}
        found.append(Trial(name, name, changes, once=name == "quora_minilm"))
    return found


def measure(run: pathlib.Path) -> dict[str, Measured]:
    """Scores per query of each stage, by exact search and through the index.

    The words model is trained on the questions of validation, so it has scores of test alone.
    """
    known = read_ranks(run / "ranks.npz")
    return {
        stage: retrieval(
            run,
            searches={search: f"{prefix}{search}" for search in SEARCHES},
            splits=("test",),
            names=("H@1", "MRR"),
        )
        for stage, prefix in STAGES.items()
        if f"test_{prefix}exact" in known
    }


def compare(row: str) -> Sequence[str]:
    """The first stage."""
    first, _, stage = row.partition(", ")
    return [first] if stage else []


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """The scores of one and two stages, and the gains."""
    rows = {
        f"{name}, {stage}" if stage else name: f"`{name}` | {stage or 'none'}"
        for name in ROWS
        for stage in STAGES
    }
    lines = []
    for search, title in SEARCHES.items():
        columns = []
        for column in split_columns(search, with_spread):
            if column.head.startswith("test"):
                columns += [column, Column("gain", column.metric, difference)]
        table = score_table(scores, rows, columns, "first stage | second")
        lines += section(f"By {title}", table)
    return lines


STUDY = Study(
    name="two_stages",
    results="two_stages",
    trials=trials,
    measure=measure,
    compare=compare,
    page=page,
    smoke=("quora_sdml",),
    seeds=3,
)

if __name__ == "__main__":
    STUDY.main()
