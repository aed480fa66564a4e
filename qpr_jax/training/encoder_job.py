"""The training of an encoder: `job=encoder`, from the settings to the report."""

from __future__ import annotations

import dataclasses
import functools
import logging
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qpr_jax.data.splits import write_splits
from qpr_jax.distant.folder import content_hash
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import save_encoder
from qpr_jax.evaluation.retrieval import relevance_scores
from qpr_jax.files import replace_folder, sha256_of
from qpr_jax.index.base import Question
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.run import EXPORT, INDEX
from qpr_jax.reranking.cross_encoder import CrossEncoder
from qpr_jax.reranking.light import LightModel
from qpr_jax.reranking.stages import read_stages
from qpr_jax.retriever import Retriever, read_encoder, run_recipe
from qpr_jax.training import distributed
from qpr_jax.training.config import TrainConfig, flatten, trains
from qpr_jax.training.dataset import TrainDataset, load_dataset
from qpr_jax.training.evaluator import make_evaluator
from qpr_jax.training.lists import sort_lists
from qpr_jax.training.loop import fit
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.pair_calibration import calibrate_pairs
from qpr_jax.training.phases import build_plan
from qpr_jax.training.report import write_report
from qpr_jax.training.reranker import read_scorer, train_reranker
from qpr_jax.training.sources import listed_files
from qpr_jax.training.teacher import read_teacher
from qpr_jax.training.train_step import Params, TrainState
from qpr_jax.training.translations import translation_digests, with_languages

log = logging.getLogger(__name__)

_WARMED = 256  # questions


def read_models(config: TrainConfig) -> dict[str, Any]:
    """Read what training starts from, its teacher, and the cross-encoder of its re-ranker."""
    return {
        "pretrained": MODEL_FAMILIES[config.encoder.kind].start(config),
        "teacher": read_teacher(config),
        "cross_encoder": read_scorer(config),
    }


def run(
    config: TrainConfig, folder: pathlib.Path, path: pathlib.Path | None, models: dict[str, Any]
) -> dict[str, Any]:
    """Train an encoder of the data at `path`, or resume its training, and return the report."""
    first, start = distributed.is_first(), models["pretrained"]
    dataset = load_dataset(config, path, start, models["teacher"])
    if first:
        write_splits(folder / "splits", dataset.data, dataset.splits)
    trained = distributed.broadcast_from_first((folder / EXPORT).exists)
    params = None if trained else train(config, dataset, folder)
    distributed.disconnect()
    if not first:
        return {}
    if params is not None:
        encoder = MODEL_FAMILIES[config.encoder.kind].export(config, dataset, params)
        encoder = with_languages(encoder, start, dataset.translations)
        save_encoder(folder / "export", encoder)
        del params
    return _finish(folder, config, dataset, models["cross_encoder"])


def train(config: TrainConfig, dataset: TrainDataset, folder: pathlib.Path) -> Params:
    """The parameters of the best step of the training, or, without a training, the first ones."""
    family = MODEL_FAMILIES[config.encoder.kind]
    if not trains(config):
        return family.init(config, dataset)[1]
    if config.teacher.lists:
        dataset = dataclasses.replace(dataset, lists=sort_lists(config, dataset))
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
        start_counts=dataset.start is not None,
    )
    if dataset.start and not int(best.step):
        text = "no step had a better %s than %s, which the run keeps; give more pairs, or hold "
        text += "more of them out (`data.held_out_pairs`)"
        log.warning(text, stops.metric, config.encoder.pretrained)
    return best.params


