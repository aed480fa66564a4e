"""One training step of a cross-encoder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

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

_CLIP = 1.0  # the largest norm of a gradient


class CrossState(NamedTuple):
    """The state that a step changes. The word-piece embedding is frozen, and not in it."""

    params: nnx.State  # all but the embedding
    optimizer: optax.OptState
    step: jax.Array  # the steps done, int32 []


# (state, token ids, segments, labels) -> (state, metrics). The state is donated.
CrossStep = Callable[
    [CrossState, np.ndarray, np.ndarray, np.ndarray], tuple[CrossState, dict[str, jax.Array]]
]


def make_cross_step(
    config: TrainConfig, start: CrossEncoder, steps: int
) -> tuple[CrossStep, CrossState]:
    """Make the function of a step, and the initial state, for a training of `steps` steps.

    The loss is binary cross-entropy; the optimizer is AdamW. The word-piece embedding, half of the
    parameters, is frozen: a fine-tuning changes it little, and the step is faster.
    """
    # Copies: a step donates its state, and the weights of `start` are read again.
    weights = jax.tree.map(jnp.array, start.weights)
    settings = config.encoder
    dtype, precision = settings.compute_dtype, config.precision
    graph, params = init_bert(start.shape, weights, dtype, precision, PairScorer)
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

    def loss(rest: nnx.State, table: Any, batch: tuple[jax.Array, ...]) -> jax.Array:
        token_ids, segments, labels = batch
        scorer = nnx.merge(graph, nnx.State({**rest, "embedding": table}))
        logits = scorer.score(token_ids, segments)
        return optax.sigmoid_binary_cross_entropy(logits, labels).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(
        state: CrossState, table: Any, batch: tuple[jax.Array, ...]
    ) -> tuple[CrossState, dict[str, jax.Array]]:
        value, gradient = jax.value_and_grad(loss)(state.params, table, batch)
        updates, inner = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(gradient)}
        return CrossState(params, inner, state.step + 1), metrics

    state = CrossState(rest, optimizer.init(rest), jnp.zeros((), jnp.int32))
    return lambda state, *batch: step(state, embedding, batch), state


def trained_weights(state: CrossState, start: CrossEncoder) -> dict[str, Any]:
    """Return the weights of the `CrossEncoder` that a state holds."""
    # Copies: a step donates its state.
    trained = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(state.params)))
    return dict(trained) | {"embedding": start.weights["embedding"]}
