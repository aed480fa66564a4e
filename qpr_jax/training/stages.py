"""The plan of a training: its stages, their objectives, and the state before the first step."""

from __future__ import annotations

import logging
import sys
from typing import NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from qpr_jax.training import device_memory
from qpr_jax.training.added_words import with_first_rows
from qpr_jax.training.batch_layout import Batch
from qpr_jax.training.config import TrainConfig, objectives
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.distributed import make_mesh, own_devices, replicate
from qpr_jax.training.loader import BatchLoader, imitation_loader, pairs_loader
from qpr_jax.training.losses_config import loss_terms
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.sampler import BatchIndices, epoch_steps, imitation_steps, turn_of_kind
from qpr_jax.training.schedule import make_schedule
from qpr_jax.training.train_step import (
    LossTerms,
    Params,
    TrainState,
    TrainStep,
    init_state,
    make_loss,
    make_train_step,
)

log = logging.getLogger(__name__)


class Objective(NamedTuple):
    """Batches, and the step that reads them."""

    loader: BatchLoader
    train: TrainStep


class Stage(NamedTuple):
    """Steps from `begins` to before `ends`, counted from 0, of each objective in turns.

    rate: the setting of their learning rate.
    """

    objectives: tuple[Objective, ...]
    begins: int
    ends: int
    rate: str

    @property
    def epoch(self) -> int:
        """Steps in which the first objective reads its data once."""
        return len(self.objectives) * self.objectives[0].loader.epoch


class Plan(NamedTuple):
    """A training: one stage or two, one after the other, over one state.

    memory: bytes that may be allocated on a device, or, on CPU, on all of them together.
    """

    mesh: Mesh
    stages: tuple[Stage, ...]
    state: TrainState
    memory: int

    def stage_at(self, step: int) -> Stage:
        """The stage of a step, counted from 0."""
        return next(stage for stage in self.stages if step < stage.ends)

    def objective_at(self, step: int) -> tuple[Objective, int]:
        """The objective of a step, counted from 0, and which of its own steps this is."""
        stage = self.stage_at(step)
        own_step, turn = divmod(step - stage.begins, len(stage.objectives))
        return stage.objectives[turn], own_step

    def evaluates(self, step: int, every: int) -> bool:
        """Whether the encoder is scored after `step` steps.

        every: steps between two evaluations, from the start of a stage; 0: its epoch. The end of a
        stage is always scored.
        """
        stage = self.stage_at(step - 1)
        return step == stage.ends or (step - stage.begins) % (every or stage.epoch) == 0

    def indices(self, step: int) -> BatchIndices:
        """The questions of a step, counted from 0."""
        objective, own_step = self.objective_at(step)
        return objective.loader.indices(own_step)

    def load(self, step: int) -> tuple[Batch, dict[str, float]]:
        """The batch of a step, counted from 0, on the devices, and its metrics."""
        objective, own_step = self.objective_at(step)
        return objective.loader.load(own_step, self.mesh)

    def compile(self, done: int = 0) -> None:
        """Compile the step of each objective, but of stages that end with `done` steps.

        UserError where one does not fit into memory, also later, when a batch has another shape.
        """
        local = self.mesh.local_devices
        sharing = len(local) if local[0].platform == "cpu" else 1

        def check(compiled: jax.stages.Compiled) -> None:
            need = device_memory.require_memory(compiled, sharing=sharing, limit=self.memory)
            log.info("memory of a step: %.2f GiB of %.1f", need / 2**30, self.memory / 2**30)

        for stage in self.stages:
            for loader, train in stage.objectives if done < stage.ends else ():
                check(train.step.compile(self.state, loader.batch(0, self.mesh)))
                train.step.check = check


