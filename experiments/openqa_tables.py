"""The paper's tables 5 and 6 on question-answer logs, under its filter and under ours.

    python -m experiments.openqa_tables                      all rows, then tables
    python -m experiments.openqa_tables --coherence=pairwise the rows of one filter

The logs are those of `$QPR_DATA_DIR`/qa_logs.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from experiments.paper_numbers import OPEN_DOMAIN
from experiments.paper_tables import CHANGES, ROWS
from experiments.study import Flag, Flags, Study, Trials
from experiments.tables import (
    Claim,
    claim_lines,
    paper_table,
    score_records,
    table_lines,
    write_scores,
)
from experiments.trials import Data, Trial, load, seeded
from qpr_jax.data.sources import find_logs
from qpr_jax.data.splits import HELD_OUT, SPLITS
from qpr_jax.distant import content_hash
from qpr_jax.distant.method import LEAST
from qpr_jax.distant.report import score_verdicts
from qpr_jax.evaluation.bootstrap import SCORE_NAMES
from qpr_jax.training.config import TrainConfig

FULL = "openqa_sdml"  # the whole config, beside the rows of its filter

SEEDS_PLANNED = 3  # of rows whose order is not decided
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


def row_config(name: str, coherence: str, seed: int = 0) -> TrainConfig:
    """The settings of a row: the changes of the row on the Quora pairs, on these data."""
    changes = {} if name == FULL else CHANGES | ROWS[name]
    return load("openqa_sdml", changes | {"data.coherence": coherence, "seed": seed})


def trials(flags: Flags) -> list[Trial]:
    """The rows of tables 5 and 6, under each filter that the flags ask for."""
    found = []
    for coherence in [flags.coherence] if flags.coherence else LEAST:
        names = [name for _, name, _ in OPEN_DOMAIN[5].rows]
        for seed in range(flags.seeds):
            whole = seed == 0 and coherence == load(FULL).data.coherence
            for name in [*names, FULL] if whole else names:
                config = row_config(name, coherence, seed)
                found.append(Trial(seeded(name, seed), config, group=coherence))
    return found


def logs(flags: Flags) -> Data:
    """The folder of the logs and the hash of their content."""
    path = find_logs()
    return path, content_hash(path)


def page(done: Trials) -> list[str]:
    """What each filter keeps, then for each filter the orderings and tables 5 and 6."""
    groups = {name: Trials(done.results / name, done.workdir / name) for name in LEAST}
    groups = {name: group for name, group in groups.items() if group.ranks}
    records = [
        record | {"row": f"{name}: {record['row']}"}
        for name, group in groups.items()
        for over in ("pair", "query")
        for record in score_records(group, over, "index", metrics=SCORE_NAMES)
    ]
    write_scores(done, "python -m experiments.openqa_tables", records)
    lines = ["## What each filter keeps", "", *_filters(groups)]
    for name, group in groups.items():
        lines += [f"# Coherence: {name}", "", "## Which of the paper's orderings hold", ""]
        lines += claim_lines(CLAIMS, OPEN_DOMAIN, group, seeds_planned=SEEDS_PLANNED)
        for number, table in OPEN_DOMAIN.items():
            lines += paper_table(group, number, table)
        if FULL in group:
            for split in HELD_OUT:
                for over in ("pair", "query"):
                    means = group.scores(split, over).mean(FULL)
                    text = ", ".join(
                        f"{m} {v:.3f}" for m, v in zip(SCORE_NAMES, means, strict=True)
                    )
                    lines += [f"`{FULL}`, {split}, per {over}: {text}.", ""]
    return lines


def _filters(groups: dict[str, Trials]) -> list[str]:
    """A column for each filter: its counts, and the share of a sample judged coherent."""
    reports = [
        next(iter(group.read("report.json").values()))["data"]["distant_supervision"]
        for group in groups.values()
    ]
    rows: list[tuple[str, list[Any]]] = [
        ("least coherence", [f"{report['method']['least']:g}" for report in reports])
    ]
    for count, value in reports[0].items():
        if isinstance(value, int):
            rows.append((count.replace("_", " "), [f"{report[count]:,}" for report in reports]))
    for split in SPLITS:
        for count in ("clusters", "questions", "pairs"):
            values = [f"{report['splits'][split][count]:,}" for report in reports]
            rows.append((f"{split}: {count}", values))
    verdicts = [_verdicts(group.results / "verdicts.tsv") for group in groups.values()]
    rows.append(("judged coherent, of a random sample", verdicts))
    return table_lines(["", *groups], [[label, *cells] for label, cells in rows])


def _verdicts(path: pathlib.Path) -> str:
    """The share of the sample that was judged coherent; empty without verdicts."""
    if not path.exists():
        return ""
    found = score_verdicts(str(path))
    return f"{found['accuracy']:.3f} [{found['low']:.3f}, {found['high']:.3f}] of {found['judged']}"


STUDY = Study(
    name="openqa_tables",
    results="openqa",
    trials=trials,
    page=page,
    data=logs,
    flags={
        "coherence": Flag(None, "Only the rows of this filter.", list(LEAST)),
        "seeds": Flag(1, "Trainings of each row."),
    },
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
