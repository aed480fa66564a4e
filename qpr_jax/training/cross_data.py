"""What a cross-encoder learns and is scored by: hits of the first stage, pairs, batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.splits import TRAIN, SplitData, group_questions
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.retrieval import exact_search, first_scores, rank
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.vectors import Vectors
from qpr_jax.reranking.cross_encoder import WIDTHS, CrossEncoder
from qpr_jax.training.sections import refuse_if
from qpr_jax.training.teacher import cached_vectors

_SPARE = 10  # further hits, since some are paraphrases
_BLOCK = 4096  # queries searched at once
_POOL = 64  # batches whose pairs are sorted by length at once


class Validation(NamedTuple):
    """Queries of the validation split, and their first-stage hits, which are reordered."""

    queries: np.ndarray  # int64 [n], rows of questions
    hits: np.ndarray  # int64 [n, h], rows of other questions, nearest first, padded with -1
    relevant: np.ndarray  # bool [n, h], which hits are of the query's cluster


def find_hits(split: SplitData, encoder: Encoder, count: int) -> tuple[np.ndarray, Validation]:
    """Search with the first stage, whose vectors are cached.

    Returns:
      Negatives, int64 [Q, count]: of each clustered training question the nearest training ones of
      other clusters, padded with -1; and the validation queries with `count` hits.
    """
    clusters, vectors = split.clusters, cached_vectors(encoder, split.data.questions)
    queries = np.unique(split.splits.pairs["validation"][:, 0]).astype(np.int64)
    hits = rank(exact_search(vectors), queries, count)
    relevant = (hits >= 0) & (clusters[queries][:, None] == clusters[hits])
    return _negatives(split, vectors, count), Validation(queries, hits, relevant)


def rerank_scores(
    model: CrossEncoder, questions: Sequence[str], validation: Validation
) -> tuple[dict[str, float], np.ndarray]:
    """Compute `first_scores` of the hits sorted by logit, and the logits, [n, h], -inf for none."""
    known = validation.hits >= 0
    queries = np.broadcast_to(validation.queries[:, None], known.shape)[known].tolist()
    hits = validation.hits[known].tolist()
    logits = np.full(known.shape, -np.inf)
    logits[known] = model.predict(
        [(questions[a], questions[b]) for a, b in zip(queries, hits, strict=True)]
    )
    order = np.argsort(-logits, axis=1, kind="stable")
    return first_scores(np.take_along_axis(validation.relevant, order, axis=1)), logits


def _negatives(split: SplitData, vectors: np.ndarray, count: int) -> np.ndarray:
    """Find the negatives of `find_hits`; leaves out hits with the same words as the query."""
    groups = group_questions(split.data.questions, split.clusters)
    trained = np.flatnonzero(split.splits.split_of == TRAIN)
    queries = trained[split.clusters[trained] >= 0]
    index = Vectors.build(Recipe(), vectors[trained])
    found = np.full((len(vectors), count), -1, np.int64)
    for start in range(0, len(queries), _BLOCK):
        rows = queries[start : start + _BLOCK]
        hits = index.search(vectors[rows], min(count + _SPARE, len(trained)))[1]
        hits = np.where(hits < 0, -1, trained[hits])
        same = (hits < 0) | (groups[hits] == groups[rows][:, None])
        others = np.take_along_axis(hits, np.argsort(same, axis=1, kind="stable"), axis=1)
        others[np.sort(same, axis=1)] = -1
        found[rows, : others.shape[1]] = others[:, :count]
    return found


def draw_pairs(
    clusters: np.ndarray,
    hits: np.ndarray,
    non_duplicates: np.ndarray,
    *,
    count: int,
    negatives: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw at least `count` pairs, in rounds: rows, int32 [n, 2], and labels, float32 [n].

    A round has for each cluster, whatever its size, a positive pair of two random questions, and
    negative pairs of the first of the two and some of its hits; and all non-duplicates, in random
    order of the two questions.

    clusters: int [Q], -1 for a question without a cluster or of another split.
    hits: int [Q, h], rows of hits of other clusters, padded with -1; `negatives` of them are drawn.
    non_duplicates: int [m, 2], pairs labeled so.
    """
    rng = np.random.default_rng(seed)
    members = np.flatnonzero(clusters >= 0)
    members = members[np.argsort(clusters[members], kind="stable")]
    sizes = np.unique(clusters[members], return_counts=True)[1]
    starts = (np.cumsum(sizes) - sizes)[sizes > 1]
    sizes = sizes[sizes > 1]
    what = "expected training questions with a known paraphrase, got none"
    remedy = "lower it, or give more pairs labeled as duplicates"
    refuse_if(not len(sizes), "data.held_out_pairs", what, remedy)
    alone = not len(non_duplicates) and not (hits[members] >= 0).any()
    what = "expected pairs labeled as non-duplicates, or hits of other clusters, got neither"
    refuse_if(alone, "data.path", what, "give labeled non-duplicates, or more training questions")
    rows, labels, drawn = [], [], 0
    while drawn < count:
        first = rng.integers(sizes)
        second = (first + 1 + rng.integers(sizes - 1)) % sizes  # another one
        queries, same = members[starts + first], members[starts + second]
        # The `negatives` hits with the smallest keys: a draw without replacement.
        keys = rng.random((len(queries), hits.shape[1])) + 2 * (hits[queries] < 0)
        chosen = np.argsort(keys, axis=1)[:, :negatives]
        others = np.take_along_axis(hits[queries], chosen, axis=1)
        swapped = rng.random((len(non_duplicates), 1)) < 0.5
        labeled = np.where(swapped, non_duplicates, non_duplicates[:, ::-1])
        far = np.stack([np.repeat(queries, chosen.shape[1]), others.reshape(-1)], axis=1)
        parts = [np.stack([queries, same], axis=1), far[far[:, 1] >= 0], labeled]
        kinds = np.repeat(np.array([1, 0, 0], np.float32), [len(part) for part in parts])
        order = rng.permutation(len(kinds))
        rows.append(np.concatenate(parts).astype(np.int32)[order])
        labels.append(kinds[order])
        drawn += len(kinds)
    return np.concatenate(rows), np.concatenate(labels)


