"""Checks of the settings of data: which of them nothing reads or learns from."""

from __future__ import annotations

from collections.abc import Container

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.sources import SOURCES


def learns_translations(config: TrainConfig, unused: Container[str]) -> bool:
    """Whether a stage of training reads translations; unused: settings that no loss reads."""
    in_batches = config.batch.translations > 0 and "batch.translations" not in unused
    return config.teacher.epochs > 0 or in_batches


def unused_data_settings(config: TrainConfig) -> set[str]:
    """Settings that other kinds of data read, and this one does not."""
    known = frozenset[str]().union(*(source.settings for source in SOURCES.values()))
    used = SOURCES[config.data.source].settings
    if config.data.unlabeled and config.job == "encoder":  # read like a list of questions
        used = used | {"question_column", "skip_bad_rows"}
    if config.data.parallel and config.job == "encoder":
        used = used | {"skip_bad_rows", "max_rows"}
    if config.data.negatives and config.batch.hard_negatives and config.job == "encoder":
        used = used | {"skip_bad_rows"}
    return {f"data.{name}" for name in known - used}
