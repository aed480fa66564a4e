"""What a training minimizes: the losses that settings can name, and the objectives of a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qpr_jax import losses
from qpr_jax.errors import UserError
from qpr_jax.training import draws
from qpr_jax.training.batches import Batch
from qpr_jax.training.config import LossConfig, TrainConfig
from qpr_jax.training.draws import Objective
from qpr_jax.training.train_data import TrainDataset

LOSSES: dict[str, Callable[..., jax.Array]] = {
    "sdml": losses.sdml_loss,
    "triplet": losses.triplet_loss,
    "ranking": losses.ranking_loss,
    "contrastive": losses.contrastive_loss,
    "online_contrastive": losses.online_contrastive_loss,
}
_PACKAGED = {*LOSSES, "distillation", "lists"}


def register_loss(name: str, loss: Callable[..., jax.Array]) -> None:
    """Let the setting `loss.names` name a loss of one's own, in this process.

    A later call with the same name replaces it. A run stores only the name, so give a changed loss
    another name, and register it before resuming a run.

    Args:
      name: letters, digits and `_`, no loss of the package; the metric is `loss_NAME`.
      loss: `loss(queries, candidates, positives, clusters)` or `loss(left, right, labels)`, which
        returns one value a row, as in `qpr_jax.losses`. The vectors are multiplied by `loss.scale`.
        It gets those of its keyword arguments that have the name of a setting of the section
        `loss`, or are `key` (random, new at each step) or `teacher`: the teacher's vectors of
        queries and candidates, float32 [n, t] and [m, t].
    """
    if name in _PACKAGED or not name.isidentifier():
        expected = f"letters, digits and _, and none of {', '.join(sorted(_PACKAGED))}"
        raise UserError(f"`name` of a loss: expected {expected}, got {name!r}")
    LOSSES[name] = loss


def reads(name: str, argument: str) -> bool:
    """Return whether a loss has this argument: `labels`, `key` or `teacher`."""
    return argument in inspect.signature(LOSSES[name]).parameters


def settings_of(name: str) -> list[str]:
    """Names of the settings of the section `loss` that a loss gets, sorted."""
    return sorted(setting for setting in LossConfig.model_fields if reads(name, setting))


def make_objectives(config: TrainConfig, dataset: TrainDataset) -> list[Objective]:
    """Make the objectives: distillation alone, if there is a teacher, then all others."""
    objectives, names, start = [], config.loss.names, 0
    if dataset.teacher and config.teacher.epochs:
        draw = draws.draw_questions(config, dataset)
        least = 0 if len(dataset.splits.pairs["train"]) else draws.LEAST_DISTILLATION
        start = max(config.teacher.epochs * draw.epoch, least)
        if config.max_steps and not config.max_epochs:
            start = config.max_steps
        steps = range(start)
        objectives.append(Objective("distillation", _distill, draw, 1.0, steps, True))
    if not config.max_epochs:
        return objectives
    kinds = [draws.draw_labeled if reads(n, "labels") else draws.draw_pairs for n in names]
    drawn = {kind: kind(config, dataset) for kind in dict.fromkeys(kinds)}
    first = drawn[kinds[0]]
    count = config.max_epochs * first.epoch
    steps = range(start, start + min(count, config.max_steps or count))
    for name, kind in zip(names, kinds, strict=True):
        loss = functools.partial(_compare, name, config)
        objective = Objective(name, loss, drawn[kind], 1.0, steps, reads(name, "teacher"))
        objectives.append(objective)
    if config.teacher.weight and dataset.teacher:
        weight = config.teacher.weight
        objectives.append(Objective("distillation", _distill, first, weight, steps, True))
    if dataset.lists:
        draw = draws.draw_lists(config, dataset.lists)
        loss = functools.partial(_sort_lists, config.loss.scale)
        objectives.append(Objective("lists", loss, draw, config.teacher.lists, steps))
    return objectives


def _compare(
    name: str,
    config: TrainConfig,
    vectors: jax.Array,
    batch: Batch,
    key: jax.Array,
    axis_name: str | None,
) -> jax.Array:
    """Compare queries with candidates, or labeled pairs with their labels."""
    options = {setting: getattr(config.loss, setting) for setting in settings_of(name)}
    options |= {"key": key} if reads(name, "key") else {}
    loss = functools.partial(LOSSES[name], **options)
    rows, facts, vectors = batch.rows, batch.facts, config.loss.scale * vectors
    if reads(name, "labels"):
        arrays = vectors[rows["left"]], vectors[rows["right"]], jnp.asarray(facts["labels"])
        return losses.mean_loss(loss, *arrays, axis_name=axis_name)
    queries = rows["queries"]
    candidates, clusters = rows["candidates"], jnp.asarray(facts["clusters"])
    targets = jnp.asarray(batch.targets)
    return losses.batch_loss(
        loss,
        vectors[queries],
        vectors[candidates],
        clusters if config.loss.mask_own_cluster else None,
        teacher=(targets[queries], targets[candidates]) if reads(name, "teacher") else None,
        symmetric=config.loss.symmetric,
        axis_name=axis_name,
    )


def _distill(vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str | None) -> jax.Array:
    """Compare all vectors with the teacher's."""
    targets = jnp.asarray(batch.targets)
    return losses.mean_loss(losses.distillation_loss, vectors, targets, axis_name=axis_name)


def _sort_lists(
    scale: float, vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str | None
) -> jax.Array:
    """Compare the order of each query's hits with the judge's scores."""
    queries, hits = (scale * vectors[batch.rows[name]] for name in ("listed", "hits"))
    scores = jnp.asarray(batch.facts["scores"])
    return losses.mean_loss(losses.listwise_loss, queries, hits, scores, axis_name=axis_name)
