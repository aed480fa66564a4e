"""What the rows of the noise study say: curves over the rate of false negatives."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.noise_rows import LOSSES, RATES
from experiments.paper_scores import read_rows
from experiments.tables import verdict_of, write_csv
from qpr_jax.data.splits import SPLITS, TRAIN
from qpr_jax.data.synthetic_noise import generate_noisy_log
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import SCORE_NAMES, Scores
from qpr_jax.files import read_json, write_atomically
from qpr_jax.training.sampler import permuted_pairs, steps_per_epoch

# (what is claimed, the better loss, the worse)
CLAIMS = (
    ("smoothing costs less than none", "sdml", "eps_0"),
    ("SDML loses less than random triplets", "sdml", "tl_rand"),
    ("SDML loses less than hard triplets", "sdml", "tl_hard"),
    ("random triplets lose less than hard ones", "tl_rand", "tl_hard"),
)


def write_results(results: pathlib.Path) -> None:
    """Make curves.csv, the plot and the page of `results` from its folder rows/."""
    rows = read_rows(results / "rows")
    if not rows:
        raise UserError(f"{results / 'rows'}: expected rows, found none; train some first")
    scores = Scores(rows, "test", "query")
    some = read_json(min((results / "rows").glob("[!.]*/config.json")))
    measured = {rate: measured_rate(rate, some) for rate in RATES}
    records = [
        {
            "loss": loss,
            "rate": rate,
            "measured_rate": round(measured[rate], 4),
            "seeds": len(scores.by_seed[name]),
            **{m: round(float(scores.mean(name)[i]), 4) for i, m in enumerate(SCORE_NAMES)},
            "MRR_low": round(float(scores.interval(name)[0, 2]), 4),
            "MRR_high": round(float(scores.interval(name)[1, 2]), 4),
            "MRR_deviation": round(float(scores.by_seed[name][:, 2].std(ddof=1)), 4)
            if len(scores.by_seed[name]) > 1
            else "",
        }
        for loss in LOSSES
        for rate in RATES
        if (name := f"{loss}_{rate}") in rows
    ]
    write_csv(results / "curves.csv", records)
    _plot(results, scores, measured)
    discussion = results / "discussion.md"
    with write_atomically(results / "README.md", "w") as file:
        file.write(
            "\n".join(
                [
                    "# Losses under false negatives",
                    "",
                    "Made by `python -m experiments.noise`; `--rebuild` makes this page and the "
                    "plot from",
                    "`rows/` (and `discussion.md`) alone. A generated log, the same questions, "
                    "training pairs and",
                    "held-out questions at all rates; a rate is the share of rows with an "
                    "unlabelled paraphrase",
                    "in their batch of 256. Test split, per query, through the index; means over "
                    "seeds, with",
                    "their standard deviation.",
                    "",
                    *([discussion.read_text(encoding="utf-8")] if discussion.exists() else []),
                    "![MRR over the rate of false negatives](curves.png)",
                    "",
                    *_table(scores, measured),
                    *_claims(scores),
                ]
            )
        )


def measured_rate(rate: float, settings: dict[str, Any]) -> float:
    """The share of rows with an unlabelled paraphrase, over all batches of a training's epochs."""
    batch_size, pairs = settings["batch_size"], settings["data.synthetic_clusters"]
    log = generate_noisy_log(
        rate, pairs=pairs, batch_size=batch_size, seed=settings["data.split_seed"]
    )
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
    names = [name for name, _ in LOSSES.values()]
    lines = [
        f"| rate | measured | {' | '.join(f'{name}: H@1, MRR' for name in names)} |",
        "|---" * (2 + len(names)) + "|",
    ]
    for rate in RATES:
        cells = []
        for loss in LOSSES:
            seeds = scores.by_seed.get(f"{loss}_{rate}")
            if seeds is None:
                cells.append("")
                continue
            spread = seeds.std(axis=0, ddof=1) if len(seeds) > 1 else np.zeros(len(SCORE_NAMES))
            cells.append(", ".join(f"{seeds[:, i].mean():.3f} ± {spread[i]:.3f}" for i in (0, 2)))
        lines.append(f"| {rate:g} | {measured[rate]:.3f} | {' | '.join(cells)} |")
    return [*lines, ""]


def _claims(scores: Scores) -> list[str]:
    """What each loss loses of its MRR from the lowest rate to the highest, and the differences."""
    first, last = RATES[0], RATES[-1]
    lines = [
        f"## What a rate of {last:g} costs",
        "",
        "The MRR lost from no false negatives to the highest rate, of the worse less the better,",
        "with the 95 % interval of a bootstrap over clusters.",
        "",
        "| | MRR lost | less than | difference | |",
        "|---|---|---|---|---|",
    ]
    for text, better, worse in CLAIMS:
        names = [f"{loss}_{rate}" for loss in (better, worse) for rate in (first, last)]
        if any(name not in scores.samples for name in names):
            continue
        means = [scores.mean(name)[2] for name in names]
        draws = [scores.samples[name][:, 2] for name in names]
        low, high = np.percentile((draws[2] - draws[3]) - (draws[0] - draws[1]), [2.5, 97.5])
        ours, theirs = means[0] - means[1], means[2] - means[3]
        lines.append(
            f"| {text} | {ours:.3f} | {theirs:.3f} | {theirs - ours:+.3f} "
            f"[{low:+.3f}, {high:+.3f}] | {verdict_of(low, high)} |"
        )
    return [*lines, ""]


def _plot(results: pathlib.Path, scores: Scores, measured: dict[float, float]) -> None:
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
    with write_atomically(results / "curves.png") as file:
        figure.savefig(file, format="png", dpi=130)
