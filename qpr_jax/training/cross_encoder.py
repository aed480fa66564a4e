"""The training of a cross-encoder: `job=cross_encoder`, from the settings to the report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from qpr_jax import progress
from qpr_jax.data.clusters import dense_clusters
from qpr_jax.data.splits import TRAIN, write_splits
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.sentence_transformers import TOKENIZER
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.evaluation.retrieval import DEPTH, exact_search, rank, retrieval_scores
from qpr_jax.files import StrPath, read_json, write_atomically, write_json
from qpr_jax.index.base import backend
from qpr_jax.index.recipe import Recipe, fit_recipe
from qpr_jax.index.run import run_encoder
from qpr_jax.models.bert import init_bert
from qpr_jax.models.cross_encoder import PairScorer
from qpr_jax.reranking.cross_encoder import (
    CrossEncoder,
    calibrate,
    cross_encoder_folder,
    from_encoder,
    read_cross_encoder,
    save_cross_encoder,
)
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.text.word_pieces import WordPieces
from qpr_jax.training.checkpoints import open_checkpoints
from qpr_jax.training.config import TrainConfig, identity
from qpr_jax.training.cross_pairs import Pairs, batches_by_length, draw_pairs, lay_out_pairs
from qpr_jax.training.metric_writer import MetricWriter
from qpr_jax.training.schedule import make_schedule
from qpr_jax.training.sources import SOURCES, SplitData
from qpr_jax.training.trainer import catch_signals, restore_latest
from qpr_jax.training.workdir import open_workdir

log = logging.getLogger(__name__)

_CLIP = 1.0  # the largest norm of a gradient


class CrossState(NamedTuple):
    """All that a step changes; the embedding of word pieces stays as it is."""

    params: Any
    optimizer: optax.OptState
    step: jax.Array


class Validation(NamedTuple):
    """Queries whose hits are ordered anew.

    Attributes:
      queries: int64 [n], rows of questions.
      hits: int64 [n, h], rows of the first stage's hits, nearest first.
      clusters: int32 [Q].
      pairs: int [P, 2], of the queries.
    """

    queries: np.ndarray
    hits: np.ndarray
    clusters: np.ndarray
    pairs: np.ndarray


def train_cross_encoder(config: TrainConfig, workdir: StrPath) -> dict[str, Any]:
    """Train a cross-encoder in `workdir`, write `export/` there, and return the report.

    The same call resumes after a kill. One process and one device: a step is small.
    """
    source = SOURCES[config.data.source]
    path = source.find(config) if source.find else None
    run = identity(config)
    if path:
        run["data.sha256"] = source.digest(path)
    first_stage = _read_first_stage(config)
    start = _read_start(config)
    run |= {"pretrained.identity": start.identity, "first_stage.identity": first_stage.identity}
    with open_workdir(workdir, run, overwrite=config.overwrite) as folder:
        if (folder / "report.json").exists():
            log.info("%s is finished; see its report.json", folder)
            return dict(read_json(folder / "report.json"))
        data, clusters, splits = source.read(config, path or pathlib.Path())
        split = SplitData(data, dense_clusters(clusters), splits)
        write_splits(folder / "splits", splits, data.ids, data.questions)
        hits, validation = _find_hits(config, split, first_stage, folder)
        model, seconds = _train(config, split, start, hits, validation, folder)
        return _finish(config, split, model, validation, folder, seconds)


def _read_first_stage(config: TrainConfig) -> Encoder:
    try:
        return run_encoder(os.path.expanduser(config.cross_encoder.first_stage))
    except UserError as error:
        name = "cross_encoder.first_stage"
        raise UserError(error.what, setting=name, remedy=error.remedy) from None


def _read_start(config: TrainConfig) -> CrossEncoder:
    """What training starts from: an encoder with an output drawn at random, or a cross-encoder."""
    named = os.path.expanduser(config.encoder.pretrained)
    limit = 2 * config.text.max_tokens
    try:
        if folder := cross_encoder_folder(named):
            return read_cross_encoder(folder)
        encoder = run_encoder(named)
        if not isinstance(encoder, TransformerEncoder):
            raise UserError(f"expected the folder of a transformer, got {named!r}")
    except UserError as error:
        raise UserError(error.what, setting="encoder.pretrained", remedy=error.remedy) from None
    return from_encoder(encoder, max_tokens=limit, seed=config.seed)


def _find_hits(
    config: TrainConfig, split: SplitData, encoder: Encoder, folder: pathlib.Path
) -> tuple[np.ndarray, Validation]:
    """Negatives of the training questions, as `draw_pairs` reads them, and the validation."""
    settings, (data, clusters, splits) = config.cross_encoder, split
    queries = np.unique(splits.pairs["validation"][:, 0]).astype(np.int64)
    path = folder / "hits.npy"
    if not path.exists():
        vectors = encoder.encode(data.questions)
        log.info("first stage: encoded %s questions", f"{len(vectors):,}")
        negatives = _negatives(split, vectors, settings.hits)
        found = rank(exact_search(vectors), queries, settings.hits)
        log.info("first stage: found the hits")
        with write_atomically(path) as file:
            np.save(file, np.concatenate([negatives, found]).astype(np.int32))
    every = np.load(path).astype(np.int64)
    negatives, found = every[: len(clusters)], every[len(clusters) :]
    return negatives, Validation(queries, found, clusters, splits.pairs["validation"])


def _negatives(split: SplitData, vectors: np.ndarray, count: int) -> np.ndarray:
    """The nearest training questions of another meaning, int64 [Q, count], -1 where none.

    Questions of no cluster, and of the other splits, have none. A hit with the words of the query
    is no negative, whatever its labels.
    """
    data, clusters, splits = split
    trained = np.flatnonzero(splits.split_of == TRAIN)
    queries = trained[clusters[trained] >= 0]
    recipe = fit_recipe(Recipe(probes=20), len(trained))
    index = backend(recipe.factory).build(
        recipe, lambda at: vectors[trained[at]], len(trained), None
    )
    found = np.full((len(clusters), count), -1, np.int64)
    texts = {text: i for i, text in enumerate(dict.fromkeys(map(normalized_text, data.questions)))}
    text_of = np.array([texts[normalized_text(question)] for question in data.questions])
    size = count + 10  # paraphrases are among the nearest
    for start in range(0, len(queries), 4096):
        rows = queries[start : start + 4096]
        hits = index.search(vectors[rows], min(size, len(trained)))[1]
        hits = np.where(hits < 0, -1, trained[hits])
        own = (hits < 0) | (clusters[hits] == clusters[rows][:, None])
        own |= text_of[hits] == text_of[rows][:, None]
        others = np.take_along_axis(hits, np.argsort(own, axis=1, kind="stable"), axis=1)
        others[np.sort(own, axis=1)] = -1
        found[rows, : others.shape[1]] = others[:, :count]
    return found


def _train(
    config: TrainConfig,
    split: SplitData,
    start: CrossEncoder,
    hits: np.ndarray,
    validation: Validation,
    folder: pathlib.Path,
) -> tuple[CrossEncoder, float]:
    """The model of the best step, and the seconds of this command's steps."""
    settings, data = config.cross_encoder, split.data
    inside = np.where(split.splits.split_of == TRAIN, split.clusters, -1)
    pairs = draw_pairs(
        *(inside, hits, split.splits.non_duplicates["train"]),
        count=settings.pairs,
        negatives=settings.negatives,
        seed=config.seed,
    )
    pairs = Pairs(*(part[: settings.pairs] for part in pairs))
    pieces = WordPieces(start.contents[TOKENIZER], start.shape.vocab_size)
    ids = pieces.id_lists(data.questions, start.max_tokens // 2)
    lengths = np.array([len(row) for row in ids])[pairs.rows].sum(axis=1) - 1
    batches = batches_by_length(lengths, config.batch_size, seed=config.seed)
    if config.max_steps:
        batches = batches[: config.max_steps]
    log.info("%s pairs, %.1f tokens each", f"{len(pairs.labels):,}", lengths.mean())
    run_step, state, export = _make_step(config, start, len(batches))
    sample = _sample(validation, settings.queries, config.seed)
    every = -(-len(batches) // settings.evaluations)
    seconds = 0.0
    with open_checkpoints(folder / "checkpoints") as checkpoints, contextlib.ExitStack() as stack:
        state, stopping = restore_latest(checkpoints, state)
        done = int(state.step)
        writer = MetricWriter(folder, resume_at=done)
        stack.enter_context(contextlib.closing(writer))
        show = stack.enter_context(progress.bar("step", len(batches), start=done))
        signals = stack.enter_context(catch_signals())
        rows: list[dict[str, Any]] = []
        clock = time.perf_counter()
        while done < len(batches) and not signals:
            batch = batches[done]
            token_ids, segments = lay_out_pairs(pairs.rows[batch], ids)
            state, metrics = run_step(state, token_ids, segments, pairs.labels[batch])
            done += 1
            rows.append({"step": done, "tokens": int((token_ids >= 0).sum())} | metrics)
            evaluates = done % every == 0 or done == len(batches)
            if evaluates or done % config.log_every == 0:
                rows = [
                    {name: float(v) for name, v in row.items()} | {"step": row["step"]}
                    for row in rows
                ]
                if not all(np.isfinite(row["loss"]) for row in rows):
                    raise UserError(
                        f"expected finite numbers, got the loss {rows[-1]['loss']} at step {done}",
                        setting="optimizer.learning_rate",
                        remedy="lower it, and start again with {overwrite=True}",
                    )
                spent = time.perf_counter() - clock
                rate = round(len(rows) * config.batch_size / spent, 1)
                writer.steps([row | {"pairs_per_second": rate} for row in rows])
                loss = np.mean([row["loss"] for row in rows])
                show(done, f"loss {loss:.4f}, {rate} pairs/s")
                seconds, rows, clock = seconds + spent, [], time.perf_counter()
            if evaluates:
                scores, _ = rerank_scores(export(state), data.questions, sample)
                writer.evaluation({"step": done, **scores})
                log.info("step %d: %s", done, scores)
                stopping = stopping.update(done, scores["mrr@20"], min_delta=0.0)
                clock = time.perf_counter()
            if evaluates or signals or done % config.checkpoint_every == 0:
                checkpoints.save(state, stopping)
        checkpoints.wait()
        if signals and done < len(batches):
            log.info("stopped at step %d, saved; the same command resumes", done)
            raise Interrupted(*signals)
        log.info("best at step %d", stopping.best_step)
        best, _ = checkpoints.restore(state, stopping.best_step)
    return export(best), seconds


def _make_step(
    config: TrainConfig, start: CrossEncoder, steps: int
) -> tuple[Callable[..., Any], CrossState, Callable[[CrossState], CrossEncoder]]:
    """The step, the state before the first, and the model of a state."""
    dtype = config.encoder.compute_dtype
    weights = jax.tree.map(jnp.array, start.weights)
    graph, params = init_bert(start.shape, weights, dtype, config.encoder.precision, PairScorer)
    embedding = params["embedding"]
    rest = nnx.State({name: value for name, value in params.items() if name != "embedding"})
    optimizer = optax.chain(
        optax.clip_by_global_norm(_CLIP),
        optax.adamw(
            make_schedule(config, steps),
            weight_decay=config.optimizer.weight_decay,
            mask=lambda params: jax.tree.map(lambda array: array.ndim > 1, params),
        ),
    )

    def loss(
        rest: nnx.State, embedding: Any, ids: jax.Array, segments: jax.Array, labels: jax.Array
    ) -> jax.Array:
        scorer = nnx.merge(graph, nnx.State({**rest, "embedding": embedding}))
        return optax.sigmoid_binary_cross_entropy(scorer.score(ids, segments), labels).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(
        state: CrossState, embedding: Any, *batch: jax.Array
    ) -> tuple[CrossState, dict[str, jax.Array]]:
        value, gradient = jax.value_and_grad(loss)(state.params, embedding, *batch)
        updates, inner = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(gradient)}
        return CrossState(params, inner, state.step + 1), metrics

    def export(state: CrossState) -> CrossEncoder:
        # Copies: a step donates its state.
        trained = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(state.params)))
        weights = trained | {"embedding": start.weights["embedding"]}
        return dataclasses.replace(start, weights=weights, settings=identity(config))

    state = CrossState(rest, optimizer.init(rest), jnp.zeros((), jnp.int32))
    return lambda state, *batch: step(state, embedding, *batch), state, export


