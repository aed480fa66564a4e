"""The layout of a batch: blocks of questions of similar length, in few fixed shapes.

Questions have about ten tokens and at most several dozen: padding all to the longest would waste
most of the work. The questions of a batch are sorted by length and cut into blocks whose sizes
and widths are planned from the data, so that the step compiles once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from qpr_jax.text.base import NO_PARTS, Parts

Array: TypeAlias = np.ndarray | jax.Array

MAX_BLOCKS = 8
# On the mean. A smaller block takes as long to compile, and saves hardly any padding.
BLOCK_ROWS = 16
SAMPLED_BATCHES = 256


def lengths_of(token_ids: np.ndarray) -> np.ndarray:
    """Tokens of each question of `token_ids` [..., L]; 1 for an empty one, which reads padding."""
    return np.maximum((token_ids > 0).sum(axis=-1, dtype=np.int32), 1)


class ShareTokens(NamedTuple):
    """The distinct tokens of a device's share, and the rows of the embedding table for them.

    `tokens` int [U] ascend, the first is 0; `rows` [U] are theirs, 0 for sums. `part_rows` [P] are
    added to the tokens at `part_tokens` [P]. `limits` [U] are of the sums, 0 for other tokens.
    """

    tokens: np.ndarray
    rows: np.ndarray
    part_rows: np.ndarray
    part_tokens: np.ndarray
    limits: np.ndarray


class BatchShape(NamedTuple):
    """The shape of a batch on a device: rows and width of blocks, distinct tokens, their parts."""

    blocks: tuple[tuple[int, int], ...]
    unique_ids: int
    parts: int

    def holds(self, lengths: np.ndarray, tokens: Sequence[ShareTokens]) -> bool:
        """Whether it holds shares of these tokens, whose i-th shortest row has length i."""
        ends = np.cumsum([rows for rows, _ in self.blocks])
        return bool(
            np.all(lengths[ends - 1] <= [width for _, width in self.blocks])
            and all(len(share.tokens) <= self.unique_ids for share in tokens)
            and all(len(share.part_rows) <= self.parts for share in tokens)
        )


class Batch(NamedTuple):
    """One batch. The first axis of each array holds the shares of all devices, one after another.

    A share has r = n + m + 2l + s (k + 1) questions: n queries, m candidates, l labeled pairs, s
    queries of lists, and k candidates of each list.
    """

    # int32 [devices * U], the row of each distinct token of a share in the embedding table; 0 for
    # padding, which comes first, and for tokens that are sums of rows.
    unique_ids: Array
    blocks: tuple[Array, ...]  # int32 [devices * n_b, L_b] each, positions in `unique_ids`
    # int32 [devices * r], the row of each question in the concatenated blocks of its share:
    # queries, candidates, first and second questions of labeled pairs, queries of lists, candidates
    # of the first list, of the second, and so on.
    order: Array
    clusters: Array  # int32 [devices * m], the cluster of each candidate, -1 for none
    labels: Array  # int32 [devices * l], 1 for labeled pairs that are duplicates, else 0
    list_scores: Array  # float32 [devices * s, k], of the candidates of lists; s is 0 without any
    targets: Array  # float32 [devices * r, d], vectors of the teacher; d is 0 without one
    part_rows: Array  # int32 [devices * P], rows of the table that tokens are sums of
    part_tokens: Array  # int32 [devices * P], the position in `unique_ids` that each is added to
    limits: Array  # float32 [devices * U], of the sums, as in `Parts`; 0 for other tokens

    @property
    def sums(self) -> tuple[Array, Array, Array] | None:
        """`part_rows`, `part_tokens` and `limits`; None if no token is a sum."""
        parts = self.part_rows, self.part_tokens, self.limits
        return parts if len(self.part_rows) else None

    def split(self, vectors: jax.Array) -> list[jax.Array]:
        """Split the vectors of a share: [n, d], [m, d], [l, d], [l, d] and [s (k + 1), d]."""
        candidates, labeled = len(self.clusters), len(self.labels)
        listed = len(self.list_scores) + self.list_scores.size
        queries = len(vectors) - candidates - 2 * labeled - listed
        sizes = (queries, candidates, labeled, labeled)
        return jnp.split(vectors, list(itertools.accumulate(sizes)))


class Layout(NamedTuple):
    """Lays out batches of one kind."""

    shapes: tuple[BatchShape, ...]  # from the tightest to one that holds any batch
    vocabulary_size: int  # token ids from here on are sums of rows, of `parts`
    parts: Parts

    def batch(
        self,
        token_ids: np.ndarray,
        clusters: np.ndarray,
        labels: np.ndarray,
        list_scores: np.ndarray,
        targets: np.ndarray,
        own: slice,
    ) -> Batch:
        """Lay out the questions of `own` devices, in the first shape that fits all shares.

        Args:
          token_ids: int32 [devices, r, L], in the order of `Batch.order`.
          clusters: int32 [devices, m], of the candidates.
          labels: int32 [devices, l], of the labeled pairs.
          list_scores: float32 [devices, s, k], of the candidates of lists.
          targets: float32 [own devices, r, d].
          own: the devices whose shares are laid out.
        """
        lengths = lengths_of(token_ids)
        tokens = [_distinct_tokens(share, self.vocabulary_size, self.parts) for share in token_ids]
        longest = np.sort(lengths).max(axis=0)
        shape = next(shape for shape in self.shapes if shape.holds(longest, tokens))
        token_ids, lengths, tokens = token_ids[own], lengths[own], tokens[own]
        devices, rows = lengths.shape
        order = np.zeros((devices, rows), np.int32)
        blocks = [np.zeros((devices, *block), np.int32) for block in shape.blocks]
        position = np.zeros(self.vocabulary_size + self.parts.tokens, np.int32)
        for device, share in enumerate(tokens):
            position[share.tokens] = np.arange(len(share.tokens))
            ascending = np.argsort(lengths[device], kind="stable")
            order[device, ascending] = np.arange(rows)
            start = 0
            for block in blocks:
                _, count, width = block.shape
                chosen = ascending[start : start + count]
                block[device] = position[token_ids[device, chosen, :width]]
                start += count
        return Batch(
            unique_ids=_padded([share.rows for share in tokens], shape.unique_ids),
            blocks=tuple(block.reshape(-1, block.shape[2]) for block in blocks),
            order=order.ravel(),
            clusters=clusters[own].astype(np.int32).ravel(),
            labels=labels[own].astype(np.int32).ravel(),
            list_scores=list_scores[own].reshape(-1, list_scores.shape[2]),
            targets=targets.reshape(devices * rows, targets.shape[2]),
            part_rows=_padded([share.part_rows for share in tokens], shape.parts),
            part_tokens=_padded([share.part_tokens for share in tokens], shape.parts),
            limits=_padded([share.limits for share in tokens], shape.unique_ids, np.float32),
        )


def _padded(rows: Sequence[np.ndarray], size: int, dtype: type = np.int32) -> np.ndarray:
    """Rows of at most this size, each padded with zeros, one after another."""
    padded: np.ndarray = np.zeros((len(rows), size), dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded.ravel()


def plan_layout(
    token_ids_at: Callable[[int], np.ndarray],
    *,
    steps: int,
    vocabulary_size: int,
    blocks: int = MAX_BLOCKS,
    parts: Parts = NO_PARTS,
) -> Layout:
    """Plan the shapes of a batch.

    The tightest holds the batches sampled from the `steps` of an epoch, with a little room. A batch
    that does not fit takes the next shape, which compiles once more.

    token_ids_at: a function from a step to its token ids, int32 [devices, rows, L].
    blocks: the most blocks; each is compiled separately.
    """
    _, rows, widest = token_ids_at(0).shape
    longest = np.ones(rows, np.int32)
    counts = []  # of distinct tokens and of their parts
    for step in np.linspace(0, steps - 1, min(steps, SAMPLED_BATCHES)).astype(int):
        token_ids = token_ids_at(int(step))
        longest = np.maximum(longest, np.sort(lengths_of(token_ids)).max(axis=0))
        for share in token_ids:
            found = _distinct_tokens(share, vocabulary_size, parts)
            counts.append((len(found.tokens), len(found.part_rows)))
    tokens, summed = np.max(counts, axis=0).tolist()
    longest = np.minimum(longest + 1, widest)
    ends = _cheapest_ends(longest, min(blocks, max(1, rows // BLOCK_ROWS)))
    sizes = [b - a for a, b in itertools.pairwise([0, *ends])]
    widths = [int(longest[end - 1]) for end in ends[:-1]] + [widest]
    most_tokens = min(vocabulary_size + parts.tokens, rows * widest + 1)
    longest_sum = int(np.diff(parts.offsets).max(initial=0))
    most_parts = min(len(parts.rows), rows * widest * longest_sum)

    def shape(widths: Sequence[int], factor: float, more: int) -> BatchShape:
        def room(count: int, limit: int) -> int:
            return min(math.ceil((factor * count + more) / 64) * 64, limit)

        planned = tuple(zip(sizes, widths, strict=True))
        return BatchShape(planned, room(tokens, most_tokens), room(summed, most_parts))

    tight = shape(widths, 1, 32)
    roomy = shape([*widths[1:], widest], 1.5, 256)
    any_batch = BatchShape(((rows, widest),), most_tokens, most_parts)
    return Layout((tight, roomy, any_batch), vocabulary_size, parts)


def _distinct_tokens(token_ids: np.ndarray, vocabulary_size: int, parts: Parts) -> ShareTokens:
    seen = np.zeros(vocabulary_size + parts.tokens, bool)
    seen[0] = True
    seen[token_ids[token_ids > 0]] = True  # most are padding
    tokens = np.flatnonzero(seen)
    known = int(np.searchsorted(tokens, vocabulary_size))
    own = parts.take(tokens[known:] - vocabulary_size)
    rows = np.where(tokens < vocabulary_size, tokens, 0)
    places = np.repeat(np.arange(known, len(tokens)), np.diff(own.offsets))
    limits = np.concatenate([np.zeros(known, np.float32), own.limits])
    return ShareTokens(tokens, rows, own.rows, places, limits)


def _cheapest_ends(longest: np.ndarray, blocks: int) -> list[int]:
    """The ends of at most `blocks` blocks of sorted rows with the least padding in all.

    longest: int [rows], the width that the i-th shortest row needs.
    """
    ends = np.unique(np.linspace(0, len(longest), min(len(longest), 64) + 1).astype(int)).tolist()
    # cheapest[j]: (cost, ends) of the blocks, one more in each round, over the first ends[j] rows.
    cheapest: list[tuple[float, list[int]]] = [(0, [])] + [(math.inf, [])] * (len(ends) - 1)
    for _ in range(blocks):
        cheapest = [(0, [])] + [
            min(
                (cost + (end - start) * int(longest[end - 1]), [*before, end])
                for start, (cost, before) in zip(ends[:j], cheapest[:j], strict=True)
            )
            for j, end in enumerate(ends[1:], start=1)
        ]
    return cheapest[-1][1]
