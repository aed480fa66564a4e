"""From settings to a finished run: train, export, index, train a re-ranker, report."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from qpr_jax.data.splits import write_splits
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import save_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, read_json, sha256_of
from qpr_jax.index.base import Question
from qpr_jax.index.folder import FolderStore
from qpr_jax.reranking.cross_encoder import CrossEncoder
from qpr_jax.retriever import Retriever, run_encoder, run_recipe
from qpr_jax.training import distributed
from qpr_jax.training.checks import validate
from qpr_jax.training.config import TrainConfig, identity, trains
from qpr_jax.training.cross_encoder import train_cross_encoder
from qpr_jax.training.dataset import TrainDataset, load_dataset, with_teacher
from qpr_jax.training.lists import listed_files
from qpr_jax.training.losses_config import LOSSES
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.negatives import negatives_file
from qpr_jax.training.pair_calibration import calibrate_pairs
from qpr_jax.training.report import add_stacked, write_report
from qpr_jax.training.reranker import (
    lacks_stacked,
    mark_too_few,
    read_scorer,
    train_light,
    train_stacked,
)
from qpr_jax.training.sources import SOURCES, Source, labels_digest
from qpr_jax.training.stages import init_model
from qpr_jax.training.teacher import read_teacher, teacher_words
from qpr_jax.training.trainer import train
from qpr_jax.training.translation_report import with_languages
from qpr_jax.training.translations import translation_digests
from qpr_jax.training.workdir import open_workdir

log = logging.getLogger(__name__)

_WARMED = 256  # questions


def train_and_evaluate(
    config: TrainConfig, workdir: StrPath, *, overwrite: bool = False
) -> dict[str, Any]:
    """Run the experiment of `config` in `workdir`, or resume it, and return its report.json.

    A run can be killed at any moment: the same call resumes it; a finished run is not repeated.
    Several processes (`config.distributed`) share a work directory: process 0 writes it and returns
    the report, the others return an empty dictionary.

    The work directory is new, empty or holds this run, or another one if `overwrite`, which is
    replaced; docs/files.md lists what is written there.

    Raises:
      UserError: a setting, the data or the work directory is wrong, or the loss is not finite.
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


def _train_and_evaluate(config: TrainConfig, workdir: StrPath, overwrite: bool) -> dict[str, Any]:
    first, family = distributed.is_first(), MODEL_FAMILIES[config.encoder.kind]
    source = SOURCES[config.data.source]
    run, path = identity(config), _find_data(source, config)
    if path:
        run["data.sha256"] = source.digest(config, path)
    start = family.start(config)
    teacher, scorer = read_teacher(config), read_scorer(config)
    run |= _content(config, start, teacher)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(workdir)
        if first:
            folder = stack.enter_context(open_workdir(workdir, run, overwrite=overwrite))
        # These are no part of a run's identity, but processes must compile one program.
        ours = run | {"batch.encode_chunk": config.batch.encode_chunk}
        _require_same_run(ours, distributed.broadcast_from_first(lambda: ours))
        finished, trained = distributed.broadcast_from_first(
            lambda: [(folder / name).exists() for name in ("report.json", "export")]
        )
        stacks = first and lacks_stacked(folder, scorer)
        if finished and not stacks:
            log.info("%s is finished; see %s", folder, folder / "report.md")
        if finished or trained:
            distributed.disconnect()
        if (finished and not stacks) or (trained and not first):
            return read_json(folder / "report.json") if first else {}
        if path and source.prepare:
            if first:
                path = source.prepare(config, path, folder)
            if not trained:  # else the others have disconnected
                path = pathlib.Path(distributed.broadcast_from_first(lambda: str(path)))
        dataset = load_dataset(config, path, start, teacher_words(config, teacher))
        if first:  # process 0 computes the teacher's vectors, and the others read them
            data, ready = dataset.data, with_teacher(config, dataset, teacher)
            write_splits(folder / "splits", dataset.splits, data.ids, data.questions)
        if not trained:  # else the others have disconnected
            distributed.broadcast_from_first(lambda: None)
        dataset = ready if first else with_teacher(config, dataset, teacher)
        if not trained:
            if trains(config):
                params = train(config, dataset, folder)
            else:
                _, params = init_model(config, dataset)
            distributed.disconnect()
            if not first:
                return {}
            encoder = family.export(config, start, dataset.tokenizer, params)
            encoder = with_languages(encoder, start, dataset)
            save_encoder(folder / "export", encoder)
            del params
        return _finish(folder, config, dataset, scorer if stacks else None)


