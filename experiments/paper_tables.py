"""The paper's tables on the Quora pairs: every row trained, the results beside the paper's.

python -m experiments.paper_tables                      all rows, then tables and plots
python -m experiments.paper_tables --table=3 --seeds=3  the rows of one table, three seeds each
python -m experiments.paper_tables --rows=mask,even     some rows
python -m experiments.paper_tables --results=results/quora  write the published page
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from experiments.paper_numbers import TABLES
from experiments.study import Flag, Flags, Study, Trials, refuse_both
from experiments.tables import (
    Claim,
    claim_lines,
    difference_cell,
    paper_table,
    score_cell,
    score_records,
    table_lines,
    write_scores,
)
from experiments.trials import Trial, load, seeded
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.evaluation.bootstrap import SCORE_NAMES
from qpr_jax.training.config import TrainConfig, identity
from qpr_jax.training.report import save_figure

# What all rows change of `quora_sdml`: a quarter of its filters and less patience, so that thirty
# trainings to their early stop fit into a few hours of 2 cores (and fewer checkpoints, which
# changes no result).
CHANGES: dict[str, Any] = {
    "encoder.filters": 150,
    "early_stopping.patience": 2,
    "checkpoint_every": 1000,
}
# Triplets learn slowly: with random ones some trainings gain after ten epochs.
TRIPLET: dict[str, Any] = {"loss.names": ("triplet",), "max_epochs": 20}

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
    # With a larger margin more of the random triplets violate it.
    "tl_ssd_margin_5": TRIPLET | {"loss.margin": 5.0},
    "tl_ssd_margin_50": TRIPLET | {"loss.margin": 50.0},
    "distance_prior": {"loss.prior": "distance"},
    "mask": {"loss.mask_own_cluster": True},
    "symmetric": {"loss.symmetric": True},
    "even": {"batch.sampling": "clusters"},
    "even_mask_symmetric": {
        "batch.sampling": "clusters",
        "loss.mask_own_cluster": True,
        "loss.symmetric": True,
    },
    "hard_negatives": {"batch.hard_negatives": 32},
    "windows_1_3_5": {"encoder.kernel_sizes": (1, 3, 5), "encoder.filters": 100},
    "word_dropout": {"batch.token_dropout": 0.2},
    "ema": {"optimizer.ema_steps": 200},
    "decay": {"optimizer.learning_rate_decay": "linear"},
    "bag_of_words": {"encoder.bag_of_words": True},
    "char_ngrams": {"text.char_ngrams": 3, "text.min_count": 3, "text.hash_bins": 20_000},
}
# Whole configs, trained without changes.
CONFIGS = ("quora_sdml", "quora_best")
LEXICAL = ("bm25", "tfidf")

SEEDS_PLANNED = 5  # of rows whose order is not decided
CLAIMS = (
    Claim("smoothing 0.1 is better than none", "eps_0.1", "eps_0.0", 1),
    Claim("0.2 is better than 0.1", "eps_0.2", "eps_0.1", 1),
    Claim("0.3 is better than 0.2", "sdml", "eps_0.2", 1),
    Claim("0.3 is better than 0.4", "sdml", "eps_0.4", 1),
    Claim("N = 64 is better than 32", "n_64", "n_32", 2),
    Claim("N = 128 is better than 64", "n_128", "n_64", 2),
    Claim("N = 256 is better than 128", "n_256", "n_128", 2),
    Claim("N = 512 is better than 256", "sdml", "n_256", 2),
    Claim("N = 512 is better than 1024", "sdml", "n_1024", 2),
    Claim("triplets: SSD is better than EUC", "tl_ssd", "tl_euc", 3),
    Claim("SDML is better than triplets", "sdml", "tl_ssd", 3),
    Claim("triplets: SSD is better than EUC", "tl_ssd", "tl_euc", 4),
    Claim("SDML is better than triplets", "sdml", "tl_ssd", 4),
    Claim(
        "random triplets are better than hard ones (the paper's other data)",
        *("tl_ssd", "tl_hard_ssd", 3),
    ),
    Claim("SDML: SSD is better than EUC (the paper's other data)", "sdml", "sdml_euc", 3),
)

IDEAS = {
    "mask": "own-cluster candidates masked",
    "symmetric": "both directions",
    "even": "clusters drawn evenly",
    "even_mask_symmetric": "the three together",
    "n_1024": "N = 1,024",
    "hard_negatives": "32 labelled non-duplicates as candidates more",
    "windows_1_3_5": "windows 1, 3 and 5, 100 filters each",
    "bag_of_words": "the sum of the word embeddings beside the maxima",
    "word_dropout": "a fifth of the words dropped",
    "ema": "exponential average of the weights over 200 steps",
    "decay": "the learning rate decays to 0 in ten epochs",
    "char_ngrams": "3-grams for words used less than 3 times",
    "distance_prior": "the distance prior",
}


def row_config(name: str, seed: int = 0) -> TrainConfig:
    """The settings of a row: a whole config, or `quora_sdml` with changes."""
    if name in CONFIGS:
        return load(name, seed=seed)
    return load("quora_sdml", CHANGES | ROWS[name], seed=seed)


def trials(flags: Flags) -> list[Trial]:
    """The rows that the flags ask for, the first seeds of all first."""
    refuse_both(flags, "rows", "table")
    names = flags.rows or (*LEXICAL, *ROWS, *CONFIGS)
    if flags.table:
        names = [name for _, name, _ in TABLES[int(flags.table)].rows]
    return [
        _trial(name, seed)
        for seed in range(flags.seeds)
        for name in names
        if seed == 0 or name not in LEXICAL
    ]


def _trial(name: str, seed: int) -> Trial:
    if name in LEXICAL:
        from experiments.lexical import bm25_search, tfidf_search

        make_search = {"bm25": bm25_search, "tfidf": tfidf_search}[name]
        config = row_config("quora_sdml")
        return Trial(name, config, search=lambda questions: (make_search(questions), {}))
    return Trial(seeded(name, seed), row_config(name, seed))


def page(done: Trials) -> list[str]:
    """The tables beside the paper's, which orderings hold, and the ideas beyond the paper."""
    tables = []
    for number, table in TABLES.items():
        if any(name in done for _, name, _ in table.rows):
            plot = {1: "eps", 2: "batch_size", 3: "losses"}.get(number)
            tables += paper_table(done, number, table, plot=plot)
    _plot_curves(done)
    _plot_losses(done)
    write_scores(done, "python -m experiments.paper_tables", _score_records(done))
    return [
        "## Which of the paper's orderings hold",
        "",
        *claim_lines(CLAIMS, TABLES, done, seeds_planned=SEEDS_PLANNED),
        *_ideas(done),
        *tables,
    ]


