"""What a second stage adds: the light re-ranker, and a cross-encoder, over three first stages.

    python -m experiments.two_stages                          the light re-ranker, three seeds
    python -m experiments.two_stages --cross_encoder=FOLDER   and a cross-encoder
    python -m experiments.two_stages --rebuild                the page from the rows kept

The cross-encoder is one of `python -m experiments.main --config=quora_cross_encoder`; it reorders
hits of `quora_distilled`. Rows of it that are kept without a cross-encoder stay as they are: remove
them before.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from experiments.study import Flag, Flags, KeptRows, Study
from experiments.tables import difference_cell, table_lines
from experiments.trials import Trial, seeded
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.training.overrides import load_config, override

# Name -> trained by seed; as it is, the transformer has nothing to draw.
CONFIGS = {"quora_sdml": True, "quora_distilled": True, "quora_minilm": False}
CROSSED = "quora_distilled"
# What ranks.npz calls a second stage -> what the page calls it.
STAGES = {"reranked": "light", "reranked_cross": "light and cross-encoder"}
SEEDS = 3


def trials(flags: Flags) -> list[Trial]:
    """Every config with every seed, the first seeds of all first."""
    found = []
    for seed in range(flags.seeds):
        for name, trained in CONFIGS.items():
            if seed and not trained:
                continue
            changes: dict[str, Any] = {"seed": seed}
            if name == CROSSED:
                changes["rerank.cross_encoder"] = flags.cross_encoder
            found.append(Trial(seeded(name, seed), override(load_config(name), changes)))
    return found


def page(kept: KeptRows) -> list[str]:
    """The scores of one and two stages."""
    return [
        "# Two stages",
        "",
        "Made by `python -m experiments.two_stages`; `--rebuild` makes this page from `rows/` (and",
        "`discussion.md`) alone. H@1 and MRR per query, each query among all questions of the",
        "Quora pairs; means of the seeds, ± their standard deviation. Brackets are 95 % intervals",
        "of the gain over one stage, by a bootstrap over clusters. Validation is out-of-fold.",
        "",
        *kept.discussion(),
        *_scores(kept, "exact", "Exact search"),
        *_scores(kept, "index", "The index, `IVF2000,Flat`, 10 probes"),
    ]


def _scores(kept: KeptRows, search: str, title: str) -> list[str]:
    rows = []
    for name in CONFIGS:
        if name not in kept:
            continue
        rows.append([f"`{name}`", "one", *_cells(kept, name, search)])
        for stage, text in STAGES.items():
            if all(f"test_{stage}_{search}" in ranks for ranks in kept.ranks[name]):
                rows.append(["", text, *_cells(kept, name, search, stage)])
    head = ["first stage", "second"]
    for split in HELD_OUT:
        head += [f"{split} H@1", "gain", "MRR", "gain"]
    return [f"## {title}", "", *table_lines(head, rows)] if rows else []


def _cells(kept: KeptRows, name: str, search: str, stage: str = "") -> list[str]:
    """The scores of a row and, of a second stage, the gains."""
    cells = []
    for split in HELD_OUT:
        first = kept.scores(split, "query", search)
        both = kept.scores(split, "query", f"{stage}_{search}") if stage else first
        for metric in (0, 2):
            seeds = both.by_seed[name][:, metric]
            spread = f" ± {seeds.std(ddof=1):.3f}" if len(seeds) > 1 else ""
            cells.append(f"{seeds.mean():.3f}{spread}")
            # Both have the same resamples.
            samples = (both.samples[name] - first.samples[name])[:, metric]
            gain = seeds.mean() - first.mean(name)[metric]
            low, high = np.percentile(samples, [2.5, 97.5])
            cells.append(difference_cell(gain, low, high) if stage else "")
    return cells


STUDY = Study(
    name="two_stages",
    results="two_stages",
    trials=trials,
    page=page,
    flags={
        "cross_encoder": Flag("", f"A cross-encoder to add to `{CROSSED}`; empty: none."),
        "seeds": Flag(SEEDS, "Trainings of each row."),
    },
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
