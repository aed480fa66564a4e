"""One training step of a cross-encoder."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from qpr_jax.models.bert import init_bert
from qpr_jax.models.cross_encoder import PairScorer
from qpr_jax.reranking.cross_encoder import CrossEncoder
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.schedule import make_schedule
from qpr_jax.training.train_step import (
    Metrics,
    Step,
    TrainState,
    init_state,
    make_optimizer,
)

_CLIP = 1.0  # the largest norm of a gradient


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
    optimizer = make_optimizer(
        make_schedule(config, steps), weight_decay=config.optimizer.weight_decay, clip=_CLIP
    )

    def loss(rest: nnx.State, table: Any, batch: tuple[jax.Array, ...]) -> jax.Array:
        token_ids, segments, labels = batch
        scorer = nnx.merge(graph, nnx.State({**rest, "embedding": table}))
        logits = scorer.score(token_ids, segments)
        return optax.sigmoid_binary_cross_entropy(logits, labels).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(
        state: TrainState, table: Any, batch: tuple[jax.Array, ...]
    ) -> tuple[TrainState, Metrics]:
        value, gradient = jax.value_and_grad(loss)(state.params, table, batch)
        updates, inner = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(gradient)}
        return TrainState(params, inner, state.step + 1), metrics

    return lambda state, batch: step(state, embedding, batch), init_state(rest, optimizer)


def trained_weights(state: TrainState, start: CrossEncoder) -> dict[str, Any]:
    """Return the weights of the `CrossEncoder` that a state holds."""
    # Copies: a step donates its state.
    trained = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(state.params)))
    return dict(trained) | {"embedding": start.weights["embedding"]}
