"""The loss that the settings name, as a function of a batch's vectors."""

from __future__ import annotations

import functools
from typing import Any

import jax
from ml_collections import ConfigDict

from qpr_jax.losses import sdml_loss, triplet_loss
from qpr_jax.training.step import Objective


def make_objective(settings: ConfigDict) -> Objective:
    """(queries [n, d], candidates [m, d], *, clusters [m], key, axis_name) -> the loss."""
    loss: Objective = sdml_loss
    names = "smoothing distance prior temperature symmetric"
    if settings.loss == "triplet":
        loss, names = triplet_loss, "negatives margin distance"
    loss = functools.partial(loss, **{name: settings[name] for name in names.split()})

    def objective(
        queries: jax.Array, candidates: jax.Array, *, clusters: jax.Array, key: Any, axis_name: str
    ) -> jax.Array:
        more = {"key": key} if settings.loss == "triplet" else {}
        return loss(
            queries,
            candidates,
            clusters=clusters if settings.mask_own_cluster else None,
            axis_name=axis_name,
            **more,
        )

    return objective
