"""One training step, written for one device and mapped over all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.training.batches import Batch
from qpr_jax.training.distributed import AXIS

Params = Any
_EMBEDDING = jax.tree_util.DictKey("embedding")
Metrics = dict[str, jax.Array]
# (vectors and batch of one device, random key, mapped axis) -> the losses of the global batch, by
# name. Training minimizes their sum.
LossTerms = Callable[[jax.Array, Batch, jax.Array, str], dict[str, jax.Array]]
# (parameters, batch, random key) -> the sum of the losses, and the losses by name.
LossFn = Callable[[Params, Batch, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]


class TrainState(NamedTuple):
    """All that a step changes; `step` is the number of steps done, int32 []."""

    params: Params
    optimizer: optax.OptState
    step: jax.Array


# (state, batch) -> the next state, and "loss", "grad_norm" and others. The state is donated.
Step = Callable[[TrainState, Any], tuple[TrainState, Metrics]]


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """Make the state before the first step."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def make_optimizer(
    learning_rate: optax.ScalarOrSchedule, *, weight_decay: float = 0.0, clip: float = 0.0
) -> optax.GradientTransformation:
    """Make AdamW: weight decay of all matrices but the embedding; `clip` limits the gradient.

    Source: Loshchilov and Hutter (2019), "Decoupled Weight Decay Regularization".
    """

    def decays(params: Params) -> Any:
        def matrix(path: tuple[Any, ...], array: jax.Array) -> bool:
            return array.ndim > 1 and path[0] != _EMBEDDING

        return jax.tree_util.tree_map_with_path(matrix, params)

    adam = optax.adamw(learning_rate, weight_decay=weight_decay, mask=decays)
    return optax.chain(optax.clip_by_global_norm(clip), adam) if clip else adam


def make_loss(
    encoder: nnx.GraphDef, mesh: Mesh, terms: LossTerms, *, encode_chunk: int = 0
) -> LossFn:
    """Make the loss of a global batch, a function of replicated parameters.

    Each device encodes its share of the pairs; `terms` gathers what it needs from the other
    devices. Take the gradient of the function returned, outside the map, where it is summed over
    the devices.
    """

    def share_losses(params: Params, batch: Batch, key: jax.Array) -> dict[str, jax.Array]:
        sums = {"sums": batch.sums} if batch.sums else {}
        vectors = nnx.merge(encoder, params).encode_blocks(
            batch.unique_ids, batch.blocks, chunk=encode_chunk, axis_name=AXIS, **sums
        )
        return terms(vectors[batch.order], batch, key, AXIS)

    def loss(
        params: Params, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        losses: dict[str, jax.Array] = jax.shard_map(
            share_losses,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(AXIS), PartitionSpec()),
            out_specs=PartitionSpec(),
        )(params, batch, key)
        return functools.reduce(jnp.add, losses.values()), losses

    return loss


def make_train_step(
    loss: LossFn,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    frozen_rows: int = 0,
) -> Step:
    """Make the jitted step. Its metrics have `loss_NAME` of each loss where there are several.

    With `frozen_rows` only the rows of the embedding from this one on are trained. All else keeps
    its bits if the optimizer has no weight decay, since Adam does not move what never had a
    gradient.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        (value, losses), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch, key)
        if frozen_rows:
            gradient = _only_last_rows(gradient, frozen_rows)
        updates, inner = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(gradient)}
        if len(losses) > 1:
            metrics |= {f"loss_{name}": loss for name, loss in losses.items()}
        return TrainState(params, inner, state.step + 1), metrics

    return step


def _only_last_rows(gradient: Params, first: int) -> Params:
    """The gradient with zeros everywhere but in the rows of the embedding from `first` on."""

    def kept(path: tuple[Any, ...], array: jax.Array) -> jax.Array:
        if path[0] != _EMBEDDING:
            return jnp.zeros_like(array)
        return jnp.where((jnp.arange(len(array)) >= first)[:, None], array, 0)

    return jax.tree_util.tree_map_with_path(kept, gradient)