def _sample(validation: Validation, count: int, seed: int) -> Validation:
    """`count` of the queries, at random."""
    total = len(validation.queries)
    chosen = np.sort(np.random.default_rng([seed, 2]).permutation(total)[:count])
    queries = validation.queries[chosen]
    kept = np.isin(validation.pairs[:, 0], queries)
    return Validation(queries, validation.hits[chosen], validation.clusters, validation.pairs[kept])


def rerank_scores(
    model: CrossEncoder, questions: list[str], validation: Validation
) -> tuple[dict[str, float], np.ndarray]:
    """H@1 and MRR per query of the hits in the order of the logits, and the logits [n, h]."""
    queries, hits = validation[:2]
    found = hits >= 0
    rows = np.stack([np.repeat(queries, hits.shape[1]), hits.reshape(-1)], axis=1)[
        found.reshape(-1)
    ]
    logits = np.full(hits.shape, -np.inf)
    logits[found] = model.predict([(questions[a], questions[b]) for a, b in rows.tolist()])
    order = np.argsort(-logits, axis=1, kind="stable")
    return _scores(np.take_along_axis(hits, order, axis=1), validation), logits


def _scores(rankings: np.ndarray, validation: Validation) -> dict[str, float]:
    missing = max(0, DEPTH - rankings.shape[1])
    rankings = np.pad(rankings, [(0, 0), (0, missing)], constant_values=-1)
    queries, _, clusters, pairs = validation
    scores = retrieval_scores(rankings, queries, pairs, clusters)["per_query"]
    return {name: scores[name] for name in ("hits@1", "mrr@20")}


def _finish(
    config: TrainConfig,
    split: SplitData,
    model: CrossEncoder,
    validation: Validation,
    folder: pathlib.Path,
    seconds: float,
) -> dict[str, Any]:
    """Calibrate and write the model, and report its scores on all validation queries."""
    started = time.perf_counter()
    scores, logits = rerank_scores(model, split.data.questions, validation)
    found = np.isfinite(logits)
    rate = found.sum() / (time.perf_counter() - started)
    same = split.clusters[validation.queries][:, None] == split.clusters[validation.hits]
    model = dataclasses.replace(model, calibration=calibrate(logits[found], same[found]))
    save_cross_encoder(folder / "export", model)
    report = {
        "settings": identity(config),
        "identity": model.identity,
        "validation": {
            "queries": len(validation.queries),
            "hits": validation.hits.shape[1],
            "first_stage": _scores(validation.hits, validation),
            "cross_encoder": scores,
        },
        "training_seconds": seconds,
        "scored_pairs_per_second": float(rate),
    }
    write_json(folder / "report.json", report)
    log.info("finished: %s; see %s", scores, folder / "report.json")
    return report
