"""The losses that the settings name, as one function of a batch's vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from ml_collections import ConfigDict

from qpr_jax.losses import (
    contrastive_loss,
    imitation_loss,
    online_contrastive_loss,
    ranking_loss,
    sdml_loss,
    triplet_loss,
)
from qpr_jax.training.batch_layout import Batch
from qpr_jax.training.config import LABELLED_LOSSES, LOSSES, weighted_losses
from qpr_jax.training.train_step import LossTerms

_FUNCTIONS: dict[str, Callable[..., jax.Array]] = {
    "sdml": sdml_loss,
    "triplet": triplet_loss,
    "ranking": ranking_loss,
    "contrastive": contrastive_loss,
    "online_contrastive": online_contrastive_loss,
}
# Settings of losses that do not bear the name of the argument.
_ARGUMENTS = {"similarity_scale": "scale", "pair_distance": "distance"}


def make_objective(settings: ConfigDict) -> LossTerms:
    """The settings' losses, and imitation, if it is weighed, each with its weight, by name."""
    weighted = {
        name: (weight, _term(settings, name)) for name, weight in weighted_losses(settings).items()
    }
    if settings.teacher.weight:
        weighted["imitation"] = settings.teacher.weight, _imitation

    def objective(
        vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str
    ) -> dict[str, jax.Array]:
        return {
            name: weight * term(vectors, batch, key, axis_name)
            for name, (weight, term) in weighted.items()
            if name != "imitation" or batch.targets.shape[1]
        }

    return objective


def imitation(
    vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str
) -> dict[str, jax.Array]:
    """An objective like those of `make_objective`, of any questions: imitation alone."""
    return {"imitation": _imitation(vectors, batch, key, axis_name)}


def _imitation(vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str) -> jax.Array:
    return imitation_loss(vectors, jnp.asarray(batch.targets), axis_name=axis_name)


def _term(settings: ConfigDict, name: str) -> Callable[..., jax.Array]:
    """One loss of vectors and their batch; of a sum over pairs the mean, as of the others."""
    options = {
        _ARGUMENTS.get(option, option): settings[option]
        for option in LOSSES[name]
        if option != "scale"  # of the vectors, here; the loss's own is the similarity's
    }
    loss = functools.partial(_FUNCTIONS[name], **options)

    def of_labelled(vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str) -> jax.Array:
        *_, left, right = batch.parted(settings.scale * vectors)
        value = loss(left, right, batch.labels, axis_name=axis_name)
        if name == "online_contrastive":
            value /= len(batch.labels) * lax.axis_size(axis_name)
        return value

    def of_pairs(vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str) -> jax.Array:
        queries, candidates, *_ = batch.parted(settings.scale * vectors)
        more: dict[str, Any] = {"key": key} if name == "triplet" else {}
        clusters = batch.clusters if settings.mask_own_cluster else None
        return loss(queries, candidates, clusters=clusters, axis_name=axis_name, **more)

    return of_labelled if name in LABELLED_LOSSES else of_pairs
