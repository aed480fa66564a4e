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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.text.base import NO_PARTS, Parts
from qpr_jax.training.distributed import AXIS, put

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

    @property
    def table_rows(self) -> np.ndarray:
        """All rows of the table that are read, with repetitions."""
        return np.concatenate([self.rows, self.part_rows])


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
      vocab_ids: distinct rows of the embedding table that the tokens of all devices read.
      parts: rows that a device adds for tokens that are sums of rows.
    """

    blocks: tuple[tuple[int, int], ...]
    unique_ids: int
    vocab_ids: int
    parts: int = 0

    @property
    def positions(self) -> int:
        """Positions that a device encodes, padding included."""
        return sum(rows * width for rows, width in self.blocks)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch, packed into three arrays, since each transfer to a device costs about the same.

    A share has r = n + m + 2l questions: n queries, m candidates, l labeled pairs. All that is
    int32 and split over the devices stands in `shares`, and is read by the properties, which stack
    the parts of the shares along their first axis.

    Attributes:
      vocab_ids: int32 [W], the distinct rows of the embedding table that the batch reads, the
        first 0 (padding), padded with 0.
      shares: int32 [devices, S], a row for each device, from `pack`.
      targets: float32 [devices * r, d], the teacher's vectors; d is 0 without a teacher.
      parts: the shapes of what a row of `shares` holds: U distinct tokens, r rows, m clusters, l
        labels, twice P rows of sums, then the blocks.
    """

    vocab_ids: np.ndarray | jax.Array
    shares: np.ndarray | jax.Array
    targets: np.ndarray | jax.Array
    parts: tuple[tuple[int, ...], ...] = dataclasses.field(metadata={"static": True})

    @property
    def unique_ids(self) -> np.ndarray | jax.Array:
        """Each share's distinct tokens as positions in `vocab_ids`: int32 [devices * U].

        The first of each share is 0, and so are tokens that are sums of rows.
        """
        return self._part(0)

    @property
    def order(self) -> np.ndarray | jax.Array:
        """The row of each question in the concatenated blocks of its share: int32 [devices * r].

        Queries, candidates, the first and the second questions of labeled pairs.
        """
        return self._part(1)

    @property
    def clusters(self) -> np.ndarray | jax.Array:
        """The cluster of each candidate, -1 for none: int32 [devices * m]."""
        return self._part(2)

    @property
    def labels(self) -> np.ndarray | jax.Array:
        """1 for labeled pairs that are duplicates, else 0: int32 [devices * l]."""
        return self._part(3)

    @property
    def blocks(self) -> tuple[np.ndarray | jax.Array, ...]:
        """Positions in the share's `unique_ids`: int32 [devices * n_b, L_b] each."""
        return tuple(map(self._part, range(6, len(self.parts))))

    @property
    def sums(self) -> tuple[np.ndarray | jax.Array, np.ndarray | jax.Array] | None:
        """The rows of tokens that are sums of rows, and their tokens; None if there are no such.

        Positions in `vocab_ids` and in the share's `unique_ids`: int32 [devices * P] each.
        """
        return (self._part(4), self._part(5)) if self.parts[4][0] else None

    def _part(self, number: int) -> np.ndarray | jax.Array:
        start, shape = sum(map(math.prod, self.parts[:number])), self.parts[number]
        return self.shares[:, start : start + math.prod(shape)].reshape(-1, *shape[1:])

    def split(self, vectors: jax.Array) -> list[jax.Array]:
        """Split the vectors of a share, [r, d], into [n, d], [m, d], [l, d] and [l, d]."""
        candidates, labeled = len(self.clusters), len(self.labels)
        queries = len(vectors) - candidates - 2 * labeled
        sizes = (queries, candidates, labeled)
        return jnp.split(vectors, list(itertools.accumulate(sizes)))

    def specs(self) -> Batch:
        """How a batch is split over devices: a tree of `PartitionSpec`."""
        split: Any = PartitionSpec(AXIS)
        whole: Any = PartitionSpec()
        return Batch(whole, split, split, self.parts)

    def placed(self, mesh: Mesh) -> Batch:
        """Place the batch on the devices of `mesh`; each process gives its own shares."""
        placed: Batch = put(self, mesh, self.specs())
        return placed


def pack(
    vocab_ids: np.ndarray, shares: Sequence[Sequence[np.ndarray]], targets: np.ndarray
) -> Batch:
    """Make a batch of the parts of each share, in the order of `Batch.parts`."""
    packed = [
        np.concatenate([part.ravel() for part in share], dtype=np.int32, casting="same_kind")
        for share in shares
    ]
    return Batch(vocab_ids, np.stack(packed), targets, tuple(part.shape for part in shares[0]))


