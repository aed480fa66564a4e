"""Checks of settings against each other and against the registries."""

from __future__ import annotations

from collections.abc import Iterable

from qpr_jax.errors import UserError
from qpr_jax.index.recipe import Recipe, check_recipe
from qpr_jax.training.config import TrainConfig, has_teacher
from qpr_jax.training.losses_config import loss_names
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.sources import SOURCES
from qpr_jax.training.teacher import gives_vectors


def validate(config: TrainConfig) -> None:
    """Raise UserError for the first setting that does not fit the others."""
    _check_choice("data.source", config.data.source, SOURCES)
    _check_choice("encoder.kind", config.encoder.kind, MODEL_FAMILIES)
    if config.job == "cross_encoder":
        _check_cross_encoder(config)
    _check_losses(config)
    _check_encoder(config)
    _check_added_words(config)
    _check_teacher(config)
    if config.job == "encoder":
        _check_translations(config)
    _check_rerank(config)
    _check_distributed(config)


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise UserError(f"expected {' or '.join(choices)}, got {value!r}", setting=name)


def _check_cross_encoder(config: TrainConfig) -> None:
    if config.encoder.kind != "bert":
        raise UserError(
            f"expected bert for a cross-encoder, got {config.encoder.kind!r}",
            setting="encoder.kind",
            remedy="set `encoder.kind=bert` and `encoder.pretrained`",
        )
    if not SOURCES[config.data.source].has_pairs:
        raise UserError(
            f"expected data with pairs for a cross-encoder, got {config.data.source!r}",
            setting="data.source",
        )
    if config.distributed.enabled:
        raise UserError(
            "expected one process for a cross-encoder, got several",
            setting="distributed.enabled",
            remedy="set `distributed.enabled=False`",
        )


def _check_losses(config: TrainConfig) -> None:
    names, weights = config.loss.names, config.loss.weights
    known = loss_names()
    if not names or any(name not in known for name in names) or len({*names}) < len(names):
        raise UserError(
            f"expected {' or '.join(known)}, or several as ranking,online_contrastive, got "
            f"{','.join(names)!r}",
            setting="loss.names",
        )
    if len(weights) not in (0, len(names)):
        raise UserError(
            f"expected a number above 0 for each of {','.join(names)}, or none, got {weights}",
            setting="loss.weights",
        )


def _check_encoder(config: TrainConfig) -> None:
    family, settings = MODEL_FAMILIES[config.encoder.kind], config.encoder
    if family.needs_start and not settings.pretrained:
        raise UserError(
            f"expected a folder to start from for {settings.kind}, got none",
            setting="encoder.pretrained",
            remedy="set it, or another `encoder.kind`",
        )
    family.check(config)
    index = config.index
    recipe = Recipe(index.factory, probes=index.probes)
    if not settings.pretrained:  # else the dimension is known when the folder is read
        check_recipe(recipe, settings.output_dim)


def _check_added_words(config: TrainConfig) -> None:
    """Raise UserError where there is nothing to add words to or from, or more would be trained."""
    if not config.text.added_words:
        return
    if config.encoder.kind != "cnn" or not config.encoder.pretrained:
        raise UserError(
            f"expected a convolutional encoder that words are added to, got kind "
            f"{config.encoder.kind!r} and {config.encoder.pretrained or 'none'}",
            setting="text.added_words",
            remedy="set `encoder.pretrained` to its run, or `text.added_words=0`",
        )
    if not config.data.parallel:
        raise UserError(
            "expected translations with words to add, got none",
            setting="text.added_words",
            remedy="set `data.parallel`, or `text.added_words=0`",
        )
    if config.max_epochs:
        raise UserError(
            f"expected 0 where words are added, since pairs of questions have few of them, got "
            f"{config.max_epochs}",
            setting="max_epochs",
            remedy="set `max_epochs=0`",
        )


def _check_teacher(config: TrainConfig) -> None:
    teacher, metric = config.teacher, config.early_stopping.metric
    has_pairs = SOURCES[config.data.source].has_pairs
    if teacher.words and gives_vectors(config):
        raise UserError(
            "expected an encoder as the teacher, got a file of vectors",
            setting="teacher.words",
            remedy="set `teacher.words=False`",
        )
    if has_teacher(config):
        if not config.max_epochs and not teacher.epochs:
            raise UserError(
                "expected 1 epoch or more of imitation or of pairs, got 0 and 0",
                remedy="set `teacher.epochs` or `max_epochs`",
            )
        if not has_pairs and config.max_epochs:
            raise UserError(
                f"expected 0, since a list of questions has no pairs, got {config.max_epochs}",
                setting="max_epochs",
                remedy="set `max_epochs=0`",
            )
    elif not (has_pairs and config.max_epochs) and not config.encoder.pretrained:
        raise UserError(
            "expected pairs to train on or a teacher, got neither",
            remedy="set `teacher.model`, or, with pairs, `max_epochs=10`",
        )
    elif metric == "agreement":
        raise UserError(
            "expected a teacher, got none",
            setting="early_stopping.metric",
            remedy="set `teacher.model`",
        )
    if not has_pairs and metric not in ("agreement", "translation"):
        raise UserError(
            f"expected agreement, or translation where there are some, since a list of questions "
            f"has no pairs to score, got {metric}",
            setting="early_stopping.metric",
            remedy="set `early_stopping.metric=agreement`",
        )


def _check_translations(config: TrainConfig) -> None:
    if config.early_stopping.metric == "translation" and not config.data.parallel:
        raise UserError(
            "expected translations to score, got none",
            setting="early_stopping.metric",
            remedy="set `data.parallel`, or another metric",
        )
    if config.data.parallel and not has_teacher(config):
        raise UserError(
            "expected a teacher, whose vectors the translations learn, got none",
            setting="data.parallel",
            remedy="set `teacher.model`, or leave out `data.parallel`",
        )
    if config.batch.translations and not config.data.parallel:
        raise UserError(
            f"expected 0, since there are no translations, got {config.batch.translations:g}",
            setting="batch.translations",
            remedy="set `data.parallel`, or `batch.translations=0`",
        )


def _check_rerank(config: TrainConfig) -> None:
    has_pairs = SOURCES[config.data.source].has_pairs
    if config.rerank.candidates and not (has_pairs or has_teacher(config)):
        raise UserError(
            "must be 0: there are neither pairs nor a teacher to learn from, got "
            f"{config.rerank.candidates}",
            setting="rerank.candidates",
            remedy="set it to 0, or set `teacher.model`",
        )


def _check_distributed(config: TrainConfig) -> None:
    distributed = config.distributed
    address, count = distributed.coordinator, distributed.num_processes
    number, port = distributed.process_id, address.rpartition(":")[2]
    whole = port.isdecimal() and 0 <= number < count and distributed.enabled
    if (address, count, number) != ("", 0, -1) and not whole:
        raise UserError(
            "expected HOST:PORT, the number of processes and the number of this one, with "
            f"distributed.enabled, or none of the three, got {address!r}, {count} and {number}, "
            f"enabled: {distributed.enabled}",
            remedy="set `distributed.coordinator`, `distributed.num_processes`, "
            "`distributed.process_id` and `distributed.enabled=True`",
        )
    if distributed.enabled and config.devices:
        raise UserError(
            f"expected 0 with several processes, each of which uses all devices that it sees, got "
            f"{config.devices}",
            setting="devices",
            remedy="set `devices=0`",
        )
