"""The training of an encoder, from the settings to the report."""

from __future__ import annotations

import dataclasses
import functools
import logging
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from qpr_jax.data.splits import write_splits
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.encoders.load import save_encoder
from qpr_jax.errors import counted
from qpr_jax.files import replace_folder
from qpr_jax.index.build import EXPORT, INDEX
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.protocol import Question
from qpr_jax.locations import index_config_of, read_encoder, save_pair_model
from qpr_jax.retriever import Retriever
from qpr_jax.training import distributed, train_step
from qpr_jax.training.batches import Batch, Loader
from qpr_jax.training.config import TrainConfig, override, trains
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.evaluator import make_evaluator
from qpr_jax.training.loop import Phase, fit
from qpr_jax.training.model_families import family_of, read_start
from qpr_jax.training.objectives import Objective, make_objectives
from qpr_jax.training.pair_model_job import sort_lists, train_pair_model
from qpr_jax.training.report import write_report
from qpr_jax.training.teacher import read_teacher
from qpr_jax.training.train_data import TrainDataset
from qpr_jax.training.train_step import Params, TrainState
from qpr_jax.training.translations import with_languages

log = logging.getLogger(__name__)

_WARMED = 256  # questions
MOST_BATCH = 256  # pairs, where their number follows from the data
FEW_CLUSTERS = 20  # of validation, by fewer of which no step is chosen
EVALUATIONS = 10  # of a training from another encoder


def read_models(config: TrainConfig) -> dict[str, Any]:
    """Read what training starts from, and its teacher."""
    return {"pretrained": read_start(config), "teacher": read_teacher(config)}


def run(
    config: TrainConfig, folder: pathlib.Path, path: pathlib.Path | None, models: dict[str, Any]
) -> dict[str, Any]:
    """Train an encoder of the data at `path`, or resume its training, and return the report."""
    first, start = distributed.is_first(), models["pretrained"]
    dataset = load_dataset(config, path, start, models["teacher"])
    config = with_batch_size(config, dataset)
    if first:
        write_splits(folder / "splits", dataset.data, dataset.splits)
    trained = distributed.broadcast_from_first((folder / EXPORT).exists)
    params = None if trained else train(config, dataset, folder)
    distributed.disconnect()
    if not first:
        return {}
    if params is not None:
        encoder = family_of(start).export(config, dataset, params)
        encoder = with_languages(encoder, start, dataset.translations)
        save_encoder(folder / EXPORT, encoder)
        del params
    return _finish(folder, config, dataset)


def with_batch_size(config: TrainConfig, dataset: TrainDataset) -> TrainConfig:
    """Choose a batch size that is 0: the training clusters, at most 256, rounded to 2, 4, 8...

    A batch then has no cluster twice, or few.
    """
    clusters = dataset.report["splits"]["train"]["clusters"] or MOST_BATCH
    size = 1 << (min(clusters, MOST_BATCH).bit_length() - 1)
    return config if config.batch_size else override(config, {"batch_size": size})


def train(config: TrainConfig, dataset: TrainDataset, folder: pathlib.Path) -> Params:
    """The parameters of the best step of the training, or, without a training, the first ones."""
    family = family_of(dataset.start)
    if not trains(config):
        return family.init(config, dataset)[1]
    if config.teacher.lists:
        dataset = dataclasses.replace(dataset, lists=sort_lists(config, dataset))
    phases, state = plan(config, dataset)
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
        start_counts=dataset.start is not None,
    )
    if dataset.start and not int(best.step):
        text = "no step had a better %s than %s, which the run keeps; give more pairs, or hold "
        text += "more of them out (`data.held_out_pairs`)"
        log.warning(text, stops.metric, config.encoder.pretrained)
    return best.params


