"""From a step to its batch on the devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from qpr_jax.training.batch_layout import Batch, lay_out, plan_shapes
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.sampler import (
    BatchIndices,
    Sampler,
    drop_tokens,
    false_negatives,
    make_imitation_sampler,
    make_pairs_sampler,
)


class BatchLoader:
    """The batches of one objective, each a function of its step, counted from 0.

    Attributes:
      sampler: the questions of a step.
      shapes: of a batch, from the tightest to one that holds any batch.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: TrainDataset,
        sampler: Sampler,
        *,
        devices: int,
        own: slice = slice(None),
        targets: bool = False,
        global_step: Callable[[int], int] = lambda step: step,
    ) -> None:
        """Plan the shapes of the batches.

        Args:
          config: of the objective.
          dataset: the data.
          sampler: the questions of a step.
          devices: that share a batch.
          own: those of them whose shares this process lays out.
          targets: whether a batch has the teacher's vectors of its questions.
          global_step: own step -> step of the training, by which tokens are dropped.
        """
        self.sampler, self._global_step = sampler, global_step
        self._config, self._dataset = config, dataset
        self._devices, self._own = devices, own
        self._teacher = dataset.teacher if targets else None
        first = sampler.indices(0)
        sizes = [first.pairs.size, first.extra_candidates.size, first.labeled_pairs.size]
        pairs, extra, labeled = np.split(
            np.arange(sum(sizes)), list(itertools.accumulate(sizes))[:-1]
        )
        # Where the questions of one device's batch stand in the shares of several.
        positions = BatchIndices(pairs.reshape(2, -1).T, extra, labeled.reshape(2, -1).T)
        self._positions = positions.shares(devices)
        share = len(first.pairs) // devices
        self._candidates = slice(share, 2 * share + len(first.extra_candidates) // devices)
        self.shapes = plan_shapes(
            self._token_ids,
            steps=sampler.epoch,
            vocabulary_size=dataset.tokenizer.size,
            blocks=MODEL_FAMILIES[config.encoder.kind].length_blocks,
        )

    @property
    def size(self) -> int:
        """Pairs of a batch, or half its questions."""
        return self.sampler.size

    @property
    def epoch(self) -> int:
        """Steps that read the data once."""
        return self.sampler.epoch

    def indices(self, step: int) -> BatchIndices:
        """The questions of a step."""
        return self.sampler.indices(step)

    def batch(self, step: int, mesh: Mesh) -> Batch:
        """The batch of a step on the devices of `mesh`."""
        return self.layout(step).placed(mesh)

    def layout(self, step: int) -> Batch:
        """The own shares of the batch of a step, in NumPy."""
        indices = self.indices(step)
        rows = indices.shares(self._devices)
        targets = None
        if self._teacher:
            own = rows[self._own]
            targets = self._teacher.targets(own.ravel()).reshape(*own.shape, -1)
        return lay_out(
            self._token_ids(step),
            self._dataset.clusters[rows[:, self._candidates]].astype(np.int32),
            self.shapes,
            vocabulary_size=self._dataset.tokenizer.size,
            own=self._own,
            labels=indices.labels.reshape(self._devices, -1),
            targets=targets,
        )

    def metrics(self, step: int) -> dict[str, float]:
        """The shares of false negatives in the batch of a step; nothing if it has no pairs."""
        indices = self.indices(step)
        if not self.sampler.of_pairs or not len(indices.pairs):
            return {}
        candidates = np.concatenate([indices.pairs[:, 1], indices.extra_candidates])
        return false_negatives(self._dataset.clusters[candidates], len(indices.pairs))

    def _token_ids(self, step: int) -> np.ndarray:
        """Token ids of each device's questions, int32 [devices, rows, L]."""
        token_ids = self._dataset.token_ids[self.indices(step).questions]
        rate = self._config.batch.token_dropout
        if rate:  # before the rows are split, so that it is the same on any number of devices
            step = self._global_step(step)
            token_ids = drop_tokens(token_ids, rate, seed=self._config.seed, step=step)
        return token_ids[self._positions]


def pairs_loader(
    config: TrainConfig,
    dataset: TrainDataset,
    *,
    devices: int,
    own: slice = slice(None),
    turn: int = 0,
    turns: int = 1,
    global_step: Callable[[int], int] = lambda step: step,
) -> BatchLoader:
    """Batches of the pairs that the losses of `config` read; see `make_pairs_sampler`.

    They have the teacher's vectors where `teacher.weight` is not 0.
    """
    sampler = make_pairs_sampler(config, dataset, devices=devices, turn=turn, turns=turns)
    shared: dict[str, Any] = {"devices": devices, "own": own, "global_step": global_step}
    return BatchLoader(config, dataset, sampler, targets=config.teacher.weight > 0, **shared)


def imitation_loader(
    config: TrainConfig, dataset: TrainDataset, *, devices: int, own: slice = slice(None)
) -> BatchLoader:
    """Batches of any trainable questions with the teacher's vectors."""
    sampler = make_imitation_sampler(config, dataset, devices=devices)
    return BatchLoader(config, dataset, sampler, devices=devices, own=own, targets=True)
