"""The loss that the settings name, as a function of a batch's vectors."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from qpr_jax.losses import imitation_loss, ranking_loss, sdml_loss, triplet_loss
from qpr_jax.training.settings import LOSSES
from qpr_jax.training.step import Objective

_FUNCTIONS: dict[str, Objective] = {
    "sdml": sdml_loss,
    "triplet": triplet_loss,
    "ranking": ranking_loss,
}


def make_objective(settings: ConfigDict) -> Objective:
    """The loss of pairs, with that of imitation beside it where the settings weigh it.

    (queries [n, d], candidates [m, d], *, clusters [m], targets [n + m, d], key, axis_name) -> the
    loss.
    """
    options = {name: settings[name] for name in LOSSES[settings.loss]}
    scale = options.pop("scale")  # of the vectors, here; the loss's own is the similarity's
    if settings.loss == "ranking":
        options["scale"] = options.pop("similarity_scale")
    loss = functools.partial(_FUNCTIONS[settings.loss], **options)
    weight = settings.teacher.weight

    def objective(
        queries: jax.Array,
        candidates: jax.Array,
        *,
        clusters: jax.Array,
        targets: jax.Array,
        key: Any,
        axis_name: str,
    ) -> jax.Array:
        more = {"key": key} if settings.loss == "triplet" else {}
        value = loss(
            scale * queries,
            scale * candidates,
            clusters=clusters if settings.mask_own_cluster else None,
            axis_name=axis_name,
            **more,
        )
        if weight and targets.shape[1]:
            vectors = jnp.concatenate([queries, candidates])
            value += weight * imitation_loss(vectors, targets, axis_name=axis_name)
        return value

    return objective


def imitation(
    queries: jax.Array, candidates: jax.Array, *, targets: jax.Array, axis_name: str, **_: Any
) -> jax.Array:
    """An objective like those of `make_objective`, of any questions: imitation alone."""
    return imitation_loss(jnp.concatenate([queries, candidates]), targets, axis_name=axis_name)
