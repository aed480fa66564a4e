"""What a second stage adds: the light re-ranker, and a cross-encoder, over three first stages.

    python -m experiments.two_stages                          the light re-ranker, three seeds
    python -m experiments.two_stages --cross_encoder=FOLDER   and a cross-encoder

The cross-encoder is one of `python -m experiments.main --config=quora_cross_encoder`; it reorders
hits of `quora_distilled`. Finished trials without a cross-encoder are not made again: remove them
before.
"""

from __future__ import annotations

import sys
from typing import Any

from experiments.study import Flag, Flags, Study, Trials
from experiments.tables import difference_cell, score_records, table_lines, write_scores
from experiments.trials import Trial, seeded
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.training.overrides import load_config, override

# Name -> trained by seed; as it is, the transformer has nothing to draw.
CONFIGS = {"quora_sdml": True, "quora_distilled": True, "quora_minilm": False}
CROSSED = "quora_distilled"
# What ranks.npz calls a second stage -> what the page calls it.
STAGES = {"reranked": "light", "reranked_cross": "light and cross-encoder"}
TITLES = {"exact": "Exact search", "index": "The index, `IVF2000,Flat`, 10 probes"}
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


def page(done: Trials) -> list[str]:
    """The scores of one and two stages."""
    by_search = {search: _with_stages(done, search) for search in TITLES}
    records = [
        record
        for search, trials in by_search.items()
        for record in score_records(trials, "query", search, minus=_first_stage)
    ]
    write_scores(done, "python -m experiments.two_stages", records)
    return [line for search, trials in by_search.items() for line in _table(trials, search)]


def _with_stages(done: Trials, search: str) -> Trials:
    """The trials, and each second stage of a trial as a trial of its own."""
    found = Trials(done.results, done.workdir)
    found.ranks = {}
    for name in (name for name in CONFIGS if name in done):
        seeds = found.ranks[name] = done.ranks[name]
        for stage, title in STAGES.items():
            keys = {f"{split}_{search}": f"{split}_{stage}_{search}" for split in HELD_OUT}
            if all(key in ranks for ranks in seeds for key in keys.values()):
                found.ranks[f"{name}, {title}"] = [
                    ranks | {to: ranks[key] for to, key in keys.items()} for ranks in seeds
                ]
    return found


def _first_stage(row: str) -> str:
    return row.partition(", ")[0]


def _table(trials: Trials, search: str) -> list[str]:
    """The scores of each row and, of a second stage, the gains."""
    rows = []
    for row in trials.ranks:
        first, _, stage = row.partition(", ")
        cells = ["" if stage else f"`{first}`", stage or "one"]
        for split in HELD_OUT:
            scores = trials.scores(split, "query", search)
            for metric in (0, 2):
                seeds = scores.by_seed[row][:, metric]
                spread = f" ± {seeds.std(ddof=1):.3f}" if len(seeds) > 1 else ""
                cells.append(f"{seeds.mean():.3f}{spread}")
                gain = seeds.mean() - scores.mean(first)[metric]
                low, high = scores.interval(row, first)[:, metric]
                cells.append(difference_cell(gain, low, high) if stage else "")
        rows.append(cells)
    head = ["first stage", "second"]
    for split in HELD_OUT:
        head += [f"{split} H@1", "gain", "MRR", "gain"]
    return [f"## {TITLES[search]}", "", *table_lines(head, rows)] if rows else []


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
