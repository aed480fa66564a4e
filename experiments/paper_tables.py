"""The paper's tables on the Quora pairs, and ideas beyond the paper.

python -m experiments.paper_tables                     all rows, then tables and plots
python -m experiments.paper_tables --rows=mask,even    some rows
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.pages import (
    difference,
    plot_curves,
    score_table,
    section,
    split_columns,
    with_interval,
)
from experiments.paper_numbers import (
    ALL_CLAIMS,
    TABLES,
    Claim,
    claim_lines,
    paper_points,
    paper_table,
)
from experiments.scores import Scores
from experiments.study import Study, Trial, titles
from experiments.systems import baseline_trial
from qpr_jax.evaluation.scores import SCORE_NAMES

# What all rows change of `quora_sdml`: a quarter of its filters and less patience, so that thirty
# trainings to their early stop take a few hours of 2 cores. Fewer checkpoints change no result.
CHANGES: dict[str, Any] = {
    "encoder.filters": 150,
    "early_stopping.patience": 2,
    "checkpoint_every": 1000,
}
# Random triplets learn slowly: some trainings still gain after ten epochs.
TRIPLET: dict[str, Any] = {"loss.names": ("triplet",), "max_epochs": 20}
MASK: dict[str, Any] = {"loss.mask_own_cluster": True}
SYMMETRIC: dict[str, Any] = {"loss.symmetric": True}
EVEN: dict[str, Any] = {"batch.sampling": "clusters"}

ROWS: dict[str, dict[str, Any]] = {
    "sdml": {},
    **{f"eps_{eps}": {"loss.smoothing": eps} for eps in (0.0, 0.1, 0.2, 0.4)},
    **{f"n_{size}": {"batch_size": size} for size in (32, 64, 128, 256, 1024)},
    "sdml_euc": {"loss.distance": "euc"},
    "tl_euc": TRIPLET | {"loss.distance": "euc"},
    "tl_ssd": TRIPLET,
    "tl_hard_ssd": TRIPLET | {"loss.negatives": "hard"},
    "tl_hard_euc": TRIPLET | {"loss.distance": "euc", "loss.negatives": "hard"},
    "tl_hard_anchor_ssd": TRIPLET | {"loss.negatives": "hard_anchor"},
    "tl_ssd_margin_5": TRIPLET | {"loss.margin": 5.0},
    "tl_ssd_margin_50": TRIPLET | {"loss.margin": 50.0},
    "mask": MASK,
    "symmetric": SYMMETRIC,
    "even": EVEN,
    "even_mask_symmetric": EVEN | MASK | SYMMETRIC,
    "windows_1_3_5": {"encoder.kernel_sizes": (1, 3, 5), "encoder.filters": 100},
    "word_dropout": {"batch.token_dropout": 0.2},
    "decay": {"optimizer.learning_rate_decay": "linear"},
    "bag_of_words": {"encoder.bag_of_words": True},
}
CLAIMS = [claim for claim in ALL_CLAIMS if claim.table in TABLES]
PLOTS = {1: ("eps", "eps"), 2: ("batch_size", "N")}  # table -> name of its plot, label
IDEAS = {
    "mask": "mask the candidates of the query's own cluster",
    "symmetric": "both directions",
    "even": "draw clusters evenly",
    "even_mask_symmetric": "the three together",
    "n_1024": "N = 1,024",
    "windows_1_3_5": "windows of 1, 3 and 5 words, 100 filters each",
    "bag_of_words": "the sum of the word embeddings beside the maxima",
    "word_dropout": "drop a fifth of the words",
    "decay": "decay the learning rate to 0 in ten epochs",
}


# Presets that are trained as they are.
FULL = [
    Trial("quora_sdml", "quora_sdml", title="`quora_sdml`"),
    Trial("quora_best", "quora_best", title="`quora_best`", minus=("quora_sdml",)),
]


def worse_rows(claims: Sequence[Claim], row: str, prefix: str = "") -> list[str]:
    """Return the rows that are worse than a row by the paper's claims. prefix: of their names."""
    worse = [prefix + claim.worse for claim in claims if prefix + claim.better == row]
    return [*dict.fromkeys(worse)]


# The better row of a claim is compared with the worse ones, that of an idea with the plain row.
TRIALS = [
    *(baseline_trial(name, "quora_sdml", CHANGES) for name in ("bm25", "tfidf")),
    *(
        Trial(
            name,
            "quora_sdml",
            CHANGES | changes,
            minus=[*worse_rows(CLAIMS, name), *["sdml"] * (name in IDEAS)],
        )
        for name, changes in ROWS.items()
    ),
    *FULL,
]


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format the claims, the ideas, and the paper's tables with their plots."""
    columns = split_columns("index", difference)
    ideas = score_table(scores, IDEAS | titles(FULL[1:]), columns, "idea")
    lines = [
        *section("The paper's claims", claim_lines(scores, CLAIMS)),
        *section(
            "Ideas beyond the paper",
            ideas,
            "Differences to the plain row of the same size, per query; `quora_best` is compared",
            "with `quora_sdml`, both at full size.",
        ),
        *section("The presets", preset_table(scores, FULL)),
    ]
    for number, table in TABLES.items():
        lines += (found := paper_table(scores, number, table))
        if not found or number not in PLOTS:
            continue
        name, label = PLOTS[number]
        lines += [f"![{name}](plots/{name}.png)", ""]
        plot_curves(
            folder / "plots" / f"{name}.png",
            scores,
            {"ours": [(float(row["label"]), row["row"]) for row in table.rows]},
            {metric: f"validation {metric} per pair, index" for metric in SCORE_NAMES},
            xlabel=label,
            log_scale=label == "N",
            paper={metric: paper_points(table, metric) for metric in SCORE_NAMES},
        )
    return lines


def preset_table(scores: Scores, trials: Sequence[Trial]) -> list[str]:
    """Return the scores per query of presets that are trained as they are."""
    columns = split_columns("index", with_interval)
    return score_table(scores, titles(trials), columns, "per query")


STUDY = Study(
    name="paper_tables",
    trials=TRIALS,
    page=page,
    smoke=("tfidf", "sdml", "tl_ssd"),
)

if __name__ == "__main__":
    STUDY.main()
