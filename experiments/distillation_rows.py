"""What makes a student better: rows that change one thing of a small `quora_distilled` each."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.configs import (
    quora_best,
    quora_distilled,
    quora_minilm_sdml,
    quora_minilm_triplet,
    quora_sdml,
)
from experiments.rows import Row, training_row
from qpr_jax.errors import UserError
from qpr_jax.files import replace_folder, sha256_of, write_atomically, write_json
from qpr_jax.retrieval.evaluate import Search, exact_search

# What all rows but the configs change of `quora_distilled`, to fit into a few hours of 2 cores.
STUDY: dict[str, Any] = {"filters": 300, "teacher.epochs": 3}
LOGS = os.path.join(os.environ.get("QPR_DATA_DIR", ""), "qa_logs")
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("300 filters of each window, 3 epochs of imitation, 1 of pairs", {}),
    "imitation": ("no pair at all", {"max_epochs": 0}),
    "pairs": ("no imitation at all", {"teacher.model": "", "teacher.words": False}),
    "both": ("imitation beside the loss of pairs", {"teacher.weight": 10.0}),
    "plain_words": ("the embedding drawn at random", {"teacher.words": False}),
    "filters_600": ("600 filters of each window", {"filters": 600}),
    "windows_3_5": ("windows of 3 and 5 words", {"windows": (3, 5)}),
    "window_5": ("one window of 5 words, 900 filters", {"windows": (5,), "filters": 900}),
    "bag_of_words": ("the sum of the word embeddings as a feature", {"bag_of_words": True}),
    "char_ngrams": (
        "rare words as runs of 3 characters",
        {"char_ngrams": 3, "fewest_uses": 3, "hash_bins": 20_000},
    ),
    "unlabelled": ("the questions of the logs shown too", {"data.unlabelled": LOGS}),
    "epochs_1": ("1 epoch of imitation", {"teacher.epochs": 1}),
    "epochs_9": ("9 epochs of imitation", {"teacher.epochs": 9}),
    "no_decay": ("a rate that does not decay", {"learning_rate_decay": "none"}),
    "ema": ("an average of weights over 200 steps", {"ema_steps": 200}),
    "word_dropout": ("a tenth of the words not seen", {"word_dropout": 0.1}),
    "output_128": ("vectors of 128 numbers", {"output_dim": 128}),
    "output_256": ("vectors of 256 numbers", {"output_dim": 256}),
    "not_normalized": ("vectors of any length", {"normalize": False}),
}
# Trained as they stand, beside the rows.
CONFIGS = {
    "quora_sdml": quora_sdml,
    "quora_best": quora_best,
    "quora_distilled": quora_distilled,
    "quora_minilm_triplet": quora_minilm_triplet,
    "quora_minilm_sdml": quora_minilm_sdml,
}
UNTRAINED = ("bm25", "tfidf", "minilm")
_TIMED = 2000  # questions that a transformer is timed on


def row_config(name: str) -> ConfigDict:
    """The settings of a row; UserError where there is no such row."""
    if name in CONFIGS:
        found: ConfigDict = CONFIGS[name].get_config()
        return found
    if name not in ROWS:
        raise UserError(
            f"expected one of the rows {', '.join((*UNTRAINED, *CONFIGS, *ROWS))}, got {name!r}"
        )
    config: ConfigDict = quora_distilled.get_config()
    config.update_from_flattened_dict(STUDY | ROWS[name][1])
    return config


def distillation_row(name: str, workdir: pathlib.Path) -> Row:
    """The row of that name; a config as it stands is trained beside `workdir`, and stays."""
    if name in UNTRAINED:
        return _untrained_row(name)
    home = workdir.parent if name in CONFIGS else workdir
    return training_row(name, row_config(name), home / name, keep_run=name in CONFIGS)


def _untrained_row(name: str) -> Row:
    """A search without training, by exact search, with what a second takes in of strings."""

    def make(path: pathlib.Path, kept: pathlib.Path) -> None:
        from qpr_jax.training.prepare import prepare
        from qpr_jax.training.report import score_searches

        config = quora_sdml.get_config()
        prepared = prepare(config, path)
        search, rate = _SEARCHES[name](prepared.data.questions)
        scores, _, ranks = score_searches({"exact": search}, prepared)
        report: dict[str, Any] = {split: {"exact": s["exact"]} for split, s in scores.items()}
        report["speed"] = {"encode_questions_per_second": rate}
        with replace_folder(kept) as part:
            with write_atomically(part / "ranks.npz") as file:
                np.savez_compressed(file, allow_pickle=False, **ranks)
            write_json(part / "report.json", report)
            write_json(part / "config.json", {"search": name, "data.sha256": sha256_of(path)})

    return Row(name, {"search": name}, make)


def _lexical(make: str) -> Callable[[list[str]], tuple[Search, float]]:
    def search(questions: list[str]) -> tuple[Search, float]:
        from qpr_jax.retrieval import lexical

        start = time.perf_counter()
        found = getattr(lexical, make)(questions)
        return found, len(questions) / (time.perf_counter() - start)

    return search


def _minilm(questions: list[str]) -> tuple[Search, float]:
    from qpr_jax.encoders.folders import read_encoder
    from qpr_jax.training.teacher import kept_vectors

    encoder = read_encoder("minilm")
    some = questions[:: max(1, len(questions) // _TIMED)]
    encoder.encode(some)  # compiles
    start = time.perf_counter()
    encoder.encode(some)
    rate = len(some) / (time.perf_counter() - start)
    return exact_search(np.asarray(kept_vectors("", encoder, questions))), rate


_SEARCHES = {
    "bm25": _lexical("bm25_search"),
    "tfidf": _lexical("tfidf_search"),
    "minilm": _minilm,
}
