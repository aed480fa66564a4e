"""The paper's claim tested where the truth is known: losses under more and more false negatives.

    python -m experiments.noise             all rows (4 losses, 6 rates, 3 seeds), then the page
    python -m experiments.noise --seeds=1   one seed

Every row trains `synthetic_sdml` on the same questions and pairs. A rate is the share of the rows
of a batch that have a paraphrase in it which is not known to be one, and so counts as a negative
(`qpr_jax/data/synthetic_noise.py`). Known paraphrases are masked.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from experiments.study import Flag, Flags, Study, Trials
from experiments.tables import (
    Claim,
    difference_cell,
    score_records,
    table_lines,
    verdict_of,
    write_scores,
)
from experiments.trials import Trial, load, seeded
from qpr_jax.data.splits import SPLITS, TRAIN
from qpr_jax.data.synthetic_noise import generate_noisy_log
from qpr_jax.evaluation.bootstrap import SCORE_NAMES, Scores
from qpr_jax.files import write_atomically
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.sampler import permuted_pairs, steps_per_epoch
from qpr_jax.training.sources import SYNTHETIC_CLUSTERS

RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
# name -> what the page calls it, its settings
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sdml": ("SDML, eps 0.3", {}),
    "eps_0": ("SDML, eps 0", {"loss.smoothing": 0.0}),
    "tl_rand": ("TL (Rand)", {"loss.names": ("triplet",)}),
    "tl_hard": ("TL (Hard)", {"loss.names": ("triplet",), "loss.negatives": "hard"}),
}
CHANGES: dict[str, Any] = {
    "loss.mask_own_cluster": True,
    "max_epochs": 60,  # random triplets still gain after fifty
    "early_stopping.patience": 3,
    "checkpoint_every": 1000,
}
CLAIMS = (
    Claim("smoothing costs less than none", "sdml", "eps_0"),
    Claim("SDML loses less than random triplets", "sdml", "tl_rand"),
    Claim("SDML loses less than hard triplets", "sdml", "tl_hard"),
    Claim("random triplets lose less than hard ones", "tl_rand", "tl_hard"),
)


def row_config(loss: str, rate: float, seed: int = 0) -> TrainConfig:
    """The settings of a loss at a rate."""
    return load(
        "synthetic_sdml",
        CHANGES | LOSSES[loss][1] | {"data.false_negatives": rate, "seed": seed},
    )


def trials(flags: Flags) -> list[Trial]:
    """Every loss at every rate, the first seeds of all first."""
    return [
        Trial(seeded(f"{loss}_{rate}", seed), row_config(loss, rate, seed))
        for seed in range(flags.seeds)
        for rate in RATES
        for loss in LOSSES
    ]


def page(done: Trials) -> list[str]:
    """A table of the curves, what the highest rate costs, and the plot."""
    scores = done.scores("test", "query")
    settings = next(iter(done.read("run.json").values()))
    measured = {rate: measured_rate(rate, settings) for rate in RATES}
    records = score_records(done, "query", "index", splits=("test",), metrics=SCORE_NAMES)
    write_scores(done, "python -m experiments.noise", records)
    _plot(done, scores, measured)
    return [
        "![MRR over the rate of false negatives](curves.png)",
        "",
        *_table(scores, measured),
        *_claims(scores),
    ]


def measured_rate(rate: float, settings: dict[str, Any]) -> float:
    """The share of rows with an unlabelled paraphrase, over all batches of a training's epochs."""
    batch_size, pairs = settings["batch_size"], settings["data.max_rows"] or SYNTHETIC_CLUSTERS
    log = generate_noisy_log(rate, pairs=pairs, batch_size=batch_size)
    training = log.splits.pairs[SPLITS[TRAIN]]
    at = permuted_pairs(training, batch_size, seed=0)
    steps = settings["max_epochs"] * steps_per_epoch(len(training), batch_size)
    shares = []
    for step in range(steps):
        queries = at(step)[:, 0]
        meaning, cluster = log.meanings[queries], log.clusters[queries]
        unlabelled = (meaning[:, None] == meaning) & (cluster[:, None] != cluster)
        shares.append(unlabelled.any(axis=1).mean())
    return float(np.mean(shares))


def _table(scores: Scores, measured: dict[float, float]) -> list[str]:
    rows = []
    for rate in RATES:
        cells = [f"{rate:g}", f"{measured[rate]:.3f}"]
        for loss in LOSSES:
            seeds = scores.by_seed.get(f"{loss}_{rate}", np.zeros((0, len(SCORE_NAMES))))
            spread = seeds.std(axis=0, ddof=1) if len(seeds) > 1 else np.zeros(len(SCORE_NAMES))
            means = [f"{seeds[:, i].mean():.3f} ± {spread[i]:.3f}" for i in (0, 2) if len(seeds)]
            cells.append(", ".join(means))
        rows.append(cells)
    return table_lines(
        ["rate", "measured", *(f"{label}: H@1, MRR" for label, _ in LOSSES.values())], rows
    )


def _claims(scores: Scores) -> list[str]:
    """What each loss loses of its MRR from the lowest rate to the highest, and the differences."""
    first, last = RATES[0], RATES[-1]
    rows = []
    for text, better, worse, _ in CLAIMS:
        names = [f"{loss}_{rate}" for loss in (better, worse) for rate in (first, last)]
        if any(name not in scores.samples for name in names):
            continue
        means = [scores.mean(name)[2] for name in names]
        draws = [scores.samples[name][:, 2] for name in names]
        low, high = np.percentile((draws[2] - draws[3]) - (draws[0] - draws[1]), [2.5, 97.5])
        ours, theirs = means[0] - means[1], means[2] - means[3]
        difference = difference_cell(theirs - ours, low, high)
        rows.append([text, f"{ours:.3f}", f"{theirs:.3f}", difference, verdict_of(low, high)])
    return [
        f"## What a rate of {last:g} costs",
        "",
        "The MRR lost from no false negatives to the highest rate, of the worse less the better,",
        "with the 95 % interval of a bootstrap over clusters.",
        "",
        *table_lines(["", "MRR lost", "less than", "difference", ""], rows),
    ]


def _plot(done: Trials, scores: Scores, measured: dict[float, float]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axis = figure.subplots()
    for loss, (label, _) in LOSSES.items():
        known = [rate for rate in RATES if f"{loss}_{rate}" in scores.by_seed]
        seeds = [scores.by_seed[f"{loss}_{rate}"][:, 2] for rate in known]
        if not known:
            continue
        axis.errorbar(
            [measured[rate] for rate in known],
            [values.mean() for values in seeds],
            [values.std(ddof=1) if len(values) > 1 else 0 for values in seeds],
            marker="o",
            capsize=3,
            label=label,
        )
    axis.set(xlabel="rows with an unlabelled paraphrase in their batch", ylabel="test MRR")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4)
    with write_atomically(done.results / "curves.png") as file:
        figure.savefig(file, format="png", dpi=130)


STUDY = Study(
    name="noise",
    results="noise",
    trials=trials,
    page=page,
    data=lambda flags: (None, None),
    flags={"seeds": Flag(3, "Trainings of each row.")},
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
