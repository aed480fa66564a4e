"""The paper's tables 5 and 6 on question-answer logs, under the paper's filter and under ours.

    python -m experiments.openqa_tables

The logs are those of `$QPR_DATA_DIR`/qa_logs. A row is named by its filter (`data.coherence`) and
its loss.
"""

from __future__ import annotations

import pathlib

from experiments.pages import section
from experiments.paper_tables import (
    ALL_CLAIMS,
    CHANGES,
    OPEN_DOMAIN,
    ROWS,
    claim_lines,
    paper_table,
    preset_table,
    worse_rows,
)
from experiments.scores import Scores
from experiments.study import Study, Trial

FILTERS = ("pairwise", "paper")
PRESET = "openqa_sdml"
CLAIMS = [claim for claim in ALL_CLAIMS if claim.table in OPEN_DOMAIN]
# The preset at full size, beside the rows of its filter.
FULL = Trial(f"pairwise_{PRESET}", PRESET, {"data.coherence": "pairwise"}, title=f"`{PRESET}`")
TRIALS = [
    Trial(
        name,
        PRESET,
        CHANGES | ROWS[row["row"]] | {"data.coherence": coherence},
        minus=worse_rows(CLAIMS, name, f"{coherence}_"),
    )
    for coherence in FILTERS
    for row in OPEN_DOMAIN[5].rows
    for name in [f"{coherence}_{row['row']}"]
]


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format the claims and tables 5 and 6 for each filter."""
    lines = []
    for name in FILTERS:
        prefix = f"{name}_"
        claims = claim_lines(scores, CLAIMS, prefix)
        lines += section(f"The paper's claims, {name} coherence", claims)
        for number, table in OPEN_DOMAIN.items():
            lines += paper_table(scores, number, table, prefix)
    return [*lines, *section("The preset", preset_table(scores, [FULL]))]


STUDY = Study(name="openqa_tables", trials=[*TRIALS, FULL], page=page, smoke=("pairwise_sdml",))

if __name__ == "__main__":
    STUDY.main()
