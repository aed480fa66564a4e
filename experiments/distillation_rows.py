"""What makes a student better: rows that change one thing of `quora_distilled` each."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.configs import (
    quora_best,
    quora_distilled,
    quora_minilm_sdml,
    quora_minilm_triplet,
)
from experiments.measuring import rates_in_turns
from experiments.trials import Row, search_row, training_row
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import RankFn, exact_search
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import override

# Of all rows, which are scored by exact search.
STUDY: dict[str, Any] = {"index.factory": "Flat"}
LOGS = os.path.join(os.environ.get("QPR_DATA_DIR", ""), "qa_logs")
NO_PAIRS: dict[str, Any] = {"max_epochs": 0, "batch.token_dropout": 0.0}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("`quora_distilled`, the student", {}),
    "imitation": ("no pair at all", NO_PAIRS),
    "imitation_crossed": (
        "no pair at all, and 150,000 made questions",
        NO_PAIRS | {"data.spliced": 150_000},
    ),
    "crossed": ("150,000 made questions", {"data.spliced": 150_000}),
    "unlabelled": ("the questions of the logs", {"data.unlabeled": LOGS}),
    "epochs_6": ("6 epochs of imitation", {"teacher.epochs": 6}),
    "weight_0": ("no imitation beside the pairs", {"teacher.weight": 0.0}),
    "plain_words": ("the embedding drawn at random", {"teacher.init_embeddings": False}),
    "no_word_dropout": ("all words seen", {"batch.token_dropout": 0.0}),
    "text.char_ngrams": (
        "rare words as runs of 3 characters",
        {"text.char_ngrams": 3, "text.min_count": 3, "text.hash_bins": 20_000},
    ),
    "filters_600": ("600 filters of each window", {"encoder.filters": 600}),
    "windows_3_5": (
        "windows of 3 and 5 words, 450 filters",
        {"encoder.kernel_sizes": (3, 5), "encoder.filters": 450},
    ),
    "window_5": (
        "one window of 5 words, 900 filters",
        {"encoder.kernel_sizes": (5,), "encoder.filters": 900},
    ),
    "no_decay": ("a rate that does not decay", {"optimizer.learning_rate_decay": "none"}),
    "ema": ("an average of weights over 100 steps", {"optimizer.ema_steps": 100}),
    "output_128": ("vectors of 128 numbers", {"encoder.output_dim": 128}),
}
# Beside them: what there is without a teacher, and the transformer trained further, for as long as
# 2 cores allow.
OTHERS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "pairs": ("`quora_best`, 4 epochs", quora_best, {"max_epochs": 4}),
    "minilm_triplet": (
        "`quora_minilm_triplet`, 8,000 triplets at most",
        quora_minilm_triplet,
        {"max_steps": 500, "optimizer.warmup_steps": 50},
    ),
    "minilm_sdml": (
        "`quora_minilm_sdml`, 10,240 pairs",
        quora_minilm_sdml,
        {"max_steps": 40, "optimizer.warmup_steps": 4},
    ),
}
UNTRAINED = {
    "bm25": "BM25",
    "tfidf": "TF-IDF, cosine",
    "minilm": "all-MiniLM-L6-v2, the teacher",
}
Speeds = dict[str, float]
_TIMED, _FEWER, _LAPS = 20_000, 1000, 5  # questions; of a transformer; rounds


def row_config(name: str) -> TrainConfig:
    """The settings of a row; UserError where there is no such row."""
    if name not in OTHERS and name not in ROWS:
        raise UserError(
            f"expected one of the rows {', '.join((*UNTRAINED, *OTHERS, *ROWS))}, got {name!r}"
        )
    changes: dict[str, Any]
    of, changes = (quora_distilled, ROWS[name][1]) if name in ROWS else OTHERS[name][1:]
    config: TrainConfig = of.get_config()
    config = override(config, STUDY | changes)
    return config


def distillation_row(name: str, workdir: pathlib.Path) -> Row:
    """The row of that name; its encoder stays in `workdir`."""
    if name in UNTRAINED:
        return search_row(name, row_config("base"), _SEARCHES[name])
    return training_row(name, row_config(name), workdir / name, keep_export=True)


def measured_speeds(rows: Sequence[str], workdir: pathlib.Path, data: pathlib.Path) -> Speeds:
    """Questions a second from strings to vectors, in turns, of the rows whose encoder is there."""
    from qpr_jax.data.quora import read_quora
    from qpr_jax.encoders.load import read_encoder
    from qpr_jax.encoders.transformer_encoder import TransformerEncoder

    questions = read_quora(data).questions
    encoders = {}
    for name in rows:
        folder = workdir / name / "export"
        if name == "minilm" or folder.exists():
            encoder = read_encoder("minilm" if name == "minilm" else folder)
            count = _FEWER if isinstance(encoder, TransformerEncoder) else _TIMED
            encoders[name] = encoder, questions[:: max(1, len(questions) // count)]
    return rates_in_turns(encoders, _LAPS)


def _lexical(make: str) -> Callable[[list[str]], tuple[RankFn, dict[str, Any]]]:
    def search(questions: list[str]) -> tuple[RankFn, dict[str, Any]]:
        from qpr_jax.evaluation import lexical

        start = time.perf_counter()
        found = getattr(lexical, make)(questions)
        return found, {"questions_per_second": len(questions) / (time.perf_counter() - start)}

    return search


def _minilm(questions: list[str]) -> tuple[RankFn, dict[str, Any]]:
    from qpr_jax.encoders.load import read_encoder
    from qpr_jax.training.teacher import cached_vectors

    encoder = read_encoder("minilm")
    return exact_search(np.asarray(cached_vectors("", encoder, questions))), {}


_SEARCHES = {
    "bm25": _lexical("bm25_search"),
    "tfidf": _lexical("tfidf_search"),
    "minilm": _minilm,
}
