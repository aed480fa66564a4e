"""The rows of the paper's tables on the Quora pairs, and the ideas beyond it: a training each."""

from __future__ import annotations

import json
import logging
import pathlib
import shutil
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.configs import quora_best, quora_sdml
from qpr_jax.errors import UserError
from qpr_jax.files import read_json, replace_folder, sha256_of, write_atomically, write_json
from qpr_jax.training.records import read_json_lines
from qpr_jax.training.settings import default_settings, identity

log = logging.getLogger("qpr_jax.rows")

# What all rows change of `quora_sdml`: a quarter of its filters, so that thirty trainings to their
# early stop fit into a few hours of 2 cores (and fewer checkpoints, which changes no result).
STUDY: dict[str, Any] = {"filters": 150, "checkpoint_every": 1000}
# Triplets learn slowly: with random ones MRR still rises after ten epochs.
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

KEPT_STEPS = 200


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


def is_done(folder: pathlib.Path, name: str, seed: int, data: str) -> bool:
    """Whether the row is kept; UserError where it is, but was made otherwise.

    data: SHA-256 of the pair file.
    """
    if not (folder / "config.json").exists():
        return False
    # A setting that came later than the row had its default's effect.
    known = identity(default_settings()) | read_json(folder / "config.json")
    wanted = {"search": name} if name in LEXICAL else identity(row_config(name, seed))
    for key, value in (wanted | {"data.sha256": data}).items():
        if known.get(key) != value:
            raise UserError(
                f"{folder}: expected `{key}` {value!r}, got {known.get(key)!r}; remove the folder, "
                "and that of the row in `--workdir` if there is one, to make the row anew"
            )
    return True


def make_row(name: str, seed: int, workdir: pathlib.Path, kept: pathlib.Path) -> None:
    """Train and evaluate a row in `workdir`, or go on with it, and keep its result in `kept`."""
    from qpr_jax.training.run import train_and_evaluate

    train_and_evaluate(row_config(name, seed), workdir)
    with replace_folder(kept) as part:
        for file in ("report.json", "evaluations.jsonl", "ranks.npz"):
            shutil.copy(workdir / file, part / file)
        rows = read_json_lines(workdir / "metrics.jsonl")
        with write_atomically(part / "metrics.jsonl", "w") as lines:
            lines.writelines(f"{line}\n" for line in _thinned(rows))
        shutil.copy(workdir / "run.json", part / "config.json")
    if name in ROWS:  # over a gigabyte, of which nobody asks for more than is kept
        shutil.rmtree(workdir)


def _thinned(rows: list[dict[str, Any]]) -> list[str]:
    """The metrics of all steps as means over at most KEPT_STEPS stretches."""
    stretches = np.array_split(np.arange(len(rows)), min(KEPT_STEPS, len(rows)))
    return [
        json.dumps(
            {
                "step": rows[stretch[-1]]["step"],
                **{
                    key: float(np.mean([rows[i][key] for i in stretch]))
                    for key in rows[0]
                    if key != "step"
                },
            }
        )
        for stretch in stretches
    ]


def make_lexical_row(name: str, path: pathlib.Path, kept: pathlib.Path) -> None:
    """Score BM25 or TF-IDF on the same queries of the pair file `path`, by the same evaluator."""
    from qpr_jax.retrieval.lexical import bm25_search, tfidf_search
    from qpr_jax.training.prepare import prepare
    from qpr_jax.training.report import score_searches

    prepared = prepare(row_config("quora_sdml"), path)
    make_search = {"bm25": bm25_search, "tfidf": tfidf_search}[name]
    scores, _, ranks = score_searches({"exact": make_search(prepared.data.questions)}, prepared)
    with replace_folder(kept) as part:
        with write_atomically(part / "ranks.npz") as file:
            np.savez_compressed(file, allow_pickle=False, **ranks)
        write_json(part / "report.json", {split: found["exact"] for split, found in scores.items()})
        write_json(part / "config.json", {"search": name, "data.sha256": sha256_of(path)})
