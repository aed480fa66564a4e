"""The training of a cross-encoder, from the settings to the report."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from qpr_jax.data.splits import TRAIN, SplitData, group_questions, write_splits
from qpr_jax.encoders.sentence_transformers import TOKENIZER
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.evaluation.retrieval import DEPTH, exact_search, first_scores, index_search, rank
from qpr_jax.files import write_json
from qpr_jax.index.protocol import IndexConfig
from qpr_jax.index.vectors import Vectors
from qpr_jax.locations import read_encoder
from qpr_jax.models.bert import PairScorer, choose_widths, init_bert, padded
from qpr_jax.pair_model import cross_encoder
from qpr_jax.pair_model.cross_encoder import CrossEncoder
from qpr_jax.pair_model.fitting import calibrate
from qpr_jax.text.tokenizer import WordPieces
from qpr_jax.training import model_families, train_step
from qpr_jax.training.config import TrainConfig, fingerprint, naming, refuse_if
from qpr_jax.training.loop import Phase, fit
from qpr_jax.training.sources import SOURCES
from qpr_jax.training.teacher import cached_vectors
from qpr_jax.training.train_step import Metrics, Step, TrainState

log = logging.getLogger(__name__)

PAIRS = 400_000  # most pairs of a training
NEGATIVES = 3  # of each positive pair
HITS = 20  # nearest hits of a query that negatives are drawn from
QUERIES = 400  # validation queries of an evaluation
EVALUATIONS = 5  # during the training
_CLIP = 1.0  # the largest norm of a gradient
_SPARE = 9  # further hits, since some are paraphrases
_POOL = 64  # batches whose pairs are sorted by length at once
# Token ids, padded with -1, and segments, int32 [n, L] with L one of `choose_widths` of the
# model, and labels, float32 [n]: 1 if both mean the same.
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


class Validation(NamedTuple):
    """Queries of the validation split, and their first-stage hits, which are reordered."""

    queries: np.ndarray  # int64 [n], rows of questions
    hits: np.ndarray  # int64 [n, h], rows of other questions, nearest first, padded with -1
    relevant: np.ndarray  # bool [n, h], which hits are of the query's cluster


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
    questions = split.data.questions
    write_splits(folder / "splits", split.data, split.splits)
    vectors = cached_vectors(first_stage, questions)
    validation = find_hits(split, vectors, HITS)
    steps, load = make_batches(config, split, find_negatives(split, vectors, HITS), start)
    step, state = make_cross_step(config, start, steps)
    order = np.random.default_rng([config.seed, 2]).permutation(len(validation.queries))
    sample = Validation(*(array[np.sort(order[:QUERIES])] for array in validation))

    def export(state: TrainState) -> CrossEncoder:
        weights = model_families.copy_to_host(state.params)
        weights |= {"embedding": start.weights["embedding"]}
        return dataclasses.replace(start, weights=weights, settings=fingerprint(config))

    best = fit(
        state,
        [Phase(range(steps), step, load, config.batch_size, -(-steps // EVALUATIONS))],
        folder,
        evaluate=lambda state: rerank_scores(export(state), questions, sample)[0],
        watched=f"mrr@{DEPTH}",
        checkpoint_every=config.checkpoint_every,
    )
    model = export(best)
    scores, logits = rerank_scores(model, questions, validation)
    found = np.isfinite(logits)
    points = calibrate(logits[found], validation.relevant[found])
    model = dataclasses.replace(model, calibration=points)
    cross_encoder.save_cross_encoder(folder / "export", model)
    report = {
        "settings": model.settings,
        "fingerprint": model.fingerprint,
        "validation": {
            "queries": len(validation.queries),
            "hits": validation.hits.shape[1],
            "first_stage": first_scores(validation.relevant),
            "cross_encoder": scores,
        },
    }
    write_json(folder / "report.json", report)
    log.info("finished: %s; see %s", scores, folder / "report.json")
    return report


def read_start(config: TrainConfig) -> CrossEncoder:
    """Read the initial model: a cross-encoder, or an encoder with a random classifier."""
    with naming("encoder.pretrained"):
        if folder := cross_encoder.cross_encoder_folder(config.encoder.pretrained):
            return cross_encoder.read_cross_encoder(folder)
    encoder = model_families.read_start(config)
    what = f"expected a transformer or a cross-encoder, got {encoder}"
    refuse_if(not isinstance(encoder, TransformerEncoder), "encoder.pretrained", what)
    assert isinstance(encoder, TransformerEncoder)
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
    rate = train_step.make_schedule(config.optimizer, [steps])
    optimizer = train_step.make_optimizer(rate, config.optimizer, clip=_CLIP)

    def loss(rest: nnx.State, batch: Any, key: jax.Array) -> tuple[jax.Array, Metrics]:
        table, token_ids, segments, labels = batch
        scorer = nnx.merge(graph, nnx.State({**rest, "embedding": table}))
        logits = scorer(token_ids, segments)
        value = optax.sigmoid_binary_cross_entropy(logits, labels).mean()
        return value, {"cross_entropy": value}

    step = train_step.make_train_step(loss, optimizer, seed=config.seed)
    state = train_step.init_state(rest, optimizer)
    return lambda state, batch: step(state, (embedding, *batch)), state


def find_negatives(split: SplitData, vectors: np.ndarray, count: int) -> np.ndarray:
    """Find the nearest training questions of other clusters: int64 [Q, count], padded with -1.

    Only of training questions of a cluster. Questions with the words of one of it are of it, too.

    vectors: float32 [Q, d], of the first stage.
    """
    trained = np.flatnonzero(split.splits.split_of == TRAIN)
    groups = group_questions(split.data.questions, split.clusters)[trained]
    queries = np.flatnonzero(split.clusters[trained] >= 0)
    index = Vectors.build(IndexConfig(), vectors[trained])
    hits = rank(index_search(index, vectors[trained]), queries, count + _SPARE)
    same = (hits < 0) | (groups[hits] == groups[queries][:, None])
    others_first = np.argsort(same, axis=1, kind="stable")[:, :count]
    others = np.where(same, -1, trained[hits])
    found = np.full((len(vectors), count), -1, np.int64)
    found[trained[queries]] = np.take_along_axis(others, others_first, axis=1)
    return found


def find_hits(split: SplitData, vectors: np.ndarray, count: int) -> Validation:
    """Search for the hits of the validation queries; `vectors` as of `find_negatives`."""
    queries = np.unique(split.splits.pairs["validation"][:, 0]).astype(np.int64)
    hits = rank(exact_search(vectors), queries, count)
    relevant = (hits >= 0) & (split.clusters[queries][:, None] == split.clusters[hits])
    return Validation(queries, hits, relevant)


def rerank_scores(
    model: CrossEncoder, questions: Sequence[str], validation: Validation
) -> tuple[dict[str, float], np.ndarray]:
    """Compute `first_scores` of the hits sorted by logit, and the logits, [n, h], -inf for none."""
    is_hit = validation.hits >= 0
    queries = np.broadcast_to(validation.queries[:, None], is_hit.shape)[is_hit].tolist()
    hits = validation.hits[is_hit].tolist()
    logits = np.full(is_hit.shape, -np.inf)
    logits[is_hit] = model.predict(
        [(questions[a], questions[b]) for a, b in zip(queries, hits, strict=True)]
    )
    order = np.argsort(-logits, axis=1, kind="stable")
    return first_scores(np.take_along_axis(validation.relevant, order, axis=1)), logits


def make_batches(
    config: TrainConfig, split: SplitData, hits: np.ndarray, start: CrossEncoder
) -> tuple[int, Callable[[int], tuple[Batch, dict[str, float]]]]:
    """Draw the pairs of a training, determined by the seed: its steps, and what loads one."""
    count = min(PAIRS, (config.max_steps or PAIRS) * config.batch_size)
    drawn, labels = draw_pairs(
        np.where(split.splits.split_of == TRAIN, split.clusters, -1),
        hits,
        split.splits.non_duplicates["train"],
        count=count,
        negatives=NEGATIVES,
        seed=config.seed,
    )
    drawn, labels = drawn[:count], labels[:count]
    questions = split.data.questions
    pieces = WordPieces(start.contents[TOKENIZER], start.shape.vocab_size)
    sizes = np.array([*map(len, pieces.id_lists(questions, start.max_tokens)[0])])
    lengths = sizes[drawn].sum(axis=1) - 1
    steps = batches_by_length(lengths, config.batch_size, seed=config.seed)
    what = f"{steps.size:,} pairs, {labels.mean():.0%} positive, {lengths.mean():.1f} tokens each"
    log.info("%s; %s steps", what, f"{len(steps):,}")
    widths = choose_widths(start.max_tokens)

    def load(step: int) -> tuple[Batch, dict[str, float]]:
        chosen = steps[step]
        pairs = [(questions[a], questions[b]) for a, b in drawn[chosen].tolist()]
        ids, segments = start.tokenizer.id_lists(pairs)
        width = next(width for width in widths if width >= max(map(len, ids)))
        rows, shape = np.arange(len(ids)), (len(ids), width)
        batch = padded(ids, rows, shape, -1), padded(segments, rows, shape, 0), labels[chosen]
        return batch, {}

    return len(steps), load


def draw_pairs(
    clusters: np.ndarray,
    hits: np.ndarray,
    non_duplicates: np.ndarray,
    *,
    count: int,
    negatives: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw at least `count` pairs, in rounds: rows, int32 [n, 2], and labels, float32 [n].

    A round has for each cluster, whatever its size, a positive pair of two random questions, and
    negative pairs of the first of the two and some of its hits; and all non-duplicates, in random
    order of the two questions.

    clusters: int [Q], -1 for a question without a cluster or of another split.
    hits: int [Q, h], rows of hits of other clusters, padded with -1; `negatives` of them are drawn.
    non_duplicates: int [m, 2], pairs labeled so.
    """
    rng = np.random.default_rng(seed)
    members = np.flatnonzero(clusters >= 0)
    members = members[np.argsort(clusters[members], kind="stable")]
    sizes = np.unique(clusters[members], return_counts=True)[1]
    starts = (np.cumsum(sizes) - sizes)[sizes > 1]
    sizes = sizes[sizes > 1]
    what = "expected training questions with a known paraphrase, got none"
    remedy = "lower it, or give more pairs labeled as duplicates"
    refuse_if(not len(sizes), "data.held_out_pairs", what, remedy)
    rows, labels, drawn = [], [], 0
    while drawn < count:
        first = rng.integers(sizes)
        second = (first + 1 + rng.integers(sizes - 1)) % sizes  # another one
        queries, same = members[starts + first], members[starts + second]
        # The `negatives` hits with the smallest keys: a draw without replacement.
        keys = rng.random((len(queries), hits.shape[1])) + 2 * (hits[queries] < 0)
        chosen = np.argsort(keys, axis=1)[:, :negatives]
        others = np.take_along_axis(hits[queries], chosen, axis=1)
        swapped = rng.random((len(non_duplicates), 1)) < 0.5
        labeled = np.where(swapped, non_duplicates, non_duplicates[:, ::-1])
        far = np.stack([np.repeat(queries, chosen.shape[1]), others.reshape(-1)], axis=1)
        parts = [np.stack([queries, same], axis=1), far[far[:, 1] >= 0], labeled]
        kinds = np.repeat(np.array([1, 0, 0], np.float32), [len(part) for part in parts])
        order = rng.permutation(len(kinds))
        rows.append(np.concatenate(parts).astype(np.int32)[order])
        labels.append(kinds[order])
        drawn += len(kinds)
    return np.concatenate(rows), np.concatenate(labels)


def batches_by_length(lengths: np.ndarray, batch_size: int, *, seed: int) -> np.ndarray:
    """Divide pairs into batches of similar length: int64 [b, batch_size], positions of pairs.

    A pool of consecutive pairs, of these `lengths`, int [n], is sorted by length and cut into
    batches, which are shuffled. So few tokens are padding, and each part of the training has all
    lengths. An incomplete batch at the end is left out.
    """
    rng = np.random.default_rng([seed, 1])
    whole = len(lengths) - len(lengths) % batch_size
    batches = []
    for start in range(0, whole, _POOL * batch_size):
        pool = np.arange(start, min(start + _POOL * batch_size, whole))
        ordered = pool[np.argsort(lengths[pool], kind="stable")].reshape(-1, batch_size)
        batches.append(ordered[rng.permutation(len(ordered))])
    return np.concatenate(batches)
