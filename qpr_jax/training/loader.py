"""From a step to its batch, as the settings say."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.splits import TRAIN
from qpr_jax.errors import UserError
from qpr_jax.training.batch_layout import (
    MAX_BLOCKS,
    Batch,
    BatchShape,
    make_batch,
    plan_shapes,
)
from qpr_jax.training.config import TrainConfig, objectives, weighted_losses
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.losses_config import LOSSES
from qpr_jax.training.sampler import (
    IMITATION,
    LABELLED,
    BatchIndices,
    cluster_sampled_pairs,
    drop_tokens,
    false_negatives,
    hard_negatives,
    permuted_pairs,
    steps_per_epoch,
)
from qpr_jax.training.teacher import Teacher

# A layer takes seconds to compile, and more for its gradient.
BLOCKS_OF_BERT = 4


class BatchLoader(NamedTuple):
    """What a training reads; the functions take a step, counted from 0, and nothing else.

    size: pairs of a batch, or half its questions. epoch: steps.
    """

    draw_at: Callable[[int], BatchIndices]
    batch_at: Callable[[int], Batch]
    false_negatives_at: Callable[[int], dict[str, float]]
    shapes: tuple[BatchShape, ...]
    size: int
    epoch: int


def pairs_loader(
    config: TrainConfig,
    dataset: TrainDataset,
    *,
    devices: int,
    own: slice = slice(None),
    turn: int = 0,
    turns: int = 1,
) -> BatchLoader:
    """Batches of pairs for a training on so many devices, of which this process lays out its `own`.

    With the teacher's vectors of their questions, where the settings weigh them. Where some losses
    are of pairs that mean the same and some of labelled ones, a batch has `batch_size` of either.

    turn: of as many `turns` that share the batches of their data, one after the other.
    """
    draws = [
        (_labeled_at if labeled else _pairs_at)(config, dataset, devices)
        for labeled in data_kinds(config)
    ]

    @functools.lru_cache(maxsize=1)  # the batch, and what is counted of it
    def draw_at(step: int) -> BatchIndices:
        place = step * turns + turn
        return BatchIndices(**{name: rows for at in draws for name, rows in at(place).items()})

    def false_negatives_at(step: int) -> dict[str, float]:
        draw = draw_at(step)
        if not len(draw.pairs):
            return {}
        candidates = np.concatenate([draw.pairs[:, 1], draw.extras])
        return false_negatives(dataset.clusters[candidates], len(draw.pairs))

    epoch = max(1, _steps_of_data(config, dataset) // turns)
    teacher = dataset.teacher if config.teacher.weight else None
    batch_at, shapes = _batches(config, dataset, draw_at, epoch, teacher, devices, own)
    return BatchLoader(draw_at, batch_at, false_negatives_at, shapes, pairs_of_batch(config), epoch)


def data_kinds(config: TrainConfig) -> list[bool]:
    """Whether the losses are of labelled pairs, each kind once, the first loss's first."""
    return list(dict.fromkeys(LOSSES[name].data == "labeled" for name in weighted_losses(config)))


def turn_of_kind(turns: Sequence[TrainConfig], number: int) -> tuple[int, int]:
    """The place of a turn among those that share its kind of data, and how many these are."""
    kinds = [data_kinds(turn) for turn in turns]
    return kinds[:number].count(kinds[number]), kinds.count(kinds[number])


