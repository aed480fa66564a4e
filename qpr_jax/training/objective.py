"""The loss that the settings name, as a function of a batch's vectors."""

from __future__ import annotations

from typing import Any

import jax
from ml_collections import ConfigDict

from qpr_jax.losses import sdml_loss, triplet_loss
from qpr_jax.training.step import Objective


def make_objective(settings: ConfigDict) -> Objective:
    """(queries [n, d], candidates [m, d], *, clusters [m], key, axis_name) -> the loss."""
    masked = settings.mask_own_cluster

    def sdml(
        queries: jax.Array, candidates: jax.Array, *, clusters: jax.Array, key: Any, axis_name: str
    ) -> jax.Array:
        return sdml_loss(
            queries,
            candidates,
            smoothing=settings.smoothing,
            distance=settings.distance,
            prior=settings.prior,
            temperature=settings.temperature,
            clusters=clusters if masked else None,
            symmetric=settings.symmetric,
            axis_name=axis_name,
        )

    def triplet(
        queries: jax.Array, candidates: jax.Array, *, clusters: jax.Array, key: Any, axis_name: str
    ) -> jax.Array:
        return triplet_loss(
            queries,
            candidates,
            negatives=settings.negatives,
            margin=settings.margin,
            distance=settings.distance,
            clusters=clusters if masked else None,
            key=key,
            axis_name=axis_name,
        )

    return {"sdml": sdml, "triplet": triplet}[settings.loss]
