"""From settings to a finished run: `train_and_evaluate`."""

from __future__ import annotations

from typing import Any

import jax

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.training import distributed
from qpr_jax.training.checks import validate
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.cross_encoder_job import train_cross_encoder
from qpr_jax.training.encoder_job import train_encoder


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
    train = train_encoder if config.job == "encoder" else train_cross_encoder
    with distributed.connect_processes(config.distributed):
        try:
            return train(config, workdir, overwrite)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise UserError(
                f"out of memory ({str(error).splitlines()[0]})",
                remedy="lower `batch.encode_chunk`, which changes no result, or `batch_size`",
            ) from error
