"""The paper's claim where the truth is known: losses under more and more false negatives.

    python -m experiments.noise             four losses, six rates, three seeds
    python -m experiments.noise --seeds=1   one seed

Every row trains `synthetic_sdml` on the same questions and pairs. A rate is the share of the rows
of a batch that have a paraphrase in the batch that is not known to be one, and so counts as a
negative (`qpr_jax/data/synthetic.py`). Known paraphrases are masked.
"""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.pages import Curve, plot_curves, table_lines, with_spread
from experiments.scores import Measured, Scores, retrieval
from experiments.study import Options, Study, Trial

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
H1, MRR = "test H@1 per query, index", "test MRR per query, index"


def trials(options: Options) -> list[Trial]:
    """Every loss at every rate."""
    return [
        Trial(
            f"{loss}_{rate}",
            "synthetic_sdml",
            CHANGES | changes | {"data.false_negatives": rate},
        )
        for rate in RATES
        for loss, (_, changes) in LOSSES.items()
    ]


def measure(run: pathlib.Path) -> dict[str, Measured]:
    """Scores of the test split, through the index."""
    return {"": retrieval(run, splits=("test",))}


def compare(row: str) -> list[str]:
    """The row of the same loss without false negatives."""
    loss, _, rate = row.rpartition("_")
    return [f"{loss}_{RATES[0]}"] if float(rate) > 0 else []


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """The scores of each loss at each rate, and the plot."""
    rows = []
    for rate in RATES:
        cells = [f"{rate:g}"]
        for loss in LOSSES:
            found = [scores.get(f"{loss}_{rate}", metric) for metric in (H1, MRR)]
            cells.append(", ".join(with_spread(record) for record in found if record))
        rows.append(cells)
    curves = [
        Curve(title, [(rate, f"{loss}_{rate}") for rate in RATES])
        for loss, (title, _) in LOSSES.items()
    ]
    plot_curves(
        folder / "curves.png",
        scores,
        curves,
        {"MRR, test": MRR},
        xlabel="share of rows with an unknown paraphrase in their batch",
    )
    head = ["rate", *(f"{title}: H@1, MRR" for title, _ in LOSSES.values())]
    return [
        "![MRR over the rate of false negatives](curves.png)",
        "",
        *table_lines(head, rows),
    ]


STUDY = Study(
    name="noise",
    results="noise",
    trials=trials,
    measure=measure,
    compare=compare,
    page=page,
    smoke=("sdml_0.0", "tl_hard_0.5"),
    seeds=3,
)

if __name__ == "__main__":
    STUDY.main()
