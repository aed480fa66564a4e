"""Presets: named changes of the default settings."""

from __future__ import annotations

import json
import pathlib
from typing import Any

_LIGHT = {"rerank.candidates": 50}
# Without a teacher more paraphrases lie beyond the first 50 hits; docs/rerank.md has the gain.
_LIGHT_100 = _LIGHT | {"rerank.candidates": 100}

_QUORA_BEST = {
    # Large clusters hold most pairs; sampled by pairs, they decide what is learned.
    "batch.sampling": "clusters",
    "loss.mask_own_cluster": True,
    "loss.symmetric": True,
    "batch_size": 1024,
    # Three kernel sizes with 300 filters each cost 0.9 times the convolution of one size 5 with 600
    # filters, and 1.5 times its projection.
    "encoder.kernel_sizes": (1, 3, 5),
    "encoder.filters": 300,
    "batch.token_dropout": 0.2,
    "max_epochs": 12,
}

_QUORA_DISTILLED = _QUORA_BEST | {
    "teacher.model": "minilm",
    "teacher.epochs": 2,
    "teacher.weight": 5.0,
    "encoder.normalize": True,
    "encoder.output_dim": 384,
    "loss.scale": 3.5,
    "batch.token_dropout": 0.15,
    "optimizer.learning_rate_decay": "linear",
    "max_epochs": 1,
    "early_stopping.patience": 10,
}

# Twice the imitation, since a word that is the sum of its n-grams is learned more slowly.
_QUORA_DISTILLED_SUMS = _QUORA_DISTILLED | {
    "text.subwords": True,
    "text.min_count": 2,
    "text.hash_bins": 76_000,
    "batch.subword_dropout": 0.1,
    "encoder.bag_of_words": True,
    "teacher.epochs": 4,
    "early_stopping.every_steps": 600,
}

_DISTILL: dict[str, Any] = {
    name: _QUORA_DISTILLED[name]
    for name in (
        "teacher.model",
        *("encoder.kernel_sizes", "encoder.filters", "encoder.output_dim", "encoder.normalize"),
    )
} | {
    "data.source": "questions",
    "data.spliced": 50_000,
    "teacher.epochs": 6,
    "max_epochs": 0,
    "optimizer.learning_rate_decay": "linear",
    "early_stopping.metric": "agreement",
    "early_stopping.every_steps": 200,
    "early_stopping.patience": 10,
}

_PARALLEL = "$QPR_DATA_DIR/parallel"
_GERMAN: dict[str, Any] = {
    "data.parallel": (
        f"en-de:{_PARALLEL}/tatoeba.en-de.tsv.gz",
        f"en-de:{_PARALLEL}/multi30k.train.en.gz+{_PARALLEL}/multi30k.train.de.gz",
        "en-de:runs/wiktionary.en-de.tsv.gz",  # of `python -m experiments.wiktionary`
    ),
    "data.parallel_tests": (
        f"en-de:{_PARALLEL}/tatoeba_test.deu-eng.eng.gz+{_PARALLEL}/tatoeba_test.deu-eng.deu.gz",
        f"en-de:{_PARALLEL}/multi30k.test.en.gz+{_PARALLEL}/multi30k.test.de.gz",
        f"en-de:{_PARALLEL}/ntrex.eng.gz+{_PARALLEL}/ntrex.deu.gz",
    ),
}
_MULTILINGUAL = _GERMAN | {
    "data.glossed": 1,
    "text.vocabulary_size": 80_000,
    "text.min_count": 2,
    "text.subwords": True,
    "text.hash_bins": 20_000,
    "batch.translations": 0.33,
    "batch.subword_dropout": 0.1,
    "teacher.epochs": 3,
}

_MINILM = {"encoder.kind": "bert", "encoder.pretrained": "minilm"}

_MINILM_SDML = _MINILM | {
    "batch.sampling": "clusters",
    "loss.mask_own_cluster": True,
    "loss.symmetric": True,
    "loss.scale": 3.0,
    "batch_size": 256,
    "optimizer.learning_rate": 5e-5,
    "optimizer.learning_rate_decay": "linear",
    "optimizer.weight_decay": 0.01,
    "optimizer.warmup_steps": 20,
    "max_steps": 200,
    "early_stopping.metric": "roc_auc",
    "early_stopping.every_steps": 100,
    "checkpoint_every": 50,
}

_OPEN_LOGS = ("webquestions", "clinc150", "simplequestions")

