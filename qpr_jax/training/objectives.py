"""What a training minimizes: the losses that settings can name, and their weighted sum."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qpr_jax import losses
from qpr_jax.errors import UserError
from qpr_jax.training.batches import Batch
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.sections import LossConfig

LOSSES: dict[str, Callable[..., jax.Array]] = {
    "sdml": losses.sdml_loss,
    "triplet": losses.triplet_loss,
    "ranking": losses.ranking_loss,
    "contrastive": losses.contrastive_loss,
    "online_contrastive": losses.online_contrastive_loss,
}
_PACKAGED = {*LOSSES, "imitation", "lists"}


class Objective(NamedTuple):
    """A term of the sum that a step minimizes."""

    name: str
    # (vectors [r, d] and batch of a device, random key, mapped axis) -> the mean over all devices.
    value: Callable[[jax.Array, Batch, jax.Array, str | None], jax.Array]
    weight: float


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
    """Whether a loss has this argument: `labels`, `key` or `teacher`."""
    return argument in inspect.signature(LOSSES[name]).parameters


def settings_of(name: str) -> list[str]:
    """Names of the settings of the section `loss` that a loss gets, sorted."""
    return sorted(setting for setting in LossConfig.model_fields if reads(name, setting))


def reads_teacher(config: TrainConfig) -> bool:
    """Whether a loss of the config reads the teacher's vectors."""
    return any(reads(name, "teacher") for name in config.loss.names)


def make_objectives(
    config: TrainConfig, dataset: TrainDataset, *, imitation: bool = False
) -> list[Objective]:
    """Make the objectives of the phase of imitation alone, or of that of the pairs."""
    if imitation:
        return [Objective("imitation", _imitation, 1.0)]
    weights = config.loss.weights or (1.0,) * len(config.loss.names)
    objectives = [
        Objective(name, functools.partial(_loss_of_pairs, name, config), weight)
        for name, weight in zip(config.loss.names, weights, strict=True)
    ]
    if config.teacher.weight and dataset.teacher:
        objectives.append(Objective("imitation", _imitation, config.teacher.weight))
    if dataset.lists:
        value = functools.partial(_loss_of_lists, config.loss.scale)
        objectives.append(Objective("lists", value, config.teacher.lists))
    return objectives


def _loss_of_pairs(
    name: str,
    config: TrainConfig,
    vectors: jax.Array,
    batch: Batch,
    key: jax.Array,
    axis_name: str | None,
) -> jax.Array:
    settings = {setting: getattr(config.loss, setting) for setting in settings_of(name)}
    if reads(name, "key"):
        settings["key"] = key
    loss = functools.partial(LOSSES[name], **settings)
    queries, candidates, left, right, _ = batch.split(config.loss.scale * vectors)
    if reads(name, "labels"):
        return losses.mean_loss(loss, left, right, jnp.asarray(batch.labels), axis_name=axis_name)
    of_queries, of_candidates, *_ = batch.split(jnp.asarray(batch.targets))
    return losses.batch_loss(
        loss,
        queries,
        candidates,
        jnp.asarray(batch.clusters) if config.loss.mask_own_cluster else None,
        teacher=(of_queries, of_candidates) if reads(name, "teacher") else None,
        symmetric=config.loss.symmetric,
        axis_name=axis_name,
    )


def _imitation(
    vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str | None
) -> jax.Array:
    targets = jnp.asarray(batch.targets)
    return losses.mean_loss(losses.imitation_loss, vectors, targets, axis_name=axis_name)


def _loss_of_lists(
    scale: float, vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str | None
) -> jax.Array:
    rows, scores = batch.split(scale * vectors)[4], jnp.asarray(batch.list_scores)
    queries, candidates = rows[: len(scores)], rows[len(scores) :]
    candidates = candidates.reshape(*scores.shape, -1)
    loss = losses.listwise_loss
    return losses.mean_loss(loss, queries, candidates, scores, axis_name=axis_name)
