"""The phases of an encoder's training, and its state before the first step."""

from __future__ import annotations

import logging

import jax

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
    imitation = total = imitation_steps(config, dataset)
    if config.max_epochs:
        total += config.max_steps or config.max_epochs * epoch_steps(config, dataset)
    graph, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)
    optimizer = make_optimizer(
        make_schedule(config, total, imitation=imitation),
        weight_decay=0.0 if dataset.frozen_rows else config.optimizer.weight_decay,
    )

    def plan(name: str, steps: range) -> Phase:
        alone, own = name == "imitation", own_devices(mesh)
        loader = BatchLoader(
            config, dataset, imitation=alone, devices=mesh.size, own=own, first_step=steps.start
        )
        terms = loss_terms(config, imitation_alone=alone)
        loss = make_loss(graph, mesh, terms, encode_chunk=config.batch.encode_chunk)
        shape = loader.layout.shapes[0]
        log.info(
            f"{name}: {len(steps)} steps, {loader.epoch} an epoch, of {loader.size:,} pairs of "
            f"questions on {mesh.size} {mesh.devices.flat[0].platform} device(s) in "
            f"{jax.process_count()} process(es); {shape.positions:,} positions and "
            f"{shape.unique_ids:,} distinct tokens a device"
        )
        return Phase(
            steps=steps,
            step=make_train_step(
                loss, optimizer, seed=config.seed, frozen_rows=dataset.frozen_rows
            ),
            batch_at=lambda number: split_over(loader.batch_at(number - steps.start), mesh),
            metrics_at=lambda number: loader.metrics_at(number - steps.start),
            size=loader.size,
            evaluate_every=config.early_stopping.every_steps or loader.epoch,
        )

    stages = {"imitation": range(imitation), "pairs": range(imitation, total)}
    phases = [plan(name, steps) for name, steps in stages.items() if steps]
    return phases, replicate(init_state(params, optimizer), mesh)
