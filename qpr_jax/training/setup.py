"""What a training begins with: devices, batches, the compiled functions, the first state."""

from __future__ import annotations

import logging
from typing import NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from qpr_jax.encoders.cnn import ConvEncoder
from qpr_jax.training import memory
from qpr_jax.training.batches import BatchShape
from qpr_jax.training.feed import Feed, make_feed
from qpr_jax.training.mesh import make_mesh, own_devices, replicate
from qpr_jax.training.objective import make_objective
from qpr_jax.training.prepare import Prepared
from qpr_jax.training.schedule import make_schedule
from qpr_jax.training.step import (
    Params,
    TrainState,
    TrainStep,
    init_state,
    make_loss,
    make_train_step,
)

log = logging.getLogger(__name__)


class Training(NamedTuple):
    """total: the steps that it takes at most."""

    mesh: Mesh
    feed: Feed
    total: int
    step: TrainStep
    state: TrainState


def set_up(settings: ConfigDict, prepared: Prepared) -> Training:
    """The training that the settings describe, before its first step; nothing is compiled yet.

    What it takes is logged. UserError where the batch does not fit the devices or their memory.
    """
    mesh = make_mesh(settings.batch_size, settings.devices)
    feed = make_feed(settings, prepared, devices=mesh.size, own=own_devices(mesh))
    total = settings.max_steps or settings.max_epochs * feed.epoch
    _tell_size(settings, prepared, feed, mesh)
    graph, params = make_encoder(settings, prepared.vocabulary.size)
    loss = make_loss(graph, mesh, make_objective(settings), encode_chunk=settings.encode_chunk)
    step = make_train_step(loss, make_schedule(settings, total), seed=settings.seed)
    state = replicate(init_state(params, average=settings.ema_steps > 0), mesh)
    return Training(mesh, feed, total, step, state)


def make_encoder(settings: ConfigDict, vocabulary_size: int) -> tuple[nnx.GraphDef, Params]:
    """The encoder of `settings` as its structure and freshly drawn parameters."""
    return nnx.split(
        ConvEncoder(
            vocabulary_size=vocabulary_size,
            embedding_dim=settings.embedding_dim,
            windows=settings.windows,
            filters=settings.filters,
            output_dim=settings.output_dim,
            bag_of_words=settings.bag_of_words,
            compute_dtype=settings.compute_dtype,
            rngs=nnx.Rngs(settings.seed),
        )
    )


def _tell_size(settings: ConfigDict, prepared: Prepared, feed: Feed, mesh: Mesh) -> None:
    """Log what a step takes; UserError where memory is too small for it."""
    size, shape, device = settings.batch_size, feed.shapes[0], mesh.devices[0]
    here = len(mesh.local_devices)
    log.info(
        "batch: %s pairs, %s in each of %d process(es), %s on each of %d %s device(s); %d steps an "
        "epoch; %s positions and %s distinct words a device",
        *(f"{size:,}", f"{size * here // mesh.size:,}", jax.process_count()),
        *(f"{size // mesh.size:,}", mesh.size, device.platform, feed.epoch),
        *(f"{shape.tokens:,}", f"{shape.distinct:,}"),
    )
    limit = memory.available(mesh.local_devices[0])

    def shape_of(size: int) -> BatchShape:
        if size == settings.batch_size:
            return shape
        smaller = settings.copy_and_resolve_references()
        smaller.batch_size = size
        return make_feed(smaller, prepared, devices=mesh.size).shapes[0]

    found = memory.refuse_too_large(
        settings,
        shape_of,
        devices=mesh.size,
        sharing=here if device.platform == "cpu" else 1,
        vocabulary_size=prepared.vocabulary.size,
        limit=limit,
    )
    log.info(
        "memory a device, estimated: %.2f GiB of parameters and Adam, %.2f of the encoder, %.2f of "
        "the loss; %.1f GiB available",
        *(part / memory.GIB for part in (*found, limit)),
    )
