"""From settings to a finished run: `train_and_evaluate`, and the folder of the run."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import jax

from qpr_jax.data.log_clusters import content_hash
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, read_json, read_object, sha256_of, write_json
from qpr_jax.training import cross_encoder_job, distributed, train
from qpr_jax.training.checks import validate
from qpr_jax.training.config import TrainConfig, fingerprint, flatten
from qpr_jax.training.sources import SOURCES, listed_files
from qpr_jax.training.translations import translation_digests

log = logging.getLogger(__name__)

RUN_FILE = "run.json"
_PREPARED = ("splits", "clusters")  # what a run writes before its first step
# What `overwrite` removes. The first two mark what is finished, so that a kill leaves a whole run.
# The last two are left by a kill: files and folders that are renamed when they are whole.
_OUTPUTS = (
    "report.json",
    "export",
    *_PREPARED,
    "checkpoints",
    "evaluations.jsonl",
    "index",
    "metrics.jsonl",
    "ranks.npz",
    "report.md",
    "tensorboard",
    ".*.part",
    ".*.old",
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
    with distributed.connect_processes(config.distributed):
        try:
            return _train(config, workdir, overwrite)
        except UserError as error:  # of a function whose arguments are settings here
            error.remedy = re.sub("`(?=(skip_bad_rows|coherence)=)", "`data.", error.remedy)
            raise
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            what = f"out of memory ({str(error).splitlines()[0]})"
            remedy = "lower `batch.encode_chunk`, which changes no result, or `batch_size`"
            raise UserError(what, remedy=remedy) from error


def _train(config: TrainConfig, workdir: StrPath, overwrite: bool) -> dict[str, Any]:
    first, source = distributed.is_first(), SOURCES[config.data.source]
    job: Any = cross_encoder_job if config.cross_encoder.first_stage else train
    # Process 0 looks first, since it may have to download the data.
    path = distributed.in_turn(lambda: source.find(config) if source.find else None)
    models = job.read_models(config)
    run = fingerprint(config) | content_of(config, path, **models)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(workdir)
        if first:
            folder = stack.enter_context(open_workdir(workdir, run, overwrite=overwrite))
        # The chunk is no part of a run's fingerprint, but processes must compile one program.
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
            page = folder / ("report.md" if job is train else "report.json")
            log.info("%s is finished; see %s", folder, page)
            return dict(read_json(folder / "report.json"))
        if path and source.prepare:
            prepare, given = source.prepare, path
            made = distributed.broadcast_from_first(lambda: str(prepare(config, given, folder)))
            path = pathlib.Path(made)
        return dict(job.run(config, folder, path, models))


def content_of(
    config: TrainConfig, path: pathlib.Path | None = None, **models: Any
) -> dict[str, Any]:
    """Return what the data and the models that a run reads are by content, wherever they lie."""
    found: dict[str, Any] = {
        f"{k}.fingerprint": one.fingerprint for k, one in models.items() if one
    }
    if path:
        found["data.sha256"] = content_hash(path)
    if config.teacher.model and not models.get("teacher"):
        vectors_file = pathlib.Path(config.teacher.model)
        found["teacher.fingerprint"] = sha256_of(vectors_file) if vectors_file.is_file() else ""
    for name in ("data.unlabeled", "data.labels"):
        if listed_files(config, name):
            found[f"{name}.sha256"] = content_hash(flatten(config)[name])
    return found | translation_digests(config)


@contextlib.contextmanager
def open_workdir(
    workdir: StrPath, run: dict[str, Any], *, overwrite: bool = False
) -> Iterator[pathlib.Path]:
    """Lock `workdir`, a folder made if it is missing, and write there what identifies the run.

    `overwrite` removes a run that is there. UserError where the folder holds a run with other
    settings, or files that are not of a run, or another process uses it.
    """
    run, folder = {"format": 1} | run, pathlib.Path(workdir)
    if not str(workdir) or (folder.exists() and not folder.is_dir()):
        raise UserError(f"expected a folder, got {str(workdir)!r}", setting="workdir")
    with locked(folder / ".lock", busy=f"{folder}: another process works in this folder"):
        if not (folder / RUN_FILE).exists():
            if foreign := _names(folder):
                what = f"expected an empty folder or a run, found {foreign[0]!r} and no {RUN_FILE}"
                raise UserError(f"{folder}: {what}", remedy="give another work directory")
        elif overwrite:
            _remove_run(folder)
        else:
            known = read_object(folder / RUN_FILE)
            differences = [
                f"{name}: {known.get(name, '(none)')!r} there, {run.get(name, '(none)')!r} here"
                for name in sorted(known.keys() | run.keys())
                if known.get(name) != run.get(name)
            ]
            if differences:
                what = f"{folder} holds a run with other settings: {', '.join(differences)}"
                remedy = "use those, or another work directory, or replace it with `overwrite=True`"
                raise UserError(what, remedy=remedy)
        write_json(folder / RUN_FILE, run)
        try:
            yield folder
        except UserError:
            # Nothing was trained yet, so the next command may have other settings.
            if {*_names(folder)} <= {RUN_FILE, *_PREPARED}:
                _remove_run(folder)
                (folder / RUN_FILE).unlink()
            raise


def _names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def _remove_run(folder: pathlib.Path) -> None:
    for pattern in _OUTPUTS:
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
