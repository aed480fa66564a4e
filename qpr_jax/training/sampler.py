"""Which pairs a step trains on: functions of seed and step, so that a resumed run sees the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from qpr_jax.errors import UserError

# Each use of the seed draws numbers of its own.
_EVEN, _EXTRA, _DROPOUT, IMITATION, LABELLED = 1, 2, 3, 4, 5
_NONE: np.ndarray = np.zeros(0, np.int32)
_NO_PAIRS: np.ndarray = np.zeros((0, 2), np.int32)


class BatchIndices(NamedTuple):
    """The questions of a batch.

    pairs: int32 [N, 2], (query, candidate). extras: int32 [K], candidates of no query. labelled:
    int32 [M, 2], pairs with a verdict each, `labels` int32 [M], 1 where both mean the same.
    """

    pairs: np.ndarray = _NO_PAIRS
    extras: np.ndarray = _NONE
    labeled: np.ndarray = _NO_PAIRS
    labels: np.ndarray = _NONE

    @property
    def questions(self) -> np.ndarray:
        """Of all, int32 [2N + K + 2M], as one device reads them."""
        rows: np.ndarray = self.shares(1)[0]
        return rows

    def shares(self, devices: int) -> np.ndarray:
        """The rows of each device, [devices, 2n + k + 2m].

        Its queries, their candidates, its extras, the first and the second of its labelled pairs.
        """
        pairs, labeled = (part.reshape(devices, -1, 2) for part in (self.pairs, self.labeled))
        extras = self.extras.reshape(devices, -1)
        return np.concatenate(
            [pairs[..., 0], pairs[..., 1], extras, labeled[..., 0], labeled[..., 1]], axis=1
        )


def steps_per_epoch(pairs: int, batch_size: int) -> int:
    """Full batches in an epoch; UserError where there is none."""
    if pairs < batch_size:
        raise UserError(
            f"expected at least one batch of {batch_size} training pairs, got {pairs} pairs",
            setting="batch_size",
            remedy="lower it, or give more pairs",
        )
    return pairs // batch_size


def permuted_pairs(
    pairs: np.ndarray, batch_size: int, *, seed: int | list[int]
) -> Callable[[int], np.ndarray]:
    """A function from a step, counted from 0, to its `batch_size` rows of `pairs`, int32 [P, ...].

    Each epoch is a permutation of the pairs that is a function of (seed, epoch) alone, so the
    step is the whole position in the data; what does not fill a batch is left for that epoch.
    """
    steps = steps_per_epoch(len(pairs), batch_size)
    seeds = [seed] if isinstance(seed, int) else seed

    @functools.lru_cache(maxsize=1)
    def permutation(epoch: int) -> np.ndarray:
        return np.random.default_rng([*seeds, epoch]).permutation(len(pairs))

    def at(step: int) -> np.ndarray:
        epoch, place = divmod(step, steps)
        return pairs[permutation(epoch)[place * batch_size : (place + 1) * batch_size]]

    return at


def cluster_sampled_pairs(
    pairs: np.ndarray, clusters: np.ndarray, batch_size: int, *, seed: int
) -> Callable[[int], np.ndarray]:
    """Like `permuted_pairs`, with each cluster drawn equally often, however many pairs it has.

    The clusters are gone through in rounds, a permutation each, with one random pair of each
    cluster, in either direction. Large clusters, which hold most pairs, no longer decide what is
    learned, and a batch seldom holds a cluster twice.

    clusters: int [P], the cluster of each pair.
    """
    steps_per_epoch(len(pairs), batch_size)
    order = np.argsort(clusters, kind="stable")
    sizes = np.unique(clusters, return_counts=True)[1]
    starts = np.cumsum(sizes) - sizes

    @functools.lru_cache(maxsize=2)  # a batch may begin in one round and end in the next
    def round_of(number: int) -> np.ndarray:
        rng = np.random.default_rng([seed, number, _EVEN])
        rows = rng.permutation(order[starts + rng.integers(0, sizes)])
        return np.where(rng.integers(0, 2, (len(rows), 1)) == 1, pairs[rows, ::-1], pairs[rows])

    def at(step: int) -> np.ndarray:
        parts, start, wanted = [], step * batch_size, batch_size
        while wanted:
            number, place = divmod(start, len(sizes))
            parts.append(round_of(number)[place : place + wanted])
            start, wanted = start + len(parts[-1]), wanted - len(parts[-1])
        return np.concatenate(parts)

    return at


def hard_negatives(
    non_duplicates: np.ndarray, questions: int, count: int, *, seed: int
) -> Callable[[int, np.ndarray], np.ndarray]:
    """A function from a step and its pairs to `count` questions labelled non-duplicates.

    For the questions of the batch that stand in `non_duplicates`, int32 [M, 2], one that they were
    labelled apart from; what is left is filled up with others of these pairs.
    """
    both = np.concatenate([non_duplicates, non_duplicates[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    sizes = np.bincount(both[:, 0], minlength=questions)
    starts = np.cumsum(sizes) - sizes
    if count and not len(both):
        raise UserError(
            f"got {count}, but no training pair is labeled as a non-duplicate",
            setting="batch.hard_negatives",
            remedy="set {batch.hard_negatives=0}",
        )

    def at(step: int, pairs: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng([seed, step, _EXTRA])
        labeled = pairs.ravel()
        labeled = labeled[sizes[labeled] > 0][:count]
        theirs = both[starts[labeled] + rng.integers(0, sizes[labeled]), 1]
        others = both[rng.integers(0, max(len(both), 1), count - len(theirs)), 1]
        return np.concatenate([theirs, others]).astype(np.int32)

    return at


def false_negatives(clusters: np.ndarray, pairs: int) -> dict[str, float]:
    """How many of a batch's other candidates are known paraphrases, which a mask leaves out.

    Args:
      clusters: int [m], the cluster of each candidate, -1 for none; the first `pairs` of them are
        those of the pairs, and of their queries.
      pairs: how many queries there are.

    Returns:
      false_negatives: share of the other candidates of a query that are of its cluster.
      rows_with_false_negatives: share of the queries that have one.
    """
    sizes = np.bincount(clusters[clusters >= 0], minlength=1)
    theirs = np.where(clusters[:pairs] >= 0, sizes[clusters[:pairs]] - 1, 0)
    return {
        "false_negatives": float(theirs.mean() / max(1, len(clusters) - 1)),
        "rows_with_false_negatives": float((theirs > 0).mean()),
    }


def drop_tokens(words: np.ndarray, rate: float, *, seed: int, step: int) -> np.ndarray:
    """`words` int32 [..., L], zero-padded, with each word left out with probability `rate`.

    What is left moves together; a question that would lose all its words keeps them.
    """
    rng = np.random.default_rng([seed, step, _DROPOUT])
    kept = (words > 0) & (rng.random(words.shape, np.float32) >= rate)
    kept |= (words > 0) & ~kept.any(axis=-1, keepdims=True)
    first = np.argsort(~kept, axis=-1, kind="stable")
    return np.take_along_axis(np.where(kept, words, 0), first, axis=-1)
