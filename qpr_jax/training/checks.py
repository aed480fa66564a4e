"""Rules that the settings of a training keep together, checked before it begins."""

from __future__ import annotations

from collections.abc import Iterable

from qpr_jax.index.protocol import IndexConfig, check_index_config
from qpr_jax.training.config import TrainConfig, gives_vectors
from qpr_jax.training.objectives import LOSSES, reads
from qpr_jax.training.sections import refuse_if
from qpr_jax.training.sources import SOURCES


def validate(config: TrainConfig) -> None:
    """Raise UserError for settings that do not fit each other, or that no registry has."""
    names, source = config.loss.names, config.data.source
    _require_choice("data.source", source, SOURCES)
    for name in names:
        _require_choice("loss.names", name, LOSSES)
    refuse_if(len({*names}) < len(names), "loss.names", f"must differ, got {','.join(names)}")
    several = config.distributed and config.devices
    refuse_if(several, "devices", f"must be 0 with `distributed=True`, got {config.devices}")
    if not config.encoder.pretrained:  # else the dimension is known when the folder is read
        check_index_config(IndexConfig(config.index.factory), config.encoder.output_dim)
    has_pairs = SOURCES[source].has_pairs
    if config.cross_encoder.first_stage:
        refuse_if(config.distributed, "distributed", "must be false for a cross-encoder")
        refuse_if(not config.batch_size, "batch_size", "must be above 0 for a cross-encoder, got 0")
        what = f"must have pairs for a cross-encoder, got {source!r}"
        refuse_if(not has_pairs, "data.source", what)
    else:
        _check_targets(config, has_pairs)
    _check_translations(config)


def _check_targets(config: TrainConfig, has_pairs: bool) -> None:
    """There is something to learn from, to score by and to re-rank by."""
    taught, epochs, metric = config.teacher.model, config.max_epochs, config.early_stopping.metric
    what = "must not be 0 with `max_epochs=0`: there is nothing to train"
    refuse_if(taught and not (epochs or config.teacher.epochs), "teacher.epochs", what)
    what = f"must be 0: a list of questions has no pairs, got {epochs}"
    refuse_if(taught and epochs and not has_pairs, "max_epochs", what)
    nothing = not taught and not (epochs and has_pairs) and not config.encoder.pretrained
    what = "there is nothing to train on: neither pairs nor a teacher"
    refuse_if(nothing, "", what, "set `teacher.model`, or, with pairs, `max_epochs=10`")
    what = "needs pairs and an encoder as `teacher.model`"
    unsorted = not (taught and epochs) or gives_vectors(config)
    refuse_if(config.teacher.lists and unsorted, "teacher.lists", what)
    untaught = {
        "loss.names": any(reads(name, "teacher") for name in config.loss.names),
        "early_stopping.metric": metric == "agreement",
        "data.parallel": config.data.parallel,
    }
    for name, learned in untaught.items():
        what = "learns the vectors of a teacher, and there is none"
        refuse_if(learned and not taught, name, what, "set `teacher.model`")
    what = f"must be agreement or translation: a list of questions has no pairs, got {metric}"
    unpaired = metric in ("mrr", "roc_auc") and not has_pairs
    refuse_if(unpaired, "early_stopping.metric", what)
    what = "must be 0: a list of questions has no pairs to learn from"
    refuse_if(config.rerank.candidates and not has_pairs, "rerank.candidates", what)


def _check_translations(config: TrainConfig) -> None:
    needing = {
        "data.parallel_tests": config.data.parallel_tests,
        "early_stopping.metric": config.early_stopping.metric == "translation",
    }
    for name, value in needing.items():
        what = "needs translations, got none"
        refuse_if(value and not config.data.parallel, name, what, "set `data.parallel`")


def _require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    refuse_if(value not in choices, name, f"must be {' or '.join(choices)}, got {value!r}")
