"""From settings to a finished run: `train_and_evaluate`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.training import distributed
from qpr_jax.training.config import TrainConfig, has_teacher, override
from qpr_jax.training.cross_encoder_job import train_cross_encoder
from qpr_jax.training.encoder_job import train_encoder
from qpr_jax.training.losses_config import LOSSES, loss_names
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.sections import refuse_if, require_choice
from qpr_jax.training.sources import SOURCES

log = logging.getLogger(__name__)

# What a config trains: `job` -> the whole of it, from the settings to the report.
JOBS: dict[str, Callable[[TrainConfig, StrPath, bool], dict[str, Any]]] = {
    "encoder": train_encoder,
    "cross_encoder": train_cross_encoder,
}


def validate(config: TrainConfig) -> None:
    """Raise UserError for settings that do not fit each other, or that no registry has."""
    override(config, {})
    require_choice("data.source", config.data.source, SOURCES)
    require_choice("encoder.kind", config.encoder.kind, MODEL_FAMILIES)
    for name in config.loss.names:
        require_choice("loss.names", name, loss_names())
    MODEL_FAMILIES[config.encoder.kind].check(config)
    _check_source(config)


def _check_source(config: TrainConfig) -> None:
    """Refuse a training without anything to learn from, to score by, or to re-rank by."""
    has_pairs, taught = SOURCES[config.data.source].has_pairs, has_teacher(config)
    metric, candidates = config.early_stopping.metric, config.rerank.candidates
    refuse_if(
        config.job == "cross_encoder" and not has_pairs,
        "data.source",
        f"must have pairs for a cross-encoder, got {config.data.source!r}",
    )
    refuse_if(
        taught and not has_pairs and config.max_epochs,
        "max_epochs",
        f"must be 0: a list of questions has no pairs, got {config.max_epochs}",
    )
    refuse_if(
        not taught and not (has_pairs and config.max_epochs) and not config.encoder.pretrained,
        "",
        "there is nothing to train on: neither pairs nor a teacher",
        "set `teacher.model`, or, with pairs, `max_epochs=10`",
    )
    refuse_if(
        not has_pairs and metric not in ("agreement", "translation"),
        "early_stopping.metric",
        f"must be agreement or translation: a list of questions has no pairs, got {metric}",
    )
    refuse_if(
        candidates and not (has_pairs or taught),
        "rerank.candidates",
        f"must be 0: there are neither pairs nor a teacher to learn from, got {candidates}",
    )


def train_and_evaluate(
    config: TrainConfig, workdir: StrPath, *, overwrite: bool = False
) -> dict[str, Any]:
    """Run the experiment of `config` in `workdir`, or resume it, and return its report.json.

    A run can be killed at any moment: the same call resumes it. A finished run is not repeated.
    Several processes (`config.distributed`) share a work directory: process 0 writes it and returns
    the report, the others return an empty dictionary.

    Args:
      config: all settings.
      workdir: a folder that is new, empty or holds this run. docs/files.md lists what is written.
      overwrite: remove a run that is there, and start again.

    Raises:
      UserError: a setting, the data or the work directory is wrong, or training diverged.
      Interrupted: SIGTERM or Ctrl-C came; the state is saved.
    """
    validate(config)
    angular = [name for name in config.loss.names if LOSSES[name].angular]
    if angular and config.max_epochs and MODEL_FAMILIES[config.encoder.kind].lengths_vary(config):
        log.warning(
            "the loss %s compares directions, but searches go by distance, which orders vectors of "
            "different lengths differently; set `encoder.normalize=True`",
            angular[0],
        )
    with distributed.connect_processes(config.distributed):
        try:
            return JOBS[config.job](config, workdir, overwrite)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise UserError(
                f"out of memory ({str(error).splitlines()[0]})",
                remedy="lower `batch.encode_chunk`, which changes no result, or `batch_size`",
            ) from error
