"""The phases of an encoder's training, and its state before the first step."""

from __future__ import annotations

import logging

import jax
import optax
from flax import nnx
from jax.sharding import Mesh

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.distributed import (
    make_mesh,
    own_devices,
    replicate,
    require_shares,
    split_over,
)
from qpr_jax.training.loader import BatchLoader
from qpr_jax.training.loop import Phase
from qpr_jax.training.losses_config import loss_terms
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.sampler import epoch_steps, imitation_steps
from qpr_jax.training.train_step import (
    TrainState,
    init_state,
    make_loss,
    make_optimizer,
    make_schedule,
    make_train_step,
)

log = logging.getLogger(__name__)


def build_plan(config: TrainConfig, dataset: TrainDataset) -> tuple[list[Phase], TrainState]:
    """Plan the training that the settings describe: its phases, and its state before the first.

    Imitation of a teacher comes first, if there is one, then the pairs, if there are any. Nothing
    is compiled yet. UserError where the devices cannot share a batch.
    """
    mesh = make_mesh(config.devices)
    if config.max_epochs:
        require_shares("batch_size", config.batch_size, mesh.size)
    imitation = imitation_steps(config, dataset)
    total = imitation
    if config.max_epochs:
        total += config.max_steps or config.max_epochs * epoch_steps(config, dataset)
    graph, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)
    optimizer = make_optimizer(
        make_schedule(config, total, imitation=imitation),
        weight_decay=0.0 if dataset.frozen_rows else config.optimizer.weight_decay,
    )
    phases = []
    for alone, steps in ((True, range(imitation)), (False, range(imitation, total))):
        if steps:
            phases.append(_make_phase(config, dataset, alone, steps, mesh, graph, optimizer))
    return phases, replicate(init_state(params, optimizer), mesh)


def _make_phase(
    config: TrainConfig,
    dataset: TrainDataset,
    imitation: bool,
    steps: range,
    mesh: Mesh,
    graph: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
) -> Phase:
    """A phase of these steps, with its size in the log."""
    loader = BatchLoader(
        config,
        dataset,
        imitation=imitation,
        devices=mesh.size,
        own=own_devices(mesh),
        first_step=steps.start,
    )
    terms = loss_terms(config, imitation_alone=imitation)
    loss = make_loss(graph, mesh, terms, encode_chunk=config.batch.encode_chunk)
    step = make_train_step(loss, optimizer, seed=config.seed, frozen_rows=dataset.frozen_rows)
    log.info(
        "%s: %d steps, %d an epoch, of %s pairs of questions on %d %s device(s) in %d process(es); "
        "%s positions and %s distinct tokens a device",
        "imitation" if imitation else "pairs",
        len(steps),
        loader.epoch,
        f"{loader.size:,}",
        mesh.size,
        mesh.devices.flat[0].platform,
        jax.process_count(),
        f"{loader.layout.shapes[0].positions:,}",
        f"{loader.layout.shapes[0].unique_ids:,}",
    )
    return Phase(
        steps=steps,
        step=step,
        batch_at=lambda number: split_over(loader.batch_at(number - steps.start), mesh),
        metrics_at=lambda number: loader.metrics_at(number - steps.start),
        size=loader.size,
        evaluate_every=config.early_stopping.every_steps or loader.epoch,
    )
