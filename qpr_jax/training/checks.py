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


def _refuse(broken: object, setting: str, what: str, remedy: str = "") -> None:
    """Raise UserError if a rule is broken."""
    if broken:
        raise UserError(what, setting=setting, remedy=remedy)


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    _refuse(value not in choices, name, f"must be {' or '.join(choices)}, got {value!r}")


def _check_cross_encoder(config: TrainConfig) -> None:
    kind, source = config.encoder.kind, config.data.source
    _refuse(
        kind != "bert",
        "encoder.kind",
        f"must be bert for a cross-encoder, got {kind!r}",
        "set `encoder.kind=bert` and `encoder.pretrained`",
    )
    _refuse(
        not SOURCES[source].has_pairs,
        "data.source",
        f"must have pairs for a cross-encoder, got {source!r}",
    )
    _refuse(
        config.distributed,
        "distributed",
        "must be false: a cross-encoder trains in one process",
        "set `distributed=False`",
    )


def _check_losses(config: TrainConfig) -> None:
    names, weights = config.loss.names, config.loss.weights
    for name in names:
        _check_choice("loss.names", name, loss_names())
    _refuse(len({*names}) < len(names), "loss.names", f"must differ, got {','.join(names)}")
    _refuse(
        weights and len(weights) != len(names),
        "loss.weights",
        f"must be empty or a number for each of {','.join(names)}, got {weights}",
    )


def _check_encoder(config: TrainConfig) -> None:
    family, settings = MODEL_FAMILIES[config.encoder.kind], config.encoder
    _refuse(
        family.needs_start and not settings.pretrained,
        "encoder.pretrained",
        f"must name a folder to start from: {settings.kind} has no fresh weights",
        "set it, or another `encoder.kind`",
    )
    family.check(config)
    if not settings.pretrained:  # else the dimension is known when the folder is read
        check_recipe(Recipe(config.index.factory, probes=config.index.probes), settings.output_dim)


def _check_added_words(config: TrainConfig) -> None:
    """Raise UserError where there is nothing to add words to or from, or more would be trained."""
    if not config.text.added_words:
        return
    kind, start = config.encoder.kind, config.encoder.pretrained
    _refuse(
        kind != "cnn" or not start,
        "text.added_words",
        f"must be 0: only a pretrained cnn gets words, got kind {kind!r} and {start or 'none'}",
        "set `encoder.pretrained` to its run, or `text.added_words=0`",
    )
    _refuse(
        not config.data.parallel,
        "text.added_words",
        "must be 0: there are no translations with words to add",
        "set `data.parallel`, or `text.added_words=0`",
    )
    _refuse(
        config.max_epochs,
        "max_epochs",
        f"must be 0 where words are added: few pairs have them, got {config.max_epochs}",
        "set `max_epochs=0`",
    )


def _check_teacher(config: TrainConfig) -> None:
    teacher, metric = config.teacher, config.early_stopping.metric
    has_pairs, taught = SOURCES[config.data.source].has_pairs, has_teacher(config)
    _refuse(
        teacher.words and gives_vectors(config),
        "teacher.words",
        "must be false: the teacher is a file of vectors, not an encoder",
        "set `teacher.words=False`",
    )
    _refuse(
        taught and not config.max_epochs and not teacher.epochs,
        "",
        "there is nothing to train: `teacher.epochs` and `max_epochs` are 0",
        "set one of them",
    )
    _refuse(
        taught and not has_pairs and config.max_epochs,
        "max_epochs",
        f"must be 0: a list of questions has no pairs, got {config.max_epochs}",
        "set `max_epochs=0`",
    )
    _refuse(
        not taught and not (has_pairs and config.max_epochs) and not config.encoder.pretrained,
        "",
        "there is nothing to train on: neither pairs nor a teacher",
        "set `teacher.model`, or, with pairs, `max_epochs=10`",
    )
    _refuse(
        metric == "agreement" and not taught,
        "early_stopping.metric",
        "cannot be agreement: there is no teacher",
        "set `teacher.model`",
    )
    _refuse(
        not has_pairs and metric not in ("agreement", "translation"),
        "early_stopping.metric",
        f"must be agreement or translation: a list of questions has no pairs, got {metric}",
        "set `early_stopping.metric=agreement`",
    )


def _check_translations(config: TrainConfig) -> None:
    _refuse(
        config.early_stopping.metric == "translation" and not config.data.parallel,
        "early_stopping.metric",
        "cannot be translation: there are no translations to score",
        "set `data.parallel`, or another metric",
    )
    _refuse(
        config.data.parallel and not has_teacher(config),
        "data.parallel",
        "must be empty: translations learn the vectors of a teacher, and there is none",
        "set `teacher.model`, or leave out `data.parallel`",
    )
    _refuse(
        config.batch.translations and not config.data.parallel,
        "batch.translations",
        f"must be 0: there are no translations, got {config.batch.translations:g}",
        "set `data.parallel`, or `batch.translations=0`",
    )


def _check_rerank(config: TrainConfig) -> None:
    has_pairs, candidates = SOURCES[config.data.source].has_pairs, config.rerank.candidates
    _refuse(
        candidates and not (has_pairs or has_teacher(config)),
        "rerank.candidates",
        f"must be 0: there are neither pairs nor a teacher to learn from, got {candidates}",
        "set it to 0, or set `teacher.model`",
    )


def _check_distributed(config: TrainConfig) -> None:
    _refuse(
        config.distributed and config.devices,
        "devices",
        f"must be 0: each of several processes uses all devices that it sees, got {config.devices}",
        "set `devices=0`",
    )
