"""Batches: what the objectives draw, and its tokens in blocks of questions of similar length.

Questions have about ten tokens and at most several dozen: padding all to the longest would waste
most of the work. The questions of a batch are sorted by length and cut into blocks whose sizes
and widths are planned from the data, so that the step compiles once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.text.tokenizer import NO_BAGS, SubwordBags
from qpr_jax.training import distributed, draws
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.draws import Objective
from qpr_jax.training.model_families import family_of
from qpr_jax.training.train_data import TrainDataset

Array: TypeAlias = np.ndarray | jax.Array

MAX_BLOCKS = 8
# On the mean. A smaller block takes as long to compile, and saves hardly any padding.
BLOCK_ROWS = 16
SAMPLED_BATCHES = 256


class Tokens(NamedTuple):
    """The tokens of a batch. The first axis of each array holds the shares of all devices."""

    # int32 [devices * U], the row of each distinct token of a share in the embedding table; 0 for
    # padding, which comes first, and for tokens that are sums of rows.
    unique_ids: Array
    part_rows: Array  # int32 [devices * P], rows of the table that tokens are sums of
    part_tokens: Array  # int32 [devices * P], the position in `unique_ids` that each is added to
    limits: Array  # float32 [devices * U], of the sums, as in `SubwordBags`; 0 for other tokens
    blocks: tuple[Array, ...] = ()  # int32 [devices * n_b, L_b] each, positions in `unique_ids`

    @property
    def sums(self) -> tuple[Array, Array, Array] | None:
        """`part_rows`, `part_tokens` and `limits`; None if no token is a sum."""
        return self[1:4] if len(self.part_rows) else None


class Batch(NamedTuple):
    """What a step reads. The first axis of each array holds the shares of all devices."""

    tokens: Tokens
    # What is drawn, by name: int32, the row of each question in the concatenated blocks of a share.
    rows: Mapping[str, Array]
    facts: Mapping[str, Array]  # what is known of the rows, by name
    targets: Array  # float32 [devices * r, d], the teacher's vectors of the blocks; d may be 0


class Shape(NamedTuple):
    """The shape of a batch on a device: rows and width of blocks, distinct tokens, their parts."""

    blocks: tuple[tuple[int, int], ...]
    unique_ids: int
    parts: int


class Layout(NamedTuple):
    """Pads the tokens of batches to one of few shapes."""

    shapes: tuple[Shape, ...]  # from the tightest to one that holds any batch
    vocabulary_size: int  # token ids from here on are sums of rows, of `parts`
    parts: SubwordBags

    def pad(self, token_ids: np.ndarray, devices: slice = slice(None)) -> tuple[Tokens, np.ndarray]:
        """Pad the shares of some `devices`, in the first shape that fits those of all.

        token_ids: int32 [devices, r, L].

        Returns the tokens, and where each question stands in the blocks, int32 [devices, r].
        """
        lengths = lengths_of(token_ids)
        shares = [_distinct_tokens(share, self.vocabulary_size, self.parts) for share in token_ids]
        longest = np.sort(lengths).max(axis=0)
        shape = next(shape for shape in self.shapes if _holds(shape, longest, shares))
        token_ids, lengths, shares = token_ids[devices], lengths[devices], shares[devices]
        order = np.zeros(lengths.shape, np.int32)
        blocks = [np.zeros((len(order), *block), np.int32) for block in shape.blocks]
        position = np.zeros(self.vocabulary_size + self.parts.tokens, np.int32)
        for device, (distinct, _) in enumerate(shares):
            position[distinct] = np.arange(len(distinct))
            ascending = np.argsort(lengths[device], kind="stable")
            order[device, ascending] = np.arange(len(ascending))
            start = 0
            for block in blocks:
                _, count, width = block.shape
                rows = ascending[start : start + count]
                block[device] = position[token_ids[device, rows, :width]]
                start += count
        sizes = shape.unique_ids, shape.parts, shape.parts, shape.unique_ids
        columns = zip(*(tokens[:4] for _, tokens in shares), strict=True)
        padded: list[Any] = [*map(_padded, columns, sizes)]
        joined = tuple(block.reshape(-1, block.shape[2]) for block in blocks)
        return Tokens(*padded)._replace(blocks=joined), order


class Loader:
    """The batches of objectives that have the same steps, functions of the seed and of the step.

    Attributes:
      layout: pads the tokens.
      pairs: how many there are in a batch, or half its questions.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: TrainDataset,
        objectives: Sequence[Objective],
        *,
        devices: int,
        loaded: slice = slice(None),
    ) -> None:
        """Plan the shapes of batches that `devices` share, some of which are of this process."""
        self._config, self._dataset, self._loaded = config, dataset, loaded
        self._draws = [*dict.fromkeys(objective.draw for objective in objectives)]
        self._start, self._devices = objectives[0].steps.start, devices
        self._teacher = dataset.teacher if any(o.reads_teacher for o in objectives) else None
        rows, _ = self.draw(self._start)
        for name, drawn in rows.items():
            each = 4 if name == "listed" else 1  # a list for each four pairs
            distributed.require_shares("batch_size", each * len(drawn), each * devices)
        sizes = [drawn.size for drawn in rows.values()]
        self._ends = np.cumsum(sizes)[:-1]
        pairs = sum(len(rows[name]) for name in ("queries", "left") if name in rows)
        self.pairs = pairs or sum(sizes) // 2
        shares = np.split(np.arange(sum(sizes)), self._ends)
        self._places = np.concatenate([share.reshape(devices, -1) for share in shares], axis=1)
        self.layout = plan_layout(
            lambda step: self._token_ids(self._start + step, self.draw(self._start + step)[0]),
            steps=objectives[0].draw.epoch,
            vocabulary_size=dataset.tokenizer.size,
            blocks=family_of(dataset.start).length_blocks,
            parts=dataset.parts,
        )

    def draw(self, step: int) -> tuple[draws.Arrays, draws.Arrays]:
        """Draw the rows of a step, and what is known of them."""
        rows: draws.Arrays = {}
        facts: draws.Arrays = {}
        for draw in self._draws:
            drawn = draw.at(step - self._start)
            rows |= drawn[0]
            facts |= drawn[1]
        return rows, facts

    def load(self, step: int) -> tuple[Batch, dict[str, float]]:
        """Load the batch of a step, of NumPy arrays, and its shares of false negatives."""
        rows, facts = self.draw(step)
        tokens, order = self.layout.pad(self._token_ids(step, rows), self._loaded)
        targets = np.zeros((order.size, 0), np.float32)
        if self._teacher:
            questions = np.concatenate([drawn.ravel() for drawn in rows.values()])
            in_blocks = np.empty_like(order)
            np.put_along_axis(in_blocks, order, questions[self._places[self._loaded]], axis=1)
            targets = self._teacher.targets(self._dataset.target_rows[in_blocks.ravel()])
        ends = self._ends // self._devices
        parts = zip(rows.items(), np.split(order, ends, axis=1), strict=True)
        placed = {name: part.reshape(-1, *drawn.shape[1:]) for (name, drawn), part in parts}
        batch = Batch(tokens, placed, {n: self._share(fact) for n, fact in facts.items()}, targets)
        if "clusters" not in facts:
            return batch, {}
        return batch, draws.false_negatives(facts["clusters"])

    def _share(self, array: np.ndarray) -> np.ndarray:
        """Take the part of this process's devices."""
        shares = array.reshape(self._devices, -1, *array.shape[1:])
        return shares[self._loaded].reshape(-1, *array.shape[1:])

    def _token_ids(self, step: int, rows: draws.Arrays) -> np.ndarray:
        """Token ids of each device's questions, int32 [devices, r, L]."""
        settings = self._config.batch
        stream = {"seed": self._config.seed, "step": step}
        questions = np.concatenate([drawn.ravel() for drawn in rows.values()])
        token_ids = self._dataset.token_ids.take(questions, axis=0)
        # Before the rows are split, so that it is the same on any number of devices.
        if rate := settings.token_dropout:
            ends = isinstance(self._dataset.start, TransformerEncoder)
            token_ids = draws.drop_tokens(token_ids, rate, keep_ends=ends, **stream)
        if rate := settings.subword_dropout:
            subwords = self._dataset.subword_ids
            token_ids = draws.drop_words(token_ids, rate, subwords, **stream)
        return token_ids[self._places]


