"""What the words model of pairs adds to four encoders, three seeds.

python -m experiments.two_stages
"""

from __future__ import annotations

import pathlib

from experiments.pages import Column, difference, score_table, section, split_columns, with_spread
from experiments.scores import STAGES, Scores
from experiments.study import Study, Trial
from qpr_jax.training.presets import PRESETS

ROWS = ("quora_sdml", "quora_distilled", "quora_distilled_lists", "quora_minilm")
SEARCHES = {"exact": "exact search", "index": "the index"}


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format the scores of one and two stages, and the gains."""
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
    trials=[
        Trial(
            name,
            name,
            {"rerank.candidates": PRESETS[name]["rerank.candidates"]},
            minus=(name,),
            once=name == "quora_minilm",  # which is not trained
        )
        for name in ROWS
    ],
    page=page,
    smoke=("quora_sdml",),
    seeds=3,
)

if __name__ == "__main__":
    STUDY.main()