def _finish(
    folder: pathlib.Path, config: TrainConfig, dataset: TrainDataset, scorer: CrossEncoder | None
) -> dict[str, Any]:
    """All that follows the export of the encoder; `scorer`: of a stacked re-ranker to be trained.

    Of a finished run nothing is done again.
    """
    if (folder / "report.json").exists():
        retriever, vectors = _read_index(folder, dataset)
        report = dict(read_json(folder / "report.json"))
    else:
        retriever, vectors, seconds = _build_index(folder, dataset)
        reranker = train_light(folder, config, dataset, retriever.encoder, vectors)
        retriever.stages.light = reranker.model if reranker else None
        calibration = calibrate_pairs(folder, dataset, retriever.encoder, vectors, reranker)
        retriever.stages.calibration = calibration
        retriever.save(folder)
        report = write_report(
            *(folder, config, dataset, retriever, vectors, reranker), encode_seconds=seconds
        )
    if scorer:
        stacked = train_stacked(folder, config, dataset, retriever.encoder, vectors, scorer)
        if stacked:
            report = add_stacked(folder, report, dataset, retriever, vectors, stacked)
        else:
            mark_too_few(folder, scorer)
    log.info("finished; see %s", folder / "report.md")
    return report


def _find_data(source: Source, config: TrainConfig) -> pathlib.Path | None:
    """The path of the data; process 0 looks first, since it may have to download it."""
    if not source.find:
        return None
    path = source.find(config) if distributed.is_first() else None
    distributed.broadcast_from_first(lambda: None)
    return path or source.find(config)


def _content(config: TrainConfig, start: Encoder | None, teacher: Encoder | None) -> dict[str, Any]:
    """What encoders and further files are by content, wherever they lie."""
    content: dict[str, Any] = {}
    if start:
        content["pretrained.identity"] = start.identity
    if teacher:
        content["teacher.identity"] = teacher.identity
    elif config.teacher.model:
        given = pathlib.Path(config.teacher.model).expanduser()
        content["teacher.identity"] = sha256_of(given) if given.is_file() else ""
    if config.data.unlabeled:
        content["data.unlabeled.sha256"] = [*map(sha256_of, listed_files(config, "data.unlabeled"))]
    if config.data.negatives and config.batch.hard_negatives:
        content["data.negatives.sha256"] = sha256_of(negatives_file(config))
    return content | labels_digest(config) | translation_digests(config)


def _build_index(
    folder: pathlib.Path, dataset: TrainDataset
) -> tuple[Retriever, np.ndarray, float]:
    """Index all questions; return also their vectors and the seconds to encode them."""
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
    store = FolderStore.create(
        None,
        map(Question, ids, questions),
        known,
        recipe,
        encoder=encoder.identity,
        dimension=encoder.dimension,
    )
    retriever = Retriever(encoder, store)
    log.info("index: built in %.0f s", time.perf_counter() - start)
    return retriever, vectors, seconds


def _read_index(folder: pathlib.Path, dataset: TrainDataset) -> tuple[Retriever, np.ndarray]:
    """The index of a finished run, and the vectors of its questions."""
    retriever = Retriever.load(folder, indexed=True)
    if [question.id for question in retriever.store.questions()] != dataset.data.ids.tolist():
        raise UserError(
            f"{folder}: expected the index of the run's questions, got one that was changed",
            setting="rerank.cross_encoder",
            remedy="train in another work directory",
        )
    return retriever, retriever.encoder.encode(dataset.data.questions)


def _require_same_run(ours: dict[str, Any], firsts: dict[str, Any]) -> None:
    """Raise UserError where this process has other settings or data than process 0."""
    for name, value in firsts.items():
        if ours.get(name) != value:
            raise UserError(
                f"expected {value!r}, as in process 0, got {ours.get(name)!r}",
                setting=name,
                remedy="start all processes with the same settings and data",
            )


# What a config trains: `job` -> the whole of it, from the settings to the report.
JOBS: dict[str, Callable[[TrainConfig, StrPath, bool], dict[str, Any]]] = {
    "encoder": _train_and_evaluate,
    "cross_encoder": train_cross_encoder,
}
