"""One training step, written for one device and mapped over all, and its learning rate."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.training.batches import Batch
from qpr_jax.training.config import OptimizerConfig, refuse_if
from qpr_jax.training.distributed import AXIS
from qpr_jax.training.objectives import Objective

Params = Any
Metrics = dict[str, jax.Array]
# (parameters, batch, random key) -> the sum of the losses, and the losses by name.
LossFn = Callable[[Params, Any, jax.Array], tuple[jax.Array, Metrics]]

# The share of the steps, the last ones, in which a rate falls to 0. Without decay before the end,
# a longer training has the same first steps as a shorter one.
DECAYS = {"none": 0.0, "linear": 1.0, "late": 1 / 3}
_EMBEDDING = jax.tree_util.DictKey("embedding")


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


def make_schedule(optimizer: OptimizerConfig, phases: Sequence[int]) -> optax.Schedule:
    """Make a function from the steps done (an array of any shape) to the rate of the next.

    Each phase has a number of steps. Warm-up is in the first; a decaying rate falls to 0 over each.
    UserError if warm-up is longer than the first phase.
    """
    what = f"expected at most the {phases[0]} steps of the training, got {optimizer.warmup_steps}"
    refuse_if(optimizer.warmup_steps > phases[0], "optimizer.warmup_steps", what)
    share = DECAYS[optimizer.learning_rate_decay]

    def schedule(steps: int, warmup: int) -> optax.Schedule:
        def rate(done: jax.Array) -> jax.Array:
            rates = jnp.full(jnp.shape(done), optimizer.learning_rate)
            if warmup:
                rates *= jnp.minimum(1, (done + 1) / warmup)
            if share:
                rates *= jnp.clip((1 - done / steps) / share, 0, 1)
            return rates

        return rate

    warmups = [optimizer.warmup_steps] + [0] * (len(phases) - 1)
    ends = [*itertools.accumulate(phases[:-1])]
    return optax.join_schedules([*map(schedule, phases, warmups)], ends)


def make_optimizer(
    rate: optax.ScalarOrSchedule, optimizer: OptimizerConfig, *, clip: float = 0.0
) -> optax.GradientTransformation:
    """Make AdamW: weight decay of all matrices but the embedding; `clip` limits the gradient.

    Source: Loshchilov and Hutter (2019), "Decoupled Weight Decay Regularization".
    """

    def decays(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, array: array.ndim > 1 and path[0] != _EMBEDDING, params
        )

    adam = optax.adamw(rate, b2=optimizer.beta2, weight_decay=optimizer.weight_decay, mask=decays)
    return optax.chain(optax.clip_by_global_norm(clip), adam) if clip else adam


def make_loss(
    encoder: nnx.GraphDef,
    mesh: Mesh,
    objectives: Sequence[Objective],
    *,
    precision: str = "highest",
    encode_chunk: int = 0,
) -> LossFn:
    """Make the loss of a global batch, a function of replicated parameters.

    Each device encodes its share; the objectives gather what they need from the other devices. The
    gradient is taken outside the map, where it is summed over the devices.

    Args:
      encoder: the module without its parameters.
      mesh: the devices.
      objectives: the terms of the sum.
      precision: of the matrix products of the losses.
      encode_chunk: questions that a device encodes at a time; 0: all.
    """

    def share_losses(params: Params, batch: Batch, key: jax.Array) -> Metrics:
        tokens = batch.tokens
        sums = {"sums": tokens.sums} if tokens.sums else {}
        vectors = nnx.merge(encoder, params).encode_blocks(
            tokens.unique_ids, tokens.blocks, chunk=encode_chunk, axis_name=AXIS, **sums
        )
        with jax.default_matmul_precision(precision):
            return {o.name: o.weight * o.loss(vectors, batch, key, AXIS) for o in objectives}

    def loss(params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        losses: Metrics = mapped(params, batch, key)
        return functools.reduce(jnp.add, losses.values()), losses

    whole, split = PartitionSpec(), PartitionSpec(AXIS)
    mapped = jax.shard_map(share_losses, mesh=mesh, in_specs=(whole, split, whole), out_specs=whole)
    return loss


def make_train_step(loss: LossFn, optimizer: optax.GradientTransformation, *, seed: int) -> Step:
    """Make the jitted step. Its metrics have `loss_NAME` of each loss where there are several."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        (value, losses), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch, key)
        updates, inner = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(gradient)}
        if len(losses) > 1:
            metrics |= {f"loss_{name}": loss for name, loss in losses.items()}
        return TrainState(params, inner, state.step + 1), metrics

    return step
