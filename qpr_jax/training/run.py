"""From settings, which must fit each other, to a finished run in its folder."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from qpr_jax.data.log_clusters import content_hash
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, read_json, read_object, sha256_of, write_json
from qpr_jax.index.protocol import IndexConfig, check_index_config
from qpr_jax.training import cross_encoder_job, distributed, train
from qpr_jax.training.config import TrainConfig, fingerprint, flatten, gives_vectors, refuse_if
from qpr_jax.training.objectives import LOSSES, reads
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
            prepare, raw = source.prepare, path
            prepared = distributed.broadcast_from_first(lambda: str(prepare(config, raw, folder)))
            path = pathlib.Path(prepared)
        return dict(job.run(config, folder, path, models))


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
            before = read_object(folder / RUN_FILE)
            differences = [
                f"{name}: {before.get(name, '(none)')!r} there, {run.get(name, '(none)')!r} here"
                for name in sorted(before.keys() | run.keys())
                if before.get(name) != run.get(name)
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
