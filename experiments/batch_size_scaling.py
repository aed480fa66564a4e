"""Does a larger batch help? The paper stopped at 1,024 pairs; this study goes on to 65,536.

    python -m experiments.batch_size_scaling --rows='n_*'               equal numbers of pairs
    python -m experiments.batch_size_scaling --rows='part_*' --seeds=2  steps to a validation MRR
    python -m experiments.batch_size_scaling --rows='all_*' --seeds=2   the same for an accelerator

Rows `n_SIZE_RULE` see four epochs; their learning rate grows with the root of the batch. "mask"
also masks the candidates of the query's own cluster; "stop" trains to the early stop. Rows
`part_SIZE_RATE` train a small encoder on a part of the data with several rates, `all_SIZE_RATE`
that of `quora_sdml` on all. `part_noise` and `all_noise` measure the noise of the gradient.
`python -m benchmarks.loss` measures time and memory.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.pages import Column, plot_curves, score_table, section, with_interval
from experiments.paper_tables import CHANGES, TABLES, paper_points
from experiments.scores import Measured, Scores, retrieval
from experiments.study import Study, Trial, titles
from qpr_jax.files import read_json, write_json
from qpr_jax.training.config import load_config, override
from qpr_jax.training.metrics import read_json_lines

PAIRS = 4 * 220_306  # four epochs of the Quora pair file
SIZES = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
# name -> what the page calls it, its settings
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "sqrt": ("rate by the root of N", {}),
    "mask": ("by the root, own cluster masked", {"loss.mask_own_cluster": True}),
    "stop": ("by the root, to early stop", {"max_epochs": 40}),
}
H1, MRR = "validation H@1 per pair, index", "validation MRR per pair, index"
STEPS, FALSE, WITH_FALSE = "steps", "false negatives", "queries with a false negative"


def row_changes(size: int, rule: str) -> dict[str, Any]:
    """Return the changes of a row to `quora_sdml`, with the filters of the paper's tables."""
    steps = round(PAIRS / size)
    changes = CHANGES | RULES[rule][1]
    changes |= {"batch_size": size, "optimizer.warmup_steps": steps // 20}
    changes["optimizer.learning_rate"] = 1e-3 * (size / 512) ** 0.5
    if rule != "stop":
        changes |= {
            "max_steps": steps,
            "early_stopping.every_steps": max(1, steps // 4),
            "early_stopping.patience": 5,  # more than there are evaluations
        }
    return changes


# family -> sizes, steps at 512 pairs, what it changes of `quora_sdml`, a bound of validation MRR
FIXED: dict[str, Any] = {"index.factory": "Flat", "max_epochs": 1000, "early_stopping.patience": 99}
SMALL = {"embedding_dim": 128, "filters": 128, "output_dim": 64}
PART = {"data.max_rows": 40_000, **{f"encoder.{name}": size for name, size in SMALL.items()}}
FAMILIES: dict[str, tuple[Sequence[int], int, dict[str, Any], float]] = {
    "part": ((512, 2048, 8192, 16_384), 400, FIXED | PART, 0.65),
    "all": ((*SIZES, 65_536), 3442, FIXED, 0.8),
}
RATES = (0.001, 0.002, 0.004, 0.008, 0.016)
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "_beta2": {"optimizer.beta2": 0.95},
    "_decay": {"optimizer.learning_rate_decay": "linear"},
    "_warm": {},
}
REACHED, BEST, NOISE = "steps to MRR {}", "best validation MRR", "noise scale of {:,} candidates"
K = 16  # batches of a noise scale


def rate_changes(family: str, size: int, rate: float, variant: str) -> dict[str, Any]:
    """Return the changes of a row; warm-up is a twentieth of the steps, of "_warm" a quarter.

    Twice the pairs have .6 times the steps, so that larger batches read more pairs.
    """
    _, most, changes, _ = FAMILIES[family]
    steps = round(most * (512 / size) ** 0.75)
    changes = changes | VARIANTS[variant] | {"batch_size": size, "max_steps": steps}
    changes["optimizer.warmup_steps"] = steps // (4 if variant == "_warm" else 20)
    changes["early_stopping.every_steps"] = max(1, steps // 8)
    return changes | {"optimizer.learning_rate": rate}


def measure_noise(family: str, folder: pathlib.Path, smoke: bool) -> None:
    """Write the noise scale of the gradient at three steps of a training with 512 pairs.

    It is the number of pairs at which the gradient's variance equals its squared norm. Negatives
    come from the batch, so K gradients of N pairs each give both. Source: McCandlish et al.
    (2018), "An Empirical Model of Large-Batch Training", appendix A.
    """
    import jax
    import optax

    from qpr_jax.training import distributed, train_step
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.model_families import family_of
    from qpr_jax.training.objectives import make_objectives
    from qpr_jax.training.sources import find_quora
    from qpr_jax.training.train import plan

    config = load_config("quora_sdml" + ":smoke" * smoke, rate_changes(family, 512, 0.002, ""))
    dataset = load_dataset(config, find_quora())
    (phase,), state = plan(config, dataset)
    graph, _ = family_of(None).init(config, dataset)
    mesh, objectives = distributed.make_mesh(), make_objectives(config, dataset)
    loss = train_step.make_loss(graph, mesh, objectives)
    gradient = jax.jit(jax.grad(loss, has_aux=True))
    square = functools.partial(optax.tree.norm, squared=True)
    sizes = (config.batch_size, 8 * config.batch_size)
    loads = {n: plan(override(config, {"batch_size": n}), dataset)[0][0].load for n in sizes}
    points, found = [config.max_steps // part for part in (16, 4, 2)], dict[str, Any]()
    for done in range(config.max_steps // 2 + 1):
        for size, load in loads.items() if done in points else ():
            batches = (load(step)[0] for step in range(K))
            each = [gradient(state.params, batch, jax.random.key(0))[0] for batch in batches]
            mean = square(jax.tree.map(lambda *batches: sum(batches) / K, *each))
            variance = (sum(map(square, each)) / K - mean) * K / (K - 1)
            scale = size * float(variance / (mean - variance / K))
            found.setdefault(f"{done} steps", {})[NOISE.format(size)] = scale
        state, _ = phase.step(state, phase.load(done)[0])
    write_json(folder / "noise.json", found)


TRIALS = [
    Trial(f"n_{size}_{rule}", "quora_sdml", row_changes(size, rule), f"{title} | {size:,}")
    for rule, (title, _) in RULES.items()
    for size in SIZES
]
RATED = [
    Trial(
        f"{family}_{size}_{rate}{variant}",
        "quora_sdml",
        rate_changes(family, size, rate, variant),
        f"{size:,} | {rate}{variant.replace('_', ', ')}",
    )
    for family, (sizes, *_) in FAMILIES.items()
    for size in sizes
    for rate in RATES
    for variant in VARIANTS
    if not variant or (size >= 8192 and rate in (0.004, 0.008))
]
NOISES = [
    Trial(f"{family}_noise", make=functools.partial(measure_noise, family), once=True)
    for family in FAMILIES
]


def measure(run: pathlib.Path) -> Mapping[str, Measured]:
    """Read the scores, the steps, and the false negatives in the batches."""
    if (run / "noise.json").exists():
        stages: dict[str, Measured] = read_json(run / "noise.json")
        return stages
    metrics = read_json_lines(run / "metrics.jsonl")
    counts = {STEPS: float(read_json(run / "report.json")["timing"]["steps"])}
    for name, key in ((FALSE, "false_negatives"), (WITH_FALSE, "rows_with_false_negatives")):
        counts[name] = float(np.mean([step[key] for step in metrics]))
    evaluations = read_json_lines(run / "evaluations.jsonl")
    steps, scores = ([line[key] for line in evaluations] for key in ("step", "mrr"))
    highest = np.maximum.accumulate(scores)
    counts[BEST] = float(highest[-1])
    for *_, bound in FAMILIES.values():
        at = int(np.searchsorted(highest, bound))
        between = slice(at - 1, at + 1)
        if 0 < at < len(highest):
            counts[REACHED.format(bound)] = float(
                np.interp(bound, highest[between], steps[between])
            )
    found = retrieval(run)[""]
    return {"": {H1: found[H1], MRR: found[MRR], **counts}}


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format quality and false negatives against the size of a batch."""
    columns = [
        Column("steps", STEPS, lambda record: f"{record['mean']:,.0f}"),
        Column("H@1", H1, with_interval),
        Column("MRR", MRR, with_interval),
        Column("false negatives", FALSE, lambda record: f"{record['mean']:.2%}"),
        Column("queries with one", WITH_FALSE, lambda record: f"{record['mean']:.1%}"),
    ]
    plot_curves(
        folder / "plots" / "quality.png",
        scores,
        {title: [(n, f"n_{n}_{rule}") for n in SIZES] for rule, (title, _) in RULES.items()},
        {"H@1": H1, "MRR": MRR},
        xlabel="N",
        log_scale=True,
        paper={metric: paper_points(TABLES[2], metric) for metric in ("H@1", "MRR")},
    )
    about = (
        "`quora_sdml` with 150 filters. Validation, per pair, through the index. All rows except",
        "those to early stop see four epochs of pairs; a twentieth of the steps are warm-up.",
        "*False negatives*: the share of a query's other candidates that are in its cluster;",
        "*queries with one*: the share of queries that have such a candidate.",
    )
    table = score_table(scores, titles(TRIALS), columns, "learning rate | N")
    lines = section("Quality", [*table, "![quality](plots/quality.png)", ""], *about)
    rated, noises = titles(RATED), scores.table["row"]
    for family, (*_, bound) in FAMILIES.items():
        reached = REACHED.format(bound)
        columns = [
            Column(reached, reached, lambda record: f"{record['mean']:,.0f}"),
            Column("pairs until then", reached, pairs_until),
            Column(BEST, BEST, with_interval),
        ]
        rows = {row: title for row, title in rated.items() if row.startswith(family)}
        table = score_table(scores, rows, columns, "N | rate")
        lines += section(f"Steps to a validation MRR: `{family}`", table)
        noise = [Column(NOISE.format(n), NOISE.format(n), pairs_until) for n in (512, 4096)]
        rows = {row: row.split(", ")[1] for row in noises if row.startswith(f"{family}_noise")}
        table = score_table(scores, rows, noise, "after")
        lines += section(f"Noise scale in pairs: `{family}`", table)
    return lines


def pairs_until(record: dict[str, Any]) -> str:
    """Show the pairs of the steps of a row; of a noise scale, itself."""
    size = record["row"].split("_")[1]
    return f"{record['mean'] * (int(size) if size.isdigit() else 1):,.0f}"


STUDY = Study(
    name="batch_size_scaling",
    trials=[*TRIALS, *RATED, *NOISES],
    measure=measure,
    page=page,
    smoke=("n_512_sqrt", "n_1024_mask", "part_noise"),
)

if __name__ == "__main__":
    STUDY.main()