def plan(config: TrainConfig, dataset: TrainDataset) -> tuple[list[Phase], TrainState]:
    """Plan the training: a phase for the objectives of the same steps, and the first state.

    Nothing is compiled yet. UserError where the devices cannot share a batch.
    """
    mesh = distributed.make_mesh(config.devices)
    stages: dict[range, list[Objective]] = {}
    for objective in make_objectives(config, dataset):
        stages.setdefault(objective.steps, []).append(objective)
    rate = train_step.make_schedule(config.optimizer, [*map(len, stages)])
    optimizer = train_step.make_optimizer(rate, config.optimizer)
    graph, params = family_of(dataset.start).init(config, dataset)
    phases = []
    for steps, objectives in stages.items():
        loaded = distributed.local_devices(mesh)
        loader = Loader(config, dataset, objectives, devices=mesh.size, loaded=loaded)
        loss = train_step.make_loss(
            graph,
            mesh,
            objectives,
            precision=config.precision,
            encode_chunk=config.batch.encode_chunk,
        )
        epoch = objectives[0].draw.epoch
        log.info(
            f"{' and '.join(o.name for o in objectives)}: steps {len(steps):,}, steps per epoch "
            f"{epoch:,}, pairs per batch {loader.pairs:,}, {mesh.devices.flat[0].platform} devices "
            f"{mesh.size}, processes {jax.process_count()}"
        )
        phases.append(
            Phase(
                steps=steps,
                step=train_step.make_train_step(loss, optimizer, seed=config.seed),
                load=functools.partial(_load, loader, mesh),
                pairs=loader.pairs,
                evaluate_every=_steps_between(config, dataset, len(steps)) or epoch,
            )
        )
    return phases, distributed.replicate(train_step.init_state(params, optimizer), mesh)


def _steps_between(config: TrainConfig, dataset: TrainDataset, steps: int) -> int:
    """Choose the steps between two evaluations, 0 for an epoch.

    A training from another encoder has ten evaluations, but one where few clusters are held out.
    """
    stops, clusters = config.early_stopping, dataset.report["splits"]["validation"]["clusters"]
    if stops.every_steps or not dataset.start:
        return stops.every_steps
    if not 0 < clusters < FEW_CLUSTERS:  # 0: there are no pairs
        return -(-steps // EVALUATIONS)
    text = "validation clusters: %d, too few to choose a step: the run takes all %d steps, and "
    text += "keeps the last, unless its %s is below that of the start"
    log.info(text, clusters, steps, stops.metric)
    return steps


def _load(loader: Loader, mesh: Mesh, step: int) -> tuple[Batch, dict[str, float]]:
    batch, metrics = loader.load(step)
    return distributed.split_over(batch, mesh), metrics


def _finish(folder: pathlib.Path, config: TrainConfig, dataset: TrainDataset) -> dict[str, Any]:
    """All that follows the export of the encoder."""
    encoder, questions = read_encoder(folder), dataset.data.questions
    encoder.encode(questions[:_WARMED])  # compiles
    began = time.perf_counter()
    vectors = encoder.encode(questions)
    seconds = time.perf_counter() - began
    log.info("encoded %s in %.1f s", counted(len(vectors), "question"), seconds)
    # A search must not find an index without its pair model.
    with replace_folder(folder / INDEX) as part:
        store = FolderStore.create(
            part,
            map(Question, dataset.data.ids.tolist(), questions),
            reuse_vectors(encoder, questions, vectors),
            index_config_of(encoder),
            encoder=encoder.fingerprint,
            dimension=encoder.dimension,
            export=lambda build: EXPORT,
        )
        model = train_pair_model(config, dataset, encoder, vectors, store.vectors)
        save_pair_model(folder / EXPORT, model)
    store = FolderStore(folder / INDEX, encoder=encoder.fingerprint)
    retriever = Retriever(encoder, store, model)
    report = write_report(folder, config, dataset, retriever, vectors, encode_seconds=seconds)
    log.info("finished; see %s", folder / "report.md")
    return report


def reuse_vectors(
    encoder: Encoder, questions: Sequence[str], vectors: np.ndarray
) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function that encodes texts; questions get their rows of `vectors`."""
    vector_of = dict(zip(questions, vectors, strict=True))

    def encode(texts: Sequence[str]) -> np.ndarray:
        # An index leaves HTML and shared sentences out.
        if new := [text for text in texts if text not in vector_of]:
            vector_of.update(zip(new, encoder.encode(new), strict=True))
        return np.stack([vector_of[text] for text in texts])

    return encode
