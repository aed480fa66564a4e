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
# (vectors and batch of one device, random key, mapped axis) -> the losses of the global batch, by
# name. Training minimizes their sum.
LossTerms = Callable[[jax.Array, Batch, jax.Array, str], dict[str, jax.Array]]
# (parameters, batch, random key) -> the sum of the losses, and the losses by name.
LossFn = Callable[[Params, Batch, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]


class TrainState(NamedTuple):
    """All that a step changes."""

    params: Params  # all but the embedding
    optimizer: optax.OptState  # of `params`
    table: sparse_adam.TableState  # the embedding, each row as of the last step that read it
    average: Params  # the moving average of all parameters, or empty
    step: jax.Array  # the steps done, int32 []


class CompiledStep:
    """A jitted step that is compiled once for each shape of a batch.

    `compile` gives what XLA plans for a shape, for `check` to read; JAX keeps what it compiled, so
    that the jitted call compiles nothing again, and takes state of any sharding.
    """

    def __init__(self, step: Any) -> None:
        self.jitted = step
        self.check: Callable[[jax.stages.Compiled], object] = lambda compiled: None
        self._compiled: dict[Any, jax.stages.Compiled] = {}

    def compile(self, state: TrainState, batch: Batch) -> jax.stages.Compiled:
        """The step for batches of this shape."""
        shape = batch.vocab_ids.shape, batch.targets.shape, batch.parts
        if shape not in self._compiled:
            self._compiled[shape] = self.jitted.lower(state, batch).compile()
            self.check(self._compiled[shape])
        return self._compiled[shape]

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        """Run the step; the state is donated."""
        self.compile(state, batch)
        result: tuple[TrainState, dict[str, jax.Array]] = self.jitted(state, batch)
        return result


class TrainStep(NamedTuple):
    """The compiled functions of a training.

    Attributes:
      step: (state, batch) -> (state, metrics): "loss", "grad_norm" and, if there are several
        losses, "loss_NAME" of each. The state is donated.
      averaged: (state, weight) -> the state with its average moved toward the parameters by
        `weight`. The state is donated.
      params: state -> all parameters after its last step.
    """

    step: CompiledStep
    averaged: Callable[[TrainState, float], TrainState]
    params: Callable[[TrainState], Params]


def init_state(params: Params, *, average: bool = False, weight_decay: float = 0.0) -> TrainState:
    """Make the state before the first step; `weight_decay` is that of `make_train_step`."""
    rest, embedding = _without_embedding(params)
    return TrainState(
        params=rest,
        optimizer=_dense(optax.constant_schedule(0), weight_decay).init(rest),
        table=sparse_adam.init_table(embedding),
        average=_with_embedding(*jax.tree.map(jnp.copy, (rest, embedding))) if average else (),
        step=jnp.zeros((), jnp.int32),
    )


def make_loss(
    encoder: nnx.GraphDef, mesh: Mesh, objective: LossTerms, *, encode_chunk: int = 0
) -> LossFn:
    """Make the loss of a global batch, a function of replicated parameters.

    The embedding among the parameters has only the rows `batch.vocab_ids`. Each device encodes its
    share of the pairs; `objective` gathers what it needs from the other devices. Take the gradient
    of the function returned, that is outside the map, where it sums over devices.
    """

    def share_losses(params: Params, batch: Batch, key: jax.Array) -> dict[str, jax.Array]:
        sums = {"sums": batch.sums} if batch.sums else {}
        vectors = nnx.merge(encoder, params).encode_blocks(
            batch.unique_ids, batch.blocks, chunk=encode_chunk, axis_name=AXIS, **sums
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
    frozen_rows: int = 0,
) -> TrainStep:
    """Make the step of Adam over all parameters, whose time does not grow with the vocabulary.

    `learning_rate` may be a function of the steps done. `weight_decay` is that of AdamW
    (Loshchilov and Hutter, 2019), for matrices but not the embedding. `named`: a single loss is in
    the metrics under its name too. The state that is given is overwritten. With
    `frozen_rows` only the rows of the embedding from this one on are trained; all else keeps its
    bits, since sparse Adam does not move a row that never had a gradient.
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
        if frozen_rows:
            params, optimizer_state = state.params, state.optimizer
            gradient = sparse = jnp.where((words >= frozen_rows)[:, None], sparse, 0)
        else:
            updates, optimizer_state = optimizer.update(dense, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
        table = sparse_adam.scatter(state.table, words, sparse_adam.update(rows, sparse, schedule))
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


def with_last_rows(params: Params, first: int, rows: jax.Array) -> Params:
    """Replace the rows of the embedding from `first` on: `rows` float32 [V - first, e]."""
    rest, embedding = _without_embedding(params)
    return _with_embedding(rest, embedding.at[first:].set(rows))


def _without_embedding(params: Params) -> tuple[Params, jax.Array]:
    rest = nnx.State({name: value for name, value in params.items() if name != "embedding"})
    return rest, params["embedding"][...]


def _with_embedding(rest: Params, embedding: jax.Array) -> Params:
    return nnx.State({**rest, "embedding": nnx.Param(embedding)})
