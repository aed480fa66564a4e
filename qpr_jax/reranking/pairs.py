"""Scores by the light re-ranker of pairs found among all questions.

The re-ranker scores hits of a query. Here each text is a query, and its hits are the texts that it
was found in pairs with, nearest first. The score of a pair is the mean of its two directions, so
it is symmetric; if one of its texts was not compared with all others, it is that of the other.
Rows stand for texts in a canonical order, such as that of their texts: then the scores depend on
no order of the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.reranking.base import Lists, starts_of
from qpr_jax.reranking.features import FeatureExtractor
from qpr_jax.reranking.light import LightModel

_HITS = 1 << 18  # whose features are computed at once

# Raw scores, float64 [m], of features, float32 [m, f], of hits of the pairs of these numbers.
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


def score_pairs(
    model: LightModel,
    encoder: Encoder,
    texts: Sequence[str],
    first: np.ndarray,
    second: np.ndarray,
    distances: np.ndarray,
    *,
    complete: np.ndarray | None = None,
    needed: np.ndarray | None = None,
    score: Score | None = None,
) -> np.ndarray:
    """Compute the raw scores of all pairs within the reach of a calibration, float64 [P].

    A pair's score depends on the other pairs of its two texts: give all of them. Takes about 100
    bytes a pair.

    Args:
      model: the re-ranker, without a cross-encoder.
      encoder: the encoder of its distances.
      texts: N texts in canonical order.
      first, second: int [P], rows of the texts.
      distances: float32 [P], squared Euclidean.
      complete: bool [N], texts of which all pairs are given; None: all. A pair has one or two. The
        list of another text lacks hits, so its direction does not count.
      needed: bool [P], pairs to score; the others get 0 and only take part in the lists.
      score: other raw scores than those of the model, as of a cross-validation.
    """
    hits, pairs = _both_directions(len(texts), first, second, distances)
    complete = np.full(len(texts), True) if complete is None else complete
    needed = np.full(len(first), True) if needed is None else needed
    extractor = FeatureExtractor(encoder, model.frequencies, model.word_weights)
    score = score or (lambda features, _: model.scores(features))
    scores = np.zeros(len(first))
    lists = split_lists(np.diff(hits.starts), model.candidates)
    lists = lists[complete[lists[:, 0]]]
    # Only lists with a needed hit of their own.
    before, own_first = starts_of(needed[pairs]), hits.starts[lists[:, 0]] + lists[:, 1]
    lists = lists[before[own_first + lists[:, 3]] > before[own_first]]
    block = np.cumsum(lists[:, 2] + lists[:, 3]) // _HITS
    for own in np.split(lists, np.flatnonzero(np.diff(block)) + 1):
        rows, is_own, starts = _rows_of(own, hits.starts)
        is_own &= needed[pairs[rows]]
        features = extractor.compute(
            [texts[i] for i in own[:, 0].tolist()],
            [texts[i] for i in hits.rows[rows].tolist()],
            hits.distances[rows],
            starts,
        )
        found = pairs[rows[is_own]]
        directions = 1 + complete[hits.rows[rows[is_own]]]
        # Both directions of a pair may be among them.
        np.add.at(scores, found, score(features[is_own], found) / directions)
    return scores


def split_lists(counts: np.ndarray, most: int) -> np.ndarray:
    """Split lists of hits, nearest first, into lists of at most `most`.

    The first has the nearest. Each further one repeats the nearest half of `most`, which ranks and
    gaps are relative to, before hits of its own.

    Returns:
      int64 [l, 4], of each list: its text, the place of its first own hit among all of the text,
      how many hits it repeats, and how many are its own.
    """
    repeated = most // 2
    step = most - repeated
    further = np.maximum(0, -(-(counts - most) // step))
    owner = np.repeat(np.arange(len(counts)), 1 + further)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(1 + further) - 1 - further, 1 + further)
    first = np.where(nth == 0, 0, most + (nth - 1) * step)
    size = np.minimum(counts[owner] - first, np.where(nth == 0, most, step))
    lists = np.stack([owner, first, np.where(nth == 0, 0, repeated), size], axis=1)
    return lists[size > 0]


def _rows_of(lists: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the hits of lists, int64 [m], which are no repeated ones, and where each list begins.

    lists: as of `split_lists`. starts: of the hits of each text.
    """
    text, first, repeated, own = lists.T
    bounds = starts_of(repeated + own)
    owners = np.repeat(np.arange(len(lists)), repeated + own)
    places = np.arange(bounds[-1]) - bounds[owners]
    is_own = places >= repeated[owners]
    places += np.where(is_own, first[owners] - repeated[owners], 0)
    return starts[text[owners]] + places, is_own, bounds


def _both_directions(
    count: int, first: np.ndarray, second: np.ndarray, distances: np.ndarray
) -> tuple[Lists, np.ndarray]:
    """Make the lists of `count` texts, nearest first, and the pair of each hit, int64 [2 P].

    Of equal distances, the first text comes first.
    """
    owners = np.concatenate([first, second]).astype(np.int64)
    others = np.concatenate([second, first]).astype(np.int64)
    near = np.tile(np.asarray(distances, np.float32), 2)
    order = np.lexsort((others, near, owners))
    starts = starts_of(np.bincount(owners, minlength=count))
    lists = Lists(np.arange(count), starts, others[order], near[order])
    return lists, order % max(1, len(first))
