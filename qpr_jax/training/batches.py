"""The layout of a batch: blocks of questions of similar length, in few fixed shapes.

Questions have about ten tokens and at most several dozen: padding all to the longest would waste
most of the work. The questions of a batch are sorted by length and cut into blocks whose sizes
and widths are planned from the data, so that the step compiles once.
"""

from __future__ import annotations

import dataclasses
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


def unique_tokens(token_ids: np.ndarray, count: int) -> np.ndarray:
    """The distinct token ids, of ids less than `count`, ascending, the first of them 0."""
    seen = np.zeros(count, bool)
    seen[0] = True
    seen[token_ids[token_ids > 0]] = True  # most are padding
    return np.flatnonzero(seen)


class ShareTokens(NamedTuple):
    """The distinct tokens of a share, and the rows of the embedding table that they need.

    Attributes:
      tokens: int [U], ascending, the first 0.
      rows: int [U], the row of each token; 0 for tokens that are sums of rows.
      part_rows: int [P], the rows of those sums.
      part_tokens: int [P], the position in `tokens` of the token that each row is a part of.
    """

    tokens: np.ndarray
    rows: np.ndarray
    part_rows: np.ndarray
    part_tokens: np.ndarray


def tokens_of(token_ids: np.ndarray, vocabulary_size: int, parts: Parts) -> ShareTokens:
    """The distinct tokens of some questions; `parts` are of the ids from `vocabulary_size`."""
    tokens = unique_tokens(token_ids, vocabulary_size + parts.tokens)
    known = int(np.searchsorted(tokens, vocabulary_size))
    own = parts.take(tokens[known:] - vocabulary_size)
    rows = np.where(np.arange(len(tokens)) < known, tokens, 0)
    places = np.repeat(np.arange(known, len(tokens)), np.diff(own.offsets))
    return ShareTokens(tokens, rows, own.rows, places)


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The shape of a batch.

    Attributes:
      blocks: (rows, width) of each, on one device.
      unique_ids: distinct tokens of a device.
      parts: rows that a device adds for tokens that are sums of rows.
    """

    blocks: tuple[tuple[int, int], ...]
    unique_ids: int
    parts: int = 0

    @property
    def positions(self) -> int:
        """Positions that a device encodes, padding included."""
        return sum(rows * width for rows, width in self.blocks)


class Batch(NamedTuple):
    """One batch. The first axis of each array holds the shares of all devices, one after another.

    A share has r = n + m + 2l questions: n queries, m candidates, l labeled pairs.

    Attributes:
      unique_ids: int32 [devices * U], the row of each distinct token of a share in the embedding
        table; 0 for padding, which comes first, and for tokens that are sums of rows.
      blocks: int32 [devices * n_b, L_b] each, positions in the share's `unique_ids`.
      order: int32 [devices * r], the row of each question in the concatenated blocks of its share:
        queries, candidates, first and second questions of labeled pairs.
      clusters: int32 [devices * m], the cluster of each candidate, -1 for none.
      labels: int32 [devices * l], 1 for labeled pairs that are duplicates, else 0.
      targets: float32 [devices * r, d], vectors of the teacher; d is 0 without a teacher.
      part_rows: int32 [devices * P], rows of the table that tokens are sums of.
      part_tokens: int32 [devices * P], the position in `unique_ids` that each row is added to.
    """

    unique_ids: Array
    blocks: tuple[Array, ...]
    order: Array
    clusters: Array
    labels: Array
    targets: Array
    part_rows: Array
    part_tokens: Array

    @property
    def sums(self) -> tuple[Array, Array] | None:
        """`part_rows` and `part_tokens`; None if no token is a sum."""
        return (self.part_rows, self.part_tokens) if len(self.part_rows) else None

    def split(self, vectors: jax.Array) -> list[jax.Array]:
        """Split the vectors of a share, [r, d], into [n, d], [m, d], [l, d] and [l, d]."""
        candidates, labeled = len(self.clusters), len(self.labels)
        queries = len(vectors) - candidates - 2 * labeled
        sizes = (queries, candidates, labeled)
        return jnp.split(vectors, list(itertools.accumulate(sizes)))


def plan_shapes(
    token_ids_at: Callable[[int], np.ndarray],
    *,
    steps: int,
    vocabulary_size: int,
    blocks: int = MAX_BLOCKS,
    parts: Parts = NO_PARTS,
) -> tuple[BatchShape, ...]:
    """Plan the shapes of a batch, from the tightest to one that holds any batch.

    The tightest holds the batches sampled from the `steps` of an epoch, with a little room. A batch
    that does not fit takes the next shape, which compiles once more.

    Args:
      token_ids_at: a function from a step to its token ids, int32 [devices, rows, L].
      steps: of an epoch.
      vocabulary_size: ids from here on are sums of rows, of `parts`.
      blocks: the most blocks; each is compiled separately.
      parts: rows of the tokens that are sums.
    """
    sampled = np.linspace(0, steps - 1, min(steps, SAMPLED_BATCHES)).astype(int)
    _, rows, widest = token_ids_at(0).shape
    longest = np.ones(rows, np.int32)
    tokens, summed = 0, 0
    for step in sampled:
        token_ids = token_ids_at(int(step))
        longest = np.maximum(longest, np.sort(lengths_of(token_ids)).max(axis=0))
        for share in token_ids:
            found = tokens_of(share, vocabulary_size, parts)
            tokens = max(tokens, len(found.tokens))
            summed = max(summed, len(found.part_rows))

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

        return BatchShape(
            tuple(zip(sizes, widths, strict=True)),
            room(tokens, most_tokens),
            room(summed, most_parts),
        )

    tight = shape(widths, 1, 32)
    roomy = shape([*widths[1:], widest], 1.5, 256)
    return tight, roomy, BatchShape(((rows, widest),), most_tokens, most_parts)


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


def lay_out(
    token_ids: np.ndarray,
    clusters: np.ndarray,
    shapes: Sequence[BatchShape],
    *,
    vocabulary_size: int,
    own: slice = slice(None),
    lengths: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    targets: np.ndarray | None = None,
    parts: Parts = NO_PARTS,
) -> Batch:
    """Lay out the questions of this process's devices, in the first shape that fits all shares.

    Args:
      token_ids: int32 [devices, r, L], in the order of `Batch.order`.
      clusters: int32 [devices, m], of the candidates.
      shapes: from `plan_shapes`.
      vocabulary_size: ids from here on are sums of rows, of `parts`.
      own: the devices whose shares are laid out.
      lengths: int32 [devices, r], what `lengths_of` gives for `token_ids`, if it is known.
      labels: int32 [devices, l], of the labeled pairs, if there are any.
      targets: float32 [own devices, r, d], if there are any.
      parts: rows of the tokens that are sums.
    """
    rows = token_ids.shape[1]
    lengths = lengths_of(token_ids) if lengths is None else lengths
    tokens = [tokens_of(share, vocabulary_size, parts) for share in token_ids]
    shape = next(shape for shape in shapes if _fits(np.sort(lengths), tokens, shape))
    shares = [
        _lay_out_share(ids, share_lengths, share, shape, vocabulary_size + parts.tokens)
        for ids, share_lengths, share in zip(token_ids[own], lengths[own], tokens[own], strict=True)
    ]
    if labels is None:
        labels = np.zeros((len(token_ids), 0), np.int32)
    if targets is None:
        targets = np.zeros((len(shares), rows, 0), np.float32)
    unique_ids, blocks, order, part_rows, part_tokens = zip(*shares, strict=True)
    return Batch(
        unique_ids=np.concatenate(unique_ids),
        blocks=tuple(map(np.concatenate, zip(*blocks, strict=True))),
        order=np.concatenate(order),
        clusters=clusters[own].astype(np.int32).reshape(-1),
        labels=labels[own].astype(np.int32).reshape(-1),
        targets=targets.reshape(len(shares) * rows, targets.shape[2]),
        part_rows=np.concatenate(part_rows),
        part_tokens=np.concatenate(part_tokens),
    )


def _lay_out_share(
    token_ids: np.ndarray, lengths: np.ndarray, tokens: ShareTokens, shape: BatchShape, ids: int
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """`unique_ids`, `blocks`, `order`, `part_rows`, `part_tokens`; token ids are below `ids`."""
    ascending = np.argsort(lengths, kind="stable")
    order = np.empty(len(lengths), np.int32)
    order[ascending] = np.arange(len(lengths))
    position = np.zeros(ids, np.int32)
    position[tokens.tokens] = np.arange(len(tokens.tokens))
    ends = np.cumsum([count for count, _ in shape.blocks])[:-1]
    blocks = [
        position[token_ids[part, :width]]
        for part, (_, width) in zip(np.split(ascending, ends), shape.blocks, strict=True)
    ]
    return (
        _padded(tokens.rows, shape.unique_ids),
        blocks,
        order,
        _padded(tokens.part_rows, shape.parts),
        _padded(tokens.part_tokens, shape.parts),
    )


def _fits(lengths: np.ndarray, tokens: Sequence[ShareTokens], shape: BatchShape) -> bool:
    """Whether shares of these ascending lengths, [devices, r], and tokens fit a shape."""
    ends = np.cumsum([rows for rows, _ in shape.blocks])
    widths = [width for _, width in shape.blocks]
    return bool(
        np.all(lengths[:, ends - 1] <= widths)
        and all(len(share.tokens) <= shape.unique_ids for share in tokens)
        and all(len(share.part_rows) <= shape.parts for share in tokens)
    )


def _padded(ids: np.ndarray, size: int) -> np.ndarray:
    """These ids, then zeros: int32 [size]."""
    padded = np.zeros(size, np.int32)
    padded[: len(ids)] = ids
    return padded
