"""What a training will take, from a few of its steps and a second of other measuring."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from qpr_jax.costs.encoding import EncodingCosts, measure_encoding
from qpr_jax.costs.estimate import Estimate, fits, refuse
from qpr_jax.costs.faiss_costs import compare_seconds, measure_faiss
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.index.pair_search import EXACT_LIMIT
from qpr_jax.index.recipe import fit_recipe
from qpr_jax.machine import held_memory
from qpr_jax.retriever import run_recipe
from qpr_jax.training import device_memory
from qpr_jax.training.boosting import MIN_QUERIES
from qpr_jax.training.checks import validate
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset, load_dataset
from qpr_jax.training.evaluator import eval_queries
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.rerank_data import (
    PRETRAINED,
    PRETRAINING_EPOCHS,
    PRETRAINING_HITS,
    training_queries,
)
from qpr_jax.training.sources import SOURCES
from qpr_jax.training.stages import Objective, Plan, build_plan
from qpr_jax.training.teacher import Teacher, read_teacher, teacher_words
from qpr_jax.training.train_step import TrainState

log = logging.getLogger(__name__)

_SAMPLE = 16_384  # questions
_STEPS, _SECONDS = 3, 1.0  # that are timed at least, and at most
_SEARCHES = 6  # exact searches and searches of the index for the report
# Seconds to find and describe a hit for the re-ranker, and to fit to it, on 2 cores of an AMD EPYC.
_HIT_SECONDS, _FIT_SECONDS = 20e-6, 60e-6
_HIT_BYTES = 800  # of its features
# Found pairs of a question, each counted from both, for the probabilities; bytes of one.
_FOUND_HITS, _PAIR_BYTES = 30, 80


def require_room(
    config: TrainConfig, dataset: TrainDataset, workdir: StrPath, plan: Plan, done: int
) -> None:
    """Log what the rest of a training takes; UserError where it does not fit.

    done: the steps that are done. Of several processes none measures, as all would have to.
    """
    if jax.process_count() > 1:
        return
    found = training_estimate(config, dataset, plan, done)
    log.info("%s", found.line())
    if not fits(found, workdir):
        if fits(dataclasses.replace(found, disk=0), workdir):
            refuse(found, workdir, remedy="train in a {workdir} on another disk")
        refuse(found, workdir, remedy="set {index.factory=IVF2000,SQ8} and {index.assignments=1}")


def training_estimate(
    config: TrainConfig, dataset: TrainDataset, plan: Plan, done: int = 0
) -> Estimate:
    """What the training of a plan takes, after `done` steps, up to the report.

    The plan is compiled, and its state stays as it is. It may stop earlier than the estimate says,
    when the scores rise no more.
    """
    steps, step_seconds = _steps(plan, done)
    encoder = _untrained_encoder(config, dataset, plan)
    questions = dataset.data.questions
    rows = np.random.default_rng(0).permutation(len(questions))[:_SAMPLE]
    encoding = measure_encoding(encoder, [questions[row] for row in np.sort(rows).tolist()])
    compare = compare_seconds(encoder.dimension)
    evaluation = _evaluation_seconds(dataset, encoding, compare)
    every = config.early_stopping.every_steps
    evaluations = sum(
        plan.evaluates(step, every) for step in range(done + 1, plan.stages[-1].ends + 1)
    )
    recipe = fit_recipe(run_recipe(encoder), len(questions))
    index = measure_faiss(recipe, len(questions), encoder.dimension)
    after = encoding.all_seconds(len(questions)) + index.seconds + _SEARCHES * evaluation
    after_bytes = index.memory + 4 * encoder.dimension * len(questions)
    if config.rerank.kind != "none":
        seconds, size = _reranker_costs(config, dataset, compare)
        after, after_bytes = after + seconds, after_bytes + size
    seconds, size = _calibration_costs(config, dataset, compare)
    after, after_bytes = after + seconds, after_bytes + size
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(plan.state))
    return Estimate(
        seconds=step_seconds + evaluations * evaluation + after,
        memory=held_memory() + max(_step_bytes(plan) + state, after_bytes),
        # The latest checkpoint and the best; the index, the encoder.
        disk=2 * state + index.held + sum(map(len, encoder.files().values())),
        count=steps,
        unit="steps",
        rate=steps / max(step_seconds, 1e-9),
        at_most=evaluations > config.early_stopping.patience,
    )


def dry_run_of(config: TrainConfig) -> Estimate:
    """What `train_and_evaluate` of the config takes; its data are read, and nothing is written.

    UserError where the settings or the data are wrong, or a step does not fit into memory.
    """
    validate(config)
    if config.job != "encoder":
        raise UserError(
            f"expected job `encoder`, got {config.job!r}, whose time is not estimated yet",
            setting="dry_run",
            remedy="start it without {dry_run}: it can be stopped, and resumed, at any time",
        )
    began = time.perf_counter()
    source, family = SOURCES[config.data.source], MODEL_FAMILIES[config.encoder.kind]
    start, teacher = family.start(config), read_teacher(config)
    path = source.find(config) if source.find else None
    with tempfile.TemporaryDirectory() as folder:
        if path and source.prepare:
            path = source.prepare(config, path, pathlib.Path(folder))
        dataset = load_dataset(config, path, start, teacher_words(config, teacher))
    teaching = 0.0
    if teacher or config.teacher.vectors:
        own = dataclasses.replace(config.teacher, init_embeddings=False)
        config = dataclasses.replace(config, teacher=own)
        dataset, teaching = _with_any_teacher(config, dataset, teacher)
    plan = build_plan(config, dataset)
    plan.compile()
    loading = time.perf_counter() - began
    found = training_estimate(config, dataset, plan)
    return dataclasses.replace(found, seconds=found.seconds + loading + teaching)


def _with_any_teacher(
    config: TrainConfig, dataset: TrainDataset, encoder: Encoder | None
) -> tuple[TrainDataset, float]:
    """The dataset with made-up vectors of a teacher, and the seconds to encode the real ones."""
    count, seconds = dataset.first_target, 0.0
    dimension = dataset.start.dimension if dataset.start else config.encoder.output_dim
    width = dimension
    if encoder:
        width = encoder.dimension
        costs = measure_encoding(encoder, dataset.data.questions[:_SAMPLE])
        seconds = costs.all_seconds(count)
    rng = np.random.default_rng(0)
    vectors = np.broadcast_to(rng.standard_normal((1, width), np.float32), (count, width))
    components = rng.standard_normal((width, dimension), np.float32)
    teacher = Teacher((vectors,), components if width != dimension else None, encoder)
    return dataclasses.replace(dataset, teacher=teacher), seconds


def _steps(plan: Plan, done: int) -> tuple[int, float]:
    """The steps of a plan that are left, and their seconds."""
    seconds = 0.0
    for stage in plan.stages:
        if steps := max(0, stage.ends - max(stage.begins, done)):
            each = [_step_seconds(plan, objective) for objective in stage.objectives]
            seconds += steps * sum(each) / len(each)
    return plan.stages[-1].ends - done, seconds


def _step_seconds(plan: Plan, objective: Objective) -> float:
    """Seconds of a step; the median of a few."""
    loader, train = objective
    state: TrainState = jax.tree.map(jnp.copy, plan.state)  # a step overwrites what it is given
    times: list[float] = []
    for number in range(1 + 20):
        if len(times) > _STEPS and sum(times) > _SECONDS:
            break
        batch = loader.batch(number % loader.epoch, plan.mesh)
        start = time.perf_counter()
        state, metrics = train.step(state, batch)
        jax.block_until_ready((state, metrics))
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def _step_bytes(plan: Plan) -> int:
    """Bytes of the largest step, on CPU."""
    if plan.mesh.devices.flat[0].platform != "cpu":
        return 0  # they are the device's
    return max(
        len(plan.mesh.local_devices)
        * device_memory.needed(train.step.compile(plan.state, loader.batch(0, plan.mesh)))
        for stage in plan.stages
        for loader, train in stage.objectives
    )


def _untrained_encoder(config: TrainConfig, dataset: TrainDataset, plan: Plan) -> Encoder:
    """The encoder before the first step, which is as fast as the trained one."""
    params = plan.stages[0].objectives[0].train.params(jax.tree.map(jnp.copy, plan.state))
    family = MODEL_FAMILIES[config.encoder.kind]
    return family.export(config, dataset.start, dataset.tokenizer, params)


def _evaluation_seconds(dataset: TrainDataset, encoding: EncodingCosts, compare: float) -> float:
    """Seconds of an evaluation: all questions are encoded, and searched for the validation's."""
    count = len(dataset.data.questions)
    queries = len(eval_queries(dataset, "validation"))
    return encoding.all_seconds(count) + queries * count * compare


