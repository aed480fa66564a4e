"""The rows of the paper's tables on the Quora pairs, and the ideas beyond it: a training each."""

from __future__ import annotations

import pathlib
from typing import Any

from ml_collections import ConfigDict

from experiments.configs import quora_best, quora_sdml
from experiments.rows import Row, search_row, training_row
from qpr_jax.errors import UserError

# What all rows change of `quora_sdml`: a quarter of its filters and less patience, so that thirty
# trainings to their early stop fit into a few hours of 2 cores (and fewer checkpoints, which
# changes no result).
STUDY: dict[str, Any] = {
    "filters": 150,
    "early_stopping.patience": 2,
    "checkpoint_every": 1000,
}
# Triplets learn slowly: with random ones some trainings gain after ten epochs.
TRIPLET: dict[str, Any] = {"loss": "triplet", "max_epochs": 20}

ROWS: dict[str, dict[str, Any]] = {
    "sdml": {},
    **{f"eps_{eps}": {"smoothing": eps} for eps in (0.0, 0.1, 0.2, 0.4)},
    **{f"n_{size}": {"batch_size": size} for size in (32, 64, 128, 256, 1024)},
    "sdml_euc": {"distance": "euc"},
    "tl_euc": TRIPLET | {"distance": "euc"},
    "tl_ssd": TRIPLET,
    "tl_hard_ssd": TRIPLET | {"negatives": "hard"},
    "tl_hard_euc": TRIPLET | {"distance": "euc", "negatives": "hard"},
    "tl_hard_anchor_ssd": TRIPLET | {"negatives": "hard_anchor"},
    # What random triplets make of a margin that more of them violate.
    "tl_ssd_margin_5": TRIPLET | {"margin": 5.0},
    "tl_ssd_margin_50": TRIPLET | {"margin": 50.0},
    "distance_prior": {"prior": "distance"},
    "mask": {"mask_own_cluster": True},
    "symmetric": {"symmetric": True},
    "even": {"sampling": "clusters"},
    "even_mask_symmetric": {
        "sampling": "clusters",
        "mask_own_cluster": True,
        "symmetric": True,
    },
    "hard_negatives": {"hard_negatives": 32},
    "windows_1_3_5": {"windows": (1, 3, 5), "filters": 100},
    "word_dropout": {"word_dropout": 0.2},
    "ema": {"ema_steps": 200},
    "decay": {"learning_rate_decay": "linear"},
    "bag_of_words": {"bag_of_words": True},
    "char_ngrams": {"char_ngrams": 3, "fewest_uses": 3, "hash_bins": 20_000},
}
# These are whole configs of their own, trained as they stand.
CONFIGS = {"quora_sdml": quora_sdml, "quora_best": quora_best}
LEXICAL = ("bm25", "tfidf")


def row_name(name: str, seed: int) -> str:
    """The folder of a row: one with a seed other than 0 says so."""
    return f"{name}-seed{seed}" if seed else name


def row_config(name: str, seed: int = 0) -> ConfigDict:
    """The settings of a row; UserError where there is no such row."""
    if name in CONFIGS:
        config: ConfigDict = CONFIGS[name].get_config()
    elif name in ROWS:
        config = quora_sdml.get_config()
        config.update_from_flattened_dict(STUDY | ROWS[name])
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
