"""Names that settings had before version 0.2; read for one release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OLD_NAMES = {
    **{
        f"data.{old}": f"data.{new}"
        for old, new in {
            "question": "question_column",
            "answer": "answer_column",
            "unlabelled": "unlabeled",
            "unlabelled.sha256": "unlabeled.sha256",
            "crossed": "spliced",
        }.items()
    },
    "fewest_uses": "text.min_count",
    "max_words": "text.max_tokens",
    **{name: f"text.{name}" for name in ("vocabulary_size", "hash_bins", "char_ngrams")},
    "encoder": "encoder.kind",
    "windows": "encoder.kernel_sizes",
    **{
        name: f"encoder.{name}"
        for name in (
            *("pretrained", "embedding_dim", "filters", "output_dim", "bag_of_words"),
            *("normalize", "compute_dtype"),
        )
    },
    "loss": "loss.names",
    "loss_weights": "loss.weights",
    "loss_turns": "loss.alternate",
    **{
        name: f"loss.{name}"
        for name in (
            *("scale", "distance", "smoothing", "prior", "temperature", "symmetric"),
            *("mask_own_cluster", "similarity", "similarity_scale", "negatives", "margin"),
            "pair_distance",
        )
    },
    "word_dropout": "batch.token_dropout",
    **{name: f"batch.{name}" for name in ("sampling", "hard_negatives", "encode_chunk")},
    **{
        name: f"optimizer.{name}"
        for name in (
            *("learning_rate", "learning_rate_scaling", "learning_rate_decay"),
            *("warmup_steps", "weight_decay", "ema_steps"),
        )
    },
    "teacher.words": "teacher.init_embeddings",
    "distributed.processes": "distributed.num_processes",
    "distributed.process": "distributed.process_id",
}


def rename_settings(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run or an encoder of version 0.1, flat, under their present names.

    Those of later versions are returned as they are.
    """
    if not flat.keys() & OLD_NAMES.keys():
        return dict(flat)
    renamed = {OLD_NAMES.get(name, name): value for name, value in flat.items()}
    if isinstance(names := renamed.get("loss.names"), str):
        renamed["loss.names"] = names.split("+")
    return renamed
