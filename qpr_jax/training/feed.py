"""From a step to its batch, as the settings say."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from qpr_jax.errors import UserError
from qpr_jax.training.batches import (
    MAX_BLOCKS,
    Batch,
    BatchShape,
    make_batch,
    plan_shapes,
)
from qpr_jax.training.draws import (
    IMITATION,
    LABELLED,
    Draw,
    even_pairs_of_step,
    false_negatives,
    hard_negatives_of_step,
    pairs_of_step,
    steps_per_epoch,
    with_words_dropped,
)
from qpr_jax.training.prepare import Prepared
from qpr_jax.training.settings import LABELLED_LOSSES, weighted_losses
from qpr_jax.training.teacher import Teacher

# A layer takes seconds to compile, and more for its gradient.
BLOCKS_OF_BERT = 4


class Feed(NamedTuple):
    """What a training reads; the functions take a step, counted from 0, and nothing else.

    size: pairs of a batch, or half its questions. epoch: steps.
    """

    draw_at: Callable[[int], Draw]
    batch_at: Callable[[int], Batch]
    false_negatives_at: Callable[[int], dict[str, float]]
    shapes: tuple[BatchShape, ...]
    size: int
    epoch: int


def make_feed(
    settings: ConfigDict,
    prepared: Prepared,
    *,
    devices: int,
    own: slice = slice(None),
    losses: Sequence[str] = (),
) -> Feed:
    """Batches of pairs for a training on so many devices, of which this process lays out its `own`.

    With the teacher's vectors of their questions, where the settings weigh them.

    losses: those whose batches these are, of the settings'; none: all. Where some are of pairs that
      mean the same and some of labelled ones, a batch has `batch_size` of either.
    """
    names = losses or [*weighted_losses(settings)]
    kinds = [_labelled_at if name in LABELLED_LOSSES else _pairs_at for name in names]
    parts = [kind(settings, prepared, devices) for kind in dict.fromkeys(kinds)]

    @functools.lru_cache(maxsize=1)  # the batch, and what is counted of it
    def draw_at(step: int) -> Draw:
        return Draw(**{name: rows for at, _ in parts for name, rows in at(step).items()})

    def false_negatives_at(step: int) -> dict[str, float]:
        draw = draw_at(step)
        candidates = np.concatenate([draw.pairs[:, 1], draw.extras])
        return false_negatives(prepared.clusters[candidates], len(draw.pairs))

    epoch = parts[0][1]
    teacher = prepared.teacher if settings.teacher.weight else None
    batch_at, shapes = _batches(settings, prepared, draw_at, epoch, teacher, devices, own)
    size = settings.batch_size * len(parts)
    return Feed(draw_at, batch_at, false_negatives_at, shapes, size, epoch)


# From a step to parts of its `Draw`, by name; and how many steps an epoch has.
_Part = tuple[Callable[[int], dict[str, np.ndarray]], int]


def _pairs_at(settings: ConfigDict, prepared: Prepared, devices: int) -> _Part:
    """Pairs that mean the same, and candidates of no query."""
    pairs, size, seed = prepared.splits.pairs["train"], settings.batch_size, settings.seed
    _check_shared("hard_negatives", settings.hard_negatives, devices)
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

    def at(step: int) -> dict[str, np.ndarray]:
        chosen = pairs_at(step)
        return {"pairs": chosen, "extras": extras_at(step, chosen)}

    return at, steps_per_epoch(len(pairs), size)


def _labelled_at(settings: ConfigDict, prepared: Prepared, devices: int) -> _Part:
    """Pairs labelled either way."""
    same, others = (getattr(prepared.splits, name)["train"] for name in ("pairs", "non_duplicates"))
    if not len(others):
        raise UserError(
            f"`loss`: got {settings.loss!r}, but no training pair is labelled non-duplicate; give "
            "labelled pairs, or set `--config.loss`"
        )
    labels = np.repeat([1, 0], [len(same), len(others)])
    rows = np.column_stack([np.concatenate([same, others]), labels]).astype(np.int32)
    rows_at = pairs_of_step(rows, settings.batch_size, seed=[settings.seed, LABELLED])

    def at(step: int) -> dict[str, np.ndarray]:
        chosen = rows_at(step)
        return {"labelled": chosen[:, :2], "labels": chosen[:, 2]}

    return at, steps_per_epoch(len(rows), settings.batch_size)


def make_imitation_feed(
    settings: ConfigDict, prepared: Prepared, *, devices: int, own: slice = slice(None)
) -> Feed:
    """Batches of any questions that a student may see, with the teacher's vectors of them.

    They are laid out as pairs, which they are not.
    """
    assert prepared.teacher
    count = settings.teacher.batch_size
    _check_shared("teacher.batch_size", count, 2 * devices)
    shown = prepared.shown.astype(np.int32)
    if len(shown) < count:
        raise UserError(
            f"expected at least one batch of `teacher.batch_size` {count:,} questions, got "
            f"{len(shown):,}; lower `--config.teacher.batch_size`"
        )
    epoch = len(shown) // count
    # A permutation of its own.
    questions_at = pairs_of_step(shown, count, seed=[settings.seed, IMITATION])

    @functools.lru_cache(maxsize=1)
    def draw_at(step: int) -> Draw:
        return Draw(questions_at(step).reshape(-1, 2))

    batch_at, shapes = _batches(settings, prepared, draw_at, epoch, prepared.teacher, devices, own)
    none = {"false_negatives": 0.0, "rows_with_false_negatives": 0.0}
    return Feed(draw_at, batch_at, lambda step: none, shapes, count // 2, epoch)


def imitation_steps(settings: ConfigDict, prepared: Prepared) -> int:
    """How many steps a student imitates its teacher alone before any pair; 0 without a teacher."""
    if not prepared.teacher or not settings.teacher.epochs:
        return 0
    epoch = len(prepared.shown) // settings.teacher.batch_size
    return max(int(settings.teacher.epochs) * epoch, int(settings.teacher.min_steps))


def _batches(
    settings: ConfigDict,
    prepared: Prepared,
    draw_at: Callable[[int], Draw],
    epoch: int,
    teacher: Teacher | None,
    devices: int,
    own: slice,
) -> tuple[Callable[[int], Batch], tuple[BatchShape, ...]]:
    """From a step to what its draw says, laid out for the devices; and in which shapes."""
    first = draw_at(0)
    # Where the questions of one device's batch stand in the shares of so many.
    ends = list(itertools.accumulate([first.pairs.size, first.extras.size, first.labelled.size]))
    in_pairs, in_extras, in_labelled = np.split(np.arange(ends[-1]), ends[:-1])
    dealt = Draw(in_pairs.reshape(2, -1).T, in_extras, in_labelled.reshape(2, -1).T).shares(devices)
    share = len(first.pairs) // devices
    candidates = slice(share, 2 * share + len(first.extras) // devices)

    def words_of(draw: Draw, step: int) -> np.ndarray:
        words = prepared.words[draw.questions]
        if settings.word_dropout:  # before they are dealt out, so that it is the same on any number
            words = with_words_dropped(words, settings.word_dropout, seed=settings.seed, step=step)
        return words[dealt]

    vocabulary_size = prepared.vocabulary.size
    shapes = plan_shapes(
        lambda step: words_of(draw_at(step), step),
        steps=epoch,
        vocabulary_size=vocabulary_size,
        blocks=BLOCKS_OF_BERT if prepared.pretrained else MAX_BLOCKS,
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
            prepared.clusters[rows[:, candidates]].astype(np.int32),
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
            f"`{name}`: expected a multiple of {parts}, which the devices can share evenly, got "
            f"{number}; set `--config.{name}`"
        )
