"""The paper's tables 5 and 6 on question-answer logs, under the paper's filter and under ours.

    python -m experiments.openqa_tables

The logs are those of `$QPR_DATA_DIR`/qa_logs. A row is named by its filter (`data.coherence`) and
its loss.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.pages import section
from experiments.paper_numbers import OPEN_DOMAIN, Claim, claim_lines, paper_table
from experiments.paper_tables import CHANGES, ROWS, measure, preset_table
from experiments.scores import Scores
from experiments.study import Options, Study, Trial
from qpr_jax.data.find_data import find_logs

FILTERS = ("pairwise", "paper")
FULL = "openqa_sdml"  # the preset at full size, beside the rows of its filter
CLAIMS = tuple(
    Claim(*claim, number)
    for number in OPEN_DOMAIN
    for claim in (
        ("SDML is better than random triplets", "sdml", "tl_ssd"),
        ("random triplets are better than hard ones, SSD", "tl_ssd", "tl_hard_ssd"),
        ("random triplets are better than hard ones, EUC", "tl_euc", "tl_hard_euc"),
        ("triplets: SSD is better than EUC", "tl_ssd", "tl_euc"),
        ("SDML: SSD is better than EUC", "sdml", "sdml_euc"),
    )
)


def trials(options: Options) -> list[Trial]:
    """The rows of tables 5 and 6 under each filter, and the preset."""
    common: dict[str, Any] = dict(CHANGES)
    if options.smoke:  # one file: an untrained encoder finds all questions of the logs alike
        common["data.path"] = str(min(find_logs().iterdir(), key=lambda file: file.stat().st_size))
    found = [
        Trial(f"{name}_{row['row']}", FULL, common | ROWS[row["row"]] | {"data.coherence": name})
        for name in FILTERS
        for row in OPEN_DOMAIN[5].rows
    ]
    return [*found, Trial(f"pairwise_{FULL}", FULL, {"data.coherence": "pairwise"})]


def compare(row: str) -> Sequence[str]:
    """The worse rows of the paper's claims, under the same filter."""
    name, _, better = row.partition("_")
    worse = (claim.worse for claim in CLAIMS if claim.better == better)
    return [*dict.fromkeys(f"{name}_{row}" for row in worse)]


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """The claims and tables 5 and 6 for each filter."""
    lines = []
    for name in FILTERS:
        prefix = f"{name}_"
        claims = claim_lines(scores, CLAIMS, prefix)
        lines += section(f"The paper's claims, {name} coherence", claims)
        for number, table in OPEN_DOMAIN.items():
            lines += paper_table(scores, number, table, prefix)
    preset = preset_table(scores, {f"pairwise_{FULL}": f"`{FULL}`"})
    return [*lines, *section("The preset", preset)]


STUDY = Study(
    name="openqa_tables",
    results="openqa",
    trials=trials,
    measure=measure,
    compare=compare,
    page=page,
    smoke=("pairwise_sdml",),
)

if __name__ == "__main__":
    STUDY.main()