def lengths_of(token_ids: np.ndarray) -> np.ndarray:
    """Tokens of each question of `token_ids` [..., L]; 1 for an empty one, which reads padding."""
    return np.maximum((token_ids > 0).sum(axis=-1, dtype=np.int32), 1)


def _padded(rows: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Return rows of at most this size, each padded with zeros, one after another."""
    padded = np.zeros((len(rows), size), rows[0].dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded.ravel()


def plan_layout(
    token_ids_at: Callable[[int], np.ndarray],
    *,
    steps: int,
    vocabulary_size: int,
    blocks: int = MAX_BLOCKS,
    parts: SubwordBags = NO_BAGS,
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
            distinct, tokens = _distinct_tokens(share, vocabulary_size, parts)
            counts.append((len(distinct), len(tokens.part_rows)))
    most, most_summed = np.max(counts, axis=0).tolist()
    longest = np.minimum(longest + 1, widest)
    ends = _cheapest_ends(longest, min(blocks, max(1, rows // BLOCK_ROWS)))
    sizes = [b - a for a, b in itertools.pairwise([0, *ends])]
    widths = [int(longest[end - 1]) for end in ends[:-1]] + [widest]
    most_tokens = min(vocabulary_size + parts.tokens, rows * widest + 1)
    longest_sum = int(np.diff(parts.offsets).max(initial=0))
    most_parts = min(len(parts.rows), rows * widest * longest_sum)

    def shape(widths: Sequence[int], factor: float, more: int) -> Shape:
        def room(count: int, limit: int) -> int:
            return min(math.ceil((factor * count + more) / 64) * 64, limit)

        planned = tuple(zip(sizes, widths, strict=True))
        return Shape(planned, room(most, most_tokens), room(most_summed, most_parts))

    tight = shape(widths, 1, 32)
    roomy = shape([*widths[1:], widest], 1.5, 256)
    any_batch = Shape(((rows, widest),), most_tokens, most_parts)
    return Layout((tight, roomy, any_batch), vocabulary_size, parts)


def _holds(shape: Shape, longest: np.ndarray, shares: Sequence[tuple[np.ndarray, Tokens]]) -> bool:
    """Return whether a shape holds shares of these tokens, whose i-th shortest row has length i."""
    ends = np.cumsum([rows for rows, _ in shape.blocks])
    return bool(
        np.all(longest[ends - 1] <= [width for _, width in shape.blocks])
        and all(len(distinct) <= shape.unique_ids for distinct, _ in shares)
        and all(len(tokens.part_rows) <= shape.parts for _, tokens in shares)
    )


def _distinct_tokens(
    token_ids: np.ndarray, vocabulary_size: int, parts: SubwordBags
) -> tuple[np.ndarray, Tokens]:
    """Return the distinct ids of a share, int [U], ascending, and what `Tokens` has of them."""
    seen = np.zeros(vocabulary_size + parts.tokens, bool)
    seen[0] = True
    seen[token_ids[token_ids > 0]] = True  # most are padding
    distinct = np.flatnonzero(seen)
    words = int(np.searchsorted(distinct, vocabulary_size))
    sums = parts.take(distinct[words:] - vocabulary_size)
    rows = np.where(distinct < vocabulary_size, distinct, 0).astype(np.int32)
    places = np.repeat(np.arange(words, len(distinct), dtype=np.int32), np.diff(sums.offsets))
    limits = np.concatenate([np.zeros(words, np.float32), sums.limits])
    return distinct, Tokens(rows, sums.rows, places, limits)


def _cheapest_ends(longest: np.ndarray, blocks: int) -> list[int]:
    """Return the ends of at most `blocks` blocks of sorted rows with the least padding in all.

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
