"""Checks of the settings of data: which of them nothing reads or learns from."""

from __future__ import annotations

from collections.abc import Container

from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig, trains
from qpr_jax.training.sources import SOURCES


def check_spelling(config: TrainConfig) -> None:
    """Raise UserError where words of a transformer would be replaced by their n-grams."""
    rate, kind = config.batch.subword_dropout, config.encoder.kind
    if rate and kind != "cnn" and config.job == "encoder" and trains(config):
        raise UserError(
            f"expected 0, since words of {kind} are no sums of n-grams, got {rate:g}",
            setting="batch.subword_dropout",
            remedy="set {batch.subword_dropout=0}, or {encoder.kind=cnn}",
        )


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
