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
from ml_collections import ConfigDict

from qpr_jax.data.sources import find_logs, find_questions, find_quora
from qpr_jax.data.splits import write_splits
from qpr_jax.distant import content_hash, make_folder
from qpr_jax.distant.folder import is_made, read_report
from qpr_jax.distant.logs import Logs, log_files
from qpr_jax.distant.method import LEAST, Method
from qpr_jax.encoders.load import Encoder
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.errors import UserError
from qpr_jax.files import Path, read_json, sha256_of
from qpr_jax.index.question_index import build_index
from qpr_jax.retriever import Retriever, run_encoder, run_recipe
from qpr_jax.training import distributed
from qpr_jax.training.checks import unused_settings, validate
from qpr_jax.training.config import (
    LABELLED_LOSSES,
    default_settings,
    flatten,
    identity,
    trains,
    weighted_losses,
)
from qpr_jax.training.dataset import TrainDataset, load_dataset, unlabelled_files, with_teacher
from qpr_jax.training.model_families import exported
from qpr_jax.training.report import write_report
from qpr_jax.training.stages import first_encoder
from qpr_jax.training.trainer import train
from qpr_jax.training.workdir import open_workdir

log = logging.getLogger(__name__)

CLUSTERS = "clusters"  # of logs, in a work directory
_WARMED = 256  # questions