def _reranker_costs(
    config: TrainConfig, dataset: TrainDataset, compare: float
) -> tuple[float, int]:
    """Seconds and bytes of the light re-ranker."""
    queries, first = len(training_queries(dataset)[0]), config.rerank
    if queries < MIN_QUERIES:
        return 0.0, 0
    pretrained = min(PRETRAINED, len(dataset.trainable_rows))
    searched = (queries + pretrained) * len(dataset.data.questions) * compare
    hits = queries * (first.candidates + first.lexical_candidates)
    pretraining_hits = pretrained * PRETRAINING_HITS
    seconds = (hits + pretraining_hits) * _HIT_SECONDS
    seconds += (hits + PRETRAINING_EPOCHS * pretraining_hits) * _FIT_SECONDS
    return searched + seconds, (hits + pretraining_hits) * _HIT_BYTES


def _calibration_costs(
    config: TrainConfig, dataset: TrainDataset, compare: float
) -> tuple[float, int]:
    """Seconds and bytes of the probabilities of pairs."""
    if not len(dataset.splits.pairs["validation"]):
        return 0.0, 0
    count = len(dataset.data.questions)
    seconds, hits = compare * count * min(count, EXACT_LIMIT) / 2, _FOUND_HITS * count
    if config.rerank.kind != "none":
        seconds += hits * _HIT_SECONDS
    return seconds, hits * _PAIR_BYTES
