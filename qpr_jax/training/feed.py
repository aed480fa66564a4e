"""From a step to its batch, as the settings say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from qpr_jax.errors import UserError
from qpr_jax.training.batches import Batch, BatchShape, make_batch, plan_shapes
from qpr_jax.training.draws import (
    Draw,
    even_pairs_of_step,
    false_negatives,
    hard_negatives_of_step,
    pairs_of_step,
    steps_per_epoch,
    with_words_dropped,
)
from qpr_jax.training.prepare import Prepared


class Feed(NamedTuple):
    """What a training reads; the functions take a step, counted from 0, and nothing else."""

    draw_at: Callable[[int], Draw]
    batch_at: Callable[[int], Batch]
    false_negatives_at: Callable[[int], dict[str, float]]
    shapes: tuple[BatchShape, ...]
    epoch: int  # steps


def make_feed(
    settings: ConfigDict, prepared: Prepared, *, devices: int, own: slice = slice(None)
) -> Feed:
    """The batches of a training on so many devices, of which this process lays out its `own`."""
    pairs = prepared.splits.pairs["train"]
    size, seed = settings.batch_size, settings.seed
    epoch = steps_per_epoch(len(pairs), size)
    if settings.hard_negatives % devices:
        raise UserError(
            f"`hard_negatives`: expected a number that {devices} devices can share evenly, got "
            f"{settings.hard_negatives}; set `--config.hard_negatives`"
        )
    if settings.sampling == "clusters":
        pairs_at = even_pairs_of_step(pairs, prepared.clusters[pairs[:, 0]], size, seed=seed)
    else:
        pairs_at = pairs_of_step(pairs, size, seed=seed)
    extras_at = hard_negatives_of_step(
        prepared.splits.non_duplicates["train"],
        len(prepared.words),
        settings.hard_negatives,
        seed=seed,
    )

    @functools.lru_cache(maxsize=1)  # the batch, and what is counted of it
    def draw_at(step: int) -> Draw:
        chosen = pairs_at(step)
        return Draw(chosen, extras_at(step, chosen))

    # Where the questions of one device's batch stand in the shares of so many.
    places = np.arange(2 * size + settings.hard_negatives)
    dealt = Draw(places[: 2 * size].reshape(2, -1).T, places[2 * size :]).shares(devices)

    def words_of(draw: Draw, step: int) -> np.ndarray:
        words = prepared.words[draw.shares(1)[0]]
        if settings.word_dropout:  # before they are dealt out, so that it is the same on any number
            words = with_words_dropped(words, settings.word_dropout, seed=seed, step=step)
        return words[dealt]

    vocabulary_size = prepared.vocabulary.size
    shapes = plan_shapes(
        lambda step: words_of(draw_at(step), step), steps=epoch, vocabulary_size=vocabulary_size
    )

    def batch_at(step: int) -> Batch:
        draw = draw_at(step)
        candidates = draw.shares(devices)[:, size // devices :]
        clusters = prepared.clusters[candidates].astype(np.int32)
        words = words_of(draw, step)
        return make_batch(words, clusters, shapes, vocabulary_size=vocabulary_size, own=own)

    def false_negatives_at(step: int) -> dict[str, float]:
        draw = draw_at(step)
        candidates = np.concatenate([draw.pairs[:, 1], draw.extras])
        return false_negatives(prepared.clusters[candidates], size)

    return Feed(draw_at, batch_at, false_negatives_at, shapes, epoch)
