"""Names that settings had before version 0.2; read for one release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Settings that only moved to a section.
_MOVED = {
    "text": "vocabulary_size hash_bins char_ngrams",
    "encoder": "pretrained embedding_dim filters output_dim bag_of_words normalize compute_dtype",
    "loss": "scale distance smoothing prior temperature symmetric mask_own_cluster similarity "
    "similarity_scale negatives margin pair_distance",
    "batch": "sampling hard_negatives encode_chunk",
    "optimizer": "learning_rate learning_rate_scaling learning_rate_decay warmup_steps "
    "weight_decay ema_steps",
}
OLD_NAMES = {
    "data.question": "data.question_column",
    "data.answer": "data.answer_column",
    "data.unlabelled": "data.unlabeled",
    "data.unlabelled.sha256": "data.unlabeled.sha256",
    "data.crossed": "data.spliced",
    "fewest_uses": "text.min_count",
    "max_words": "text.max_tokens",
    "encoder": "encoder.kind",
    "windows": "encoder.kernel_sizes",
    "loss": "loss.names",
    "loss_weights": "loss.weights",
    "loss_turns": "loss.alternate",
    "word_dropout": "batch.token_dropout",
    "teacher.words": "teacher.init_embeddings",
    "distributed.processes": "distributed.num_processes",
    "distributed.process": "distributed.process_id",
    **{old: f"{section}.{old}" for section, names in _MOVED.items() for old in names.split()},
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
