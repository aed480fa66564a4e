"""The losses that settings can name, and their weighted sum over a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from qpr_jax import losses
from qpr_jax.errors import UserError
from qpr_jax.training.batches import Batch
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.sections import LossConfig
from qpr_jax.training.train_step import LossTerms, Metrics

_SETTINGS = frozenset(LossConfig.model_fields)


class LossSpec(NamedTuple):
    """A loss that the settings can name.

    The function gets `axis_name` and those of its keyword arguments that have the name of a setting
    of the section `loss`, or are `clusters`, `key` (random, new at each step), `precision` or
    `teacher`: the teacher's vectors of queries and candidates, float32 [n, t] and [m, t].

    Attributes:
      fn: returns the mean over the global batch.
      reads: "pairs": `fn(queries, candidates)`; "labeled": `fn(left, right, labels)`. The vectors
        are multiplied by `loss.scale`.
    """

    fn: Callable[..., jax.Array]
    reads: Literal["pairs", "labeled"]

    @property
    def arguments(self) -> frozenset[str]:
        """Names of the keyword arguments of the function."""
        return frozenset(inspect.signature(self.fn).parameters)

    @property
    def settings(self) -> frozenset[str]:
        """Names of the settings of the section `loss` that the function gets."""
        return self.arguments & _SETTINGS


LOSSES = {
    "sdml": LossSpec(losses.sdml_loss, "pairs"),
    "triplet": LossSpec(losses.triplet_loss, "pairs"),
    "ranking": LossSpec(losses.ranking_loss, "pairs"),
    "contrastive": LossSpec(losses.contrastive_loss, "labeled"),
    "online_contrastive": LossSpec(losses.online_contrastive_loss, "labeled"),
}
_PACKAGED = {*LOSSES, "imitation", "lists"}


def register_loss(name: str, spec: LossSpec) -> None:
    """Let the setting `loss.names` name a loss of one's own, in this process.

    A later call with the same name replaces it. A run stores only the name, so give a changed loss
    another name, and register it before resuming a run.

    Args:
      name: letters, digits and `_`, no loss of the package; the metric is `loss_NAME`.
      spec: the function; it reads pairs or labeled pairs.
    """
    if name in _PACKAGED or not name.isidentifier():
        expected = f"letters, digits and _, and none of {', '.join(sorted(_PACKAGED))}"
        raise UserError(f"`name` of a loss: expected {expected}, got {name!r}")
    if spec.reads not in ("pairs", "labeled"):
        raise UserError(f"`reads` of a loss: expected pairs or labeled, got {spec.reads!r}")
    LOSSES[name] = spec


def reads_teacher(config: TrainConfig) -> bool:
    """Whether a loss of pairs of the config reads the teacher's vectors."""
    return any("teacher" in LOSSES[name].arguments for name in config.loss.names)


def loss_terms(config: TrainConfig, *, imitation_alone: bool = False) -> LossTerms:
    """The weighted losses of a batch by name: those of the config, and imitation of the teacher."""
    names = () if imitation_alone else config.loss.names
    weights = config.loss.weights or (1.0,) * len(names)
    imitation = 1.0 if imitation_alone else config.teacher.weight

    def terms(vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str) -> Metrics:
        queries, candidates, left, right, lists = batch.split(config.loss.scale * vectors)
        targets = jnp.asarray(batch.targets)
        labeled = left, right, jnp.asarray(batch.labels)
        clusters = jnp.asarray(batch.clusters) if config.loss.mask_own_cluster else None
        given = {
            "clusters": clusters,
            "key": key,
            "precision": config.precision,
            "teacher": tuple(batch.split(targets)[:2]),
        }
        found = {}
        for name, weight in zip(names, weights, strict=False):
            spec = LOSSES[name]
            options: dict[str, Any] = {name: given[name] for name in spec.arguments & given.keys()}
            options |= {name: getattr(config.loss, name) for name in spec.settings}
            arrays = labeled if spec.reads == "labeled" else (queries, candidates)
            found[name] = weight * spec.fn(*arrays, axis_name=axis_name, **options)
        if imitation and targets.shape[1]:
            loss = losses.imitation_loss(vectors, targets, axis_name=axis_name)
            found["imitation"] = imitation * loss
        scores = jnp.asarray(batch.list_scores)
        if len(scores):
            first, rest = lists[: len(scores)], lists[len(scores) :]
            rest = rest.reshape(*scores.shape, -1)
            loss = losses.listwise_loss(first, rest, scores, axis_name=axis_name)
            found["lists"] = config.teacher.lists * loss
        return found

    return terms