def batches_by_length(lengths: np.ndarray, batch_size: int, *, seed: int) -> np.ndarray:
    """Divide pairs into batches of similar length: int64 [b, batch_size], positions of pairs.

    A pool of consecutive pairs, of these `lengths`, int [n], is sorted by length and cut into
    batches, which are shuffled. So few tokens are padding, and each part of the training has all
    lengths. An incomplete batch at the end is left out.
    """
    rng = np.random.default_rng([seed, 1])
    whole = len(lengths) - len(lengths) % batch_size
    batches = []
    for start in range(0, whole, _POOL * batch_size):
        pool = np.arange(start, min(start + _POOL * batch_size, whole))
        ordered = pool[np.argsort(lengths[pool], kind="stable")].reshape(-1, batch_size)
        batches.append(ordered[rng.permutation(len(ordered))])
    return np.concatenate(batches)


def lay_out_pairs(
    rows: np.ndarray, token_ids: Sequence[Sequence[int]], max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Make token ids, padded with -1, and segments of pairs, int [n, 2]: int32 [n, L] both.

    L is one of `WIDTHS`, and `max_tokens`, which no pair exceeds, at most. token_ids: of each
    question, with [CLS] and [SEP]; [CLS] is left out of the second question.
    """
    pairs = [(token_ids[a], token_ids[b]) for a, b in rows.tolist()]
    longest = max(len(a) + len(b) - 1 for a, b in pairs)
    width = min(next((width for width in WIDTHS if width >= longest), longest), max_tokens)
    ids = np.full((len(pairs), width), -1, np.int32)
    segments = np.zeros((len(pairs), width), np.int32)
    for i, (a, b) in enumerate(pairs):
        end = len(a) + len(b) - 1
        ids[i, : len(a)], ids[i, len(a) : end] = a, b[1:]
        segments[i, len(a) : end] = 1
    return ids, segments
