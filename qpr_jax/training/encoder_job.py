"""The training of an encoder: `job=encoder`, from the settings to the report."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qpr_jax.data.splits import VALIDATION, write_splits
from qpr_jax.distant.cluster_folder import content_hash
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import save_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import replace_folder, sha256_of
from qpr_jax.index.base import Question
from qpr_jax.index.build import EXPORT, INDEX
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.vectors import Vectors
from qpr_jax.reranking.model import FittedModel, read_encoder_and_model, save_pair_model
from qpr_jax.reranking.refit import refit
from qpr_jax.reranking.words import WordsModel
from qpr_jax.retriever import Retriever, read_encoder, run_recipe
from qpr_jax.training import distributed
from qpr_jax.training.config import TrainConfig, flatten, trains
from qpr_jax.training.dataset import TrainDataset, load_dataset
from qpr_jax.training.evaluator import make_evaluator
from qpr_jax.training.lists import sort_lists
from qpr_jax.training.loop import fit
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.pair_model_job import TrainedWords, train_words
from qpr_jax.training.phases import build_plan
from qpr_jax.training.report import write_report
from qpr_jax.training.sources import listed_files
from qpr_jax.training.teacher import read_teacher
from qpr_jax.training.train_step import Params, TrainState
from qpr_jax.training.translations import translation_digests, with_languages

log = logging.getLogger(__name__)

_WARMED = 256  # questions


def read_models(config: TrainConfig) -> dict[str, Any]:
    """Read what training starts from, and its teacher."""
    return {
        "pretrained": MODEL_FAMILIES[config.encoder.kind].start(config),
        "teacher": read_teacher(config),
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
    return _finish(folder, config, dataset)


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


def _finish(folder: pathlib.Path, config: TrainConfig, dataset: TrainDataset) -> dict[str, Any]:
    """All that follows the export of the encoder."""
    encoder, questions = read_encoder(folder), dataset.data.questions
    encoder.encode(questions[:_WARMED])  # compiles
    began = time.perf_counter()
    vectors = encoder.encode(questions)
    seconds = time.perf_counter() - began
    log.info("encoded %s questions in %.1f s", f"{len(vectors):,}", seconds)
    # A search must not find an index without its pair model.
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
        words, model = train_pair_model(config, dataset, encoder, vectors, store.vectors)
        save_pair_model(folder / EXPORT, model)
    store = FolderStore(folder / INDEX, encoder=encoder.identity)
    retriever = Retriever(encoder, store, model)
    report = write_report(
        folder, config, dataset, retriever, vectors, words, encode_seconds=seconds
    )
    log.info("finished; see %s", folder / "report.md")
    return report


def train_pair_model(
    config: TrainConfig,
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    index: Vectors,
) -> tuple[TrainedWords | None, FittedModel | None]:
    """Train the words model of a run, or fit that of the encoder that training started from.

    A few pairs are not enough for one of its own.
    """
    words = None
    if config.rerank.candidates:
        words = train_words(
            dataset,
            encoder,
            vectors,
            depth=config.rerank.candidates,
            trained=trains(config),
            seed=config.seed,
            index=index,
        )
    if words:
        return words, words.model
    if dataset.start:
        return None, inherit(config.encoder.pretrained, dataset, encoder, vectors)
    return None, None


def inherit(
    start: str, dataset: TrainDataset, encoder: Encoder, vectors: np.ndarray
) -> FittedModel | None:
    """Take the model of pairs that training started from, fitted to pairs that are held out.

    Returns None where the start has none. vectors: float32 [Q, d], of all questions.
    """
    start_model = read_encoder_and_model(start)[1]
    if start_model is None:
        return None
    changes: dict[str, Any] = {"encoder": encoder.identity}
    if isinstance(start_model, WordsModel):
        changes["embeddings"] = encoder
    model = dataclasses.replace(
        start_model, **changes, settings=start_model.settings | {"start": start}
    )
    held_out = dataset.splits.split_of == VALIDATION
    labeled = dataset.data.subset(held_out)
    try:
        model, facts = refit(model, encoder.identity, labeled, vectors[held_out])
    except UserError as error:
        log.info("the scores of pairs are those of %s: %s", start, error.what)
        return model
    before, after = facts["before"], facts["after"]
    text = "scores are fitted to %d held-out labels: precision %.2f, recall %.2f; before %.2f, %.2f"
    values = (part[name] for part in (after, before) for name in ("precision", "recall"))
    log.info(text, facts["verdicts"], *values)
    return model


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
