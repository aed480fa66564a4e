"""The phases of an encoder's training, and its state before the first step."""

from __future__ import annotations

import logging
from typing import NamedTuple

import jax
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
    Step,
    TrainState,
    init_state,
    make_loss,
    make_optimizer,
    make_schedule,
    make_train_step,
)

log = logging.getLogger(__name__)


class Plan(NamedTuple):
    """A training: one phase or two, one after the other, over one state."""

    phases: tuple[Phase, ...]
    state: TrainState


def build_plan(config: TrainConfig, dataset: TrainDataset) -> Plan:
    """Plan the training that the settings describe; nothing is compiled yet.

    Imitation of a teacher comes first, if there is one, then the pairs, if there are any. The
    sizes are logged. UserError where the devices cannot share a batch.
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

    def make_step(imitation_alone: bool) -> Step:
        terms = loss_terms(config, imitation_alone=imitation_alone)
        loss = make_loss(graph, mesh, terms, encode_chunk=config.batch.encode_chunk)
        return make_train_step(loss, optimizer, seed=config.seed, frozen_rows=dataset.frozen_rows)

    devices, own = mesh.size, own_devices(mesh)
    phases = []
    if imitation:
        loader = BatchLoader(config, dataset, imitation=True, devices=devices, own=own)
        steps = range(imitation)
        phases.append(_make_phase(config, "imitation", steps, make_step(True), loader, mesh))
    if config.max_epochs:
        loader = BatchLoader(config, dataset, devices=devices, own=own, first_step=imitation)
        steps = range(imitation, total)
        phases.append(_make_phase(config, "pairs", steps, make_step(False), loader, mesh))
    state = init_state(params, optimizer)
    return Plan(tuple(phases), replicate(state, mesh))


def _make_phase(
    config: TrainConfig, name: str, steps: range, step: Step, loader: BatchLoader, mesh: Mesh
) -> Phase:
    """A phase of these steps, with its size in the log."""
    shape = loader.layout.shapes[0]
    log.info(
        "%s: %d steps, %d an epoch, of %s pairs of questions on %d %s device(s) in %d process(es); "
        "%s positions and %s distinct tokens a device",
        name,
        len(steps),
        loader.epoch,
        f"{loader.size:,}",
        mesh.size,
        mesh.devices.flat[0].platform,
        jax.process_count(),
        f"{shape.positions:,}",
        f"{shape.unique_ids:,}",
    )
    return Phase(
        name=name,
        steps=steps,
        step=step,
        batch_at=lambda number: split_over(loader.batch_at(number - steps.start), mesh),
        metrics_at=lambda number: loader.metrics_at(number - steps.start),
        size=loader.size,
        evaluate_every=config.early_stopping.every_steps or loader.epoch,
    )
