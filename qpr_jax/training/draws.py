"""Which questions a step reads, and which of their tokens: functions of seed and step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from qpr_jax.data.splits import TRAIN
from qpr_jax.training.config import TrainConfig, refuse_if
from qpr_jax.training.train_data import SortedLists, TrainDataset

# Streams of random numbers; plain pairs use [seed, epoch], beside these.
CLUSTERS, DROPOUT, DISTILLATION, LABELED, TRANSLATIONS, SUBWORDS, LISTS = range(1, 8)

TRANSLATED = 0.33  # share of the pairs that are sentences with translations

READ = 16  # candidates of a list that a step reads
MOST_QUESTIONS = 512  # of a batch of distillation alone
LEAST_DISTILLATION = 1_000  # steps, where there are no pairs to go on with

Arrays = dict[str, np.ndarray]


class Draw(NamedTuple):
    """What the steps read: arrays by name, whose first axis the devices share."""

    # (step, from 0) -> int32 rows of the dataset, and what is known of them.
    at: Callable[[int], tuple[Arrays, Arrays]]
    epoch: int  # steps that read the data once


class Objective(NamedTuple):
    """A term of the sum that a step minimizes."""

    name: str
    # (vectors [r, d] and batch of a device, random key, mapped axis) -> the mean over all devices.
    loss: Callable[..., jax.Array]
    draw: Draw  # what it reads; objectives with one draw read the same
    weight: float
    steps: range  # in which it counts, from 0
    reads_teacher: bool = False


def draw_pairs(config: TrainConfig, dataset: TrainDataset) -> Draw:
    """Draw N pairs, `queries` and `candidates` [N], with the `clusters` of the candidates.

    A third of them are sentences and their translations, if there are some.
    """
    pairs, seed = dataset.splits.pairs["train"], config.seed
    sentences = dataset.translation_pairs()
    # At least one pair of a batch is none of a sentence and its translation.
    translated = min(round(TRANSLATED * config.batch_size), config.batch_size - 1, len(sentences))
    size = config.batch_size - translated
    epoch = steps_per_epoch(len(pairs), size)
    if config.batch.sampling == "clusters":
        pairs_at = cluster_sampled_pairs(pairs, dataset.clusters[pairs[:, 0]], size, seed=seed)
    else:
        pairs_at = permuted_rows(pairs, size, seed=seed)
    if translated:
        sentences_at = permuted_rows(sentences, translated, seed=seed, stream=TRANSLATIONS)

    def at(step: int) -> tuple[Arrays, Arrays]:
        chosen = pairs_at(step)
        if translated:
            chosen = np.concatenate([chosen, sentences_at(step)])
        queries, candidates = chosen.T
        rows = {"queries": queries, "candidates": candidates}
        return rows, {"clusters": dataset.clusters[candidates]}

    return Draw(at, epoch)


def draw_labeled(config: TrainConfig, dataset: TrainDataset) -> Draw:
    """Draw labeled pairs: `left` and `right` [N], with `labels`, 1 for duplicates, else 0.

    Pairs labeled as non-duplicates that other pairs link as duplicates are left out.
    """
    data, others = dataset.data, dataset.splits.non_duplicates["train"]
    what = f"{','.join(config.loss.names)} reads pairs labeled as non-duplicates, but the training "
    what += "split has none"
    refuse_if(not len(others), "loss.names", what, "give labeled pairs, or another loss")
    same = data.pairs[data.is_duplicate]
    same = same[(dataset.splits.split_of[same] == TRAIN).all(axis=1)]
    labels = np.repeat([1, 0], [len(same), len(others)])
    labeled = np.column_stack([np.concatenate([same, others]), labels]).astype(np.int32)
    epoch = steps_per_epoch(len(labeled), config.batch_size)
    labeled_at = permuted_rows(labeled, config.batch_size, seed=config.seed, stream=LABELED)

    def at(step: int) -> tuple[Arrays, Arrays]:
        left, right, labels = labeled_at(step).T
        return {"left": left, "right": right}, {"labels": labels}

    return Draw(at, epoch)


def draw_lists(config: TrainConfig, lists: SortedLists) -> Draw:
    """Draw a list for each four pairs: `listed` [S], and `hits` and their `scores` [S, READ].

    The best hit is among them, the others are random.
    """
    count = config.batch_size // 4
    epoch = steps_per_epoch(len(lists.queries), count, what="training questions")

    def at(step: int) -> tuple[Arrays, Arrays]:
        rng = random_of(config.seed, LISTS, step)
        chosen = rng.choice(len(lists.queries), count, replace=False)
        scores = lists.scores[chosen]
        best = scores >= scores.max(axis=1, keepdims=True)
        places = (rng.random(scores.shape) - best).argsort(axis=1)[:, :READ]
        hits = np.take_along_axis(lists.candidates[chosen], places, axis=1).astype(np.int32)
        rows = {"listed": lists.queries[chosen].astype(np.int32), "hits": hits}
        return rows, {"scores": np.take_along_axis(scores, places, axis=1)}

    return Draw(at, epoch)


def draw_questions(config: TrainConfig, dataset: TrainDataset) -> Draw:
    """Draw trainable `questions`."""
    count, rows = min(config.batch_size, MOST_QUESTIONS), dataset.trainable_rows.astype(np.int32)
    epoch = steps_per_epoch(len(rows), count, what="questions")
    rows_at = permuted_rows(rows, count, seed=config.seed, stream=DISTILLATION)
    return Draw(lambda step: ({"questions": rows_at(step)}, {}), epoch)


def steps_per_epoch(rows: int, batch_size: int, *, what: str = "training pairs") -> int:
    """Full batches in an epoch; UserError if there is none."""
    refuse_if(
        rows < batch_size,
        "batch_size",
        f"expected at least one batch of {batch_size:,} {what}, got {rows:,}",
        f"lower it, or give more {what}",
    )
    return rows // batch_size


def permuted_rows(
    rows: np.ndarray, batch_size: int, *, seed: int, stream: int = 0
) -> Callable[[int], np.ndarray]:
    """A function from a step, counted from 0, to its `batch_size` of the `rows`, int32 [P, ...].

    Each epoch is another permutation, without the rows that do not fill a batch; each `stream` has
    its own ones.
    """
    steps = len(rows) // batch_size

    @functools.lru_cache(maxsize=1)
    def permutation(epoch: int) -> np.ndarray:
        rng = random_of(seed, stream, epoch) if stream else np.random.default_rng([seed, epoch])
        return rng.permutation(len(rows))

    def at(step: int) -> np.ndarray:
        epoch, number = divmod(step, steps)
        return rows[permutation(epoch)[number * batch_size : (number + 1) * batch_size]]

    return at


def cluster_sampled_pairs(
    pairs: np.ndarray, clusters: np.ndarray, batch_size: int, *, seed: int
) -> Callable[[int], np.ndarray]:
    """Like `permuted_rows`, with each cluster sampled equally often, however many pairs it has.

    A pass over the clusters is a permutation of them, with one random pair of each cluster, in
    either direction. `clusters`, int [P], are those of the pairs.
    """
    order = np.argsort(clusters, kind="stable")
    sizes = np.unique(clusters, return_counts=True)[1]
    starts = np.cumsum(sizes) - sizes

    @functools.lru_cache(maxsize=2)  # a batch may begin in one pass and end in the next
    def pairs_of_pass(number: int) -> np.ndarray:
        rng = random_of(seed, CLUSTERS, number)
        rows = rng.permutation(order[starts + rng.integers(0, sizes)])
        return np.where(rng.integers(0, 2, (len(rows), 1)) == 1, pairs[rows, ::-1], pairs[rows])

    def at(step: int) -> np.ndarray:
        first, end = step * batch_size, (step + 1) * batch_size
        start, stop = first // len(sizes), -(-end // len(sizes))
        passes = np.concatenate([pairs_of_pass(number) for number in range(start, stop)])
        return passes[first - start * len(sizes) :][:batch_size]

    return at


def false_negatives(clusters: np.ndarray) -> dict[str, float]:
    """The share of a query's other candidates that are of its cluster, and of queries with one.

    `clusters` int [n], 0, 1, ... or -1, are those of the candidates, and of their queries.
    """
    sizes = np.bincount(clusters[clusters >= 0], minlength=1)
    same = np.where(clusters >= 0, sizes[clusters] - 1, 0)
    return {
        "false_negatives": float(same.mean() / max(1, len(clusters) - 1)),
        "rows_with_false_negatives": float((same > 0).mean()),
    }


def drop_tokens(
    token_ids: np.ndarray, rate: float, *, seed: int, step: int, keep_ends: bool = False
) -> np.ndarray:
    """Drop each token of `token_ids`, int32 [..., L], zero-padded, with probability `rate`.

    A question that would lose all its tokens keeps them. With `keep_ends` the first and the last
    token, [CLS] and [SEP], are never dropped. `step` is counted over the whole training.
    """
    present = token_ids > 0
    free = present
    if keep_ends:
        free = np.zeros_like(present)
        free[..., 1:-1] = present[..., 2:]
    drawn = free & (random_of(seed, DROPOUT, step).random(token_ids.shape, np.float32) >= rate)
    kept = np.where(free & drawn.any(axis=-1, keepdims=True), drawn, present)
    first = np.argsort(~kept, axis=-1, kind="stable")
    return np.take_along_axis(np.where(kept, token_ids, 0), first, axis=-1)


def drop_words(
    token_ids: np.ndarray, rate: float, subwords: np.ndarray, *, seed: int, step: int
) -> np.ndarray:
    """Replace each word of `token_ids` by the sum of its n-grams with probability `rate`.

    subwords: int32 [V], the id of that sum for each row of the embedding table, or the row itself.
    """
    rng = random_of(seed, SUBWORDS, step)
    chosen = (token_ids < len(subwords)) & (rng.random(token_ids.shape, np.float32) < rate)
    return np.where(chosen, subwords[np.where(chosen, token_ids, 0)], token_ids)


def random_of(seed: int, stream: int, number: int) -> np.random.Generator:
    """Return the random numbers of a step, an epoch or a pass, independent of any other stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, number)))
