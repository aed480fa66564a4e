"""The phases of an encoder's training, their batches, and the state before the first step."""

from __future__ import annotations

import functools
import logging

import jax
import numpy as np

from qpr_jax.training import distributed, sampler, train_step
from qpr_jax.training.batches import Batch, plan_layout
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.loop import Phase
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.objectives import make_objectives, reads_teacher
from qpr_jax.training.train_step import TrainState

log = logging.getLogger(__name__)


class BatchLoader:
    """The batches of a phase, each a function of the seed and of its step, counted from 0.

    Attributes:
      indices: a function from a step to its questions.
      epoch: steps that read the data once.
      size: pairs of a batch, or half its questions.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: TrainDataset,
        *,
        devices: int,
        imitation: bool = False,
        own: slice = slice(None),
        first_step: int = 0,
    ) -> None:
        """Plan the shapes of the batches, which `devices` share; this process lays out its `own`.

        With `imitation` they have any trainable questions, not pairs, and the teacher's vectors.
        `first_step`: steps of the training before this phase, so that no two drop the same tokens.
        """
        if imitation:
            distributed.require_shares("teacher.batch_size", config.teacher.batch_size, 2 * devices)
        else:
            distributed.require_shares("batch.hard_negatives", config.batch.hard_negatives, devices)
        draw = sampler.draw_questions if imitation else sampler.draw_pairs
        drawn, self.epoch, self.size = draw(config, dataset)
        self.indices = functools.lru_cache(maxsize=1)(drawn)  # read for the batch and its metrics
        self._config, self._dataset, self._own = config, dataset, own
        self._first, self._counts_negatives = first_step, not imitation
        read = imitation or config.teacher.weight or reads_teacher(config)
        self._teacher = dataset.teacher if read else None
        first = self.indices(0)
        self._positions = first.positions(devices)
        share = len(first.pairs) // devices
        self._candidates = slice(share, 2 * share + len(first.extra_candidates) // devices)
        self.layout = plan_layout(
            lambda step: self._token_ids(step, self.indices(step)),
            steps=self.epoch,
            vocabulary_size=dataset.tokenizer.size,
            blocks=MODEL_FAMILIES[config.encoder.kind].length_blocks,
            parts=dataset.parts,
        )

    def batch_at(self, step: int) -> Batch:
        """The batch of a step, NumPy arrays of the own devices' shares."""
        indices = self.indices(step)
        rows = indices.questions[self._positions]
        own = rows[self._own]
        targets = np.zeros((*own.shape, 0), np.float32)
        if self._teacher:
            sources = self._dataset.target_rows[own.ravel()]
            targets = self._teacher.targets(sources).reshape(*own.shape, -1)
        return self.layout.batch(
            self._token_ids(step, indices),
            self._dataset.clusters[rows[:, self._candidates]],
            indices.labels.reshape(len(rows), -1),
            indices.list_scores.reshape(len(rows), -1, sampler.READ),
            targets,
            self._own,
        )

    def metrics_at(self, step: int) -> dict[str, float]:
        """Shares of false negatives among the questions of a step; empty without pairs."""
        indices = self.indices(step)
        if not (self._counts_negatives and len(indices.pairs)):
            return {}
        candidates = np.concatenate([indices.pairs[:, 1], indices.extra_candidates])
        return sampler.false_negatives(self._dataset.clusters[candidates], len(indices.pairs))

    def _token_ids(self, step: int, indices: sampler.BatchIndices) -> np.ndarray:
        """Token ids of each device's questions, int32 [devices, rows, L]."""
        settings = self._config.batch
        stream = {"seed": self._config.seed, "step": self._first + step}
        token_ids = self._dataset.token_ids.take(indices.questions, axis=0)
        # Before the rows are split, so that it is the same on any number of devices.
        if rate := settings.token_dropout:
            ends = self._config.encoder.kind == "bert"
            token_ids = sampler.drop_tokens(token_ids, rate, keep_ends=ends, **stream)
        if rate := settings.subword_dropout:
            words = self._dataset.spelled_words
            token_ids = sampler.spell_tokens(token_ids, rate, words, **stream)
        return token_ids[self._positions]


def build_plan(config: TrainConfig, dataset: TrainDataset) -> tuple[list[Phase], TrainState]:
    """Plan the training that the settings describe: its phases, and its state before the first.

    Imitation of a teacher comes first, if there is one, then the pairs, if there are any. Nothing
    is compiled yet. UserError where the devices cannot share a batch.
    """
    mesh = distributed.make_mesh(config.devices)
    if config.max_epochs:
        parts = mesh.size * (4 if dataset.lists else 1)  # a list for each four pairs
        distributed.require_shares("batch_size", config.batch_size, parts)
    imitation = total = sampler.imitation_steps(config, dataset)
    if config.max_epochs:
        steps = config.max_epochs * sampler.draw_pairs(config, dataset).epoch
        total += min(steps, config.max_steps or steps)
    graph, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)
    rate = train_step.make_schedule(config, total, imitation=imitation)
    optimizer = train_step.make_optimizer(rate, weight_decay=config.optimizer.weight_decay)

    def plan(name: str, steps: range) -> Phase:
        alone, own = name == "imitation", distributed.own_devices(mesh)
        loader = BatchLoader(
            config, dataset, imitation=alone, devices=mesh.size, own=own, first_step=steps.start
        )
        loss = train_step.make_loss(
            graph,
            mesh,
            make_objectives(config, dataset, imitation=alone),
            precision=config.precision,
            encode_chunk=config.batch.encode_chunk,
        )
        log.info(
            f"training on {name}: steps {len(steps):,}, steps per epoch {loader.epoch:,}, "
            f"pairs per batch {loader.size:,}, {mesh.devices.flat[0].platform} devices "
            f"{mesh.size}, processes {jax.process_count()}"
        )
        step = train_step.make_train_step(loss, optimizer, seed=config.seed)
        return Phase(
            steps=steps,
            step=step,
            batch_at=lambda n: distributed.split_over(loader.batch_at(n - steps.start), mesh),
            metrics_at=lambda n: loader.metrics_at(n - steps.start),
            size=loader.size,
            evaluate_every=config.early_stopping.every_steps or loader.epoch,
        )

    stages = {"imitation": range(imitation), "pairs": range(imitation, total)}
    phases = [plan(name, steps) for name, steps in stages.items() if steps]
    return phases, distributed.replicate(train_step.init_state(params, optimizer), mesh)