def build_plan(config: TrainConfig, dataset: TrainDataset) -> Plan:
    """Plan the training that the settings describe; nothing is compiled yet.

    Imitation of a teacher comes first, if there is one, then the pairs, if there are any. The
    sizes are logged. UserError where the devices cannot share a batch.
    """
    if config.max_epochs:
        mesh = make_mesh(config.batch_size, config.devices)
    else:  # questions are laid out as pairs
        size, name = config.teacher.batch_size, "teacher.batch_size"
        mesh = make_mesh(size, config.devices, setting=name, parts=2)
    memory = device_memory.available(mesh.local_devices[0])
    imitation_loaders, pairs_loaders = [], []
    imitation = pairs = 0  # steps
    if dataset.teacher and config.teacher.epochs:
        loader = imitation_loader(config, dataset, devices=mesh.size, own=own_devices(mesh))
        size, epoch = 2 * loader.size, loader.epoch
        log.info("imitation: %d questions a batch, %d steps an epoch", size, epoch)
        imitation_loaders.append(loader)
        imitation = imitation_steps(config, dataset)
        if config.max_steps and not config.max_epochs:
            imitation = config.max_steps
    if config.max_epochs:
        pairs_loaders = _make_pairs_loaders(config, dataset, mesh, begins=imitation)
        pairs = config.max_steps or config.max_epochs * epoch_steps(config, dataset)
    schedule = make_schedule(config, imitation + pairs, imitation=imitation)
    graph, params = init_model(config, dataset)
    decay = config.optimizer.weight_decay

    def make_objective(loader: BatchLoader, terms: LossTerms) -> Objective:
        loss = make_loss(graph, mesh, terms, encode_chunk=config.batch.encode_chunk)
        train = make_train_step(
            loss,
            schedule,
            seed=config.seed,
            weight_decay=decay,
            named=config.loss.alternate,
            frozen_rows=dataset.frozen_rows,
        )
        return Objective(loader, train)

    stages = []
    if imitation:
        terms = loss_terms(config, imitation_alone=True)
        alone = tuple(make_objective(loader, terms) for loader in imitation_loaders)
        stages.append(Stage(alone, 0, imitation, "teacher.learning_rate"))
    if pairs:
        losses = [loss_terms(own_config) for own_config in objectives(config)]
        turns = tuple(map(make_objective, pairs_loaders, losses))
        stages.append(Stage(turns, imitation, imitation + pairs, "optimizer.learning_rate"))
    state = init_state(params, average=config.optimizer.ema_steps > 0, weight_decay=decay)
    return Plan(mesh, tuple(stages), replicate(state, mesh), memory)


def init_model(config: TrainConfig, dataset: TrainDataset) -> tuple[nnx.GraphDef, Params]:
    """The model before the first step: its structure and its parameters."""
    family = MODEL_FAMILIES[config.encoder.kind]
    graph, params = family.init(config, dataset.start, dataset.tokenizer, dataset.teacher)
    return graph, with_first_rows(params, dataset) if dataset.frozen_rows else params


def _make_pairs_loaders(
    config: TrainConfig, dataset: TrainDataset, mesh: Mesh, *, begins: int
) -> list[BatchLoader]:
    """The batches of each objective of the stage of pairs, which begins at step `begins`."""
    configs = objectives(config)
    loaders = [
        pairs_loader(
            own_config,
            dataset,
            devices=mesh.size,
            own=own_devices(mesh),
            turn_of=turn_of_kind(configs, number),
            steps=range(begins + number, sys.maxsize, len(configs)),
        )
        for number, own_config in enumerate(configs)
    ]
    here = len(mesh.local_devices)
    for loader in loaders:
        size, shape = loader.size, loader.shapes[0]
        log.info(
            "batch: %s pairs, %s in each of %d process(es), %s on each of %d %s device(s); %d "
            "steps an epoch; %s positions and %s distinct tokens a device",
            *(f"{size:,}", f"{size * here // mesh.size:,}", jax.process_count()),
            *(f"{size // mesh.size:,}", mesh.size, mesh.devices[0].platform, loader.epoch),
            *(f"{shape.positions:,}", f"{shape.unique_ids:,}"),
        )
    return loaders