def _score_records(done: Trials) -> list[dict[str, Any]]:
    """The scores of the paper's tables, per pair, and those of the ideas, less the plain row."""

    def plain(row: str) -> str | None:
        return {"quora_best": "quora_sdml"}.get(row, "sdml" if row in IDEAS else None)

    return [
        *score_records(done, "pair", "index", metrics=SCORE_NAMES),
        *score_records(done, "query", "index", minus=plain),
    ]


def _ideas(done: Trials) -> list[str]:
    """The section of the ideas: each alone, then `quora_best`."""
    plainly = identity(row_config("quora_sdml"))
    best = plainly | done.read("run.json").get("quora_best", {})
    comparisons = [
        *((name, "sdml", text) for name, text in IDEAS.items()),
        ("quora_best", "quora_sdml", "`quora_best` minus `quora_sdml`, both at full size"),
    ]
    rows: list[list[str]] = []
    for name, plain, text in comparisons:
        if name not in done or plain not in done:
            continue
        cells = [text]
        for split in HELD_OUT:
            for metric in (0, 2):
                scores = done.scores(split, "query")
                low, high = scores.interval(name, plain)[:, metric]
                difference = scores.mean(name)[metric] - scores.mean(plain)[metric]
                cells.append(difference_cell(difference, low, high))
        used = all(best[key] != plainly[key] for key in ROWS.get(name, ()))
        rows.append([*cells, ("yes" if used else "no") if name in IDEAS else ""])
    head = "idea", "validation H@1", "MRR", "test H@1", "MRR", "in `quora_best`"
    lines = [
        "## Ideas beyond the paper, each alone",
        "",
        "Differences to the plain row of the same size (SDML, eps 0.3, N = 512), per query,",
        "through the index, with 95 % intervals.",
        "",
        *table_lines(head, rows)[:-1],
    ]
    for split in HELD_OUT:
        for name in CONFIGS:
            if name in done:
                scores = done.scores(split, "query")
                cells = [f"{m} {score_cell(scores, name, i)}" for i, m in enumerate(SCORE_NAMES)]
                lines += ["", f"`{name}`, {split}, per query: {', '.join(cells)}."]
    return [*lines, ""]


