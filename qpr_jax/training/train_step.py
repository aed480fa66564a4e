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

from qpr_jax.training import sparse_adam
from qpr_jax.training.batch_layout import Batch
from qpr_jax.training.distributed import AXIS

Params = Any
# (vectors of a share's questions, its share of the batch, random key, mapped axis) -> the losses of
# the global batch, by name, whose sum is to fall.
LossTerms = Callable[[jax.Array, Batch, jax.Array, str], dict[str, jax.Array]]
# (parameters, batch, random key) -> the sum of these losses, and they themselves.
LossFn = Callable[[Params, Batch, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]


class TrainState(NamedTuple):
    """All that a step changes.

    params: all parameters but the embedding. table: the embedding with its moments, each row as
    it was after the last step that touched it. average: the mean of all parameters over the last
    steps, or empty.
    """

    params: Params
    optimizer: optax.OptState
    table: sparse_adam.TableState
    average: Params
    step: jax.Array  # int32 [], steps done


class CompiledStep:
    """A jitted step, compiled ahead once for each shape of a batch.

    What `compile` gives, to read its memory, is what runs: nothing is compiled twice.
    """

    def __init__(self, step: Any) -> None:
        """Wrap a jitted function of state and batch."""
        self.jitted = step
        self._compiled: dict[tuple[tuple[int, ...], ...], jax.stages.Compiled] = {}

    def compile(self, state: TrainState, batch: Batch) -> jax.stages.Compiled:
        """The step for batches of this shape."""
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        if shapes not in self._compiled:
            self._compiled[shapes] = self.jitted.lower(state, batch).compile()
        return self._compiled[shapes]

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        """Run the step; the state is donated."""
        result: tuple[TrainState, dict[str, jax.Array]] = self.compile(state, batch)(state, batch)
        return result


class TrainStep(NamedTuple):
    """The compiled functions of a training.

    step: (state, batch) -> (state, {"loss", "grad_norm", and, of several losses, "loss_NAME"}); the
      state is donated.
    averaged: (state, weight) -> the state whose average has moved to the parameters by `weight`;
      donated.
    params: state -> all parameters, as they are after its last step.
    """

    step: CompiledStep
    averaged: Callable[[TrainState, float], TrainState]
    params: Callable[[TrainState], Params]


def init_state(params: Params, *, average: bool = False, weight_decay: float = 0.0) -> TrainState:
    """The state before the first step of `make_train_step` with this `weight_decay`."""
    rest, embedding = _without_embedding(params)
    return TrainState(
        params=rest,
        optimizer=_dense(optax.constant_schedule(0), weight_decay).init(rest),
        table=sparse_adam.fresh_rows(embedding),
        average=_with_embedding(*jax.tree.map(jnp.copy, (rest, embedding))) if average else (),
        step=jnp.zeros((), jnp.int32),
    )


def make_loss(
    encoder: nnx.GraphDef, mesh: Mesh, objective: LossTerms, *, encode_chunk: int = 0
) -> LossFn:
    """The loss of a global batch as a function of replicated parameters.

    The embedding of `parameters` holds the rows of `batch.vocab_ids` and no others. Each device
    encodes its share of the pairs; the objective gathers what it needs of the other devices. The
    gradient is to be taken of the function returned, outside the map, where it sums over devices
    by itself.
    """

    def share_losses(params: Params, batch: Batch, key: jax.Array) -> dict[str, jax.Array]:
        vectors = nnx.merge(encoder, params).encode_blocks(
            batch.unique_ids, batch.blocks, chunk=encode_chunk, axis_name=AXIS
        )[batch.order]
        return objective(vectors, batch, key, AXIS)

    def loss(
        params: Params, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        losses: dict[str, jax.Array] = jax.shard_map(
            share_losses,
            mesh=mesh,
            in_specs=(PartitionSpec(), batch.specs(), PartitionSpec()),
            out_specs=PartitionSpec(),
        )(params, batch, key)
        return functools.reduce(jnp.add, losses.values()), losses

    return loss


def make_train_step(
    loss: LossFn,
    learning_rate: float | optax.Schedule,
    *,
    seed: int,
    weight_decay: float = 0.0,
    named: bool = False,
) -> TrainStep:
    """The step of Adam over all parameters, in time that does not grow with the vocabulary.

    named: whether a loss that is alone is told under its name too, as one of several always is.
    weight_decay: of AdamW (Loshchilov and Hutter, 2019), for matrices other than the embedding.
    """
    schedule = learning_rate if callable(learning_rate) else optax.constant_schedule(learning_rate)
    optimizer = _dense(schedule, weight_decay)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        words = jnp.asarray(batch.vocab_ids)
        rows = sparse_adam.apply_missed_steps(
            sparse_adam.gather(state.table, words), state.step, schedule
        )
        (value, losses), gradient = jax.value_and_grad(loss, has_aux=True)(
            _with_embedding(state.params, rows.values), batch, key
        )
        dense, sparse = _without_embedding(gradient)
        updates, optimizer_state = optimizer.update(dense, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        table = sparse_adam.scatter(state.table, words, sparse_adam.updated(rows, sparse, schedule))
        metrics = {"loss": value, "grad_norm": optax.tree.norm(gradient)}
        if named or len(losses) > 1:
            metrics |= {f"loss_{name}": loss for name, loss in losses.items()}
        return TrainState(params, optimizer_state, table, state.average, state.step + 1), metrics

    def current(state: TrainState) -> Params:
        rows = sparse_adam.apply_missed_steps(state.table, state.step, schedule)
        return _with_embedding(state.params, rows.values)

    def averaged(state: TrainState, weight: float) -> TrainState:
        average = jax.tree.map(lambda a, p: a + weight * (p - a), state.average, current(state))
        return state._replace(average=average)

    return TrainStep(
        CompiledStep(jax.jit(step, donate_argnums=0)),
        jax.jit(averaged, donate_argnums=0),
        jax.jit(current),
    )


def _dense(
    learning_rate: optax.Schedule, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    moments = {"b1": sparse_adam.BETA1, "b2": sparse_adam.BETA2, "eps": sparse_adam.EPSILON}
    if not weight_decay:
        return optax.adam(learning_rate, **moments)
    return optax.adamw(
        learning_rate,
        **moments,
        weight_decay=weight_decay,
        mask=lambda params: jax.tree.map(lambda array: array.ndim > 1, params),
    )


def _without_embedding(params: Params) -> tuple[Params, jax.Array]:
    rest = nnx.State({name: value for name, value in params.items() if name != "embedding"})
    return rest, params["embedding"][...]


def _with_embedding(rest: Params, embedding: jax.Array) -> Params:
    return nnx.State({**rest, "embedding": nnx.Param(embedding)})
