"""The training of an encoder: `job=encoder`, from the settings to the report."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

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
from qpr_jax.training.config import TrainConfig, identity, trains
from qpr_jax.training.dataset import TrainDataset, load_dataset, with_teacher
from qpr_jax.training.evaluator import make_evaluator
from qpr_jax.training.loop import fit
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.pair_calibration import calibrate_pairs
from qpr_jax.training.phases import build_plan
from qpr_jax.training.report import write_report
from qpr_jax.training.rerank_data import LogitCache
from qpr_jax.training.reranker import LOGITS, read_scorer, train_reranker
from qpr_jax.training.sources import SOURCES, labels_digest, listed_files, named_file
from qpr_jax.training.teacher import read_teacher, teacher_words
from qpr_jax.training.train_step import Params, TrainState
from qpr_jax.training.translations import translation_digests, with_languages
from qpr_jax.training.workdir import open_workdir

log = logging.getLogger(__name__)

_WARMED = 256  # questions


def train_encoder(config: TrainConfig, workdir: StrPath, overwrite: bool = False) -> dict[str, Any]:
    """Train an encoder in `workdir`, or resume its training, and return the report."""
    first, source = distributed.is_first(), SOURCES[config.data.source]
    # Process 0 looks first, since it may have to download the data.
    path = distributed.in_turn(lambda: source.find(config) if source.find else None)
    start = MODEL_FAMILIES[config.encoder.kind].start(config)
    teacher, scorer = read_teacher(config), read_scorer(config)
    models = {"pretrained": start, "teacher": teacher, "cross_encoder": scorer}
    run = identity(config) | content_of(config, path, **models)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(workdir)
        if first:
            folder = stack.enter_context(open_workdir(workdir, run, overwrite=overwrite))
        # The chunk is no part of a run's identity, but processes must compile one program.
        _require_same_run(run | {"batch.encode_chunk": config.batch.encode_chunk})
        finished, trained = distributed.broadcast_from_first(
            lambda: [(folder / name).exists() for name in ("report.json", "export")]
        )
        if finished or trained:
            distributed.disconnect()
            if not first:
                return {}
        if finished:
            log.info("%s is finished; see %s", folder, folder / "report.md")
            return dict(read_json(folder / "report.json"))
        if path and source.prepare:
            prepare = source.prepare
            path = pathlib.Path(
                distributed.broadcast_from_first(lambda: str(prepare(config, path, folder)))
            )
        dataset = load_dataset(config, path, start, teacher_words(config, teacher))
        if first:
            data = dataset.data
            write_splits(folder / "splits", dataset.splits, data.ids, data.questions)
        dataset = _with_teacher(config, dataset, teacher)
        if not trained:
            params = train(config, dataset, folder)
            distributed.disconnect()
            if not first:
                return {}
            encoder = MODEL_FAMILIES[config.encoder.kind].export(config, dataset, params)
            encoder = with_languages(encoder, start, dataset.translations)
            save_encoder(folder / "export", encoder)
            del params
        return _finish(folder, config, dataset, scorer)


def _with_teacher(
    config: TrainConfig, dataset: TrainDataset, teacher: Encoder | None
) -> TrainDataset:
    """The dataset with its teacher, whose vectors process 0 computes and the others read."""
    ready = distributed.in_turn(lambda: with_teacher(config, dataset, teacher))
    if ready.teacher is None or ready.teacher.components is None:
        return ready
    components = distributed.from_first(ready.teacher.components)
    return dataclasses.replace(ready, teacher=ready.teacher._replace(components=components))


def train(config: TrainConfig, dataset: TrainDataset, folder: pathlib.Path) -> Params:
    """The parameters of the best step of the training, or, without a training, the first ones."""
    family = MODEL_FAMILIES[config.encoder.kind]
    if not trains(config):
        return family.init(config, dataset)[1]
    phases, state = build_plan(config, dataset)
    stops, score = config.early_stopping, make_evaluator(dataset, config)

    def evaluate(state: TrainState) -> dict[str, float]:
        encoder = family.export(config, dataset, state.params)
        scores: dict[str, float] = distributed.broadcast_from_first(lambda: score(encoder))
        return scores

    best = fit(
        state,
        phases,
        folder,
        evaluate=evaluate,
        watched=stops.metric,
        patience=stops.patience,
        checkpoint_every=config.checkpoint_every,
        start_counts=(started := dataset.start is not None and not dataset.frozen_rows),
    )
    if started and not int(best.step):
        log.warning(
            "no step had a better %s than %s, which the run keeps; give more pairs, or lower "
            "`optimizer.learning_rate`",
            stops.metric,
            config.encoder.pretrained,
        )
    return best.params


def _finish(
    folder: pathlib.Path, config: TrainConfig, dataset: TrainDataset, scorer: CrossEncoder | None
) -> dict[str, Any]:
    """All that follows the export of the encoder; `scorer`: of a stacked re-ranker."""
    retriever, vectors, seconds = _build_index(folder, dataset)
    encoder, stages = retriever.encoder, retriever.stages
    rerankers = {}
    if light := train_reranker(config, dataset, encoder, vectors):
        rerankers["reranked"], stages.light = light, light.model
    if scorer:
        logits = LogitCache(folder / LOGITS, scorer, dataset.data.questions)
        if stacked := train_reranker(config, dataset, encoder, vectors, logits):
            rerankers["reranked_cross"], stages.stacked = stacked, stacked.model
    stages.calibration = calibrate_pairs(dataset, encoder, vectors, stages.light)
    retriever.save(folder)
    report = write_report(
        folder, config, dataset, retriever, vectors, rerankers, encode_seconds=seconds
    )
    log.info("finished; see %s", folder / "report.md")
    return report


def content_of(
    config: TrainConfig,
    path: pathlib.Path | None = None,
    **models: Encoder | CrossEncoder | None,
) -> dict[str, Any]:
    """What the data and the models that a run reads are by content, wherever they lie."""
    found: dict[str, Any] = {f"{k}.identity": one.identity for k, one in models.items() if one}
    if path:
        found["data.sha256"] = SOURCES[config.data.source].digest(config, path)
    if config.teacher.model and not models.get("teacher"):
        given = pathlib.Path(config.teacher.model).expanduser()
        found["teacher.identity"] = sha256_of(given) if given.is_file() else ""
    if config.data.unlabeled:
        found["data.unlabeled.sha256"] = [*map(sha256_of, listed_files(config, "data.unlabeled"))]
    if config.data.negatives and config.batch.hard_negatives:
        found["data.negatives.sha256"] = sha256_of(
            named_file(config, "data.negatives", "qpr negatives")
        )
    return found | labels_digest(config) | translation_digests(config)


def _build_index(
    folder: pathlib.Path, dataset: TrainDataset
) -> tuple[Retriever, np.ndarray, float]:
    """Index all questions; return also their vectors and the seconds to encode them."""
    encoder, questions = run_encoder(folder), dataset.data.questions
    encoder.encode(questions[:_WARMED])  # compiles
    start = time.perf_counter()
    vectors = encoder.encode(questions)
    seconds = time.perf_counter() - start
    log.info("encoded %s questions in %.1f s", f"{len(vectors):,}", seconds)
    store = FolderStore.create(
        None,
        map(Question, dataset.data.ids.tolist(), questions),
        reuse_vectors(encoder, questions, vectors),
        run_recipe(encoder),
        encoder=encoder.identity,
        dimension=encoder.dimension,
    )
    return Retriever(encoder, store), vectors, seconds


def reuse_vectors(
    encoder: Encoder, known: Sequence[str], vectors: np.ndarray
) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function that encodes texts; known ones get their rows of `vectors`."""
    row_of = {text: row for row, text in enumerate(known)}

    def encode(texts: Sequence[str]) -> np.ndarray:
        rows = np.array([row_of.get(text, -1) for text in texts], np.int64)
        found = vectors[rows]
        if (rows < 0).any():  # an index leaves HTML and shared sentences out
            found[rows < 0] = encoder.encode([text for text in texts if text not in row_of])
        return np.asarray(found)

    return encode


def _require_same_run(ours: dict[str, Any]) -> None:
    """Raise UserError where this process has other settings or data than process 0."""
    for name, value in distributed.broadcast_from_first(lambda: ours).items():
        if ours.get(name) != value:
            raise UserError(
                f"expected {value!r}, as in process 0, got {ours.get(name)!r}",
                setting=name,
                remedy="start all processes with the same settings and data",
            )