def _plot_curves(done: Trials) -> None:
    """Plot eps.png and batch_size.png: our scores with intervals, the paper's beside."""
    from matplotlib.figure import Figure

    scores = done.scores("validation", "pair")
    for number, name, label in ((1, "eps", "eps"), (2, "batch_size", "N")):
        known = [row for row in TABLES[number].rows if row[1] in done]
        if not known:
            continue
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        for metric, axis in enumerate(figure.subplots(1, 3)):
            values = [float(labels[0]) for labels, _, _ in known]
            means = np.array([scores.mean(row)[metric] for _, row, _ in known])
            ends = np.array([scores.interval(row)[:, metric] for _, row, _ in known]).T
            axis.errorbar(values, means, np.abs(ends - means), marker="o", capsize=3, label="ours")
            theirs = [paper[metric] for _, _, paper in known if paper]
            axis.plot(values, theirs, "s:", color="0.5", label="the paper's, on more questions")
            axis.set(xlabel=label, title=SCORE_NAMES[metric])
            if number == 2:
                axis.set_xscale("log", base=2)
        figure.axes[0].legend()
        save_figure(figure, done.results / "plots" / f"{name}.png")


def _plot_losses(done: Trials) -> None:
    """Plot losses.png: H@1 and MRR of each loss on both splits."""
    from matplotlib.figure import Figure

    known = [(" ".join(labels).strip(), row) for labels, row, _ in TABLES[3].rows if row in done]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axis, metric in zip(figure.subplots(1, 2, sharey=True), (0, 2), strict=True):
        heights = np.arange(len(known))[::-1]
        for shift, split in ((-0.2, "validation"), (0.2, "test")):
            scores = done.scores(split, "pair")
            means = np.array([scores.mean(row)[metric] for _, row in known])
            ends = np.array([scores.interval(row)[:, metric] for _, row in known]).T
            errors = np.abs(ends - means)
            axis.barh(heights + shift, means, 0.38, xerr=errors, capsize=2, label=split)
        axis.set(title=f"{SCORE_NAMES[metric]}, per pair", xlim=(0, 1))
        axis.set_yticks(heights, [label for label, _ in known])
    figure.axes[1].legend(loc="lower right")
    save_figure(figure, done.results / "plots" / "losses.png")


STUDY = Study(
    name="paper_tables",
    results="quora",
    trials=trials,
    page=page,
    flags={
        "table": Flag(None, "Only this table's rows.", [str(number) for number in TABLES]),
        "rows": Flag((), "Only these rows.", (*LEXICAL, *ROWS, *CONFIGS)),
        "seeds": Flag(1, "Trainings of each row."),
    },
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