def epoch_steps(config: TrainConfig, dataset: TrainDataset) -> int:
    """Steps in which the first of the turns goes through its data, all turns counted."""
    turns = objectives(config)
    _, sharing = turn_of_kind(turns, 0)
    return len(turns) * max(1, _steps_of_data(turns[0], dataset) // sharing)


def pairs_of_batch(config: TrainConfig) -> int:
    """How many pairs a step reads."""
    return int(config.batch_size) * (1 if config.loss.alternate else len(data_kinds(config)))


def _steps_of_data(config: TrainConfig, dataset: TrainDataset) -> int:
    """Full batches that the data of the first loss hold."""
    labeled = data_kinds(config)[0]
    count = len(_labeled(dataset) if labeled else dataset.splits.pairs["train"])
    return steps_per_epoch(count, config.batch_size)


def _labeled(dataset: TrainDataset) -> np.ndarray:
    """The labelled pairs of training questions, int32 [P, 3]: both, and 1 if they mean the same.

    Without those labelled apart, though by other pairs they mean the same.
    """
    data, split_of = dataset.data, dataset.splits.split_of
    same = data.pairs[data.is_duplicate]
    same = same[(split_of[same] == TRAIN).all(axis=1)]
    others = dataset.splits.non_duplicates["train"]
    labels = np.repeat([1, 0], [len(same), len(others)])
    return np.column_stack([np.concatenate([same, others]), labels]).astype(np.int32)


# From a step to parts of its `BatchIndices`, by name.
_Part = Callable[[int], dict[str, np.ndarray]]


def _pairs_at(config: TrainConfig, dataset: TrainDataset, devices: int) -> _Part:
    """Pairs that mean the same, and candidates of no query."""
    pairs, size, seed = dataset.splits.pairs["train"], config.batch_size, config.seed
    _check_shared("batch.hard_negatives", config.batch.hard_negatives, devices)
    if config.batch.sampling == "clusters":
        pairs_at = cluster_sampled_pairs(pairs, dataset.clusters[pairs[:, 0]], size, seed=seed)
    else:
        pairs_at = permuted_pairs(pairs, size, seed=seed)
    extras_at = hard_negatives(
        dataset.splits.non_duplicates["train"],
        len(dataset.words),
        config.batch.hard_negatives,
        seed=seed,
    )

    def at(step: int) -> dict[str, np.ndarray]:
        chosen = pairs_at(step)
        return {"pairs": chosen, "extras": extras_at(step, chosen)}

    return at


def _labeled_at(config: TrainConfig, dataset: TrainDataset, devices: int) -> _Part:
    """Pairs labelled either way."""
    rows = _labeled(dataset)
    if rows[:, 2].all():
        raise UserError(
            f"{','.join(config.loss.names)} reads pairs labeled as non-duplicates, but the "
            "training split has none",
            setting="loss.names",
            remedy="give labeled pairs, or another loss",
        )
    rows_at = permuted_pairs(rows, config.batch_size, seed=[config.seed, LABELLED])

    def at(step: int) -> dict[str, np.ndarray]:
        chosen = rows_at(step)
        return {"labeled": chosen[:, :2], "labels": chosen[:, 2]}

    return at


def imitation_loader(
    config: TrainConfig, dataset: TrainDataset, *, devices: int, own: slice = slice(None)
) -> BatchLoader:
    """Batches of any questions that a student may see, with the teacher's vectors of them.

    They are laid out as pairs, which they are not.
    """
    assert dataset.teacher
    count = config.teacher.batch_size
    _check_shared("teacher.batch_size", count, 2 * devices)
    shown = dataset.shown.astype(np.int32)
    if len(shown) < count:
        raise UserError(
            f"expected at least one batch of {count:,} questions, got {len(shown):,}",
            setting="teacher.batch_size",
            remedy="lower it, or give more questions",
        )
    epoch = len(shown) // count
    # A permutation of its own.
    questions_at = permuted_pairs(shown, count, seed=[config.seed, IMITATION])

    @functools.lru_cache(maxsize=1)
    def draw_at(step: int) -> BatchIndices:
        return BatchIndices(questions_at(step).reshape(-1, 2))

    batch_at, shapes = _batches(config, dataset, draw_at, epoch, dataset.teacher, devices, own)
    return BatchLoader(draw_at, batch_at, lambda step: {}, shapes, count // 2, epoch)


def imitation_steps(config: TrainConfig, dataset: TrainDataset) -> int:
    """How many steps a student imitates its teacher alone before any pair; 0 without a teacher."""
    if not dataset.teacher or not config.teacher.epochs:
        return 0
    epoch = len(dataset.shown) // config.teacher.batch_size
    return max(int(config.teacher.epochs) * epoch, int(config.teacher.min_steps))


def _batches(
    config: TrainConfig,
    dataset: TrainDataset,
    draw_at: Callable[[int], BatchIndices],
    epoch: int,
    teacher: Teacher | None,
    devices: int,
    own: slice,
) -> tuple[Callable[[int], Batch], tuple[BatchShape, ...]]:
    """From a step to what its draw says, laid out for the devices; and in which shapes."""
    first = draw_at(0)
    # Where the questions of one device's batch stand in the shares of so many.
    ends = list(itertools.accumulate([first.pairs.size, first.extras.size, first.labeled.size]))
    in_pairs, in_extras, in_labeled = np.split(np.arange(ends[-1]), ends[:-1])
    dealt = BatchIndices(in_pairs.reshape(2, -1).T, in_extras, in_labeled.reshape(2, -1).T).shares(
        devices
    )
    share = len(first.pairs) // devices
    candidates = slice(share, 2 * share + len(first.extras) // devices)

    def words_of(draw: BatchIndices, step: int) -> np.ndarray:
        words = dataset.words[draw.questions]
        if (
            config.batch.token_dropout
        ):  # before they are dealt out, so that it is the same on any number
            words = drop_tokens(words, config.batch.token_dropout, seed=config.seed, step=step)
        return words[dealt]

    vocabulary_size = dataset.vocabulary.size
    shapes = plan_shapes(
        lambda step: words_of(draw_at(step), step),
        steps=epoch,
        vocabulary_size=vocabulary_size,
        blocks=BLOCKS_OF_BERT if dataset.pretrained else MAX_BLOCKS,
    )

    def batch_at(step: int) -> Batch:
        draw = draw_at(step)
        rows = draw.shares(devices)
        targets = None
        if teacher:
            mine = rows[own]
            targets = teacher.targets(mine.ravel()).reshape(*mine.shape, -1)
        return make_batch(
            words_of(draw, step),
            dataset.clusters[rows[:, candidates]].astype(np.int32),
            shapes,
            vocabulary_size=vocabulary_size,
            own=own,
            labels=draw.labels.reshape(devices, -1),
            targets=targets,
        )

    return batch_at, shapes


def _check_shared(name: str, number: int, parts: int) -> None:
    if number % parts:
        raise UserError(
            f"expected a multiple of {parts}, which the devices can share evenly, got {number}",
            setting=name,
        )
