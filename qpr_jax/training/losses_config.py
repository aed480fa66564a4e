"""The losses that settings can name, and their sum over a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.losses import (
    contrastive_loss,
    imitation_loss,
    online_contrastive_loss,
    ranking_loss,
    sdml_loss,
    triplet_loss,
)
from qpr_jax.training.batch_layout import Batch
from qpr_jax.training.config import LossConfig, TrainConfig, weighted_losses
from qpr_jax.training.train_step import LossTerms


class LossInputs(NamedTuple):
    """What one device gives the losses: n queries, k extra candidates, l labeled pairs.

    queries: [n, d], candidates: [n + k, d], left, right: [l, d], times the setting `loss.scale`.
    clusters: int32 [n + k] where candidates of the own cluster are masked, else None. labels:
    int32 [l]. vectors: all of them, unscaled, [r, d]. targets: the teacher's, [r, d] or [r, 0].
    """

    queries: jax.Array
    candidates: jax.Array
    clusters: jax.Array | None
    left: jax.Array
    right: jax.Array
    labels: jax.Array
    vectors: jax.Array
    targets: jax.Array
    key: jax.Array
    axis_name: str


@dataclass(frozen=True)
class LossSpec:
    """A loss as the settings name it.

    fn: of `qpr_jax.losses`. data: what it reads; "targets" is imitation's alone. settings: its
    arguments, and the setting of the section `loss` that each gets; `loss.scale` is read by every
    loss. reduction: a sum is divided by the labeled pairs of the global batch. needs_key: whether
    it takes `key`. angular: whether it compares directions, so that vectors should have length 1.
    unused: settings of the section that it does not read after all.
    """

    fn: Callable[..., jax.Array]
    data: Literal["pairs", "labeled", "targets"]
    settings: Mapping[str, str]
    reduction: Literal["mean", "sum"] = "mean"
    needs_key: bool = False
    angular: Callable[[LossConfig], bool] = lambda config: False
    unused: Callable[[LossConfig], Sequence[str]] = lambda config: ()


def _same(names: str) -> dict[str, str]:
    """Arguments that bear the name of their setting."""
    return {name: name for name in names.split()}


def _cosine(config: LossConfig) -> bool:
    return config.pair_distance == "cosine"


_CONTRASTIVE = {"distance": "pair_distance", "margin": "margin"}

LOSSES = {
    "sdml": LossSpec(
        sdml_loss,
        "pairs",
        _same("distance smoothing prior temperature symmetric"),
        unused=lambda config: ("temperature",) if config.prior == "uniform" else (),
    ),
    "triplet": LossSpec(triplet_loss, "pairs", _same("distance negatives margin"), needs_key=True),
    "ranking": LossSpec(
        ranking_loss,
        "pairs",
        _same("similarity smoothing symmetric") | {"scale": "similarity_scale"},
        angular=lambda config: True,
        unused=lambda config: () if config.similarity == "dot" else ("scale",),
    ),
    "contrastive": LossSpec(
        contrastive_loss,
        "labeled",
        _CONTRASTIVE,
        angular=_cosine,
        unused=lambda config: ("scale",) if _cosine(config) else (),
    ),
    "online_contrastive": LossSpec(
        online_contrastive_loss,
        "labeled",
        _CONTRASTIVE,
        reduction="sum",
        angular=_cosine,
        unused=lambda config: ("scale",) if _cosine(config) else (),
    ),
    "imitation": LossSpec(imitation_loss, "targets", {}),
}
# Losses that the setting `loss.names` may name.
LOSS_NAMES = tuple(name for name, spec in LOSSES.items() if spec.data != "targets")

_ARRAYS = {
    "pairs": ("queries", "candidates"),
    "labeled": ("left", "right", "labels"),
    "targets": ("vectors", "targets"),
}


def loss_terms(config: TrainConfig) -> LossTerms:
    """The losses of the config, and imitation where it has a weight: weighted, by name."""
    weights = weighted_losses(config)
    if config.teacher.weight:
        weights["imitation"] = config.teacher.weight
    return _terms(config, weights)


def imitation_terms(config: TrainConfig) -> LossTerms:
    """Imitation alone."""
    return _terms(config, {"imitation": 1.0})


def _terms(config: TrainConfig, weights: Mapping[str, float]) -> LossTerms:
    def terms(
        vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str
    ) -> dict[str, jax.Array]:
        queries, candidates, left, right = batch.split(config.loss.scale * vectors)
        clusters = jnp.asarray(batch.clusters) if config.loss.mask_own_cluster else None
        labels, targets = jnp.asarray(batch.labels), jnp.asarray(batch.targets)
        inputs = LossInputs(
            *(queries, candidates, clusters, left, right, labels, vectors, targets, key, axis_name)
        )
        return {
            name: weight * _value(LOSSES[name], config.loss, inputs)
            for name, weight in weights.items()
            if name != "imitation" or targets.shape[1]
        }

    return terms


def _value(spec: LossSpec, config: LossConfig, inputs: LossInputs) -> jax.Array:
    """One loss of a batch, the mean over its rows or labeled pairs."""
    options = {argument: getattr(config, name) for argument, name in spec.settings.items()}
    if spec.data == "pairs":
        options["clusters"] = inputs.clusters
    if spec.needs_key:
        options["key"] = inputs.key
    arrays = (getattr(inputs, name) for name in _ARRAYS[spec.data])
    value = spec.fn(*arrays, axis_name=inputs.axis_name, **options)
    if spec.reduction == "sum":
        value /= len(inputs.labels) * lax.axis_size(inputs.axis_name)
    return value
