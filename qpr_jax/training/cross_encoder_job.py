"""The training of a cross-encoder: `job=cross_encoder`, from the settings to the report."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from qpr_jax.data.splits import TRAIN, SplitData, write_splits
from qpr_jax.encoders.sentence_transformers import TOKENIZER
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.evaluation.retrieval import DEPTH, first_scores
from qpr_jax.files import write_json
from qpr_jax.index.run import read_encoder
from qpr_jax.models.bert import PairScorer, init_bert
from qpr_jax.reranking import cross_encoder
from qpr_jax.reranking.calibration import calibrate
from qpr_jax.reranking.cross_encoder import CrossEncoder
from qpr_jax.text.word_pieces import WordPieces
from qpr_jax.training import cross_data, train_step
from qpr_jax.training.config import TrainConfig, identity
from qpr_jax.training.cross_data import Validation
from qpr_jax.training.loop import Phase, fit
from qpr_jax.training.model_families import start_encoder
from qpr_jax.training.sections import naming
from qpr_jax.training.sources import SOURCES
from qpr_jax.training.train_step import Metrics, Step, TrainState

log = logging.getLogger(__name__)

PAIRS = 400_000  # most pairs of a training
NEGATIVES = 3  # of each positive pair
HITS = 20  # nearest hits of a query that negatives are drawn from
QUERIES = 400  # validation queries of an evaluation
EVALUATIONS = 5  # during the training
_CLIP = 1.0  # the largest norm of a gradient
# A step -> token ids and segments, int32 [n, L], and labels, float32 [n]: 1 if both mean the same.
Load = Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray]]


def read_models(config: TrainConfig) -> dict[str, Any]:
    """Read the first stage, and what training starts from."""
    with naming("cross_encoder.first_stage"):
        first_stage = read_encoder(config.cross_encoder.first_stage)
    return {"first_stage": first_stage, "pretrained": read_start(config)}


def run(
    config: TrainConfig, folder: pathlib.Path, path: pathlib.Path | None, models: dict[str, Any]
) -> dict[str, Any]:
    """Train a cross-encoder of the data at `path`, write `export/`, and return the report.

    The same call resumes after a kill. Uses one process and one device.
    """
    first_stage, start = models["first_stage"], models["pretrained"]
    split = SOURCES[config.data.source].read(config, path or pathlib.Path())
    data = split.data
    write_splits(folder / "splits", data, split.splits)
    hits, validation = cross_data.find_hits(split, first_stage, HITS)
    steps, load = make_batches(config, split, hits, start)
    began = time.perf_counter()
    model = _train(config, data.questions, steps, load, validation, start, folder)
    trained = time.perf_counter()
    scores, logits = cross_data.rerank_scores(model, data.questions, validation)
    found = np.isfinite(logits)
    rate = found.sum() / (time.perf_counter() - trained)
    points = calibrate(logits[found], validation.relevant[found])
    model = dataclasses.replace(model, calibration=points)
    cross_encoder.save_cross_encoder(folder / "export", model)
    report = {
        "settings": model.settings,
        "identity": model.identity,
        "validation": {
            "queries": len(validation.queries),
            "hits": validation.hits.shape[1],
            "first_stage": first_scores(validation.relevant),
            "cross_encoder": scores,
        },
        "training_seconds": trained - began,  # of this process
        "scored_pairs_per_second": float(rate),
    }
    write_json(folder / "report.json", report)
    log.info("finished: %s; see %s", scores, folder / "report.json")
    return report


def make_batches(
    config: TrainConfig, split: SplitData, hits: np.ndarray, start: CrossEncoder
) -> tuple[int, Load]:
    """Draw the pairs of a training, determined by the seed: its steps, and what loads one."""
    count = min(PAIRS, (config.max_steps or PAIRS) * config.batch_size)
    rows, labels = cross_data.draw_pairs(
        np.where(split.splits.split_of == TRAIN, split.clusters, -1),
        hits,
        split.splits.non_duplicates["train"],
        count=count,
        negatives=NEGATIVES,
        seed=config.seed,
    )
    rows, labels = rows[:count], labels[:count]
    pieces = WordPieces(start.contents[TOKENIZER], start.shape.vocab_size)
    longest = min(config.text.max_tokens, start.max_tokens // 2)
    token_ids = pieces.id_lists(split.data.questions, longest)
    lengths = np.array([len(ids) for ids in token_ids])[rows].sum(axis=1) - 1
    steps = cross_data.batches_by_length(lengths, config.batch_size, seed=config.seed)
    what = f"{steps.size:,} pairs, {labels.mean():.0%} positive, {lengths.mean():.1f} tokens each"
    log.info("%s; %s steps", what, f"{len(steps):,}")

    def load(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        chosen = steps[step]
        return *cross_data.lay_out_pairs(rows[chosen], token_ids, start.max_tokens), labels[chosen]

    return len(steps), load


def read_start(config: TrainConfig) -> CrossEncoder:
    """Read the initial model: a cross-encoder, or an encoder with a random classifier."""
    with naming("encoder.pretrained"):
        if folder := cross_encoder.cross_encoder_folder(config.encoder.pretrained):
            return cross_encoder.read_cross_encoder(folder)
    encoder = start_encoder(config, TransformerEncoder)
    longest = 2 * config.text.max_tokens
    return cross_encoder.from_encoder(encoder, max_tokens=longest, seed=config.seed)


def make_cross_step(
    config: TrainConfig, start: CrossEncoder, steps: int
) -> tuple[Step, TrainState]:
    """Make the function of a step, and the initial state, for a training of `steps` steps.

    The loss is binary cross-entropy; the optimizer is AdamW. A batch is token ids, segments and
    labels. The word-piece embedding, half of the parameters, is frozen and not in the state: a
    fine-tuning changes it little, and the step is faster.
    """
    # Copies: a step donates its state, and the weights of `start` are read again.
    weights = jax.tree.map(jnp.array, start.weights)
    dtype, precision = config.encoder.compute_dtype, config.precision
    graph, params = init_bert(start.shape, weights, dtype, precision, PairScorer)
    embedding = params["embedding"]
    rest = nnx.State({name: value for name, value in params.items() if name != "embedding"})
    rate, decay = train_step.make_schedule(config, steps), config.optimizer.weight_decay
    optimizer = train_step.make_optimizer(rate, weight_decay=decay, clip=_CLIP)

    def loss(rest: nnx.State, batch: Any, key: jax.Array) -> tuple[jax.Array, Metrics]:
        table, token_ids, segments, labels = batch
        scorer = nnx.merge(graph, nnx.State({**rest, "embedding": table}))
        logits = scorer.score(token_ids, segments)
        value = optax.sigmoid_binary_cross_entropy(logits, labels).mean()
        return value, {"cross_entropy": value}

    step = train_step.make_train_step(loss, optimizer, seed=config.seed)
    state = train_step.init_state(rest, optimizer)
    return lambda state, batch: step(state, (embedding, *batch)), state


def _train(
    config: TrainConfig,
    questions: list[str],
    steps: int,
    load: Load,
    validation: Validation,
    start: CrossEncoder,
    folder: pathlib.Path,
) -> CrossEncoder:
    """Return the model of the best step."""
    step, state = make_cross_step(config, start, steps)
    order = np.random.default_rng([config.seed, 2]).permutation(len(validation.queries))
    sample = Validation(*(array[np.sort(order[:QUERIES])] for array in validation))

    def export(state: TrainState) -> CrossEncoder:
        # Copies: a step donates its state.
        trained = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(state.params)))
        weights = {**trained, "embedding": start.weights["embedding"]}
        return dataclasses.replace(start, weights=weights, settings=identity(config))

    phase = Phase(
        steps=range(steps),
        step=step,
        batch_at=load,
        metrics_at=lambda number: {},
        size=config.batch_size,
        evaluate_every=-(-steps // EVALUATIONS),
    )
    best = fit(
        state,
        [phase],
        folder,
        evaluate=lambda state: cross_data.rerank_scores(export(state), questions, sample)[0],
        watched=f"mrr@{DEPTH}",
        checkpoint_every=config.checkpoint_every,
    )
    return export(best)