def train_and_evaluate(settings: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Run the experiment that `settings` describes in `workdir`, or go on with it; its report.

    A run can be killed at any moment: the same call resumes it, and a finished run is not run
    again. See `settings.default_settings` for the settings and BUILD.md for what a work directory
    holds. Several processes (`settings.distributed`) share a work directory; the first of them
    writes and reports, the others return nothing, and one that fails ends (see
    `distributed.connect_processes`).

    Raises:
      UserError: a setting, the data or the work directory is not as it must be, or the loss is
        not finite.
      Interrupted: a signal asked for the end; the state is saved.
    """
    validate(settings)
    if unread := unused_settings(settings):
        log.warning("no effect with these settings: %s", ", ".join(unread))
    angular = {"ranking"} | ({*LABELLED_LOSSES} if settings.pair_distance == "cosine" else set())
    trained = weighted_losses(settings).keys() if settings.max_epochs else ()
    if angular.intersection(trained) and settings.encoder == "cnn" and not settings.normalize:
        log.warning(
            "`loss=%s`: searches go by distance, which orders vectors of different lengths "
            "otherwise than their similarity; set `--config.normalize=True`",
            settings.loss,
        )
    with distributed.connect_processes(settings.distributed):
        try:
            return _train_and_evaluate(settings, workdir)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise UserError(
                f"out of memory ({str(error).splitlines()[0]}); lower `--config.encode_chunk`, "
                "which changes no result, or `--config.batch_size`"
            ) from error


def _train_and_evaluate(settings: ConfigDict, workdir: Path) -> dict[str, Any]:
    first = distributed.is_first()
    path = None
    run = identity(settings)
    if settings.data.source == "quora":
        if first:  # which may have to fetch it, for all on this machine
            path = find_quora(settings.data.path, log=log.info)
        distributed.broadcast_from_first(lambda: None)
        path = path or find_quora(settings.data.path, log=log.info)
        run["data.sha256"] = sha256_of(path)
    elif settings.data.source == "qa_logs":
        path = find_logs(settings.data.path)
        run["data.sha256"] = content_hash(path)
    elif settings.data.source == "questions":
        path = find_questions(settings.data.path)
        run["data.sha256"] = sha256_of(path)
    pretrained, teacher, more = _models(settings)
    run |= more
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(workdir)
        if first:
            folder = stack.enter_context(open_workdir(workdir, run, overwrite=settings.overwrite))
        # Chunks are no part of a run's identity, but processes must compile one program.
        ours = run | {"encode_chunk": settings.encode_chunk}
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
        if path and settings.data.source == "qa_logs":
            if first:
                _make_clusters(settings, path, folder / CLUSTERS)
            distributed.broadcast_from_first(lambda: None)
            path = folder / CLUSTERS if (folder / CLUSTERS).exists() else path
        dataset = load_dataset(settings, path, pretrained)
        if first:  # which computes and keeps the teacher's vectors, for all on this machine
            ready = with_teacher(settings, dataset, teacher)
            data = dataset.data
            write_splits(folder / "splits", dataset.splits, data.ids, data.questions)
        if not trained:  # else the others have left
            distributed.broadcast_from_first(lambda: None)
        dataset = ready if first else with_teacher(settings, dataset, teacher)
        if not trained:
            if trains(settings):
                params = train(settings, dataset, folder)
            else:
                _, params = first_encoder(settings, dataset)
            distributed.disconnect()
            if not first:
                return {}
            exported(params, dataset, settings).save(folder / "export")
            del params
        retriever, vectors, seconds = _indexed(folder, dataset)
        report = write_report(folder, settings, dataset, retriever, vectors, encode_seconds=seconds)
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
    settings: ConfigDict,
) -> tuple[TransformerEncoder | None, Encoder | None, dict[str, Any]]:
    """What training starts from, its teacher, and what these and more questions are by content."""
    run: dict[str, Any] = {}
    pretrained = None
    if settings.encoder == "bert":
        found = _encoder_of(settings, "pretrained")
        if not isinstance(found, TransformerEncoder):
            raise UserError(
                f"`pretrained`: expected a folder in the format of sentence-transformers, got "
                f"{settings.pretrained!r}; set `--config.pretrained`"
            )
        pretrained, run["pretrained.identity"] = found, found.identity
    teacher = _encoder_of(settings, "teacher.model") if settings.teacher.model else None
    if teacher:
        run["teacher.identity"] = teacher.identity
    elif settings.teacher.vectors:
        given = pathlib.Path(settings.teacher.vectors).expanduser()
        run["teacher.identity"] = sha256_of(given) if given.is_file() else ""
    if settings.data.unlabelled:
        run["data.unlabelled.sha256"] = [sha256_of(file) for file in unlabelled_files(settings)]
    return pretrained, teacher, run


def _encoder_of(settings: ConfigDict, name: str) -> Encoder:
    """The encoder that a setting names."""
    try:
        return run_encoder(os.path.expanduser(flatten(settings)[name]))
    except UserError as error:
        raise UserError(f"`{name}`: {error}") from error


def _make_clusters(settings: ConfigDict, logs: pathlib.Path, folder: pathlib.Path) -> None:
    """Clusters of logs, once, unless they are a folder of clusters themselves."""
    if is_made(logs):
        _refuse_other_method(settings, logs)
        return
    if folder.exists():
        return
    data = settings.data
    least = LEAST[data.coherence] if data.min_coherence == -1 else data.min_coherence
    method = Method(data.coherence, least, data.pairs_per_cluster, data.split_seed)
    given = Logs(log_files([str(logs)]), data.question, data.answer)
    make_folder(folder, given, method, skip_bad_rows=data.skip_bad_rows)


def _refuse_other_method(settings: ConfigDict, folder: pathlib.Path) -> None:
    """UserError where settings were changed to others than the clusters were made with."""
    method, default = read_report(folder)["method"], default_settings().data
    for name, made in (
        ("coherence", method["coherence"]),
        ("min_coherence", method["least"]),
        ("pairs_per_cluster", method["pairs_of_a_cluster"]),
        ("split_seed", method["seed"]),
    ):
        if settings.data[name] not in (default[name], made):
            raise UserError(
                f"{folder}: expected clusters made with `data.{name}` {settings.data[name]}, got "
                f"{made}; make them anew with `qpr clusters`, or leave the setting out"
            )


def _refuse_other_run(ours: dict[str, Any], firsts: dict[str, Any]) -> None:
    """UserError where this process was started with other settings or data than the first."""
    for name, value in firsts.items():
        if ours.get(name) != value:
            raise UserError(
                f"`{name}`: expected {value!r}, as in process 0, got {ours.get(name)!r}; start all "
                "processes with the same settings and data"
            )