def plan_shapes(
    token_ids_at: Callable[[int], np.ndarray],
    *,
    steps: int,
    vocabulary_size: int,
    blocks: int = MAX_BLOCKS,
    parts: Parts = NO_PARTS,
) -> tuple[BatchShape, ...]:
    """Plan the shapes of a batch, from the tightest to one that holds any batch.

    The tightest holds the batches sampled from the `steps` of an epoch, with a little room; a batch
    that does not fit takes the next one, which compiles once more. `token_ids_at` is a function
    from a step to the token ids of its questions, int32 [devices, rows, L]. Each of at most
    `blocks` blocks, fewer of few rows, is compiled separately. `parts` are of the token ids from
    `vocabulary_size`.
    """
    sampled = np.linspace(0, steps - 1, min(steps, SAMPLED_BATCHES)).astype(int)
    devices, rows, widest = token_ids_at(0).shape
    longest = np.ones(rows, np.int32)
    share, all_rows, share_parts = 0, 0, 0
    for step in sampled:
        token_ids = token_ids_at(int(step))
        longest = np.maximum(longest, np.sort(lengths_of(token_ids)).max(axis=0))
        shares = [tokens_of(share, vocabulary_size, parts) for share in token_ids]
        share = max(share, *(len(own.tokens) for own in shares))
        share_parts = max(share_parts, *(len(own.part_rows) for own in shares))
        all_rows = max(all_rows, len(_table_rows(shares)))

    longest = np.minimum(longest + 1, widest)
    ends = _cheapest_ends(longest, min(blocks, max(1, rows // BLOCK_ROWS)))
    sizes = [b - a for a, b in itertools.pairwise([0, *ends])]
    widths = [int(longest[end - 1]) for end in ends[:-1]] + [widest]
    any_share = min(vocabulary_size + parts.tokens, rows * widest + 1)
    longest_sum = int(np.diff(parts.offsets).max(initial=0))
    any_parts = min(len(parts.rows), rows * widest * longest_sum)
    any_rows = min(vocabulary_size, devices * rows * widest * max(1, longest_sum) + 1)

    def shape(widths: Sequence[int], factor: float, more: int) -> BatchShape:
        def room(count: int, limit: int) -> int:
            return min(math.ceil((factor * count + more) / 64) * 64, limit)

        unique, table_rows = room(share, any_share), room(all_rows, any_rows)
        sums = room(share_parts, any_parts) if parts.tokens else 0
        return BatchShape(tuple(zip(sizes, widths, strict=True)), unique, table_rows, sums)

    tight = shape(widths, 1, 32)
    roomy = shape([*widths[1:], widest], 1.5, 256)
    return tight, roomy, BatchShape(((rows, widest),), any_share, any_rows, any_parts)


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
    """Lay out the questions of each device, in the first shape that fits the shares of all.

    Args:
      token_ids: int32 [devices, r, L], in the order of `Batch.order`.
      clusters: int32 [devices, m], of the candidates.
      shapes: from `plan_shapes`.
      vocabulary_size: all token ids are smaller, but for those of `parts`.
      own: the devices whose shares are laid out.
      lengths: int32 [devices, r], what `lengths_of` gives for `token_ids`, if it is known.
      labels: int32 [devices, l], of the labeled pairs, if there are any.
      targets: float32 [own devices, r, d], if there are any.
      parts: of the token ids from `vocabulary_size`.
    """
    _, rows, _ = token_ids.shape
    if lengths is None:
        lengths = lengths_of(token_ids)
    ascending = np.argsort(lengths, axis=1, kind="stable")
    lengths = np.take_along_axis(lengths, ascending, axis=1)
    tokens = [tokens_of(share, vocabulary_size, parts) for share in token_ids]
    all_ids = _table_rows(tokens)
    shape = next(
        shape
        for shape in shapes
        if len(all_ids) <= shape.vocab_ids
        and all(len(share.tokens) <= shape.unique_ids for share in tokens)
        and all(len(share.part_rows) <= shape.parts for share in tokens)
        and all(_fits(share, shape) for share in lengths)
    )
    if labels is None:
        labels = np.zeros((len(clusters), 0), np.int32)
    position = np.zeros(vocabulary_size + parts.tokens, np.int32)
    ends = np.cumsum([count for count, _ in shape.blocks])[:-1]
    shares = []
    for device in range(len(token_ids))[own]:
        share, chosen = tokens[device], ascending[device]
        position[share.tokens] = np.arange(len(share.tokens))
        order = np.empty(rows, np.int32)
        order[chosen] = np.arange(rows)
        blocks = [
            position[token_ids[device, part, :width]]
            for part, (_, width) in zip(np.split(chosen, ends), shape.blocks, strict=True)
        ]
        unique_ids = _padded(np.searchsorted(all_ids, share.rows), shape.unique_ids)
        sums = (np.searchsorted(all_ids, share.part_rows), share.part_tokens)
        own_sums = [_padded(part, shape.parts) for part in sums]
        shares.append([unique_ids, order, clusters[device], labels[device], *own_sums, *blocks])
    if targets is None:
        targets = np.zeros((len(shares), rows, 0), np.float32)
    targets = targets.reshape(len(shares) * rows, targets.shape[2])
    return pack(_padded(all_ids, shape.vocab_ids), shares, targets)


def _table_rows(shares: Sequence[ShareTokens]) -> np.ndarray:
    """The distinct rows of the embedding table that the shares read, ascending, the first 0."""
    if len(shares) == 1 and shares[0].rows[-1] == shares[0].tokens[-1]:  # without sums
        return shares[0].rows
    return np.unique(np.concatenate([share.table_rows for share in shares]))


def _padded(ids: np.ndarray, size: int) -> np.ndarray:
    """These ids, then zeros: int32 [size]."""
    padded = np.zeros(size, np.int32)
    padded[: len(ids)] = ids
    return padded


def _fits(lengths: np.ndarray, shape: BatchShape) -> bool:
    """Whether rows of these ascending lengths fit the widths of the blocks."""
    ends = np.cumsum([rows for rows, _ in shape.blocks])
    return bool(np.all(lengths[ends - 1] <= [width for _, width in shape.blocks]))
