"""One training step, written for one device and mapped over all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.losses import sdml_loss
from qpr_jax.training.batches import Batch
from qpr_jax.training.mesh import AXIS

Params = Any


class TrainState(NamedTuple):
    """All that a step changes."""

    params: Params
    optimizer: optax.OptState
    step: jax.Array  # int32 [], steps done


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def make_loss(
    encoder: nnx.GraphDef, mesh: Mesh, *, smoothing: float
) -> Callable[[Params, Batch], jax.Array]:
    """The loss of a global batch as a function of replicated parameters.

    Each device encodes its share of the pairs and gathers the candidates of all. The gradient is
    to be taken of the function returned, outside the map, where it sums over devices by itself.
    """

    def share_loss(params: Params, batch: Batch) -> jax.Array:
        vectors = nnx.merge(encoder, params).encode_blocks(batch.distinct, batch.blocks)
        queries, candidates = jnp.split(vectors[batch.order], 2)
        return sdml_loss(queries, candidates, smoothing=smoothing, axis_name=AXIS)

    return jax.shard_map(
        share_loss,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
        out_specs=PartitionSpec(),
    )


def make_train_step(
    loss: Callable[[Params, Batch], jax.Array], optimizer: optax.GradientTransformation
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """The compiled step: (state, batch) -> (state, {"loss", "grad_norm"}); the state is donated."""

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        value, gradient = jax.value_and_grad(loss)(state.params, batch)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(gradient)}
        return TrainState(params, optimizer_state, state.step + 1), metrics

    return jax.jit(step, donate_argnums=0)
