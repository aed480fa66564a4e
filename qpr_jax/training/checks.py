"""Rules that the settings of a training keep together, checked before it begins."""

from __future__ import annotations

from collections.abc import Iterable

from qpr_jax.index.recipe import Recipe, check_recipe
from qpr_jax.training.config import TrainConfig, gives_vectors, has_teacher
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.objectives import LOSSES, reads
from qpr_jax.training.sections import refuse_if
from qpr_jax.training.sources import SOURCES


def validate(config: TrainConfig) -> None:
    """Raise UserError for settings that do not fit each other, or that no registry has."""
    _require_choice("data.source", config.data.source, SOURCES)
    _require_choice("encoder.kind", config.encoder.kind, MODEL_FAMILIES)
    names, weights = config.loss.names, config.loss.weights
    for name in names:
        _require_choice("loss.names", name, LOSSES)
    refuse_if(len({*names}) < len(names), "loss.names", f"must differ, got {','.join(names)}")
    what = f"must be empty or a number for each of {','.join(names)}, got {weights}"
    refuse_if(weights and len(weights) != len(names), "loss.weights", what)
    several = config.distributed and config.devices
    refuse_if(several, "devices", f"must be 0 with `distributed=True`, got {config.devices}")
    if not config.encoder.pretrained:  # else these are known when the folder is read
        recipe = Recipe(config.index.factory, probes=config.index.probes)
        check_recipe(recipe, config.encoder.output_dim)
    kind, source = config.encoder.kind, config.data.source
    if config.job == "cross_encoder":
        refuse_if(kind != "bert", "encoder.kind", f"must be bert for a cross-encoder, got {kind!r}")
        refuse_if(config.distributed, "distributed", "must be false for a cross-encoder")
        what = f"must have pairs for a cross-encoder, got {source!r}"
        refuse_if(not SOURCES[source].has_pairs, "data.source", what)
    unread = config.data.negatives and not config.batch.hard_negatives
    refuse_if(unread, "batch.hard_negatives", "must be above 0 with `data.negatives`, got 0")
    _check_targets(config)
    _check_translations(config)


def _check_targets(config: TrainConfig) -> None:
    """There is something to learn from, to score by and to re-rank by."""
    has_pairs, taught = SOURCES[config.data.source].has_pairs, has_teacher(config)
    epochs, metric = config.max_epochs, config.early_stopping.metric
    what = "must not be 0 with `max_epochs=0`: there is nothing to train"
    refuse_if(taught and not (epochs or config.teacher.epochs), "teacher.epochs", what)
    what = f"must be 0: a list of questions has no pairs, got {epochs}"
    refuse_if(taught and epochs and not has_pairs, "max_epochs", what)
    nothing = not taught and not (epochs and has_pairs) and not config.encoder.pretrained
    what = "there is nothing to train on: neither pairs nor a teacher"
    refuse_if(nothing, "", what, "set `teacher.model`, or, with pairs, `max_epochs=10`")
    what = "reads the vectors of a teacher, and there is none"
    reading = any(reads(loss, "teacher") for loss in config.loss.names)
    refuse_if(reading and not taught, "loss.names", what, "set `teacher.model`")
    what = "needs pairs and an encoder as `teacher.model`"
    unsorted = not (taught and epochs) or gives_vectors(config)
    refuse_if(config.teacher.lists and unsorted, "teacher.lists", what)
    name = "early_stopping.metric"
    what = "cannot be agreement: there is no teacher"
    refuse_if(metric == "agreement" and not taught, name, what, "set `teacher.model`")
    what = f"must be agreement or translation: a list of questions has no pairs, got {metric}"
    refuse_if(metric in ("mrr", "roc_auc") and not has_pairs, name, what)
    what = "must be 0: a list of questions has no pairs to learn from"
    refuse_if(config.rerank.candidates and not has_pairs, "rerank.candidates", what)


def _check_translations(config: TrainConfig) -> None:
    parallel = config.data.parallel
    lacking = parallel and config.job == "encoder" and not has_teacher(config)
    what = "must be empty: translations learn the vectors of a teacher, and there is none"
    remedy = "set `teacher.model`, or leave out `data.parallel`"
    refuse_if(lacking, "data.parallel", what, remedy)
    needing = {
        "batch.translations": config.batch.translations,
        "data.word_translated": config.data.word_translated,
        "data.parallel_tests": config.data.parallel_tests,
        "early_stopping.metric": config.early_stopping.metric == "translation",
    }
    for name, given in needing.items():
        what = "needs translations, got none"
        refuse_if(given and not parallel, name, what, "set `data.parallel`")


def _require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    refuse_if(value not in choices, name, f"must be {' or '.join(choices)}, got {value!r}")
