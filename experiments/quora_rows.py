"""The rows of the paper's tables on the Quora pairs, and the ideas beyond it: a training each."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.configs import quora_best, quora_sdml
from experiments.trials import Row, search_row, training_row
from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import override

# What all rows change of `quora_sdml`: a quarter of its filters and less patience, so that thirty
# trainings to their early stop fit into a few hours of 2 cores (and fewer checkpoints, which
# changes no result).
STUDY: dict[str, Any] = {
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
    # What random triplets make of a margin that more of them violate.
    "tl_ssd_margin_5": TRIPLET | {"loss.margin": 5.0},
    "tl_ssd_margin_50": TRIPLET | {"loss.margin": 50.0},
    "distance_prior": {"loss.prior": "distance"},
    "mask": {"loss.mask_own_cluster": True},
    "loss.symmetric": {"loss.symmetric": True},
    "even": {"batch.sampling": "clusters"},
    "even_mask_symmetric": {
        "batch.sampling": "clusters",
        "loss.mask_own_cluster": True,
        "loss.symmetric": True,
    },
    "batch.hard_negatives": {"batch.hard_negatives": 32},
    "windows_1_3_5": {"encoder.kernel_sizes": (1, 3, 5), "encoder.filters": 100},
    "batch.token_dropout": {"batch.token_dropout": 0.2},
    "ema": {"optimizer.ema_steps": 200},
    "decay": {"optimizer.learning_rate_decay": "linear"},
    "encoder.bag_of_words": {"encoder.bag_of_words": True},
    "text.char_ngrams": {"text.char_ngrams": 3, "text.min_count": 3, "text.hash_bins": 20_000},
}
# These are whole configs of their own, trained as they stand.
CONFIGS = {"quora_sdml": quora_sdml, "quora_best": quora_best}
LEXICAL = ("bm25", "tfidf")


def row_name(name: str, seed: int) -> str:
    """The folder of a row: one with a seed other than 0 says so."""
    return f"{name}-seed{seed}" if seed else name


def row_config(name: str, seed: int = 0) -> TrainConfig:
    """The settings of a row; UserError where there is no such row."""
    if name in CONFIGS:
        config: TrainConfig = CONFIGS[name].get_config()
    elif name in ROWS:
        config = quora_sdml.get_config()
        config = override(config, STUDY | ROWS[name])
    else:
        raise UserError(
            f"expected one of the rows {', '.join((*CONFIGS, *ROWS, *LEXICAL))}, got {name!r}"
        )
    config.seed = seed
    return config


def quora_row(name: str, seed: int, workdir: pathlib.Path) -> Row:
    """The row of that name and seed; a whole config is trained beside `workdir`, and stays."""
    if name in LEXICAL:
        from qpr_jax.evaluation.lexical import bm25_search, tfidf_search

        make_search = {"bm25": bm25_search, "tfidf": tfidf_search}[name]
        config = row_config("quora_sdml")
        return search_row(name, config, lambda questions: (make_search(questions), {}))
    folder = row_name(name, seed)
    whole = name in CONFIGS
    home = workdir.parent if whole else workdir
    return training_row(folder, row_config(name, seed), home / folder, keep_run=whole)
