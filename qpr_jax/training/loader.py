"""From a step to its batch on the devices."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh

from qpr_jax.training.batch_layout import Batch, lay_out, lengths_of, plan_shapes
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.sampler import (
    BatchIndices,
    Sampler,
    false_negatives,
    make_imitation_sampler,
    make_pairs_sampler,
)
from qpr_jax.training.token_dropout import drop_tokens, spell_tokens

ALL_STEPS = range(sys.maxsize)


class BatchLoader:
    """The batches of one objective, each a function of its step, counted from 0.

    Attributes:
      indices: the questions of a step, as `Sampler.indices`.
      epoch: steps that read the data once.
      size: pairs of a batch, or half its questions.
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
        steps: Sequence[int] = ALL_STEPS,
    ) -> None:
        """Plan the shapes of the batches.

        `devices` share a batch, and this process lays out the shares of its `own`. With `targets`
        a batch has the teacher's vectors. `steps` are those of the training that are this
        objective's, by which tokens are dropped.
        """
        self.indices, self.epoch, self.size, self._of_pairs = sampler
        self._config, self._dataset, self._steps = config, dataset, steps
        self._devices, self._own = devices, own
        self._teacher = dataset.teacher if targets else None
        # Counted once, but where each step drops other tokens.
        self._lengths = None if config.batch.token_dropout else lengths_of(dataset.token_ids)
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
            lambda step: self._token_ids(step, self.indices(step)),
            steps=self.epoch,
            vocabulary_size=dataset.tokenizer.size,
            blocks=MODEL_FAMILIES[config.encoder.kind].length_blocks,
            parts=dataset.parts,
        )

    def load(self, step: int, mesh: Mesh) -> tuple[Batch, dict[str, float]]:
        """The batch of a step on the devices of `mesh`, and its metrics."""
        indices = self.indices(step)
        return self._lay_out(step, indices).placed(mesh), self.metrics(indices)

    def batch(self, step: int, mesh: Mesh) -> Batch:
        """The batch of a step on the devices of `mesh`."""
        return self.layout(step).placed(mesh)

    def layout(self, step: int) -> Batch:
        """The own shares of the batch of a step, in NumPy."""
        return self._lay_out(step, self.indices(step))

    def metrics(self, indices: BatchIndices) -> dict[str, float]:
        """The shares of false negatives among these questions; nothing if there are no pairs."""
        if not self._of_pairs or not len(indices.pairs):
            return {}
        candidates = np.concatenate([indices.pairs[:, 1], indices.extra_candidates])
        return false_negatives(self._dataset.clusters[candidates], len(indices.pairs))

    def _lay_out(self, step: int, indices: BatchIndices) -> Batch:
        rows = indices.shares(self._devices)
        targets = None
        if self._teacher:
            own = rows[self._own]
            sources = self._dataset.target_rows[own.ravel()]
            targets = self._teacher.targets(sources).reshape(*own.shape, -1)
        return lay_out(
            self._token_ids(step, indices),
            self._dataset.clusters[rows[:, self._candidates]],
            self.shapes,
            vocabulary_size=self._dataset.tokenizer.size,
            own=self._own,
            lengths=None if self._lengths is None else self._lengths[rows],
            labels=indices.labels.reshape(self._devices, -1),
            targets=targets,
            parts=self._dataset.parts,
        )

    def _token_ids(self, step: int, indices: BatchIndices) -> np.ndarray:
        """Token ids of each device's questions, int32 [devices, rows, L]."""
        settings, seed = self._config.batch, self._config.seed
        if not (settings.token_dropout or settings.subword_dropout):
            return self._dataset.token_ids.take(indices.shares(self._devices), axis=0)
        token_ids = self._dataset.token_ids.take(indices.questions, axis=0)
        # Before the rows are split, so that it is the same on any number of devices.
        where = {"seed": seed, "step": self._steps[step]}
        if settings.token_dropout:
            token_ids = drop_tokens(token_ids, settings.token_dropout, **where)
        if settings.subword_dropout:
            words = self._dataset.spelled_words
            token_ids = spell_tokens(token_ids, settings.subword_dropout, words, **where)
        return token_ids[self._positions]


def pairs_loader(
    config: TrainConfig,
    dataset: TrainDataset,
    *,
    devices: int,
    own: slice = slice(None),
    turn_of: tuple[int, int] = (0, 1),
    steps: Sequence[int] = ALL_STEPS,
) -> BatchLoader:
    """Batches of the pairs that the losses read, and of targets if imitation has a weight.

    See `make_pairs_sampler` for `turn_of`, `BatchLoader` for the rest.
    """
    sampler = make_pairs_sampler(config, dataset, devices=devices, turn_of=turn_of)
    targets = config.teacher.weight > 0
    return BatchLoader(
        config, dataset, sampler, devices=devices, own=own, targets=targets, steps=steps
    )


def imitation_loader(
    config: TrainConfig, dataset: TrainDataset, *, devices: int, own: slice = slice(None)
) -> BatchLoader:
    """Batches of any trainable questions with the teacher's vectors."""
    sampler = make_imitation_sampler(config, dataset, devices=devices)
    return BatchLoader(config, dataset, sampler, devices=devices, own=own, targets=True)
