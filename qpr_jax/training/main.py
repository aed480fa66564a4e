"""From settings to a finished run: `train_and_evaluate`."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from typing import Any

import jax

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, read_json
from qpr_jax.training import cross_encoder_job, distributed, encoder_job
from qpr_jax.training.checks import validate
from qpr_jax.training.config import TrainConfig, identity
from qpr_jax.training.sources import SOURCES
from qpr_jax.training.workdir import open_workdir

log = logging.getLogger(__name__)

_JOBS: dict[str, Any] = {"encoder": encoder_job, "cross_encoder": cross_encoder_job}


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
    with distributed.connect_processes(config.distributed):
        try:
            return _train(config, workdir, overwrite)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            what = f"out of memory ({str(error).splitlines()[0]})"
            remedy = "lower `batch.encode_chunk`, which changes no result, or `batch_size`"
            raise UserError(what, remedy=remedy) from error


def _train(config: TrainConfig, workdir: StrPath, overwrite: bool) -> dict[str, Any]:
    first, source = distributed.is_first(), SOURCES[config.data.source]
    job = _JOBS[config.job]
    # Process 0 looks first, since it may have to download the data.
    path = distributed.in_turn(lambda: source.find(config) if source.find else None)
    models = job.read_models(config)
    run = identity(config) | encoder_job.content_of(config, path, **models)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(workdir)
        if first:
            folder = stack.enter_context(open_workdir(workdir, run, overwrite=overwrite))
        # The chunk is no part of a run's identity, but processes must compile one program.
        ours = run | {"batch.encode_chunk": config.batch.encode_chunk}
        for name, value in distributed.broadcast_from_first(lambda: ours).items():
            if ours.get(name) != value:
                what = f"expected {value!r}, as in process 0, got {ours.get(name)!r}"
                remedy = "start all processes with the same settings and data"
                raise UserError(what, setting=name, remedy=remedy)
        if distributed.broadcast_from_first((folder / "report.json").exists):
            distributed.disconnect()
            if not first:
                return {}
            page = folder / ("report.md" if config.job == "encoder" else "report.json")
            log.info("%s is finished; see %s", folder, page)
            return dict(read_json(folder / "report.json"))
        if path and source.prepare:
            prepare, given = source.prepare, path
            made = distributed.broadcast_from_first(lambda: str(prepare(config, given, folder)))
            path = pathlib.Path(made)
        return dict(job.run(config, folder, path, models))
