"""The tokens of questions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class SubwordBags(NamedTuple):
    """Tokens without a row of their own: the embedding of each is the sum of several rows.

    Token i of M has the rows `rows[offsets[i] : offsets[i + 1]]`, int32 and int64. Its id is the
    size of the embedding table plus i. A sum whose norm is above its limit, of `limits` float32 [M]
    in units of `models.embedding_norm`, is scaled to it.
    """

    rows: np.ndarray
    offsets: np.ndarray
    limits: np.ndarray

    @property
    def tokens(self) -> int:
        """How many tokens these are, M."""
        return len(self.offsets) - 1

    def take(self, tokens: np.ndarray) -> SubwordBags:
        """Return the rows of some of the tokens, int [m], in this order."""
        lengths = np.diff(self.offsets)[tokens]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        at = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[tokens], lengths)
        return SubwordBags(self.rows[at], offsets, self.limits[tokens])

    def joined(self, others: SubwordBags) -> SubwordBags:
        """These tokens, then others."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + others.offsets[1:]])
        limits = np.concatenate([self.limits, others.limits])
        return SubwordBags(np.concatenate([self.rows, others.rows]), offsets, limits)


NO_BAGS = SubwordBags(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.float32))


class TokenIds(NamedTuple):
    """The tokens of n questions, int32 [tokens].

    Those of question i are at offsets[i] to offsets[i + 1], int64 [n + 1]. truncated: how many
    questions lost tokens. parts: of the ids that are not rows of the table.
    """

    ids: np.ndarray
    offsets: np.ndarray
    truncated: int
    parts: SubwordBags = NO_BAGS

    def padded(self) -> np.ndarray:
        """Return the ids of each question, int32 [n, L], padded with 0.

        L is the longest, 1 or more.
        """
        lengths = np.diff(self.offsets)
        width = max(1, int(lengths.max(initial=0)))
        rows = np.zeros((len(lengths), width), np.int32)
        rows[np.arange(width) < lengths[:, None]] = self.ids
        return rows
