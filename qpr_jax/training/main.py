"""From settings to a finished run: train, export, index, evaluate, report."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from qpr_jax.data.sources import find_logs, find_questions, find_quora
from qpr_jax.data.splits import write_splits
from qpr_jax.distant import content_hash, make_folder
from qpr_jax.distant.folder import is_made, read_report
from qpr_jax.distant.logs import Logs, log_files
from qpr_jax.distant.method import LEAST, Method
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import save_encoder
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.errors import UserError, spell
from qpr_jax.files import Path, read_json, sha256_of
from qpr_jax.index.question_index import build_index
from qpr_jax.retriever import Retriever, run_encoder, run_recipe
from qpr_jax.training import distributed
from qpr_jax.training.checks import unused_settings, validate
from qpr_jax.training.config import (
    TrainConfig,
    identity,
    read,
    trains,
)
from qpr_jax.training.dataset import TrainDataset, load_dataset, unlabeled_files, with_teacher
from qpr_jax.training.losses_config import LOSSES
from qpr_jax.training.model_families import exported
from qpr_jax.training.report import write_report
from qpr_jax.training.stages import first_encoder
from qpr_jax.training.trainer import train
from qpr_jax.training.workdir import open_workdir

log = logging.getLogger(__name__)

CLUSTERS = "clusters"  # of logs, in a work directory
_WARMED = 256  # questions


def train_and_evaluate(config: TrainConfig, workdir: Path) -> dict[str, Any]:
    """Run the experiment of `config` in `workdir`, or resume it, and return its report.

    A run can be killed at any moment: the same call resumes it; a finished run is not repeated.
    Several processes (`config.distributed`) share a work directory: process 0 writes it and returns
    the report, the others return an empty dictionary.

    Args:
      config: see `TrainConfig`.
      workdir: a folder that is new, empty or holds this run; BUILD.md lists what is written there.

    Returns:
      What report.json holds: scores, times, config, machine.

    Raises:
      UserError: a setting, the data or the work directory is wrong, or the loss is not finite.
      Interrupted: SIGTERM or Ctrl-C came; the state is saved.
    """
    validate(config)
    if unused := unused_settings(config):
        names = ", ".join(spell(f"{{{name}}}") for name in unused)
        log.warning("no effect with the other settings: %s", names)
    angular = [name for name in config.loss.names if LOSSES[name].angular(config.loss)]
    lengths_vary = config.encoder.kind == "cnn" and not config.encoder.normalize
    if angular and config.max_epochs and lengths_vary:
        log.warning(
            "the loss %s compares directions, but searches go by distance, which orders vectors of "
            "different lengths differently; %s",
            angular[0],
            spell("set {encoder.normalize=True}"),
        )
    with distributed.connect_processes(config.distributed):
        try:
            return _train_and_evaluate(config, workdir)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise UserError(
                f"out of memory ({str(error).splitlines()[0]})",
                remedy="lower {batch.encode_chunk}, which changes no result, or {batch_size}",
            ) from error


def _train_and_evaluate(config: TrainConfig, workdir: Path) -> dict[str, Any]:
    first = distributed.is_first()
    path = None
    run = identity(config)
    if config.data.source == "quora":
        if first:  # which may have to fetch it, for all on this machine
            path = find_quora(config.data.path, log=log.info)
        distributed.broadcast_from_first(lambda: None)
        path = path or find_quora(config.data.path, log=log.info)
        run["data.sha256"] = sha256_of(path)
    elif config.data.source == "qa_logs":
        path = find_logs(config.data.path)
        run["data.sha256"] = content_hash(path)
    elif config.data.source == "questions":
        path = find_questions(config.data.path)
        run["data.sha256"] = sha256_of(path)
    pretrained, teacher, more = _models(config)
    run |= more
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(workdir)
        if first:
            folder = stack.enter_context(open_workdir(workdir, run, overwrite=config.overwrite))
        # Chunks are no part of a run's identity, but processes must compile one program.
        ours = run | {"batch.encode_chunk": config.batch.encode_chunk}
        _refuse_other_run(ours, distributed.broadcast_from_first(lambda: ours))
        finished, trained = distributed.broadcast_from_first(
            lambda: [(folder / name).exists() for name in ("report.json", "export")]
        )
        if finished:
            log.info("%s is finished; see %s", folder, folder / "report.md")
        if finished or trained:
            distributed.disconnect()
        if finished or (trained and not first):
            return read_json(folder / "report.json") if first else {}
        if path and config.data.source == "qa_logs":
            if first:
                _make_clusters(config, path, folder / CLUSTERS)
            distributed.broadcast_from_first(lambda: None)
            path = folder / CLUSTERS if (folder / CLUSTERS).exists() else path
        dataset = load_dataset(config, path, pretrained)
        if first:  # which computes and keeps the teacher's vectors, for all on this machine
            ready = with_teacher(config, dataset, teacher)
            data = dataset.data
            write_splits(folder / "splits", dataset.splits, data.ids, data.questions)
        if not trained:  # else the others have left
            distributed.broadcast_from_first(lambda: None)
        dataset = ready if first else with_teacher(config, dataset, teacher)
        if not trained:
            if trains(config):
                params = train(config, dataset, folder)
            else:
                _, params = first_encoder(config, dataset)
            distributed.disconnect()
            if not first:
                return {}
            save_encoder(folder / "export", exported(params, dataset, config))
            del params
        retriever, vectors, seconds = _indexed(folder, dataset)
        report = write_report(folder, config, dataset, retriever, vectors, encode_seconds=seconds)
        log.info("finished; see %s", folder / "report.md")
        return report


def _indexed(folder: pathlib.Path, dataset: TrainDataset) -> tuple[Retriever, np.ndarray, float]:
    """The index of all questions, written to `folder`; their vectors, and the time these took."""
    encoder = run_encoder(folder)
    questions, ids = dataset.data.questions, dataset.data.ids.tolist()
    encoder.encode(questions[:_WARMED])  # compiles
    start = time.perf_counter()
    vectors = encoder.encode(questions)
    seconds = time.perf_counter() - start
    log.info("encoded %s questions in %.1f s", f"{len(vectors):,}", seconds)
    row_of = {question: row for row, question in enumerate(questions)}

    def known(texts: Sequence[str]) -> np.ndarray:
        return vectors[[row_of[text] for text in texts]]

    start = time.perf_counter()
    recipe = run_recipe(encoder)
    index = build_index(
        known, questions, ids, recipe=recipe, encoder=encoder.identity, log=log.info
    )
    retriever = Retriever(encoder, index)
    retriever.save(folder)
    log.info("index: built in %.0f s", time.perf_counter() - start)
    return retriever, vectors, seconds


def _models(
    config: TrainConfig,
) -> tuple[TransformerEncoder | None, Encoder | None, dict[str, Any]]:
    """What training starts from, its teacher, and what these and more questions are by content."""
    run: dict[str, Any] = {}
    pretrained = None
    if config.encoder.kind == "bert":
        found = _encoder_of(config, "encoder.pretrained")
        if not isinstance(found, TransformerEncoder):
            raise UserError(
                "expected a folder in the format of sentence-transformers, got "
                f"{config.encoder.pretrained!r}",
                setting="encoder.pretrained",
            )
        pretrained, run["pretrained.identity"] = found, found.identity
    teacher = _encoder_of(config, "teacher.model") if config.teacher.model else None
    if teacher:
        run["teacher.identity"] = teacher.identity
    elif config.teacher.vectors:
        given = pathlib.Path(config.teacher.vectors).expanduser()
        run["teacher.identity"] = sha256_of(given) if given.is_file() else ""
    if config.data.unlabeled:
        run["data.unlabeled.sha256"] = [sha256_of(file) for file in unlabeled_files(config)]
    return pretrained, teacher, run


def _encoder_of(config: TrainConfig, name: str) -> Encoder:
    """The encoder whose folder the setting `name` gives."""
    try:
        return run_encoder(os.path.expanduser(read(config, name)))
    except UserError as error:
        raise UserError(error.what, setting=name, remedy=error.remedy) from error


def _make_clusters(config: TrainConfig, logs: pathlib.Path, folder: pathlib.Path) -> None:
    """Clusters of logs, once, unless they are a folder of clusters themselves."""
    if is_made(logs):
        _refuse_other_method(config, logs)
        return
    if folder.exists():
        return
    data = config.data
    least = LEAST[data.coherence] if data.min_coherence == -1 else data.min_coherence
    method = Method(data.coherence, least, data.pairs_per_cluster, data.split_seed)
    given = Logs(log_files([str(logs)]), data.question_column, data.answer_column)
    make_folder(folder, given, method, skip_bad_rows=data.skip_bad_rows)


def _refuse_other_method(config: TrainConfig, folder: pathlib.Path) -> None:
    """Raise UserError where a setting is not its default, nor that of the clusters."""
    method, data = read_report(folder)["method"], config.data
    for name, made in (
        ("coherence", method["coherence"]),
        ("min_coherence", method["least"]),
        ("pairs_per_cluster", method["pairs_of_a_cluster"]),
        ("split_seed", method["seed"]),
    ):
        if getattr(data, name) not in (getattr(TrainConfig().data, name), made):
            raise UserError(
                f"{folder}: expected clusters made with {getattr(data, name)}, got {made}",
                setting=f"data.{name}",
                remedy="make them again with `qpr clusters`, or leave the setting out",
            )


def _refuse_other_run(ours: dict[str, Any], firsts: dict[str, Any]) -> None:
    """Raise UserError where this process has other settings or data than process 0."""
    for name, value in firsts.items():
        if ours.get(name) != value:
            raise UserError(
                f"expected {value!r}, as in process 0, got {ours.get(name)!r}",
                setting=name,
                remedy="start all processes with the same settings and data",
            )
