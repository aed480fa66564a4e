"""What a model of pairs reads of a labeled table: distances, density and guards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from experiments.transfer_tables import Table
from qpr_jax.data.contrasts import contrasts
from qpr_jax.encoders.base import Encoder
from qpr_jax.models import unit_rows
from qpr_jax.reranking.guards import guards
from qpr_jax.reranking.plain import PlainModel, neighbor_distances
from qpr_jax.training.teacher import cached_vectors

NEAREST = 30  # of a text: pairs whose guards are read
CANDIDATES = 10  # of a text: pairs that a model is fitted to
HITS = 20  # of a query
CONTRASTED = 300  # texts of a table that contrasts are made of


class Contrasts(NamedTuple):
    """Texts of a table and near misses that are made of them by rule."""

    rows: np.ndarray  # int64 [k], of the texts
    distances: np.ndarray  # float64 [k], squared
    guards: np.ndarray  # float64 [k, guards]


class Evidence:
    """A table with its vectors by an encoder, which have length 1.

    Attributes:
      cosines: float32 [n, n], of the texts, -2 on the diagonal.
      to_queries: float32 [q, k], of the queries and the texts that are indexed.
    """

    def __init__(self, table: Table, encoder: Encoder) -> None:
        self.table, self.encoder = table, encoder
        vectors = unit_rows(np.asarray(cached_vectors(encoder, table.texts), np.float32))
        queries = unit_rows(np.asarray(cached_vectors(encoder, table.queries), np.float32))
        self.vectors, self.cosines = vectors, vectors @ vectors.T
        np.fill_diagonal(self.cosines, -2)
        self.to_queries = queries @ vectors[table.indexed].T
        self.first, self.second = np.triu_indices(len(table.texts), 1)

    @cached_property
    def same(self) -> np.ndarray:
        """Whether the texts of each pair of `first` and `second` mean the same: bool [P]."""
        groups = self.table.groups
        return np.asarray(groups[self.first] == groups[self.second])

    @cached_property
    def answers(self) -> np.ndarray:
        """Which indexed texts answer each query: bool [q, k]."""
        groups = self.table.groups[self.table.indexed]
        return np.asarray(self.table.answers[:, None] == groups[None])

    @cached_property
    def distances(self) -> np.ndarray:
        """The squared distances of the pairs: float32 [P]."""
        return 2 - 2 * self.of_pairs(self.cosines)

    def of_pairs(self, matrix: np.ndarray) -> np.ndarray:
        """Read a matrix [n, n] at the pairs: [P]."""
        return np.asarray(matrix[self.first, self.second])

    def among_nearest(self, count: int) -> np.ndarray:
        """Whether one text of each pair is among the `count` nearest of the other: bool [P]."""
        count = min(count, len(self.cosines) - 1)
        least = -np.partition(-self.cosines, count - 1, axis=1)[:, count - 1]
        near = self.of_pairs(self.cosines)
        return np.asarray(near >= np.minimum(least[self.first], least[self.second]))

    @cached_property
    def candidates(self) -> np.ndarray:
        """The pairs that a model is fitted to: bool [P]."""
        return self.among_nearest(CANDIDATES)

    @cached_property
    def near(self) -> np.ndarray:
        """The pairs whose guards are read, places in `first` and `second`: int64 [c]."""
        return np.flatnonzero(self.among_nearest(NEAREST))

    @cached_property
    def near_guards(self) -> np.ndarray:
        """Guards of the pairs `near`: float64 [c, guards]."""
        ends = (self.first[self.near], self.second[self.near])
        return guards(*([self.table.texts[i] for i in rows.tolist()] for rows in ends))

    @cached_property
    def hits(self) -> np.ndarray:
        """The first hits of each query, places in `Table.indexed`: int64 [q, HITS]."""
        return np.argsort(-self.to_queries, axis=1, kind="stable")[:, :HITS]

    @cached_property
    def hit_guards(self) -> np.ndarray:
        """Guards of queries and `hits`: float64 [q, HITS, guards]."""
        texts = [self.table.texts[row] for row in self.table.indexed[self.hits.ravel()].tolist()]
        queries = [query for query in self.table.queries for _ in range(self.hits.shape[1])]
        return guards(queries, texts).reshape(*self.hits.shape, -1)

    @cached_property
    def neighbors(self) -> np.ndarray:
        """The mean squared distances of texts and their neighbors: float64 [n]."""
        return neighbor_distances(self.vectors)

    def spreads(self, model: PlainModel, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the mean spreads of pairs of rows: float64 [m]."""
        spreads = model.spreads(self.neighbors)
        return np.asarray((spreads[first] + spreads[second]) / 2)

    @cached_property
    def contrasts(self) -> Contrasts:
        """Make contrasts, those that a guard sees."""
        rng, texts = random.Random(0), self.table.texts
        rows = rng.sample(range(len(texts)), min(CONTRASTED, len(texts)))
        near_misses = [(row, contrast) for row in rows for contrast in contrasts(texts[row], rng)]
        others = rng.choices(range(len(texts)), k=len(rows))
        for row, other in zip(rows, others, strict=True):
            if self.table.groups[row] != self.table.groups[other]:
                near_misses.append((row, f"{texts[row].rstrip('.!?')}. {texts[other]}"))
        if not near_misses:
            return Contrasts(np.zeros(0, np.int64), np.zeros(0), guards([], []))
        found = guards(
            [texts[row] for row, _ in near_misses], [contrast for _, contrast in near_misses]
        )
        seen = found.any(axis=1)
        places = np.array([row for row, _ in near_misses], np.int64)[seen]
        vectors = unit_rows(self.encoder.encode([contrast for _, contrast in near_misses]))[seen]
        cosines = (vectors * self.vectors[places]).sum(axis=1).astype(np.float64)
        return Contrasts(places, 2 - 2 * cosines, found[seen])


def join(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate rows of tables, and weigh them so that tables weigh equally, 1 in the mean."""
    joined = np.concatenate(parts)
    weights = [np.full(len(part), len(joined) / len(parts) / max(1, len(part))) for part in parts]
    return joined, np.concatenate(weights)
