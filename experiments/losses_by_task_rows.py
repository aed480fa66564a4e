"""One encoder, one budget, a loss each: rows that are scored on three tasks."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.configs import quora_best, quora_multitask
from experiments.trials import Row, training_row
from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import override

PAIRS = 600 * 1024  # that a row trains on, of whichever kind
# A third of the filters of `quora_best`, so that all rows fit into an hour of 2 cores. The
# validation that training itself looks at is of retrieval, so nothing is chosen by it.
STUDY: dict[str, Any] = {
    "encoder.filters": 100,
    "encoder.normalize": True,
    "loss.smoothing": 0.0,
    "optimizer.learning_rate_decay": "linear",
    "max_epochs": 100,  # `max_steps` ends it
    "early_stopping.every_steps": 1_000_000,
    "checkpoint_every": 1000,
    "index.factory": "Flat",
}
RANKING: dict[str, Any] = {"loss.names": ("ranking",)}
BOTH: dict[str, Any] = {"loss.names": ("ranking", "online_contrastive")}
IN_TURNS: dict[str, Any] = BOTH | {"loss.alternate": True}
# name -> what it is called, its settings
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    # As the paper has it; of unit vectors it would be ranking.
    "sdml": ("SDML, eps 0.3", {"encoder.normalize": False, "loss.smoothing": 0.3}),
    "ranking": ("multiple negatives ranking", RANKING),
    "contrastive": ("contrastive", {"loss.names": ("contrastive",)}),
    "online_contrastive": ("online contrastive", {"loss.names": ("online_contrastive",)}),
    "multitask_turns": ("ranking and online contrastive, in turns", IN_TURNS),
    # As many pairs for ranking as `ranking` has, and as many again for the other.
    "multitask_twice": (
        "ranking and online contrastive, in turns, of twice the pairs",
        IN_TURNS | {"max_steps": 2 * PAIRS // 1024},
    ),
    "multitask_sum": ("ranking and online contrastive, summed", BOTH),
    "ranking_64": ("ranking, batches of 64", RANKING | {"batch_size": 64}),
    "ranking_256": ("ranking, batches of 256", RANKING | {"batch_size": 256}),
    "ranking_4096": ("ranking, batches of 4,096", RANKING | {"batch_size": 4096}),
    "ranking_seed1": ("ranking, another seed", RANKING | {"seed": 1}),
    "contrastive_seed1": ("contrastive, another seed", {"loss.names": ("contrastive",), "seed": 1}),
}
HELD_OUT = ("dev", "test")


def row_config(name: str, parts: pathlib.Path) -> TrainConfig:
    """The settings of a row on the training pairs of `qpr splits`; UserError if there is none."""
    if name not in ROWS:
        raise UserError(f"expected one of the rows {', '.join(ROWS)}, got {name!r}")
    config = (quora_multitask if "multitask" in name else quora_best).get_config()
    config = override(config, STUDY | ROWS[name][1])
    config.data.path = str(training_pairs(parts))
    # Adam's steps for the batch, since fewer of larger ones fit into the budget.
    config.optimizer.learning_rate_scaling = "sqrt"
    config.optimizer.learning_rate = 1e-3 / 2**0.5  # 1e-3 for 1,024 pairs
    both = len(config.loss.names) > 1 and not config.loss.alternate
    config.max_steps = config.max_steps or PAIRS // config.batch_size // (1 + both)
    return config


def training_pairs(parts: pathlib.Path) -> pathlib.Path:
    """The pairs to train on, in a folder of `qpr splits`."""
    return parts / "classification" / "train_pairs.tsv"


def task_row(name: str, workdir: pathlib.Path, parts: pathlib.Path) -> Row:
    """The row of that name, scored on all tasks."""
    return training_row(
        name,
        row_config(name, parts),
        workdir / name,
        more={"tasks.json": lambda folder: task_scores(folder, parts)},
    )


def task_scores(run: pathlib.Path, parts: pathlib.Path) -> dict[str, Any]:
    """Scores of a run on the three tasks of a folder of `qpr splits`, as `qpr evaluate` gives them.

    classification: thresholds chosen on dev; mining and retrieval: of dev and of test.
    """
    from qpr_jax.data.labeled_pairs import read_duplicates, read_labeled
    from qpr_jax.evaluation.beir import beir_scores
    from qpr_jax.evaluation.tasks import score_classification, score_mining
    from qpr_jax.retriever import run_encoder

    encode = run_encoder(run).encode
    pairs = [read_labeled(str(parts / "classification" / f"{name}_pairs.tsv")) for name in HELD_OUT]
    corpora = {
        name: [str(parts / "mining" / f"{name}_{what}.tsv") for what in ("corpus", "duplicates")]
        for name in HELD_OUT
    }
    return {
        "classification": score_classification(encode, *pairs),
        "mining": {
            name: score_mining(encode, read_duplicates(*files)) for name, files in corpora.items()
        },
        "retrieval": {name: beir_scores(encode, parts / "beir", name) for name in HELD_OUT},
    }