PRESETS: dict[str, dict[str, Any]] = {
    "synthetic_sdml": {
        "data.source": "synthetic",
        "data.held_out_pairs": 1500,
        "encoder.embedding_dim": 128,
        "encoder.filters": 256,
        "encoder.output_dim": 128,
        "batch_size": 256,
        "max_epochs": 6,
        **_LIGHT,
    },
    "quora_sdml": _LIGHT_100,
    "openqa_sdml": {
        "data.source": "qa_logs",
        "text.vocabulary_size": 100_000,
        "text.hash_bins": 10_000,
    },
    "quora_best": _QUORA_BEST | _LIGHT_100,
    "quora_multitask": _QUORA_BEST
    | {
        "encoder.normalize": True,
        "loss.names": ("ranking", "online_contrastive"),
        "loss.smoothing": 0.0,
    },
    "quora_distilled": _QUORA_DISTILLED | _LIGHT,
    "quora_distilled_sums": _QUORA_DISTILLED_SUMS | _LIGHT,
    "multilingual_distilled": _QUORA_DISTILLED | _MULTILINGUAL,
    "distill": _DISTILL,
    "open_student": _DISTILL
    | _LIGHT
    | {
        "data.path": ",".join(
            [
                f"en-de:{_PARALLEL}/tatoeba.en-de.tsv.gz",
                *(f"$QPR_DATA_DIR/qa_logs/{name}.jsonl.gz" for name in _OPEN_LOGS),
            ]
        ),
        "data.max_rows": 84_000,  # simple questions, the last, are many and alike
        "data.held_out_pairs": 3000,
        "data.spliced": 60_000,
        "text.vocabulary_size": 28_000,
        "text.min_count": 2,
        "text.subwords": True,
        "text.hash_bins": 12_000,
        "encoder.embedding_dim": 256,
        "encoder.output_dim": 256,
        "encoder.bag_of_words": True,
        "encoder.stored_dtype": "float16",
        "batch.subword_dropout": 0.2,
        "batch.token_dropout": 0.0,
        "teacher.words": True,
        "teacher.epochs": 6,
        "early_stopping.every_steps": 600,
    },
    "add_language": _GERMAN
    | {
        "encoder.pretrained": "runs/quora_distilled",
        "text.added_words": 50_000,
        "text.min_count": 2,
        "teacher.epochs": 6,
        "optimizer.learning_rate_decay": "linear",
        "max_epochs": 0,
        "early_stopping.metric": "translation",
    },
    "quora_minilm": _MINILM | {"max_epochs": 0} | _LIGHT,
    "quora_minilm_sdml": _MINILM_SDML,
    "quora_cross_encoder": _MINILM
    | {
        "job": "cross_encoder",
        "cross_encoder.first_stage": "runs/quora_distilled",
        "encoder.compute_dtype": "bfloat16",
        "batch_size": 64,
        "max_steps": 3300,  # about one round of the clusters
        "optimizer.learning_rate": 1e-4,
        "optimizer.learning_rate_decay": "late",
        "optimizer.warmup_steps": 200,
        "optimizer.weight_decay": 0.01,
        "checkpoint_every": 200,
    },
    # 72,810 triplets, one epoch, AdamW at 2e-5. The margin is so large that every triplet has
    # a loss.
    "quora_minilm_triplet": _MINILM_SDML
    | {
        "loss.names": ("triplet",),
        "loss.symmetric": False,
        "loss.distance": "euc",
        "loss.margin": 5.0,
        "loss.scale": 1.0,
        "batch_size": 16,
        "optimizer.learning_rate": 2e-5,
        "max_steps": 72_810 // 16,
        "optimizer.warmup_steps": 72_810 // 160,
    },
}

# What each preset trains, in the order in which they are listed.
SUMMARIES = {
    "synthetic_sdml": "the paper's encoder and loss, smaller, on a generated log; needs no data",
    "quora_sdml": "the paper's experiment: convolutional encoder, SDML",
    "quora_best": "`quora_sdml` with what improves it beyond the paper",
    "quora_distilled": "a convolutional student of all-MiniLM-L6-v2, then SDML; needs the teacher",
    "quora_distilled_sums": (
        "`quora_distilled` with rare words as sums of n-grams, and the sum of embeddings"
    ),
    "multilingual_distilled": (
        "a student of all-MiniLM-L6-v2 that also knows German, by sentences with translations"
    ),
    "quora_multitask": "two losses at once, to find duplicates and to classify pairs",
    "openqa_sdml": "the paper's experiment on logs of questions and answers",
    "distill": "a student of all-MiniLM-L6-v2, without labels; set data.path",
    "open_student": (
        "the small English encoder that the package carries, of openly licensed text alone"
    ),
    "add_language": (
        "German for `quora_distilled`, whose index stays as it is; set encoder.pretrained"
    ),
    "quora_minilm": "all-MiniLM-L6-v2 as it is, indexed and scored; nothing is trained",
    "quora_minilm_sdml": (
        "all-MiniLM-L6-v2 trained further with SDML (scores: a fifth of the training)"
    ),
    "quora_minilm_triplet": "all-MiniLM-L6-v2 trained further with triplets (scores: 400 steps)",
    "quora_cross_encoder": (
        "a cross-encoder that re-ranks the hits of `quora_distilled` (scores: of both stages)"
    ),
}

_SMOKE_DATA = {"data.held_out_pairs": 200}
_SMOKE_ROWS = {
    "quora": {"data.max_rows": 3000},
    "questions": {"data.max_rows": 3000},
    "synthetic": {"data.max_rows": 300},
}
_SMOKE_TRAINING = {
    "text.vocabulary_size": 1000,
    "text.hash_bins": 50,
    "encoder.embedding_dim": 16,
    "encoder.filters": 24,
    "encoder.output_dim": 16,
    "batch_size": 32,
    "max_steps": 12,
    "early_stopping.every_steps": 5,
    "checkpoint_every": 3,
}


def preset_facts() -> dict[str, dict[str, Any]]:
    """What is known of each preset, by name.

    Returns:
      `summary`, and where measured `hits_at_1` and `mrr` (test queries) and `minutes` (training).
    """
    text = pathlib.Path(__file__).with_name("preset_scores.json").read_text(encoding="utf-8")
    scores = json.loads(text)
    return {name: {"summary": SUMMARIES[name], **scores.get(name, {})} for name in SUMMARIES}


def smoke_changes(settings: dict[str, Any]) -> dict[str, Any]:
    """The changes that make a run of flat `settings` tiny: few rows, tiny shapes, 12 steps."""
    changes = _SMOKE_DATA | _SMOKE_ROWS.get(settings["data.source"], {})
    reasons = ("max_epochs", "teacher.model", "text.added_words")
    if any(settings[name] for name in reasons):
        changes = changes | _SMOKE_TRAINING
        limits = {
            "data.spliced": 500,
            "optimizer.warmup_steps": 2,
            "text.added_words": 500,
        }
        for name, most in limits.items():
            changes[name] = min(settings[name], most)
    return changes
