"""Batches of pairs as blocks of questions of like length, of few fixed shapes.

Questions have about ten words and at most several dozen: padding all to the longest would waste
most of the work. The questions of a batch are sorted by length and cut into blocks whose sizes
and widths are fixed beforehand from the data, so that the step compiles once.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np

from qpr_jax.errors import UserError

MAX_BLOCKS = 8
SAMPLED_BATCHES = 256
SAMPLED_VOCABULARIES = 16


@dataclasses.dataclass(frozen=True)
class Questions:
    """All questions as word ids.

    words: int32 [Q, L], zero-padded on the right, below `vocabulary_size`.
    lengths: int32 [Q], words of each question; 1 for an empty one, a window of padding.
    """

    words: np.ndarray
    lengths: np.ndarray
    vocabulary_size: int

    @classmethod
    def of(cls, words: np.ndarray, vocabulary_size: int) -> Questions:
        """From the word ids alone."""
        lengths = np.maximum((words > 0).sum(axis=1, dtype=np.int32), 1)
        return cls(words, lengths, vocabulary_size)

    def distinct(self, rows: np.ndarray) -> np.ndarray:
        """The distinct word ids of some questions, ascending, the first of them 0."""
        seen = np.zeros(self.vocabulary_size, bool)
        seen[0] = True
        seen[self.words[rows]] = True
        return np.flatnonzero(seen)


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The shape of one device's share of a batch: (rows, width) of its blocks, distinct words."""

    blocks: tuple[tuple[int, int], ...]
    distinct: int

    @property
    def tokens(self) -> int:
        """Positions encoded, padding included."""
        return sum(rows * width for rows, width in self.blocks)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch; along the first axis of every array lie the shares of the devices.

    distinct: int32 [devices * U], the distinct word ids of each share, the first of each 0.
    blocks: int32 [devices * n_b, L_b] each, positions in the share's `distinct`.
    order: int32 [devices * 2n], row of the blocks' concatenation for each question of a share,
      the n queries first, then their candidates.
    """

    distinct: np.ndarray | jax.Array
    blocks: tuple[np.ndarray | jax.Array, ...]
    order: np.ndarray | jax.Array


def pairs_of_step(pairs: np.ndarray, batch_size: int, *, seed: int) -> Callable[[int], np.ndarray]:
    """A function from a step, counted from 0, to its pairs, int32 [batch_size, 2].

    Each epoch is a permutation of the pairs that is a function of (seed, epoch) alone, so the
    step is the whole position in the data; what does not fill a batch is left for that epoch.
    """
    steps = steps_per_epoch(len(pairs), batch_size)

    @functools.lru_cache(maxsize=1)
    def permutation(epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(pairs))

    def at(step: int) -> np.ndarray:
        epoch, place = divmod(step, steps)
        return pairs[permutation(epoch)[place * batch_size : (place + 1) * batch_size]]

    return at


def steps_per_epoch(pairs: int, batch_size: int) -> int:
    """Full batches in an epoch; UserError where there is none."""
    if pairs < batch_size:
        raise UserError(
            f"expected at least one batch of `batch_size` {batch_size} training pairs, got "
            f"{pairs} pairs; lower `--config.batch_size`"
        )
    return pairs // batch_size


def plan_shapes(
    questions: Questions, pairs_at: Callable[[int], np.ndarray], *, devices: int, steps: int
) -> tuple[BatchShape, ...]:
    """Shapes for one device's share, from the tightest to one that holds any batch.

    The tightest holds what sampled batches of the first epoch hold, with a little room; a batch
    that does not fit takes the next, which compiles once more.

    Args:
      questions: all questions.
      pairs_at: step -> pairs [N, 2], N a multiple of `devices`.
      devices: shares of a batch.
      steps: steps of an epoch, which the samples are spread over.
    """
    sampled = np.linspace(0, steps - 1, min(steps, SAMPLED_BATCHES)).astype(int)
    every = max(1, len(sampled) // SAMPLED_VOCABULARIES)
    longest = np.zeros(len(pairs_at(0)) // devices * 2, np.int32)
    distinct = 0
    for i, step in enumerate(sampled):
        for share in np.split(pairs_at(int(step)), devices):
            longest = np.maximum(longest, np.sort(questions.lengths[share.ravel()]))
            if i % every == 0:
                distinct = max(distinct, len(questions.distinct(share.ravel())))

    widest = int(questions.lengths.max())
    longest = np.minimum(longest + 1, widest)
    ends = _cheapest_ends(longest)
    rows = [b - a for a, b in itertools.pairwise([0, *ends])]
    widths = [int(longest[end - 1]) for end in ends[:-1]] + [widest]
    any_words = min(questions.vocabulary_size, len(longest) * widest + 1)

    def shape(widths: Sequence[int], distinct: float) -> BatchShape:
        return BatchShape(
            tuple(zip(rows, widths, strict=True)), min(math.ceil(distinct / 64) * 64, any_words)
        )

    tight = shape(widths, 1.08 * distinct + 32)
    roomy = shape([*widths[1:], widest], 1.5 * distinct + 256)
    return tight, roomy, BatchShape(((len(longest), widest),), any_words)


def _cheapest_ends(longest: np.ndarray) -> list[int]:
    """Ends of at most MAX_BLOCKS blocks of sorted rows with the least padding in all.

    longest: int [rows], the width that the i-th shortest row needs.
    """
    ends = np.unique(np.linspace(0, len(longest), min(len(longest), 64) + 1).astype(int)).tolist()
    # cheapest[j]: (cost, ends) of the blocks, one more in each round, over the first ends[j] rows.
    cheapest: list[tuple[float, list[int]]] = [(0, [])] + [(math.inf, [])] * (len(ends) - 1)
    for _ in range(MAX_BLOCKS):
        cheapest = [(0, [])] + [
            min(
                (cost + (end - start) * int(longest[end - 1]), [*before, end])
                for start, (cost, before) in zip(ends[:j], cheapest[:j], strict=True)
            )
            for j, end in enumerate(ends[1:], start=1)
        ]
    return cheapest[-1][1]


def make_batch(
    questions: Questions, pairs: np.ndarray, shapes: Sequence[BatchShape], *, devices: int
) -> Batch:
    """Lay out pairs, [N, 2], as `devices` equal shares, in the first shape that fits.

    shapes: from `plan_shapes`.
    """
    shares = [share.T.ravel() for share in np.split(pairs, devices)]
    sorts = [np.argsort(questions.lengths[rows], kind="stable") for rows in shares]
    by_length = [rows[ascending] for rows, ascending in zip(shares, sorts, strict=True)]
    vocabularies = [questions.distinct(rows) for rows in shares]
    shape = next(
        shape
        for shape in shapes
        if all(len(vocabulary) <= shape.distinct for vocabulary in vocabularies)
        and all(_fits(questions.lengths[rows], shape) for rows in by_length)
    )
    distinct = np.zeros((devices, shape.distinct), np.int32)
    order = np.empty((devices, len(shares[0])), np.int32)
    place = np.zeros(questions.vocabulary_size, np.int32)
    blocks = [np.empty((devices, *block), np.int32) for block in shape.blocks]
    for device in range(devices):
        vocabulary = vocabularies[device]
        distinct[device, : len(vocabulary)] = vocabulary
        order[device, sorts[device]] = np.arange(len(shares[device]))
        place[vocabulary] = np.arange(len(vocabulary))
        start = 0
        for block, (rows, width) in zip(blocks, shape.blocks, strict=True):
            block[device] = place[questions.words[by_length[device][start : start + rows], :width]]
            start += rows
    return Batch(
        distinct.ravel(),
        tuple(block.reshape(-1, block.shape[2]) for block in blocks),
        order.ravel(),
    )


def _fits(lengths: np.ndarray, shape: BatchShape) -> bool:
    """Whether rows of these ascending lengths fit the widths of the blocks."""
    ends = np.cumsum([rows for rows, _ in shape.blocks])
    return bool(np.all(lengths[ends - 1] <= [width for _, width in shape.blocks]))
