"""From a step to its batch."""

from __future__ import annotations

import numpy as np

from qpr_jax.training.batches import Batch, plan_layout
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.sampler import (
    BatchIndices,
    drop_tokens,
    epoch_steps,
    false_negatives,
    pairs_per_batch,
    sample_pairs,
    sample_questions,
    spell_tokens,
)


class BatchLoader:
    """The batches of a phase, each a function of the seed and of its step, counted from 0.

    Attributes:
      indices: a function from a step to its questions.
      epoch: steps that read the data once.
      size: pairs of a batch, or half its questions.
      layout: of a batch.
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
        """Plan the shapes of the batches.

        Args:
          config: settings of the batch and the seed.
          dataset: what the batches are taken from.
          devices: number of devices that share a batch.
          imitation: read any trainable questions with the teacher's vectors, not pairs, which have
            these vectors only if imitation has a weight.
          own: the devices whose shares this process lays out.
          first_step: steps of the training before this phase, so that no two drop the same tokens.
        """
        self.epoch = epoch_steps(config, dataset, imitation=imitation)
        self.size = config.teacher.batch_size // 2 if imitation else pairs_per_batch(config)
        self.indices = (sample_questions if imitation else sample_pairs)(config, dataset, devices)
        self._config, self._dataset, self._own = config, dataset, own
        self._first, self._counts_negatives = first_step, not imitation
        self._teacher = dataset.teacher if imitation or config.teacher.weight else None
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
            clusters=self._dataset.clusters[rows[:, self._candidates]],
            labels=indices.labels.reshape(len(rows), -1),
            targets=targets,
            own=self._own,
        )

    def metrics_at(self, step: int) -> dict[str, float]:
        """Shares of false negatives among the questions of a step; empty without pairs."""
        indices = self.indices(step)
        if not (self._counts_negatives and len(indices.pairs)):
            return {}
        candidates = np.concatenate([indices.pairs[:, 1], indices.extra_candidates])
        return false_negatives(self._dataset.clusters[candidates], len(indices.pairs))

    def _token_ids(self, step: int, indices: BatchIndices) -> np.ndarray:
        """Token ids of each device's questions, int32 [devices, rows, L]."""
        settings, stream = (
            self._config.batch,
            {"seed": self._config.seed, "step": self._first + step},
        )
        token_ids = self._dataset.token_ids.take(indices.questions, axis=0)
        # Before the rows are split, so that it is the same on any number of devices.
        if settings.token_dropout:
            token_ids = drop_tokens(token_ids, settings.token_dropout, **stream)
        if settings.subword_dropout:
            words = self._dataset.spelled_words
            token_ids = spell_tokens(token_ids, settings.subword_dropout, words, **stream)
        return token_ids[self._positions]