def _finish(
    folder: pathlib.Path, config: TrainConfig, dataset: TrainDataset, scorer: CrossEncoder | None
) -> dict[str, Any]:
    """All that follows the export of the encoder; `scorer`: of a stacked re-ranker."""
    encoder, questions = read_encoder(folder), dataset.data.questions
    encoder.encode(questions[:_WARMED])  # compiles
    began = time.perf_counter()
    vectors = encoder.encode(questions)
    seconds = time.perf_counter() - began
    log.info("encoded %s questions in %.1f s", f"{len(vectors):,}", seconds)
    # A search must not find an index without its re-rankers.
    with replace_folder(folder / INDEX) as part:
        store = FolderStore.create(
            part,
            map(Question, dataset.data.ids.tolist(), questions),
            reuse_vectors(encoder, questions, vectors),
            run_recipe(encoder),
            encoder=encoder.identity,
            dimension=encoder.dimension,
            export=lambda build: EXPORT,
        )
        retriever = Retriever(encoder, store)
        stages, rerankers = retriever.stages, {}
        learn = functools.partial(
            train_reranker, config, dataset, encoder, vectors, index=store.vectors
        )
        if light := learn():
            rerankers["reranked"], stages.light = light, light.model
        if scorer and (stacked := learn(scorer=scorer)):
            rerankers["reranked_cross"], stages.stacked = stacked, stacked.model
        start = config.encoder.pretrained
        if not (dataset.start and not stages.light and inherit(retriever, start, dataset)):
            stages.calibration = calibrate_pairs(dataset, encoder, vectors, stages.light)
        stages.save(folder / EXPORT)
    retriever.store = FolderStore(folder / INDEX, encoder=encoder.identity)
    report = write_report(
        folder, config, dataset, retriever, vectors, rerankers, encode_seconds=seconds
    )
    log.info("finished; see %s", folder / "report.md")
    return report


def inherit(retriever: Retriever, start: str, dataset: TrainDataset) -> bool:
    """Take the light re-ranker and the calibration of the encoder that training started from.

    A few pairs are not enough for others. A re-ranker that lowers the MRR of validation reorders no
    hits. Returns False where the start lacks one of them.
    """
    stages, given, identity = retriever.stages, read_stages(start)[1], retriever.encoder.identity
    known, calibration = given.light, given.calibration
    if not (known and calibration):
        return False

    def take(light: LightModel) -> None:
        stages.light = light = dataclasses.replace(light, encoder=identity)
        stages.calibration = dataclasses.replace(
            calibration,
            encoder=identity,
            reranker=calibration.reranker and light.identity,
            settings=calibration.settings | {"start": start},
        )

    take(known)
    log.info("the re-ranker and the calibration are those of %s", start)
    data, clusters = dataset.data, dataset.clusters[: len(dataset.data.questions)]
    relevant = {
        data.questions[row]: {*data.ids[clusters == clusters[row]].tolist()}
        for row in np.unique(dataset.splits.pairs["validation"][:, 0]).tolist()
    }
    if relevant and known.candidates:
        searches = (
            functools.partial(retriever.search, rerank=False),
            functools.partial(retriever.search, rerank="light"),
        )
        alone, reranked = (
            round(relevance_scores(search, relevant, other_texts=True)["mrr@20"], 4)
            for search in searches
        )
        if reranked < alone:
            text = "hits stay in the order of distance: the re-ranker lowers the MRR of validation"
            log.info(text + " from %.4f to %.4f", alone, reranked)
            take(dataclasses.replace(known, candidates=0))
    return True


def content_of(
    config: TrainConfig, path: pathlib.Path | None = None, **models: Any
) -> dict[str, Any]:
    """What the data and the models that a run reads are by content, wherever they lie."""
    found: dict[str, Any] = {f"{k}.identity": one.identity for k, one in models.items() if one}
    if path:
        found["data.sha256"] = content_hash(path)
    if config.teacher.model and not models.get("teacher"):
        given = pathlib.Path(config.teacher.model)
        found["teacher.identity"] = sha256_of(given) if given.is_file() else ""
    for name in ("data.unlabeled", "data.negatives", "data.labels"):
        if listed_files(config, name):
            found[f"{name}.sha256"] = content_hash(flatten(config)[name])
    return found | translation_digests(config)


def reuse_vectors(
    encoder: Encoder, questions: Sequence[str], vectors: np.ndarray
) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function that encodes texts; questions get their rows of `vectors`."""
    known = dict(zip(questions, vectors, strict=True))

    def encode(texts: Sequence[str]) -> np.ndarray:
        # An index leaves HTML and shared sentences out.
        if new := [text for text in texts if text not in known]:
            known.update(zip(new, encoder.encode(new), strict=True))
        return np.stack([known[text] for text in texts])

    return encode
