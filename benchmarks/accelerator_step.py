"""Parts of `benchmarks.accelerator`: training steps, the wait for batches, and encoding.

The data are a generated log of questions, the networks are random: the CNN of the paper, and a BERT
of MiniLM's shape. The floor of a case is the time of its matrix products alone.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from benchmarks.accelerator_loss import NO_TIME, Row, left_out, too_large
from benchmarks.measuring import Clock, best_of, seconds_in_turns
from qpr_jax.encoders.sentence_transformers import SentenceModel
from qpr_jax.errors import UserError
from qpr_jax.models.bert import BertEncoder
from qpr_jax.models.bert_shape import BertShape
from qpr_jax.training import device_memory
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset, load_dataset
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.overrides import load_config
from qpr_jax.training.prefetch import Prefetch
from qpr_jax.training.stages import Plan, build_plan, init_model

# What the products are of, and the precision of the rate that the floor is taken from.
PRODUCTS = {
    "float32": ("float32", "highest"),
    "bfloat16": ("bfloat16", "bf16"),
}
CHUNKS = (0, 4096, 1024)  # of `batch.encode_chunk`: the first that fits
ENCODED = 4096  # questions of a call


class Start(NamedTuple):
    """What the training of a BERT starts from: all of its encoder that training reads."""

    model: SentenceModel


def generated(clusters: int) -> TrainDataset:
    """A generated log, with the vocabulary of the CNN."""
    config = load_config("quora_sdml")
    config.data.source, config.data.synthetic_clusters = "synthetic", clusters
    config.data.held_out_pairs = max(30, clusters // 10)
    return load_dataset(config, None)


def with_bert(dataset: TrainDataset, shape: BertShape) -> TrainDataset:
    """The same questions, for a BERT of random weights; its token ids are those of the CNN."""
    weights = nnx.to_pure_dict(nnx.state(BertEncoder(shape, rngs=nnx.Rngs(0))))
    start: Any = Start(SentenceModel(shape, dataset.token_ids.shape[1], jax.device_get(weights)))
    return dataclasses.replace(dataset, start=start)


def config_of(kind: str, size: int, products: str, **encoder: Any) -> TrainConfig:
    """The defaults, at this batch size and with these products; `encoder`: further settings."""
    config = load_config("quora_sdml")
    config.batch_size, config.encoder.kind = size, kind
    config.max_epochs, config.devices = 1000, 1  # more than are measured
    config.encoder.compute_dtype, config.loss.precision = PRODUCTS[products]
    for name, value in encoder.items():
        setattr(config.encoder, name, value)
    return config


def measure_steps(
    datasets: Mapping[str, TrainDataset],
    sizes: Sequence[int],
    rates: Mapping[str, float],
    clock: Clock,
    *,
    steps: int = 40,
    **encoder: Any,
) -> Iterator[Row]:
    """A row of each kind of encoder, batch size and dtype of products.

    A row has the seconds of a step whose batch is on the device, those of a step of the training
    loop, whose batches are made by `Prefetch`, and the share of these that the device waited.
    """
    cases = [(size, kind, products) for size in sizes for kind in datasets for products in PRODUCTS]
    for done, (size, kind, products) in enumerate(cases):
        row: Row = {"part": "step", "size": size, "variant": kind, "precision": products}
        own = Clock(clock.left / (len(cases) - done))  # later cases get what earlier ones left
        if own.left < 1:
            yield row | {"left_out": NO_TIME}
            continue
        try:
            if len(datasets[kind].splits.pairs["train"]) < size:
                raise UserError(f"expected {size} pairs, got fewer")
            row |= _measure_step(datasets[kind], kind, size, products, own, steps, encoder)
            if (rate := rates.get(PRODUCTS[products][1])) is not None:
                row["floor"] = row.pop("operations") / rate
        except Exception as error:  # of any kind: the others are measured all the same
            row |= left_out(error)
        row.pop("operations", None)
        yield row


def _measure_step(
    dataset: TrainDataset,
    kind: str,
    size: int,
    products: str,
    clock: Clock,
    steps: int,
    encoder: Mapping[str, Any],
) -> Row:
    """The rest of a row of `measure_steps`, and the operations of its products."""
    config = config_of(kind, size, products, **encoder)
    for chunk in CHUNKS:
        config.batch.encode_chunk = chunk
        plan = build_plan(config, dataset)
        (loader, train), _ = plan.objective_at(0)
        batch = loader.batch(0, plan.mesh)
        compiled = train.step.compile(plan.state, batch)
        if (reason := too_large(compiled, jax.devices()[0])) is None:
            break
    else:
        return {"left_out": reason}
    state = [plan.state]

    def run_steps(count: int = 1) -> float:
        for _ in range(count):
            state[0], metrics = train.step(state[0], batch)
        return float(metrics["loss"])

    run_steps()
    one, loss = best_of(run_steps, most=2)
    chained = max(1, min(10, int(0.2 / one)))  # in one go, as in training
    call = functools.partial(run_steps, chained)
    seconds = seconds_in_turns({"": call}, limit=clock.left / 4)[""] / chained
    if not np.isfinite(loss):
        raise UserError(f"expected a finite loss, got {loss}")
    count = int(max(2, min(steps, clock.left / 3 / seconds)))
    state[0], _, _ = run_loop(plan, state[0], count)  # compiles the shapes of these batches
    state[0], looped, waited = run_loop(plan, state[0], count)
    return {
        "encode_chunk": config.batch.encode_chunk,
        "gib": device_memory.needed(compiled) / 2**30,
        "seconds": seconds,
        "loop_seconds": looped / count,
        "waited": waited / looped,
        "operations": step_operations(plan, config, dataset.start),
    }


def run_loop(plan: Plan, state: Any, steps: int) -> tuple[Any, float, float]:
    """Train for some steps as `trainer.train` does: the state, the seconds, and those waited."""
    (_, train), _ = plan.objective_at(0)
    last: list[jax.Array] = []

    def busy() -> bool:
        return bool(last) and not last[0].is_ready()

    start = time.perf_counter()
    with Prefetch(plan.load, range(steps), busy=busy) as batches:
        for batch, _ in batches:
            state, metrics = train.step(state, batch)
            last[:] = [metrics["loss"]]
        jax.block_until_ready(last)
        return state, time.perf_counter() - start, batches.waited


def step_operations(plan: Plan, config: TrainConfig, start: Any) -> float:
    """Operations of the products of a step, forward and backward, of the encoder and the loss."""
    (loader, _), _ = plan.objective_at(0)
    shape, n = loader.shapes[0], config.batch_size
    if config.encoder.kind == "bert":
        bert = start.model.shape
        output = bert.hidden_size
        weights = bert.num_hidden_layers * 2 * output * (2 * output + bert.intermediate_size)
        encoder = shape.positions * weights
    else:
        own = config.encoder
        output = own.output_dim
        encoder = shape.unique_ids * sum(own.kernel_sizes) * own.embedding_dim * own.filters
        encoder += 2 * n * len(own.kernel_sizes) * own.filters * output
    return 6.0 * encoder + 6.0 * n * n * output


def measure_encoding(
    datasets: Mapping[str, TrainDataset],
    clock: Clock,
    *,
    questions: int = ENCODED,
    **encoder: Any,
) -> Iterator[Row]:
    """Questions a second: of the CNN from strings on the host, and from token ids on the device."""
    vectors: dict[str, np.ndarray] = {}
    for kind, dataset in datasets.items():
        token_ids = dataset.token_ids[:questions]
        for products in ("host", *PRODUCTS) if kind == "cnn" else PRODUCTS:
            row: Row = {"part": "encoding", "size": len(token_ids), "variant": kind}
            row["precision"] = products
            if clock.left < 0:
                yield row | {"left_out": NO_TIME}
                continue
            try:
                call = _encoder(kind, dataset, products, token_ids, encoder)
                found = call()  # compiles
                row["seconds"] = seconds_in_turns({"": call}, limit=clock.left / 8)[""]
                row["per_second"] = len(token_ids) / row["seconds"]
                expected = vectors.setdefault(kind, found)  # the first is float32
                row["error"] = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
                if not row["error"] <= (5e-2 if products == "bfloat16" else 1e-3):
                    row["wrong"] = f"the vectors are off by {row['error']:.1e}"
            except Exception as error:  # of any kind: the others are measured all the same
                row |= left_out(error)
            yield row


def _encoder(
    kind: str,
    dataset: TrainDataset,
    products: str,
    token_ids: np.ndarray,
    encoder: Mapping[str, Any],
) -> Callable[[], np.ndarray]:
    """A call that encodes questions, to vectors on the host."""
    config = config_of(kind, 2, "float32" if products == "host" else products, **encoder)
    graph, params = init_model(config, dataset)
    if products == "host":
        exported = MODEL_FAMILIES[kind].export(config, None, dataset.tokenizer, params)
        return functools.partial(exported.encode, dataset.data.questions[: len(token_ids)])
    encode = jax.jit(lambda params, token_ids: nnx.merge(graph, params)(token_ids))
    return lambda: np.asarray(encode(params, token_ids))
