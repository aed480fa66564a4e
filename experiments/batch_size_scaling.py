"""Does a larger batch help? The paper stopped at 1,024 pairs; this study goes on to 32,768.

    python -m experiments.batch_size_scaling

All rows see the same number of pairs, and the learning rate grows with the root of the batch.
"mask" also masks the candidates of the query's own cluster; "stop" trains to the early stop,
however many pairs that takes. `python -m benchmarks.loss` measures time and memory.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments import paper_tables
from experiments.pages import Column, plot_curves, score_table, section, with_interval
from experiments.paper_numbers import TABLES, paper_points
from experiments.scores import Measured, Scores, retrieval
from experiments.study import Study, Trial, titles
from qpr_jax.files import read_json
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
    changes = paper_tables.CHANGES | RULES[rule][1]
    changes |= {"batch_size": size, "optimizer.warmup_steps": steps // 20}
    changes["optimizer.learning_rate"] = 1e-3 * (size / 512) ** 0.5
    if rule != "stop":
        changes |= {
            "max_steps": steps,
            "early_stopping.every_steps": max(1, steps // 4),
            "early_stopping.patience": 5,  # more than there are evaluations
        }
    return changes


TRIALS = [
    Trial(f"n_{size}_{rule}", "quora_sdml", row_changes(size, rule), f"{title} | {size:,}")
    for rule, (title, _) in RULES.items()
    for size in SIZES
]


def measure(run: pathlib.Path) -> dict[str, Measured]:
    """Read the scores, the steps, and the false negatives in the batches."""
    metrics = read_json_lines(run / "metrics.jsonl")
    counts = {STEPS: float(read_json(run / "report.json")["timing"]["steps"])}
    for name, key in ((FALSE, "false_negatives"), (WITH_FALSE, "rows_with_false_negatives")):
        counts[name] = float(np.mean([step[key] for step in metrics]))
    return {"": {**retrieval(run)[""], **counts}}


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
    return section("Quality", [*table, "![quality](plots/quality.png)"], *about)


STUDY = Study(
    name="batch_size_scaling",
    trials=TRIALS,
    measure=measure,
    page=page,
    smoke=("n_512_sqrt", "n_1024_mask"),
)

if __name__ == "__main__":
    STUDY.main()
